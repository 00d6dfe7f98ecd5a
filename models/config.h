// config.json and generation_config.json of a checkpoint folder, as one checked struct.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace strata {

enum class ModelFamily { kDeepseekV32, kGlmMoeDsa };

// Rotary frequencies: `type` is "default", "linear" or "yarn".
struct RopeConfig {
  std::string type = "default";
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_position = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  std::optional<double> attention_factor;
  bool truncate = true;
};

// Stop and sampling defaults of the folder: generation_config.json over config.json.
struct GenerationConfig {
  std::vector<int32_t>
      eos_token_ids;  // union of config.json, generation_config.json and the tokenizer's eos_token
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kGlmMoeDsa;
  std::string model_type;  // as written in the file

  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t layers = 0;  // main layers, without MTP
  // Later passes of a draft attend to what its first pass selected (GLM-5.2:
  // index_share_for_mtp_iteration). The target's own selection is never taken.
  bool draft_shares_selection = false;
  int64_t mtp_layers = 0;  // num_nextn_predict_layers; their index starts at `layers`
  int64_t heads = 0;
  int64_t q_lora_rank = 0;  // at least 1: the indexer's queries come from it
  int64_t kv_lora_rank = 0;
  int64_t nope_dim = 0;      // qk_nope_head_dim
  int64_t rope_dim = 0;      // qk_rope_head_dim, 0 allowed
  int64_t value_dim = 0;     // v_head_dim
  int64_t max_position = 0;  // max_position_embeddings
  double rms_norm_epsilon = 1e-6;
  double lora_norm_epsilon =
      1e-6;  // q_a_layernorm, kv_a_layernorm (1e-6 whatever rms_norm_eps says)
  bool attention_bias = false;
  bool tie_word_embeddings = false;

  int64_t intermediate = 0;  // dense MLP
  int64_t moe_intermediate = 0;
  int64_t experts = 0;  // n_routed_experts
  int64_t experts_per_token = 0;
  int64_t shared_experts = 0;
  int64_t expert_groups = 1;      // n_group
  int64_t kept_groups = 1;        // topk_group
  bool normalise_experts = true;  // norm_topk_prob
  double routed_scaling = 1.0;
  std::vector<bool> layer_is_sparse;  // [layers + mtp_layers] true: mixture of experts

  int64_t index_heads = 0;
  int64_t index_dim = 0;
  int64_t index_topk = 0;
  int64_t index_kpool = 1;
  bool index_rope_interleaved = false;  // DeepSeek-V3.2: half-split; GLM: interleaved
  bool rope_interleaved = true;
  std::vector<bool> layer_has_indexer;  // [layers + mtp_layers] true: full, false: reuses the last
                                        // full layer's ids

  RopeConfig rope;
  int32_t bos_token_id = -1;          // -1: none
  std::vector<std::string> warnings;  // what was odd but usable; print them

  int64_t query_dim() const { return nope_dim + rope_dim; }
};

// Reads and checks `directory`/config.json. Fail(kConfig) names the field, its value and what is
// accepted; an unknown model_type is refused with the list of known ones.
ModelConfig LoadModelConfig(const std::filesystem::path& directory);
ModelConfig ParseModelConfig(const std::string& json_text, const std::string& file_name);

// Missing files leave the defaults. `config` supplies its own eos ids; tokenizer_config.json the
// tokenizer's.
GenerationConfig LoadGenerationConfig(const std::filesystem::path& directory);
// The sampling that the model's author asks for; greedy when there is no word about it.
SamplingParams DefaultSampling(const GenerationConfig& generation);

// Overrides of the command line: scales positions by YaRN with `factor` over the trained length;
// Fail(kUsage) when the config already has another scaling.
void ApplyRopeScaling(ModelConfig& config, const std::string& type, double factor);

// frequencies [rope_dim / 2] as fp32, and the factors that YaRN puts on cos/sin and (squared) on
// the softmax scale.
struct RopeFrequencies {
  std::vector<float> inverse;
  float table_scale = 1.0f;     // on cos and sin
  float softmax_mscale = 1.0f;  // multiplies the MLA softmax scale twice; never the indexer's
};
RopeFrequencies ComputeRopeFrequencies(const ModelConfig& config);

}  // namespace strata
