// Stop tokens are the union of what three files say; sampling defaults are typed.
#include <gtest/gtest.h>

#include "models/config.h"
#include "models/json.h"
#include "tests/models/model_fixture.h"
#include "tests/models/temporary_folder.h"

namespace strata {
namespace {

class GenerationConfigTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) { folder_.Write(name, text); }
  // The tokenizer's end token `text` has this id.
  void WriteTokenizer(const std::string& text, const std::string& id) {
    Write("tokenizer_config.json", "{\"eos_token\": \"" + text + "\"}");
    Write("tokenizer.json", "{\"added_tokens\": [{\"id\": 90, \"content\": \"<pad>\"}, {\"id\": " +
                                id + ", \"content\": \"" + text + "\"}]}");
  }
  std::vector<int32_t> Eos() { return LoadGenerationConfig(folder_.path()).eos_token_ids; }
  std::string Refusal() {
    try {
      Eos();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(GenerationConfigTest, EmptyFolderLeavesTheDefaults) {
  const GenerationConfig generation = LoadGenerationConfig(folder_.path());
  EXPECT_TRUE(generation.eos_token_ids.empty());
  EXPECT_FALSE(generation.do_sample || generation.temperature || generation.top_p ||
               generation.top_k || generation.min_p || generation.repetition_penalty);
}

TEST_F(GenerationConfigTest, ANumberOrAListInEitherFile) {
  for (const char* name : {"config.json", "generation_config.json"}) {
    Write(name, R"({"eos_token_id": 7})");
    EXPECT_EQ(Eos(), (std::vector<int32_t>{7})) << name;
    Write(name, R"({"eos_token_id": [7, 3, 7, 9]})");
    EXPECT_EQ(Eos(), (std::vector<int32_t>{7, 3, 9})) << name;
    Write(name, R"({"eos_token_id": null})");
    EXPECT_TRUE(Eos().empty()) << name;
    Write(name, R"({"eos_token_id": []})");
    EXPECT_TRUE(Eos().empty()) << name;
    Write(name, "{}");
  }
}

TEST_F(GenerationConfigTest, ThreeFilesThatDifferAreUnited) {
  Write("config.json", R"({"eos_token_id": 1})");
  Write("generation_config.json", R"({"eos_token_id": [2, 1, 5]})");
  WriteTokenizer("<|end|>", "11");
  EXPECT_EQ(Eos(), (std::vector<int32_t>{1, 2, 5, 11}));
  std::filesystem::remove(folder_.path() / "config.json");
  EXPECT_EQ(Eos(), (std::vector<int32_t>{2, 1, 5, 11}));
  std::filesystem::remove(folder_.path() / "generation_config.json");
  EXPECT_EQ(Eos(), (std::vector<int32_t>{11}));
  std::filesystem::remove(folder_.path() / "tokenizer.json");
  EXPECT_TRUE(Eos().empty());
}

TEST_F(GenerationConfigTest, TheTokenizersEndTokenMayBeAnObject) {
  WriteTokenizer("</s>", "4");
  Write("tokenizer_config.json", R"({"eos_token": {"content": "</s>", "lstrip": false}})");
  EXPECT_EQ(Eos(), (std::vector<int32_t>{4}));
  Write("tokenizer_config.json", R"({"eos_token": "</other>"})");
  EXPECT_TRUE(Eos().empty());
  Write("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_TRUE(Eos().empty());
}

TEST_F(GenerationConfigTest, BadIdsAreRefusedWithFileAndField) {
  for (const char* value : {"\"2\"", "-1", "1.5", "2147483648", "18446744073709551615",
                            "[1, \"2\"]", "[[1]]", "[-1]", "{}", "true"}) {
    Write("generation_config.json", std::string("{\"eos_token_id\": ") + value + "}");
    const std::string message = Refusal();
    EXPECT_NE(message.find("generation_config.json"), std::string::npos)
        << value << ": " << message;
    EXPECT_NE(message.find("eos_token_id"), std::string::npos) << value << ": " << message;
  }
}

// A tokenizer that cannot be read must not end the process, and an id that no token can have must
// not stop a text.
TEST_F(GenerationConfigTest, DamagedTokenizersGiveNoEndTokenOrAnError) {
  Write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  for (const char* added :
       {"5", "\"</s>\"", "[5]", "[{}]", R"([{"id": "4", "content": "</s>"}])",
        R"([{"id": 4, "content": 5}])", R"([{"id": -4, "content": "</s>"}])",
        R"([{"id": 4294967300, "content": "</s>"}])", R"({"a": {"id": 4}})", "null"}) {
    Write("tokenizer.json", std::string("{\"added_tokens\": ") + added + "}");
    try {
      EXPECT_TRUE(Eos().empty()) << added;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos)
          << error.what();
    }
  }
  Write("tokenizer.json", "[");
  EXPECT_NE(Refusal().find("tokenizer.json"), std::string::npos);
}

TEST_F(GenerationConfigTest, SamplingDefaultsAreRead) {
  Write("generation_config.json",
        R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 40, "min_p": 0.01,
            "repetition_penalty": 1.05})");
  const GenerationConfig generation = LoadGenerationConfig(folder_.path());
  EXPECT_EQ(generation.do_sample, true);
  EXPECT_EQ(generation.temperature, 0.6);
  EXPECT_EQ(generation.top_p, 0.95);
  EXPECT_EQ(generation.top_k, 40);
  EXPECT_EQ(generation.min_p, 0.01);
  EXPECT_EQ(generation.repetition_penalty, 1.05);
  for (const char* name :
       {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample"}) {
    Write("generation_config.json", std::string("{\"") + name + "\": \"1\"}");
    EXPECT_NE(Refusal().find(name), std::string::npos) << Refusal();
  }
}

TEST_F(GenerationConfigTest, ATopKThatNoIntegerHoldsIsRefusedAndNotCut) {
  Write("generation_config.json", R"({"do_sample": true, "top_k": 4294967297})");
  const SamplingParams params = DefaultSampling(LoadGenerationConfig(folder_.path()));
  EXPECT_THROW(ValidateSampling(params, 100), Error);
}

TEST(GenerationConfig, FoldersInTheTree) {
  const GenerationConfig shipped = LoadGenerationConfig(ShippedModel());
  EXPECT_EQ(shipped.eos_token_ids, (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(shipped.do_sample, true);
  EXPECT_EQ(shipped.temperature, 0.7);
  EXPECT_EQ(LoadGenerationConfig(Golden("deepseek_v32")).eos_token_ids, (std::vector<int32_t>{2}));
}

}  // namespace
}  // namespace strata
