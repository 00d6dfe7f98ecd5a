// config.json: the folders in the tree, where the rotary settings may stand, indexer reuse, and
// every field refused by name.
#include "models/config.h"

#include <gtest/gtest.h>

#include "models/json.h"
#include "tests/models/model_fixture.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

ordered_json GoldenConfig(const std::string& name = "glm_moe_dsa") {
  return ParseJson(ReadTextFile(Golden(name) / "config.json"), name);
}
ModelConfig Parse(const ordered_json& json) { return ParseModelConfig(json.dump(), "config.json"); }

// The message of the Error with which a config is refused, "" when it is not.
std::string Refusal(const std::string& text) {
  try {
    ParseModelConfig(text, "config.json");
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kConfig || error.code() == ErrorCode::kModelFile);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}
::testing::AssertionResult Refuses(const ordered_json& json,
                                   const std::vector<std::string>& words) {
  const std::string message = Refusal(json.dump());
  if (message.empty()) return ::testing::AssertionFailure() << "accepted";
  for (const std::string& word : words) {
    if (message.find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "'" << word << "' is not in: " << message;
  }
  return ::testing::AssertionSuccess();
}

TEST(Config, ShippedModelHasItsValues) {
  const ModelConfig config = LoadModelConfig(ShippedModel());
  EXPECT_EQ(config.family, ModelFamily::kGlmMoeDsa);
  EXPECT_EQ(config.vocabulary, 4096);
  EXPECT_EQ(config.hidden, 256);
  EXPECT_EQ(config.layers, 6);
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.q_lora_rank, 128);
  EXPECT_EQ(config.kv_lora_rank, 512);
  EXPECT_EQ(config.query_dim(), 128);
  EXPECT_EQ(config.max_position, 131072);
  EXPECT_EQ(config.rms_norm_epsilon, 1e-5);
  EXPECT_EQ(config.lora_norm_epsilon, 1e-6);
  EXPECT_EQ(config.experts, 8);
  EXPECT_EQ(config.experts_per_token, 2);
  EXPECT_EQ(config.routed_scaling, 2.5);
  EXPECT_EQ(config.index_heads, 8);
  EXPECT_EQ(config.index_dim, 128);
  EXPECT_EQ(config.index_topk, 256);
  EXPECT_TRUE(config.index_rope_interleaved);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.bos_token_id, 0);
  // The prediction layer is sparse and has an indexer of its own.
  EXPECT_EQ(config.layer_is_sparse, (std::vector<bool>{false, true, true, true, true, true, true}));
  EXPECT_EQ(config.layer_has_indexer,
            (std::vector<bool>{true, true, false, true, false, true, true}));
  EXPECT_TRUE(config.warnings.empty());
}

TEST(Config, FamiliesDifferInTheIndexersPairing) {
  const ModelConfig deepseek = LoadModelConfig(Golden("deepseek_v32"));
  EXPECT_EQ(deepseek.family, ModelFamily::kDeepseekV32);
  EXPECT_FALSE(deepseek.index_rope_interleaved);
  EXPECT_TRUE(deepseek.rope_interleaved);
  EXPECT_EQ(deepseek.expert_groups, 4);
  EXPECT_EQ(deepseek.kept_groups, 2);
  EXPECT_EQ(deepseek.layer_has_indexer, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(deepseek.rope.type, "yarn");
  EXPECT_EQ(deepseek.rope.factor, 8.0);
  EXPECT_EQ(deepseek.rope.original_max_position, 64);
  const ModelConfig glm = LoadModelConfig(Golden("glm_moe_dsa"));
  EXPECT_TRUE(glm.index_rope_interleaved);
  EXPECT_EQ(glm.layer_has_indexer, (std::vector<bool>{true, false, true, false, false}));
  ordered_json json = GoldenConfig();
  json["indexer_rope_interleave"] = false;
  EXPECT_FALSE(Parse(json).index_rope_interleaved);
}

TEST(Config, ThetaIsFoundAtTheTopAndNested) {
  ordered_json json = GoldenConfig();
  json["rope_parameters"] = {{"rope_type", "default"}};
  json["rope_theta"] = 8e6;
  const ModelConfig top = Parse(json);
  json.erase("rope_theta");
  json["rope_parameters"]["rope_theta"] = 8e6;
  const ModelConfig nested = Parse(json);
  EXPECT_EQ(top.rope.theta, 8e6);
  EXPECT_EQ(ComputeRopeFrequencies(top).inverse, ComputeRopeFrequencies(nested).inverse);
  json["rope_theta"] = 8e6;
  for (const ModelConfig& config : {top, nested, Parse(json)}) EXPECT_TRUE(config.warnings.empty());
}

TEST(Config, DifferentThetasWarnAndTheNestedOneWins) {
  ordered_json json = GoldenConfig();
  json["rope_theta"] = 5e5;
  const ModelConfig config = Parse(json);
  EXPECT_EQ(config.rope.theta, 1e6);
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_NE(config.warnings[0].find("500000"), std::string::npos) << config.warnings[0];
  EXPECT_NE(config.warnings[0].find("1000000"), std::string::npos) << config.warnings[0];
}

TEST(Config, AbsentThetaIsTheFamilysDefaultWithAWarning) {
  for (const auto& [name, theta] :
       {std::pair{"glm_moe_dsa", 1e6}, std::pair{"deepseek_v32", 1e4}}) {
    ordered_json json = GoldenConfig(name);
    json["rope_parameters"].erase("rope_theta");
    const ModelConfig config = Parse(json);
    EXPECT_EQ(config.rope.theta, theta);
    ASSERT_EQ(config.warnings.size(), 1u);
    EXPECT_NE(config.warnings[0].find(name), std::string::npos) << config.warnings[0];
  }
}

TEST(Config, TypeDefaultMeansNoScalingWhateverStandsBesideIt) {
  ordered_json json = GoldenConfig("deepseek_v32");
  json["rope_parameters"]["rope_type"] = "default";
  const ModelConfig config = Parse(json);
  EXPECT_EQ(config.rope.type, "default");
  const RopeFrequencies frequencies = ComputeRopeFrequencies(config);
  ASSERT_EQ(frequencies.inverse.size(), 8u);
  for (int j = 0; j < 8; ++j) EXPECT_NEAR(frequencies.inverse[j], std::pow(1e4, -j / 8.0), 1e-7);
  EXPECT_EQ(frequencies.table_scale, 1.0f);
  EXPECT_EQ(frequencies.softmax_mscale, 1.0f);
}

TEST(Config, OldRopeScalingIsReadAsTheNewForm) {
  ordered_json json = GoldenConfig("deepseek_v32");
  ordered_json scaling = json["rope_parameters"];
  const ModelConfig new_form = Parse(json);
  json.erase("rope_parameters");
  json["rope_theta"] = scaling["rope_theta"];
  scaling.erase("rope_theta");
  scaling.erase("rope_type");
  scaling["type"] = "yarn";
  json["rope_scaling"] = scaling;
  const ModelConfig old_form = Parse(json);
  EXPECT_TRUE(old_form.warnings.empty());
  EXPECT_EQ(old_form.rope.type, "yarn");
  EXPECT_EQ(ComputeRopeFrequencies(old_form).inverse, ComputeRopeFrequencies(new_form).inverse);
  json["rope_scaling"] = nullptr;
  EXPECT_EQ(Parse(json).rope.type, "default");
  scaling["type"] = "dynamic";
  json["rope_scaling"] = scaling;
  EXPECT_TRUE(Refuses(json, {"dynamic", "yarn"}));
}

TEST(Config, ModelWithoutRotaryPartLoads) {
  ordered_json json = GoldenConfig();
  json["qk_rope_head_dim"] = 0;
  EXPECT_EQ(Parse(json).query_dim(), 32);
  EXPECT_TRUE(ComputeRopeFrequencies(Parse(json)).inverse.empty());
}

TEST(Config, IndexerReuseIsReadInItsThreeForms) {
  ordered_json json = GoldenConfig();
  json.erase("indexer_types");
  json.erase("layer_types");
  json.erase("mlp_layer_types");
  json["num_hidden_layers"] = 11;
  const auto letters = [](const ModelConfig& config) {
    std::string text;
    for (bool full : config.layer_has_indexer) text += full ? 'F' : 'S';
    return text;
  };
  EXPECT_EQ(letters(Parse(json)), "FFFFFFFFFFF");
  json["index_topk_freq"] = 4;
  json["index_skip_topk_offset"] = 3;
  EXPECT_EQ(letters(Parse(json)), "FFFSSSFSSSF");
  json.erase("index_skip_topk_offset");  // 2
  EXPECT_EQ(letters(Parse(json)), "FFSSSFSSSFS");
  json["index_topk_pattern"] = "FSFSSFFSSSF";  // goes before the frequency
  EXPECT_EQ(letters(Parse(json)), "FSFSSFFSSSF");
  json["index_topk_pattern"] = "FSFSSFFSSS";
  EXPECT_TRUE(Refuses(json, {"index_topk_pattern", "11"}));
  json["index_topk_pattern"] = "FSFSSFFSSSX";
  EXPECT_TRUE(Refuses(json, {"index_topk_pattern", "F or S"}));
  json["index_topk_pattern"] = "SFFFFFFFFFF";
  EXPECT_TRUE(Refuses(json, {"layer 0", "shared"}));
}

}  // namespace
}  // namespace strata
