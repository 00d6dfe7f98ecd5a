#include "server/generation_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

#include "server/api_error.h"

namespace strata {

namespace {

void ReadSampling(const Fields& fields, SamplingParams& sampling) {
  const auto set = [&](const char* name, double low, double high, float& value) {
    if (const auto given = fields.Number(name, low, high)) value = static_cast<float>(*given);
  };
  set("temperature", 0.0, 100.0, sampling.temperature);
  set("top_p", 0.0, 1.0, sampling.top_p);
  if (sampling.top_p == 0.0f) fields.Refuse("top_p", "a number above 0 is wanted");
  set("min_p", 0.0, 0.999999, sampling.min_p);
  set("presence_penalty", -2.0, 2.0, sampling.presence_penalty);
  set("frequency_penalty", -2.0, 2.0, sampling.frequency_penalty);
  set("repetition_penalty", 0.01, 100.0, sampling.repetition_penalty);
  // -1 says "all" to some clients.
  if (const auto top_k = fields.Integer("top_k", -1, 1 << 30))
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));
  if (const auto seed = fields.Integer("seed", INT64_MIN, INT64_MAX)) {
    sampling.seed = static_cast<uint64_t>(*seed);
  } else {
    thread_local std::mt19937_64 random(std::random_device{}());
    sampling.seed = random();
  }
}

void ReadLogitBias(const Fields& fields, int64_t vocabulary, SamplingParams& sampling) {
  const Fields::Json* biases = fields.Object("logit_bias");
  if (biases == nullptr) return;
  const Fields entries(*biases, "logit_bias.");
  // One for each token, however often it is written: the engine adds all of them at every step.
  std::map<int32_t, float> sums;
  for (const auto& [name, value] : biases->items()) {
    char* end = nullptr;
    const long long token = std::strtoll(name.c_str(), &end, 10);
    if (name.empty() || end != name.c_str() + name.size() || token < 0 || token >= vocabulary) {
      throw ApiError(400,
                     fmt::format("logit_bias names the token '{}', ids from 0 to {} are wanted",
                                 name.substr(0, 40), vocabulary - 1),
                     "logit_bias");
    }
    if (value.is_null()) continue;
    // Read from here: a search by name would take time for each entry that is there.
    const double bias = value.is_number() ? value.get<double>() : HUGE_VAL;
    if (!(bias >= -100.0 && bias <= 100.0))
      entries.Refuse(name.c_str(), "a number from -100 to 100 is wanted");
    sums[static_cast<int32_t>(token)] += static_cast<float>(bias);
  }
  sampling.logit_bias.assign(sums.begin(), sums.end());
}

// The smaller of both names, cut to the server's own limit.
int64_t ReadAnswerLimit(const Fields& fields, int64_t most) {
  int64_t limit = 0;
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const auto given = fields.Integer(name, 1, INT64_MAX);
    if (given) limit = limit == 0 ? *given : std::min(limit, *given);
  }
  if (most > 0) limit = limit == 0 ? most : std::min(limit, most);
  return limit;
}

std::vector<int32_t> ReadStopTokens(const Fields& fields, int64_t vocabulary) {
  std::vector<int32_t> tokens;
  const Fields::Json* list = fields.Array("stop_token_ids");
  if (list == nullptr) return tokens;
  for (const Fields::Json& entry : *list) {
    if (!entry.is_number_integer() || entry < 0 || entry >= vocabulary)
      fields.Refuse("stop_token_ids", fmt::format("ids from 0 to {} are wanted", vocabulary - 1));
    tokens.push_back(entry.get<int32_t>());
  }
  // Each once: the engine goes over the list at every token.
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

// "speculative": {"drafts": 0 to 7, "drafter": ..., "min_p": 0 to 1}, over the server's own choice.
std::optional<SpeculationOptions> ReadSpeculation(const Fields& fields,
                                                  const SpeculationOptions& defaults) {
  const Fields::Json* own = fields.Object("speculative");
  if (own == nullptr) return std::nullopt;
  const Fields choice(*own, "speculative.");
  SpeculationOptions options = defaults;
  if (const auto drafts = choice.Integer("drafts", 0, kMaxDrafts)) options.drafts = *drafts;
  if (const auto least = choice.Number("min_p", 0.0, 1.0))
    options.min_probability = static_cast<float>(*least);
  if (const auto name = choice.String("drafter")) {
    const std::optional<DrafterKind> kind = ParseDrafter(name->c_str());
    if (!kind) choice.Refuse("drafter", "auto, mtp, ngram or off is wanted");
    options.drafter = *kind;
  }
  return options;
}

}  // namespace

std::vector<std::string> ReadStops(const Fields& fields, const char* name) {
  std::vector<std::string> stops = fields.Strings(name, kMaxStops);
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      throw ApiError(
          400,
          fmt::format("a stop string has {} bytes, 1 to {} are wanted", stop.size(), kMaxStopBytes),
          name);
    }
  }
  return stops;
}

std::vector<Request> RequestsOf(const GenerationCall& call) {
  std::vector<Request> requests(static_cast<size_t>(call.choices), call.request);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].sampling.seed += i;
  return requests;
}

GenerationCall ReadCall(const Fields& fields, const Service& service) {
  const ServedModel& model = service.model();
  const int64_t vocabulary = model.engine->engine().runner().model().geometry().vocabulary;
  if (const auto name = fields.String("model")) service.CheckName(*name);

  GenerationCall call;
  call.request.sampling = DefaultSampling(model.generation);
  ReadSampling(fields, call.request.sampling);
  ReadLogitBias(fields, vocabulary, call.request.sampling);
  call.request.max_tokens = ReadAnswerLimit(fields, service.options().max_answer_tokens);
  call.request.reuse_prefix = fields.Boolean("cache_prompt").value_or(true);
  call.request.stop_tokens = ReadStopTokens(fields, vocabulary);
  if (!fields.Boolean("ignore_eos").value_or(false)) {
    call.request.stop_tokens.insert(call.request.stop_tokens.end(),
                                    model.generation.eos_token_ids.begin(),
                                    model.generation.eos_token_ids.end());
  }
  if (const Fields::Json* own = fields.Object("strata")) {
    call.watch_selection = Fields(*own, "strata.").Boolean("selection").value_or(false);
    call.request.watch_selection = call.watch_selection;
  }
  call.request.speculation =
      ReadSpeculation(fields, model.engine->engine().runner().options().speculation);
  call.choices = fields.Integer("n", 1, kMaxChoices).value_or(1);
  call.stops = ReadStops(fields, "stop");
  call.stream = fields.Boolean("stream").value_or(false);
  call.return_progress = fields.Boolean("return_progress").value_or(false);
  if (const Fields::Json* options = fields.Object("stream_options")) {
    if (!call.stream) fields.Refuse("stream_options", "which needs \"stream\": true");
    call.include_usage =
        Fields(*options, "stream_options.").Boolean("include_usage").value_or(false);
  }
  return call;
}

}  // namespace strata
