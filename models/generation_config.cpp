// Stop tokens and sampling defaults of a checkpoint folder.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/status.h"
#include "models/config.h"
#include "models/json.h"

namespace strata {

namespace {

using nlohmann::ordered_json;

std::optional<ordered_json> ReadOptional(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  return ParseJson(ReadTextFile(file), file.string());
}

void AddId(std::vector<int32_t>& ids, int64_t id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(static_cast<int32_t>(id));
}

// eos_token_id: a number, a list of numbers, or absent.
void AddEos(const JsonFields& fields, std::vector<int32_t>& ids) {
  const ordered_json* value = fields.Find("eos_token_id");
  if (value == nullptr) return;
  const auto add = [&](const ordered_json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      fields.Refuse("eos_token_id", "a token id or a list of token ids is needed");
    }
    AddId(ids, id.get<int64_t>());
  };
  if (value->is_array()) {
    for (const ordered_json& id : *value) add(id);
  } else {
    add(*value);
  }
}

// The tokenizer's own end token, by its text.
void AddTokenizerEos(const std::filesystem::path& directory, std::vector<int32_t>& ids) {
  const std::filesystem::path file = directory / "tokenizer_config.json";
  const std::optional<ordered_json> config = ReadOptional(file);
  if (!config || !config->is_object()) return;
  std::string text;
  const auto token = config->find("eos_token");
  if (token == config->end()) return;
  if (token->is_string()) text = token->get<std::string>();
  if (token->is_object() && token->contains("content") && (*token)["content"].is_string()) {
    text = (*token)["content"].get<std::string>();
  }
  if (text.empty()) return;
  const std::filesystem::path tokenizer_file = directory / "tokenizer.json";
  const std::optional<ordered_json> tokenizer = ReadOptional(tokenizer_file);
  if (!tokenizer || !tokenizer->is_object() || !tokenizer->contains("added_tokens")) return;
  for (const ordered_json& added : (*tokenizer)["added_tokens"]) {
    if (!added.is_object() || !added.contains("content") || added["content"] != text) continue;
    const JsonFields fields(added, tokenizer_file.string() + ": added_tokens",
                            ErrorCode::kModelFile);
    AddId(ids, fields.NeedInteger("id", 0, INT32_MAX));
  }
}

}  // namespace

GenerationConfig LoadGenerationConfig(const std::filesystem::path& directory) {
  GenerationConfig generation;
  const auto read_eos = [&](const char* name) {
    const std::optional<ordered_json> file = ReadOptional(directory / name);
    if (file)
      AddEos(JsonFields(*file, (directory / name).string(), ErrorCode::kConfig),
             generation.eos_token_ids);
  };
  read_eos("config.json");
  read_eos("generation_config.json");
  AddTokenizerEos(directory, generation.eos_token_ids);
  const std::filesystem::path path = directory / "generation_config.json";
  if (const std::optional<ordered_json> file = ReadOptional(path)) {
    const JsonFields fields(*file, path.string(), ErrorCode::kConfig);
    generation.do_sample = fields.Boolean("do_sample");
    generation.temperature = fields.Number("temperature");
    generation.top_p = fields.Number("top_p");
    generation.top_k = fields.Integer("top_k");
    generation.min_p = fields.Number("min_p");
    generation.repetition_penalty = fields.Number("repetition_penalty");
  }
  return generation;
}

SamplingParams DefaultSampling(const GenerationConfig& generation) {
  SamplingParams params;
  const bool sample = generation.do_sample.value_or(generation.temperature.has_value());
  params.temperature = static_cast<float>(sample ? generation.temperature.value_or(1.0) : 0.0);
  // Out of range stays so, to be refused with the other parameters.
  params.top_k =
      static_cast<int32_t>(std::clamp<int64_t>(generation.top_k.value_or(0), INT32_MIN, INT32_MAX));
  params.top_p = static_cast<float>(generation.top_p.value_or(1.0));
  params.min_p = static_cast<float>(generation.min_p.value_or(0.0));
  params.repetition_penalty = static_cast<float>(generation.repetition_penalty.value_or(1.0));
  return params;
}

}  // namespace strata
