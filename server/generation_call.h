// What a request asks of the engine, read from the fields that all dialects of the OpenAI API
// share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/sequence.h"
#include "server/fields.h"
#include "server/service.h"

namespace strata {

constexpr int64_t kMaxChoices = 16;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;

struct GenerationCall {
  Request request;  // of the first choice
  int64_t choices = 1;
  std::vector<std::string> stops;
  bool stream = false;
  bool include_usage = false;    // stream_options.include_usage
  bool return_progress = false;  // progress of the prompt in the stream
  bool logprobs = false;
  bool watch_selection = false;  // strata.selection: keep what the first choice looks at
};

// One request per choice: choice i draws with seed + i.
std::vector<Request> RequestsOf(const GenerationCall& call);

// Stop strings under the given name: at most kMaxStops, none empty or longer than kMaxStopBytes.
std::vector<std::string> ReadStops(const Fields& fields, const char* name);

// Everything but the prompt and what is told about logprobs, which the dialects name differently.
// Sampling starts from the model's own defaults. ApiError(400) names the field.
GenerationCall ReadCall(const Fields& fields, const Service& service);

}  // namespace strata
