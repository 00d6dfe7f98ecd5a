// Where the latest watched answers looked, for GET /v1/selections.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/selection_recorder.h"
#include "models/tokenizer.h"

namespace strata {

// The text of an answer and the selections of its steps.
struct WatchedAnswer {
  std::vector<int32_t> tokens;  // prompt and answer
  int64_t prompt_tokens = 0;
  std::vector<TokenSelection> steps;
};

// Keeps the last kKept answers, each with at most kMaxSteps steps. Any thread.
class SelectionStore {
 public:
  static constexpr size_t kKept = 8;
  static constexpr size_t kMaxSteps = 512;

  void Keep(const std::string& id, WatchedAnswer answer);
  // {"id", "prompt_tokens", "pieces", "layers": [{"layer", "steps": [{"position", "ids"}]}]}; null
  // when the id is not kept.
  nlohmann::ordered_json Find(const std::string& id, const Tokenizer& tokenizer) const;

 private:
  mutable std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const WatchedAnswer>>> kept_;  // latest first
};

}  // namespace strata
