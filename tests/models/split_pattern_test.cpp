// The split patterns of published tokenizer families, over texts whose pieces follow from the
// pattern by hand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/json.h"
#include "models/pretokenizer.h"

namespace strata {
namespace {

using Pieces = std::vector<std::string>;

Pieces Cut(const std::string& section_json, const std::string& text) {
  const auto section = ParseJson(section_json, "test");
  return PreTokenizer(&section, "test").Split(text);
}

constexpr const char* kGpt2 = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";

constexpr const char* kLlama3 =
    R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":)"
    R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|)"
    R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},)"
    R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";

constexpr const char* kDeepseek =
    R"({"type":"Sequence","pretokenizers":[)"
    R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"\\p{N}{1,3}"}},)"
    R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"[一-龥぀-ゟ゠-ヿ]+"}},)"
    R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":)"
    R"("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|)"
    R"( ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},)"
    R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";

TEST(SplitPattern, Gpt2KeepsOneSpaceBeforeAWordAndNumbersWhole) {
  EXPECT_EQ(Cut(kGpt2, "Hello  world's 10%\n"),
            (Pieces{"Hello", " ", " world", "'s", " 10", "%", "\n"}));
  EXPECT_EQ(Cut(kGpt2, "DON'T"), (Pieces{"DON", "'", "T"}));  // contractions in lower case only
  EXPECT_EQ(Cut(kGpt2, "12345678"), (Pieces{"12345678"}));
}

TEST(SplitPattern, Llama3CutsNumbersByThreeAndContractionsInAnyCase) {
  EXPECT_EQ(Cut(kLlama3, "It's 12345 ok!!\n\n  x"),
            (Pieces{"It", "'s", " ", "123", "45", " ok", "!!\n\n", " ", " x"}));
  EXPECT_EQ(Cut(kLlama3, "DON'T"), (Pieces{"DON", "'T"}));
  EXPECT_EQ(Cut(kLlama3, "\u00e9t\u00e9 \u0661\u0662\u0663\u0664"),
            (Pieces{"\u00e9t\u00e9", " ", "\u0661\u0662\u0663", "\u0664"}));
}

TEST(SplitPattern, DeepseekCutsStepByStepSoThatALaterStepNeverSeesAcrossAnEarlierCut) {
  EXPECT_EQ(Cut(kDeepseek, "abc1234\u4f60\u597d.py \u4e2d"),
            (Pieces{"abc", "123", "4", "\u4f60\u597d", ".py", " ", "\u4e2d"}));
  EXPECT_EQ(Cut(kDeepseek, "e\u0301a ->\n\nb"), (Pieces{"e\u0301a", " ->\n\n", "b"}));
}

TEST(SplitPattern, BytesThatAreNoTextStandApartAndNoneIsLost) {
  EXPECT_EQ(Cut(kGpt2,
                "a\xFF"
                "b"),
            (Pieces{"a", "\xFF", "b"}));
  for (const char* section : {kGpt2, kLlama3, kDeepseek}) {
    for (const std::string& text :
         {std::string("a\xE4\xBD 1\xC3\xA9\xFF\xFE"), std::string("\xED\xA0\x80x", 4),
          std::string("\0 \0a", 4), std::string("\xF4\x90\x80\x80 9")}) {
      std::string joined;
      for (const std::string& piece : Cut(section, text)) joined += piece;
      EXPECT_EQ(joined, text) << section;
    }
  }
}

}  // namespace
}  // namespace strata
