// The answers of one call while they are made: tokens in, pieces of text out.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_thread.h"
#include "models/stop_strings.h"
#include "models/tokenizer.h"
#include "server/generation_call.h"
#include "server/selection_store.h"
#include "server/service.h"

namespace strata {

struct AnswerToken {
  int32_t id = -1;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

// What came since the last piece of the same choice.
struct AnswerPiece {
  int64_t choice = 0;
  std::string text;                   // whole characters, nothing that may be part of a stop string
  std::vector<AnswerToken> tokens;    // that were read for it
  std::optional<std::string> finish;  // "stop" or "length"; the last piece of a choice
  std::string stop_string;            // that ended it; empty for a stop token
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// One call's choices. Leaving cancels what still runs.
class Answers {
 public:
  using Clock = std::chrono::steady_clock;

  // Submits every request; each answers as a choice of its own. `prompt_tokens` is what usage
  // counts. ApiError(429) when the queue is full, (503) when the server drains.
  Answers(Service& service, std::vector<Request> requests, const std::vector<std::string>& stops,
          int64_t prompt_tokens, std::string request_id);
  // Keeps what the first choice looks at in the service's store, under `id`.
  void Watch(const std::string& id, std::vector<int32_t> prompt);
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // Pieces that are ready; waits up to `wait` for the first. ApiError(500) when the engine failed,
  // (503) when it ended the answer because the server shuts down.
  std::vector<AnswerPiece> Next(std::chrono::milliseconds wait);
  bool done() const { return open_ == 0; }
  // Ends all choices: the client has gone.
  void Cancel();

  const Usage& usage() const { return usage_; }
  int64_t prompt_read() const;  // tokens of the prompt that are in the cache
  Clock::time_point arrival() const { return arrival_; }
  // Milliseconds and tokens per second of prompt and answer so far.
  nlohmann::ordered_json Timings() const;

 private:
  struct Choice {
    std::shared_ptr<TokenStream> stream;
    Tokenizer::Stream text;
    StopStrings stops;
    DraftCounts drafts = {};
    bool open = true;
  };

  void Read(int64_t index, const TokenEvent& event, AnswerPiece& piece);
  void End(Choice& choice, const std::string& reason);
  void Log() const;

  Service& service_;
  const std::string request_id_;
  const Clock::time_point arrival_ = Clock::now();
  std::vector<Choice> choices_;
  int64_t open_ = 0;
  Usage usage_;
  RequestTimes times_;
  std::optional<Clock::time_point> first_token_, last_token_;
  std::string finish_ = "cancelled";
  std::string watch_id_;  // empty: not watched
  WatchedAnswer watched_;
};

}  // namespace strata
