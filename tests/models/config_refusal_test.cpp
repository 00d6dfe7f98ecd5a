// What a config.json may not say, and the rotary numbers of those it may: each refusal names the
// field and its value.
#include <gtest/gtest.h>

#include "models/config.h"
#include "models/json.h"
#include "tests/models/model_fixture.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

ordered_json GoldenConfig(const std::string& name = "glm_moe_dsa") {
  return ParseJson(ReadTextFile(Golden(name) / "config.json"), name);
}
ModelConfig Parse(const ordered_json& json) { return ParseModelConfig(json.dump(), "config.json"); }

template <class Call>
std::string MessageOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}
std::string Refusal(const ordered_json& json) {
  return MessageOf([&] { Parse(json); });
}
bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ConfigRefusal, UnknownModelTypeNamesTheKnownOnes) {
  for (const ordered_json& value :
       {ordered_json("llama"), ordered_json(nullptr), ordered_json("")}) {
    ordered_json json = GoldenConfig();
    json["model_type"] = value;
    const std::string message = Refusal(json);
    for (const char* word : {"model_type", "deepseek_v32", "glm_moe_dsa"})
      EXPECT_TRUE(Contains(message, word)) << message;
  }
}

TEST(ConfigRefusal, EveryCountIsCheckedForTypeSignSizeAndPresence) {
  for (const char* name :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "q_lora_rank",
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "max_position_embeddings", "intermediate_size", "moe_intermediate_size", "n_routed_experts",
        "num_experts_per_tok", "index_n_heads", "index_head_dim", "index_topk"}) {
    for (const ordered_json& value :
         {ordered_json("8"), ordered_json(-1), ordered_json(1.5), ordered_json(1e30),
          ordered_json(true), ordered_json(INT64_MAX), ordered_json(UINT64_MAX),
          ordered_json::array({8}), ordered_json::object(), ordered_json(nullptr)}) {
      ordered_json json = GoldenConfig();
      json[name] = value;
      EXPECT_TRUE(Contains(Refusal(json), name)) << name << " " << value << ": " << Refusal(json);
    }
  }
}

TEST(ConfigRefusal, OptionalFieldsAreCheckedToo) {
  const std::pair<const char*, std::vector<ordered_json>> cases[] = {
      {"num_nextn_predict_layers", {-1, 1000, "one"}},
      {"n_group", {0, -1, 3, 9, "1"}},  // 3 does not divide 8
      {"topk_group", {0, 2, 1.5}},      // there is one group
      {"n_shared_experts", {-1, 1 << 20}},
      {"first_k_dense_replace", {-1, "1"}},
      {"rms_norm_eps", {"1e-6", -1.0, 1e30}},
      {"routed_scaling_factor", {"2.5", -1.0, 1e300}},
      {"norm_topk_prob", {1, "true"}},
      {"tie_word_embeddings", {0, "false"}},
      {"attention_bias", {true, 1}},
      {"hidden_act", {"gelu", 5}},
      {"scoring_func", {"softmax", 5}},
      {"bos_token_id", {-1, 256, 1.5}},
      {"index_kpool", {4, 0}},
      {"rope_interleave", {"yes"}},
      {"indexer_rope_interleave", {1}},
      {"mlp_layer_types", {ordered_json::array({"dense"}), "dense", ordered_json::object()}},
      {"indexer_types",
       {ordered_json::array({"full", "full"}), ordered_json::array({1, 2, 3, 4, 5}), 5}},
      {"quantization_config",
       {{{"quant_method", "awq"}},
        5,
        {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}},
        {{"quant_method", "fp8"}}}},
      {"rope_parameters", {5, "yarn", ordered_json::array()}},
      {"rope_theta", {"1e6"}}};
  for (const auto& [name, values] : cases) {
    for (const ordered_json& value : values) {
      ordered_json json = GoldenConfig();
      if (std::string(name) == "first_k_dense_replace") json.erase("mlp_layer_types");
      json[name] = value;
      EXPECT_TRUE(Contains(Refusal(json), name)) << name << " " << value << ": " << Refusal(json);
    }
  }
}

TEST(ConfigRefusal, FieldsThatDoNotFitEachOther) {
  ordered_json json = GoldenConfig();
  json["qk_rope_head_dim"] = 15;
  EXPECT_TRUE(Contains(Refusal(json), "qk_rope_head_dim is 15, an even number"));
  json = GoldenConfig();
  json["index_head_dim"] = 8;  // narrower than the rotary part
  EXPECT_TRUE(Contains(Refusal(json), "index_head_dim is 8"));
  json = GoldenConfig();
  json["indexer_types"][0] = "shared";
  EXPECT_TRUE(Contains(Refusal(json), "layer 0"));
  json = GoldenConfig("deepseek_v32");
  json["num_experts_per_tok"] = 5;  // two groups of two are kept
  EXPECT_TRUE(Contains(Refusal(json), "num_experts_per_tok is 5")) << Refusal(json);
}

TEST(ConfigRefusal, RotaryNumbersAreChecked) {
  const std::pair<const char*, std::vector<ordered_json>> cases[] = {
      {"rope_theta", {0, -5, 1, "1e4"}},
      {"rope_type", {"longrope", "dynamic", 5}},
      {"factor", {0, 0.5, -8, "8", nullptr, 1e300}},
      {"original_max_position_embeddings", {0, -1, "64", 1.5}},
      {"beta_fast", {0, -1, "32"}},
      {"beta_slow", {0, -1, "1"}},
      {"mscale", {"1", -1}},
      {"mscale_all_dim", {"1", -1}},
      {"attention_factor", {"1", 0, -1}},
      {"truncate", {1}}};
  for (const auto& [name, values] : cases) {
    for (const ordered_json& value : values) {
      ordered_json json = GoldenConfig("deepseek_v32");
      json["rope_parameters"][name] = value;
      EXPECT_TRUE(Contains(Refusal(json), name)) << name << " " << value << ": " << Refusal(json);
    }
  }
}

TEST(ConfigRefusal, BrokenJsonNamesTheFile) {
  const std::string deep = std::string(10000, '[') + std::string(10000, ']');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("5"),
        std::string("{\"a\": 1e999}"), "{\"vocab_size\": " + deep + "}",
        std::string("{\"model_type\": \"\xff\"}")}) {
    const std::string message = MessageOf([&] { ParseModelConfig(text, "some/config.json"); });
    EXPECT_TRUE(Contains(message, "some/config.json")) << text.substr(0, 40) << ": " << message;
  }
  EXPECT_TRUE(
      Contains(MessageOf([] { LoadModelConfig("/nonexistent/model"); }), "/nonexistent/model"));
}

// dim 16, theta 10000, factor 8 over 64 positions: the blend runs from dimension 0 to 3, because
// 16 ln(64 / (32 * 2 pi)) / (2 ln 10000) = -0.994 and 16 ln(64 / (2 pi)) / (2 ln 10000) = 2.016.
TEST(Yarn, FrequenciesEqualThoseWorkedOutByHand) {
  ordered_json json = GoldenConfig("deepseek_v32");
  const double rounded[8] = {1.0,
                             0.22399466759526024,
                             0.04166666666666667,
                             0.003952847075210474,
                             0.00125,
                             0.0003952847075210474,
                             0.000125,
                             3.952847075210474e-05};
  const double exact[3] = {1.0, 0.17897614584316904, 0.013194453540578242};
  const RopeFrequencies frequencies = ComputeRopeFrequencies(Parse(json));
  ASSERT_EQ(frequencies.inverse.size(), 8u);
  for (int j = 0; j < 8; ++j) EXPECT_NEAR(frequencies.inverse[j] / rounded[j], 1.0, 1e-6) << j;
  json["rope_parameters"]["truncate"] = false;
  const RopeFrequencies untruncated = ComputeRopeFrequencies(Parse(json));
  for (int j = 0; j < 3; ++j) EXPECT_NEAR(untruncated.inverse[j] / exact[j], 1.0, 2e-6) << j;
}

TEST(Yarn, TableAndSoftmaxFactorsAreApart) {
  struct Case {
    ordered_json mscale, all_dim, attention_factor;
    float table, softmax;
  };
  // 0.1 ln 8 + 1 = 1.2079442, 0.0707 ln 8 + 1 = 1.1470165.
  const Case cases[] = {
      {1.0, 1.0, nullptr, 1.0f, 1.2079442f},         {0.707, 0.707, nullptr, 1.0f, 1.1470165f},
      {0.5, 1.0, nullptr, 0.91392642f, 1.2079442f},  {1.0, 0.0, nullptr, 1.2079442f, 1.0f},
      {nullptr, nullptr, nullptr, 1.2079442f, 1.0f}, {1.0, 1.0, 0.75, 0.75f, 1.2079442f}};
  for (const Case& test : cases) {
    ordered_json json = GoldenConfig("deepseek_v32");
    json["rope_parameters"]["mscale"] = test.mscale;
    json["rope_parameters"]["mscale_all_dim"] = test.all_dim;
    json["rope_parameters"]["attention_factor"] = test.attention_factor;
    const RopeFrequencies frequencies = ComputeRopeFrequencies(Parse(json));
    EXPECT_NEAR(frequencies.table_scale, test.table, 1e-6) << json["rope_parameters"];
    EXPECT_NEAR(frequencies.softmax_mscale, test.softmax, 1e-6) << json["rope_parameters"];
  }
}

TEST(Yarn, LinearScalingDividesEveryFrequency) {
  ordered_json json = GoldenConfig();
  const RopeFrequencies plain = ComputeRopeFrequencies(Parse(json));
  json["rope_parameters"]["rope_type"] = "linear";
  json["rope_parameters"]["factor"] = 4.0;
  const RopeFrequencies linear = ComputeRopeFrequencies(Parse(json));
  for (size_t j = 0; j < 8; ++j) EXPECT_EQ(linear.inverse[j], plain.inverse[j] / 4.0f);
  EXPECT_EQ(linear.table_scale, 1.0f);
}

TEST(Yarn, WithoutATrainedLengthUsesTheMaximumAndWarns) {
  ordered_json json = GoldenConfig("deepseek_v32");
  json["rope_parameters"].erase("original_max_position_embeddings");
  const ModelConfig config = Parse(json);
  EXPECT_EQ(config.rope.original_max_position, 512);
  EXPECT_EQ(config.warnings.size(), 1u);
}

TEST(RopeScaling, CommandLineScalesAnUnscaledModelOnly) {
  ModelConfig config = LoadModelConfig(ShippedModel());
  const ModelConfig before = config;
  ApplyRopeScaling(config, "none", 4.0);
  EXPECT_EQ(config.max_position, before.max_position);
  EXPECT_EQ(config.rope.type, "default");
  const auto refusal = [](ModelConfig target, const char* type, double factor) {
    return MessageOf([&] { ApplyRopeScaling(target, type, factor); });
  };
  EXPECT_TRUE(Contains(refusal(config, "linear", 4.0), "linear"));
  EXPECT_TRUE(Contains(refusal(config, "yarn", 0.5), "0.5"));
  EXPECT_TRUE(Contains(refusal(config, "yarn", 1025.0), "1025"));
  EXPECT_TRUE(Contains(refusal(config, "yarn", std::nan("")), "nan"));
  EXPECT_TRUE(Contains(refusal(LoadModelConfig(Golden("deepseek_v32")), "yarn", 4.0), "already"));
  ApplyRopeScaling(config, "yarn", 4.0);
  EXPECT_EQ(config.rope.type, "yarn");
  EXPECT_EQ(config.rope.original_max_position, 131072);
  EXPECT_EQ(config.max_position, 524288);
  EXPECT_TRUE(Contains(refusal(config, "yarn", 4.0), "already"));
}

}  // namespace
}  // namespace strata
