// A checkpoint that lacks a tensor is refused with the tensor's name; nothing is served from memory
// that no file filled.
#include <gtest/gtest.h>

#include <functional>

#include "models/json.h"
#include "tests/models/model_fixture.h"
#include "tests/models/temporary_folder.h"

namespace strata {
namespace {

// Writes `source`'s tensors to `folder` as one file, without those whose name `drop` takes. The
// replacement, when given, stands under the name lm_head.weight.
void WriteWithout(const std::filesystem::path& source, const TemporaryFolder& folder,
                  const std::function<bool(const std::string&)>& drop,
                  const std::string& head_source = "lm_head.weight") {
  const Checkpoint checkpoint = Checkpoint::Open(source);
  std::vector<TensorToWrite> tensors;
  size_t dropped = 0;
  for (const std::string& name : checkpoint.Names()) {
    if (drop(name)) {
      ++dropped;
      continue;
    }
    const TensorRef* tensor = checkpoint.Find(name == "lm_head.weight" ? head_source : name);
    tensors.push_back({name, tensor->dtype, tensor->shape, tensor->data});
  }
  EXPECT_GT(dropped + (head_source != "lm_head.weight" ? 1 : 0), 0u) << "nothing was dropped";
  WriteSafetensors(folder.path() / "model.safetensors", tensors);
}
std::function<bool(const std::string&)> Is(const std::string& wanted) {
  return [wanted](const std::string& name) { return name == wanted; };
}
bool Nothing(const std::string&) { return false; }
bool OfPredictionLayer(const std::string& name) { return name.starts_with("model.layers.6."); }

std::string LoadFails(const TemporaryFolder& folder, ModelConfig config, bool mtp = false) {
  try {
    LoadedModel(std::move(config), folder.path(), 1, mtp);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile) << error.what();
    return error.what();
  }
  return "";
}
ModelConfig Tied(const nlohmann::ordered_json& tie) {
  auto json = ParseJson(ReadTextFile(Golden("glm_moe_dsa") / "config.json"), "config.json");
  json["tie_word_embeddings"] = tie;
  return ParseModelConfig(json.dump(), "config.json");
}
std::vector<std::vector<float>> Logits(const TemporaryFolder& folder, const ModelConfig& config) {
  const LoadedModel loaded(config, folder.path(), 1);
  PromptRunner runner(loaded, PromptRunner::Options(64));
  TestSequence sequence;
  return runner.Append(sequence, {1, 17, 99, 200}, 4, true);
}

TEST(MissingTensor, EveryTensorOfTheSmallModelIsNeeded) {
  const std::filesystem::path source = Golden("glm_moe_dsa");
  const ModelConfig config = LoadModelConfig(source);
  for (const char* name :
       {"model.norm.weight", "model.embed_tokens.weight", "lm_head.weight",
        "model.layers.2.input_layernorm.weight", "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.gate.weight", "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.3.mlp.experts.5.down_proj.weight",
        "model.layers.4.mlp.shared_experts.gate_proj.weight",
        "model.layers.4.self_attn.kv_a_layernorm.weight",
        "model.layers.1.self_attn.kv_b_proj.weight", "model.layers.2.self_attn.indexer.k_norm.bias",
        "model.layers.0.self_attn.indexer.weights_proj.weight"}) {
    TemporaryFolder folder;
    WriteWithout(source, folder, Is(name));
    const std::string message = LoadFails(folder, config);
    EXPECT_NE(message.find(name), std::string::npos) << name << ": " << message;
  }
}

TEST(MissingTensor, LayersWithASharedIndexerNeedNoIndexer) {
  TemporaryFolder folder;
  const Checkpoint source = Checkpoint::Open(Golden("glm_moe_dsa"));
  for (const std::string& name : source.Names()) {
    EXPECT_FALSE(name.starts_with("model.layers.1.self_attn.indexer.")) << name;
  }
  ModelConfig config = LoadModelConfig(Golden("glm_moe_dsa"));
  config.layer_has_indexer[1] = true;  // a config that does not belong to these weights
  WriteWithout(Golden("glm_moe_dsa"), folder, Nothing, "model.embed_tokens.weight");
  EXPECT_NE(LoadFails(folder, config).find("model.layers.1.self_attn.indexer."), std::string::npos);
}

TEST(MissingTensor, ATiedHeadIsTheEmbedding) {
  TemporaryFolder tied, explicit_copy;
  const std::filesystem::path source = Golden("glm_moe_dsa");
  WriteWithout(source, tied, Is("lm_head.weight"));
  WriteWithout(source, explicit_copy, Nothing, "model.embed_tokens.weight");
  const auto logits = Logits(tied, Tied(true));
  ASSERT_EQ(logits.size(), 4u);
  EXPECT_EQ(logits, Logits(explicit_copy, Tied(false)));
  for (const nlohmann::ordered_json& untied :
       {nlohmann::ordered_json(false), nlohmann::ordered_json(nullptr)}) {
    EXPECT_NE(LoadFails(tied, Tied(untied)).find("lm_head.weight"), std::string::npos) << untied;
  }
}

TEST(MissingTensor, WithoutThePredictionLayerOnlyDraftingIsRefused) {
  const ModelConfig config = LoadModelConfig(ShippedModel());
  TemporaryFolder folder;
  WriteWithout(ShippedModel(), folder, OfPredictionLayer);
  EXPECT_EQ(LoadFails(folder, config), "");
  const std::string message = LoadFails(folder, config, true);
  EXPECT_NE(message.find("model.layers.6."), std::string::npos) << message;
  EXPECT_NE(message.find("prediction"), std::string::npos) << message;
}

TEST(MissingTensor, APredictionLayerWithAHoleIsNamedOnlyWhenItIsWanted) {
  const ModelConfig config = LoadModelConfig(ShippedModel());
  TemporaryFolder folder;
  WriteWithout(ShippedModel(), folder, Is("model.layers.6.hnorm.weight"));
  EXPECT_EQ(LoadFails(folder, config), "");
  EXPECT_NE(LoadFails(folder, config, true).find("model.layers.6.hnorm.weight"), std::string::npos);
}

TEST(MissingTensor, DraftingOfAModelThatPromisesNoneIsRefused) {
  try {
    LoadedModel(Golden("glm_moe_dsa"), 1, true);
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("num_nextn_predict_layers"), std::string::npos);
  }
}

}  // namespace
}  // namespace strata
