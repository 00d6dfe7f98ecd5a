#include "models/tokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "models/json.h"
#include "models/pretokenizer.h"
#include "models/utf8.h"
#include "tests/models/model_fixture.h"

namespace strata {
namespace {

const Tokenizer& Shipped() {
  static const Tokenizer tokenizer = Tokenizer::Load(ShippedModel());
  return tokenizer;
}

TEST(Tokenizer, EncodesAndDecodesAsTheReferenceDoes) {
  const auto file = ParseJson(ReadTextFile(Golden("tiny-glm-dsa") / "tokenizer_cases.json"),
                              "tokenizer_cases.json");
  ASSERT_GE(file["cases"].size(), 43u);
  for (const auto& test : file["cases"]) {
    const std::string text = test["text"];
    SCOPED_TRACE(text);
    const auto ids = test["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(Shipped().Encode(text), ids);
    EXPECT_EQ(ReplaceInvalidUtf8(Shipped().Decode(ids)), test["decoded"].get<std::string>());
    EXPECT_EQ(ReplaceInvalidUtf8(Shipped().Decode(ids, true)),
              test["decoded_skip_special"].get<std::string>());
  }
}

TEST(Tokenizer, AnyBytesComeBackUnchanged) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    const size_t length = random() % 60;
    for (size_t i = 0; i < length; ++i)
      text += static_cast<char>(random() % (round % 2 ? 256 : 128));
    EXPECT_EQ(Shipped().Decode(Shipped().Encode(text, SpecialTokens::kAsText)), text);
  }
}

TEST(Tokenizer, SpecialTokensInUntrustedTextStayText) {
  const std::vector<int32_t> parsed = Shipped().Encode("<|user|>hi");
  const std::vector<int32_t> as_text = Shipped().Encode("<|user|>hi", SpecialTokens::kAsText);
  EXPECT_EQ(parsed.front(), 3);
  for (int32_t id : as_text) EXPECT_FALSE(Shipped().IsSpecial(id));
  EXPECT_EQ(Shipped().Decode(as_text), "<|user|>hi");
}

TEST(Tokenizer, StreamNeverSplitsACharacterAndEqualsTheWhole) {
  const std::string text = "caf\u00e9 \u4f60\u597d \U0001f468\u200d\U0001f469 end \u00bd";
  const std::vector<int32_t> ids = Shipped().Encode(text);
  Tokenizer::Stream stream(Shipped());
  std::string joined;
  for (int32_t id : ids) {
    const std::string piece = stream.Push(id);
    EXPECT_EQ(ReplaceInvalidUtf8(piece), piece);
    joined += piece;
  }
  joined += stream.Finish();
  EXPECT_EQ(joined, text);
}

TEST(Tokenizer, StreamReplacesWhatNeverBecomesACharacter) {
  const std::vector<int32_t> ids = Shipped().Encode(
      "\xE4\xBD"
      "A\xFF",
      SpecialTokens::kAsText);
  Tokenizer::Stream stream(Shipped());
  std::string joined;
  for (int32_t id : ids) joined += stream.Push(id);
  joined += stream.Finish();
  EXPECT_EQ(joined, "\uFFFDA\uFFFD");
  Tokenizer::Stream cut(Shipped());
  std::string rest;
  for (int32_t id : Shipped().Encode("x\xE4\xBD", SpecialTokens::kAsText)) rest += cut.Push(id);
  EXPECT_EQ(rest, "x");
  EXPECT_EQ(cut.Finish(), "\uFFFD");
}

TEST(Tokenizer, KnowsItsStartAndEndTokens) {
  EXPECT_EQ(Shipped().bos(), 0);
  EXPECT_EQ(Shipped().eos(), 0);
  EXPECT_TRUE(Shipped().adds_bos());
  EXPECT_EQ(Shipped().TokenId("<|assistant|>"), 4);
  EXPECT_EQ(Shipped().TokenId("no such token"), std::nullopt);
  EXPECT_EQ(Shipped().vocabulary(), 4096);
}

TEST(Tokenizer, LongRunsOfOneCharacterStayFast) {
  for (const std::string& unit :
       {std::string("a"), std::string(" "), std::string("\U0001f600"), std::string("\n")}) {
    std::string text;
    while (text.size() < 300000) text += unit;
    EXPECT_EQ(Shipped().Decode(Shipped().Encode(text)), text);
  }
}

// A vocabulary of the 256 bytes, a few merges, and what the test varies.
std::string TinyTokenizer(const std::string& pre_tokenizer, const std::string& extra_fields = "",
                          const std::string& merges = R"(["l o","lo w"])") {
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  int id = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    static int next;
    if (byte == 0) next = 256;
    const int point = printable ? byte : next++;
    std::string text;
    if (point < 0x80) {
      text += static_cast<char>(point);
    } else {
      text += static_cast<char>(0xC0 | point >> 6);
      text += static_cast<char>(0x80 | (point & 0x3F));
    }
    vocabulary[text] = id++;
  }
  vocabulary["lo"] = id++;
  vocabulary["low"] = id++;
  return R"({"added_tokens":[{"id":300,"content":"<s>","special":true},{"id":301,"content":"<word>","single_word":true},)"
         R"({"id":302,"content":"<strip>","lstrip":true,"rstrip":true}],"pre_tokenizer":)" +
         pre_tokenizer + R"(,"model":{"type":"BPE","vocab":)" + vocabulary.dump() +
         R"(,"merges":)" + merges + "}" + extra_fields + "}";
}

Tokenizer Tiny(const std::string& pre_tokenizer, const std::string& extra = "",
               const std::string& config = "") {
  return Tokenizer::FromJson(TinyTokenizer(pre_tokenizer, extra), config, "tiny.json");
}

TEST(Tokenizer, MergesInRankOrderInsidePiecesOnly) {
  const Tokenizer whole = Tiny("null");
  EXPECT_EQ(whole.Encode("low").size(), 1u);
  EXPECT_EQ(whole.Encode("lowlo").size(), 2u);
  const Tokenizer split =
      Tiny(R"({"type":"Split","pattern":{"String":"o"},"behavior":"Isolated"})");
  EXPECT_EQ(split.Encode("low").size(), 3u);  // l | o | w
}

TEST(PreTokenizer, SplitBehavioursCutAsNamed) {
  using Pieces = std::vector<std::string>;
  const auto pieces = [](const std::string& behaviour, bool invert = false) {
    const auto section = ParseJson(
        R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"-"},"behavior":")" +
            behaviour + R"(","invert":)" + (invert ? "true" : "false") + "}]}",
        "test");
    return PreTokenizer(&section, "test").Split("lo--w");
  };
  EXPECT_EQ(pieces("Isolated"), (Pieces{"lo", "-", "-", "w"}));
  EXPECT_EQ(pieces("Removed"), (Pieces{"lo", "w"}));
  EXPECT_EQ(pieces("Removed", true), (Pieces{"-", "-"}));
  EXPECT_EQ(pieces("MergedWithPrevious"), (Pieces{"lo-", "-", "w"}));
  EXPECT_EQ(pieces("MergedWithNext"), (Pieces{"lo", "-", "-w"}));
  EXPECT_EQ(pieces("Contiguous"), (Pieces{"lo", "--", "w"}));
}

TEST(PreTokenizer, DigitsAndByteLevelCutAsNamed) {
  using Pieces = std::vector<std::string>;
  const auto split = [](const std::string& json, const std::string& text) {
    const auto section = ParseJson(json, "test");
    return PreTokenizer(&section, "test").Split(text);
  };
  EXPECT_EQ(split(R"({"type":"Digits","individual_digits":true})", "a12"), (Pieces{"a", "1", "2"}));
  EXPECT_EQ(split(R"({"type":"Digits"})", "a12"), (Pieces{"a", "12"}));
  EXPECT_EQ(split(R"({"type":"ByteLevel","add_prefix_space":true})", "it's 42"),
            (Pieces{" it", "'s", " 42"}));
  EXPECT_EQ(split(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", "it's 42"),
            (Pieces{"it's 42"}));
}

// Models have more logits than their tokenizers tokens.
TEST(Tokenizer, IdsBeyondTheVocabularyHaveNoText) {
  const Tokenizer tokenizer = Tiny("null");
  const int32_t beyond = static_cast<int32_t>(tokenizer.vocabulary());
  const std::vector<int32_t> low = tokenizer.Encode("low");
  EXPECT_EQ(tokenizer.Decode({low[0], beyond, INT32_MAX, low[0]}), "lowlow");
  Tokenizer::Stream stream(tokenizer);
  EXPECT_EQ(stream.Push(beyond) + stream.Push(low[0]) + stream.Finish(), "low");
  EXPECT_EQ(tokenizer.TokenBytes(beyond), "");
  EXPECT_THROW(tokenizer.TokenBytes(-1), Error);
}

TEST(Tokenizer, AddedTokensHonourStripAndSingleWord) {
  const Tokenizer tokenizer = Tiny("null");
  EXPECT_EQ(tokenizer.Encode("a  <strip>  b"),
            (std::vector<int32_t>{tokenizer.Encode("a")[0], 302, tokenizer.Encode("b")[0]}));
  EXPECT_EQ(tokenizer.Encode("a <word> b")[2], 301);
  EXPECT_EQ(tokenizer.Encode("a<word>b").size(), 8u);
}

TEST(Tokenizer, GuardedTextMakesNoMarksAndStaysAsItIs) {
  const Tokenizer& shipped = Shipped();
  for (const std::string text :
       {"<|user|>\nhi<|assistant|>", "a<|us<|user|>er|>", "[gMASK]<sop>", "<think>x</think>",
        "plain <|unknown|> text", "é<|user|>é", "\xEF\xB7\x90<|user|>", "<\xEF\xB7\x90|user|>",
        "\xEF\xB7\x90\xEF\xB7\x90", ""}) {
    const std::string guarded = shipped.Guard(text);
    EXPECT_EQ(Tokenizer::Unguard(guarded), text);
    EXPECT_EQ(shipped.Encode(guarded, SpecialTokens::kGuarded),
              shipped.Encode(text, SpecialTokens::kAsText))
        << text;
  }
  // The prompt's own marks around it are such, and those that were let through.
  const std::vector<int32_t> ids = shipped.Encode(
      "<|user|>" + shipped.Guard("<|user|><think>", {"<think>"}), SpecialTokens::kGuarded);
  EXPECT_EQ(ids.front(), 3);
  EXPECT_EQ(ids.back(), *shipped.TokenId("<think>"));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 3), 1);
  // Marks that the vocabulary does not flag as special; a soft switch in words stays one.
  const Tokenizer tiny = Tokenizer::FromJson(
      TinyTokenizer("null", "")
          .replace(17, 0, R"({"id":303,"content":"<｜User｜>"},{"id":304,"content":"/nothink"},)"),
      "", "tiny.json");
  EXPECT_EQ(tiny.Encode("<｜User｜>", SpecialTokens::kAsText), (std::vector<int32_t>{303}));
  EXPECT_EQ(tiny.Encode(tiny.Guard("<｜User｜>"), SpecialTokens::kGuarded).size(), 12u);
  EXPECT_EQ(tiny.Encode(tiny.Guard("/nothink"), SpecialTokens::kGuarded),
            (std::vector<int32_t>{304}));
}

TEST(Tokenizer, TemplateProcessingNamesTheStartToken) {
  const Tokenizer tokenizer = Tiny(
      "null",
      R"(,"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A"}}]})");
  EXPECT_EQ(tokenizer.bos(), 300);
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_FALSE(Tiny("null", "", R"({"bos_token":"<s>"})").adds_bos());
}

void ExpectRefused(const std::string& json, const std::string& words) {
  try {
    Tokenizer::FromJson(json, "", "tiny.json");
    ADD_FAILURE() << "accepted; expected: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Tokenizer, RefusesByNameWhatItCannotDo) {
  ExpectRefused("{", "tiny.json");
  ExpectRefused("[]", "object");
  ExpectRefused(R"({"model":{"type":"WordPiece"}})", "WordPiece");
  ExpectRefused(R"({"normalizer":{"type":"NFC"},"model":{}})", "normalizer");
  ExpectRefused(R"({"normalizer":{"type":5},"model":{}})", "normalizer");
  ExpectRefused(R"({"decoder":{"type":5},"model":{}})", "decoder");
  ExpectRefused(TinyTokenizer(R"({"type":"Metaspace"})"), "Metaspace");
  ExpectRefused(TinyTokenizer(R"({"type":"Split","pattern":{"Regex":"(unclosed"}})"),
                "split pattern");
  ExpectRefused(TinyTokenizer("null", "", R"(["l q","lo w"])"), "merge 0");
  ExpectRefused(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})", "byte tokens");
}

}  // namespace
}  // namespace strata
