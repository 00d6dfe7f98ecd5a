// One request while it runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/draft_state.h"
#include "engine/sampler.h"
#include "engine/selection_recorder.h"
#include "engine/speculation.h"
#include "engine/token_constraint.h"

namespace strata {

using RequestId = int64_t;

struct Request {
  std::vector<int32_t> prompt;  // token ids, the start token included; not empty
  SamplingParams sampling;
  int64_t max_tokens = 0;            // of the answer; 0: as many as the context or cache holds
  std::vector<int32_t> stop_tokens;  // each ends the answer and is not part of it
  bool ignore_eos = false;           // stop_tokens do not stop
  bool reuse_prefix = true;
  // What the answer may say; null: anything. Each sequence follows a copy of its own.
  std::shared_ptr<const TokenConstraint> constraint;
  bool watch_selection = false;  // events carry where their step looked
  int32_t top_logprobs = 0;      // most likely tokens to report beside each token, at most 20
  std::optional<SpeculationOptions> speculation;  // none: the engine's

  // The token ends the answer.
  bool StopsAt(int32_t token) const {
    return !ignore_eos &&
           std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end();
  }
};

constexpr int32_t kMaxTopLogprobs = 20;

enum class FinishReason : uint8_t {
  kStop,    // a stop token
  kLength,  // max_tokens or the end of the context
  kCancelled,
  kError,  // see the event's message
};
constexpr int kFinishReasons = 4;
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "cancelled", "error"

struct TokenEvent {
  RequestId id = 0;
  int32_t token = -1;  // -1: no token in this event
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;                    // most likely first, equal ones lowest id first
  std::shared_ptr<const TokenSelection> selection;  // of a watched request
  int64_t cached_tokens = 0;                        // prompt tokens that came from the prefix cache
  std::optional<FinishReason> finish;
  DraftCounts drafts;  // of the sequence so far
  std::string error;   // with kError
};
// Called on the thread that runs Engine::Step. Must not call back into the engine.
using TokenCallback = std::function<void(const TokenEvent&)>;

// State of a running request; owned by the engine's thread.
struct Sequence {
  Sequence(RequestId request_id, Request the_request, TokenCallback the_callback)
      : id(request_id),
        request(std::move(the_request)),
        callback(std::move(the_callback)),
        tokens(request.prompt),
        sampler(request.sampling, request.prompt),
        constraint(request.constraint ? request.constraint->Clone() : nullptr) {}

  RequestId id;
  Request request;
  TokenCallback callback;
  std::vector<int32_t> tokens;  // prompt and answer
  int64_t cells = 0;            // tokens whose cells are in the cache
  int64_t slot = -1;            // row of the block table; -1: waiting
  std::vector<int32_t> pages;
  int64_t cached_tokens = -1;  // of the first admission; -1: never admitted
  bool cancelled = false;
  Sampler sampler;
  std::unique_ptr<TokenConstraint> constraint;
  DraftState draft;

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t answer_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens(); }
  bool decoding() const {
    return cells + 1 >= static_cast<int64_t>(tokens.size()) && answer_tokens() > 0;
  }
};

}  // namespace strata
