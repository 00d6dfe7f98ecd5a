#include "models/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/moe.h"
#include "kernels/status.h"
#include "models/json.h"

namespace strata {

namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxRopeFactor = 1e6;
constexpr double kMaxMscale = 1000.0;

struct FamilyInfo {
  const char* model_type;
  ModelFamily family;
  bool index_rope_interleaved;  // the family's published default
  double rope_theta;            // what the family's first published config.json says
};
constexpr FamilyInfo kFamilies[] = {
    {"deepseek_v32", ModelFamily::kDeepseekV32, false, 10000.0},
    {"glm_moe_dsa", ModelFamily::kGlmMoeDsa, true, 1000000.0},
};

const FamilyInfo& FindFamily(const JsonFields& fields) {
  const std::string found = fields.String("model_type").value_or("");
  std::string known;
  for (const FamilyInfo& family : kFamilies) {
    if (found == family.model_type) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  fields.Refuse("model_type", fmt::format("the known ones are {}", known));
}

// Rotary settings. Newer files nest everything in rope_parameters; older ones have rope_theta
// beside rope_scaling.
RopeConfig ReadRope(const JsonFields& fields, const FamilyInfo& family,
                    std::vector<std::string>& warnings) {
  const ordered_json* nested = fields.Find("rope_parameters");
  if (nested == nullptr) nested = fields.Find("rope_scaling");
  const ordered_json empty = ordered_json::object();
  const JsonFields rope_fields(nested != nullptr ? *nested : empty,
                               fields.file_name() + ": rope_parameters", ErrorCode::kConfig);
  RopeConfig rope;
  const std::optional<double> top_theta = fields.Number("rope_theta");
  const std::optional<double> nested_theta = rope_fields.Number("rope_theta");
  rope.theta = nested_theta.value_or(top_theta.value_or(family.rope_theta));
  if (top_theta && nested_theta && *top_theta != *nested_theta) {
    warnings.push_back(fmt::format(
        "rope_theta is {} at the top and {} in rope_parameters; the nested value is used",
        *top_theta, *nested_theta));
  }
  if (!top_theta && !nested_theta) {
    warnings.push_back(
        fmt::format("rope_theta is nowhere in the file; the default of {}, {}, is used",
                    family.model_type, family.rope_theta));
  }
  if (!(rope.theta > 1.0 && rope.theta <= kMaxTheta)) {
    Fail(ErrorCode::kConfig,
         fmt::format("{}: rope_theta is {}, a number above 1 and at most {} is needed",
                     fields.file_name(), rope.theta, kMaxTheta));
  }
  for (const JsonFields* place : {&fields, &rope_fields}) {
    if (place->Number("partial_rotary_factor").value_or(1.0) != 1.0)
      place->Refuse("partial_rotary_factor", "1 is served: qk_rope_head_dim says what rotates");
  }
  rope.type =
      rope_fields.String("rope_type").value_or(rope_fields.String("type").value_or("default"));
  if (rope.type != "default" && rope.type != "linear" && rope.type != "yarn") {
    Fail(ErrorCode::kConfig,
         fmt::format("{}: rope_type is '{}'; default, linear and yarn are known",
                     fields.file_name(), rope.type));
  }
  if (rope.type == "default") return rope;
  rope.factor = rope_fields.NeedNumber("factor", 1.0, kMaxRopeFactor);
  if (rope_fields.Has("mscale_all_dim"))
    rope.mscale_all_dim = rope_fields.NeedNumber("mscale_all_dim", 0.0, kMaxMscale);
  if (rope.type == "linear") return rope;
  rope.original_max_position =
      rope_fields.IntegerOr("original_max_position_embeddings", 0, 1, INT32_MAX);
  if (rope.original_max_position == 0) {
    rope.original_max_position = fields.NeedInteger("max_position_embeddings", 1, INT32_MAX);
    warnings.push_back(fmt::format(
        "yarn without original_max_position_embeddings: max_position_embeddings {} is used",
        rope.original_max_position));
  }
  rope.beta_slow = rope_fields.NumberOr("beta_slow", 1.0, 1e-3, 1e6);
  rope.beta_fast = rope_fields.NumberOr("beta_fast", 32.0, rope.beta_slow, 1e6);
  if (rope_fields.Has("mscale")) rope.mscale = rope_fields.NeedNumber("mscale", 0.0, kMaxMscale);
  if (rope_fields.Has("attention_factor"))
    rope.attention_factor = rope_fields.NeedNumber("attention_factor", 1e-3, kMaxMscale);
  rope.truncate = rope_fields.Boolean("truncate").value_or(true);
  return rope;
}

// Per layer: true for `yes`, false for `no`; any other word is refused.
std::vector<bool> ReadWords(const JsonFields& fields, const char* name, int64_t layers,
                            const std::string& yes, const std::string& no) {
  const ordered_json& list = *fields.Find(name);
  if (!list.is_array() || static_cast<int64_t>(list.size()) != layers) {
    fields.Refuse(name, fmt::format("a list of {} entries, one per layer, is needed", layers));
  }
  std::vector<bool> result;
  for (const ordered_json& entry : list) {
    const std::string word = entry.is_string() ? entry.get<std::string>() : "";
    if (word != yes && word != no)
      fields.Refuse(name, fmt::format("entries are '{}' or '{}'", yes, no));
    result.push_back(word == yes);
  }
  return result;
}

// Which layers run their indexer; the others reuse the ids of the last one that did. In this order:
// - indexer_types: "full" or "shared" for each layer;
// - index_topk_pattern: the same as a string of F and S, or as a list;
// - index_topk_freq n with index_skip_topk_offset o (2 when absent): layer i is full when
//   max(i - o + 1, 0) is a multiple of n. So the first o layers are full, then every n-th one:
//   n = 4, o = 3 gives 0, 1, 2, 6, 10, 14, ...
std::vector<bool> ReadIndexerLayers(const JsonFields& fields, int64_t layers) {
  if (fields.Has("indexer_types"))
    return ReadWords(fields, "indexer_types", layers, "full", "shared");
  const ordered_json* pattern = fields.Find("index_topk_pattern");
  if (pattern != nullptr && pattern->is_array()) {
    const ordered_json first = pattern->empty() ? ordered_json() : pattern->front();
    const bool letters = first.is_string() && first.get<std::string>().size() == 1;
    if (letters) return ReadWords(fields, "index_topk_pattern", layers, "F", "S");
    return ReadWords(fields, "index_topk_pattern", layers, "full", "shared");
  }
  std::vector<bool> full(static_cast<size_t>(layers), true);
  if (pattern != nullptr) {
    const std::string letters = *fields.String("index_topk_pattern");
    if (static_cast<int64_t>(letters.size()) != layers ||
        letters.find_first_not_of("FS") != std::string::npos) {
      fields.Refuse("index_topk_pattern", fmt::format("{} letters F or S are needed", layers));
    }
    for (int64_t i = 0; i < layers; ++i)
      full[static_cast<size_t>(i)] = letters[static_cast<size_t>(i)] == 'F';
    return full;
  }
  const int64_t frequency = fields.IntegerOr("index_topk_freq", 1, 1, kMaxLayers);
  const int64_t offset = fields.IntegerOr("index_skip_topk_offset", 2, 0, kMaxLayers);
  for (int64_t i = 0; i < layers; ++i) {
    full[static_cast<size_t>(i)] = std::max<int64_t>(i - offset + 1, 0) % frequency == 0;
  }
  return full;
}

// mlp_layer_types names each layer; else layer i is a mixture of experts from first_k_dense_replace
// on when it is a multiple of moe_layer_freq.
std::vector<bool> ReadSparseLayers(const JsonFields& fields, int64_t layers) {
  if (fields.Has("mlp_layer_types"))
    return ReadWords(fields, "mlp_layer_types", layers, "sparse", "dense");
  const int64_t dense = fields.NeedInteger("first_k_dense_replace", 0, kMaxLayers);
  const int64_t frequency = fields.IntegerOr("moe_layer_freq", 1, 1, kMaxLayers);
  std::vector<bool> sparse;
  for (int64_t i = 0; i < layers; ++i) sparse.push_back(i >= dense && i % frequency == 0);
  return sparse;
}

// Families differ in what an absent field means, so those that change the result must be there.
void ReadExperts(const JsonFields& fields, ModelConfig& config) {
  config.moe_intermediate = fields.NeedInteger("moe_intermediate_size", 1, kMaxWidth);
  config.experts = fields.NeedInteger("n_routed_experts", 1, kMaxRoutedExperts);
  config.experts_per_token = fields.NeedInteger("num_experts_per_tok", 1, config.experts);
  config.shared_experts = fields.NeedInteger("n_shared_experts", 0, 64);
  config.expert_groups = fields.NeedInteger("n_group", 1, config.experts);
  config.kept_groups = fields.NeedInteger("topk_group", 1, config.expert_groups);
  if (config.experts % config.expert_groups != 0) {
    fields.Refuse("n_group",
                  fmt::format("a divisor of n_routed_experts {} is needed", config.experts));
  }
  if (config.experts_per_token > config.experts / config.expert_groups * config.kept_groups) {
    fields.Refuse("num_experts_per_tok",
                  fmt::format("{} kept groups hold {} experts only", config.kept_groups,
                              config.experts / config.expert_groups * config.kept_groups));
  }
  config.normalise_experts = fields.Boolean("norm_topk_prob").value_or(true);
  config.routed_scaling = fields.NeedNumber("routed_scaling_factor", 1e-6, 1e6);
  const std::string scoring = fields.String("scoring_func").value_or("sigmoid");
  if (scoring != "sigmoid") fields.Refuse("scoring_func", "sigmoid is served");
  const std::string method = fields.String("topk_method").value_or("noaux_tc");
  if (method != "noaux_tc") fields.Refuse("topk_method", "noaux_tc is served");
}

void CheckQuantisation(const JsonFields& fields) {
  const ordered_json* section = fields.Find("quantization_config");
  if (section == nullptr) return;
  const JsonFields quantisation(*section, fields.file_name() + ": quantization_config",
                                ErrorCode::kConfig);
  const std::string method = quantisation.String("quant_method").value_or("");
  if (method != "fp8") quantisation.Refuse("quant_method", "fp8 with 128x128 blocks is served");
  const ordered_json* block = quantisation.Find("weight_block_size");
  if (block == nullptr || *block != ordered_json::array({128, 128})) {
    quantisation.Refuse("weight_block_size", "[128, 128] is served");
  }
}

ModelConfig ReadConfig(const ordered_json& root, const std::string& file_name) {
  const JsonFields fields(root, file_name, ErrorCode::kConfig);
  const FamilyInfo& family = FindFamily(fields);
  ModelConfig config;
  config.family = family.family;
  config.model_type = family.model_type;
  config.vocabulary = fields.NeedInteger("vocab_size", 1, 1 << 24);
  config.hidden = fields.NeedInteger("hidden_size", 1, kMaxWidth);
  config.layers = fields.NeedInteger("num_hidden_layers", 1, kMaxLayers);
  config.mtp_layers = fields.IntegerOr("num_nextn_predict_layers", 0, 0, 8);
  config.draft_shares_selection = fields.Boolean("index_share_for_mtp_iteration").value_or(false);
  config.heads = fields.NeedInteger("num_attention_heads", 1, 4096);
  config.q_lora_rank = fields.IntegerOr("q_lora_rank", 0, 0, kMaxWidth);
  if (config.q_lora_rank == 0)
    fields.Refuse("q_lora_rank", "the indexer's queries are made from it: 1 or more is needed");
  config.kv_lora_rank = fields.NeedInteger("kv_lora_rank", 1, kMaxWidth);
  config.nope_dim = fields.NeedInteger("qk_nope_head_dim", 1, 4096);
  config.rope_dim = fields.NeedInteger("qk_rope_head_dim", 0, 4096);
  if (config.rope_dim % 2 != 0) fields.Refuse("qk_rope_head_dim", "an even number is needed");
  config.value_dim = fields.NeedInteger("v_head_dim", 1, 4096);
  config.max_position = fields.NeedInteger("max_position_embeddings", 1, INT32_MAX);
  config.rms_norm_epsilon = fields.NeedNumber("rms_norm_eps", 1e-12, 1.0);
  config.attention_bias = fields.Boolean("attention_bias").value_or(false);
  if (config.attention_bias)
    fields.Refuse("attention_bias", "projections with a bias are not served");
  config.tie_word_embeddings = fields.Boolean("tie_word_embeddings").value_or(false);
  const std::string activation = fields.String("hidden_act").value_or("silu");
  if (activation != "silu") fields.Refuse("hidden_act", "silu is served");

  config.layer_is_sparse = ReadSparseLayers(fields, config.layers);
  const bool any_sparse =
      std::count(config.layer_is_sparse.begin(), config.layer_is_sparse.end(), true) > 0;
  const bool any_dense =
      std::count(config.layer_is_sparse.begin(), config.layer_is_sparse.end(), false) > 0;
  if (any_dense) config.intermediate = fields.NeedInteger("intermediate_size", 1, kMaxWidth);
  if (any_sparse || config.mtp_layers > 0) ReadExperts(fields, config);

  config.index_heads = fields.NeedInteger("index_n_heads", 1, 128);
  config.index_dim = fields.NeedInteger("index_head_dim", 1, 512);
  config.index_topk = fields.NeedInteger("index_topk", 1, 1 << 20);
  config.index_kpool = fields.IntegerOr("index_kpool", 1, 1, 64);
  if (config.index_kpool != 1)
    fields.Refuse("index_kpool", fmt::format("{} has one key per token (1)", config.model_type));
  if (config.index_dim < config.rope_dim) {
    fields.Refuse("index_head_dim",
                  fmt::format("at least qk_rope_head_dim {} is needed", config.rope_dim));
  }
  config.index_rope_interleaved =
      fields.Boolean("indexer_rope_interleave").value_or(family.index_rope_interleaved);
  config.rope_interleaved = fields.Boolean("rope_interleave").value_or(true);
  config.layer_has_indexer = ReadIndexerLayers(fields, config.layers);
  if (!config.layer_has_indexer[0]) {
    Fail(ErrorCode::kConfig,
         fmt::format("{}: layer 0 has a shared indexer, but no full layer stands before it",
                     file_name));
  }
  // The prediction layers are mixtures of experts with an indexer of their own.
  for (int64_t i = 0; i < config.mtp_layers; ++i) {
    config.layer_is_sparse.push_back(true);
    config.layer_has_indexer.push_back(true);
  }
  const std::optional<int64_t> bos =
      fields.Find("bos_token_id") != nullptr && fields.Find("bos_token_id")->is_number()
          ? fields.Integer("bos_token_id")
          : std::nullopt;
  if (bos)
    config.bos_token_id =
        static_cast<int32_t>(fields.NeedInteger("bos_token_id", 0, config.vocabulary - 1));
  CheckQuantisation(fields);
  config.rope = ReadRope(fields, family, config.warnings);
  return config;
}

}  // namespace

ModelConfig ParseModelConfig(const std::string& json_text, const std::string& file_name) {
  return ReadConfig(ParseJson(json_text, file_name), file_name);
}

ModelConfig LoadModelConfig(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.json";
  return ParseModelConfig(ReadTextFile(file, size_t{16} << 20), file.string());
}

}  // namespace strata
