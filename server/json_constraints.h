// Compiled response formats, kept for requests that ask for the same one again.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "models/json_constraint.h"
#include "models/tokenizer.h"

namespace strata {

// Any thread.
class JsonConstraints {
 public:
  JsonConstraints(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<int32_t> end_tokens)
      : tokenizer_(tokenizer), vocabulary_size_(vocabulary), end_tokens_(std::move(end_tokens)) {}

  // Null asks for any JSON object. `path` names the schema in errors. Fail(kUsage) names what
  // cannot be enforced, or what the model's vocabulary lacks for JSON.
  std::shared_ptr<const TokenConstraint> Get(const nlohmann::ordered_json* schema,
                                             const std::string& path);

 private:
  static constexpr size_t kKept = 32;

  const Tokenizer& tokenizer_;
  const int64_t vocabulary_size_;
  const std::vector<int32_t> end_tokens_;
  std::mutex mutex_;
  std::shared_ptr<const JsonVocabulary> vocabulary_;  // made for the first request
  std::list<std::pair<std::string, std::shared_ptr<const TokenConstraint>>> kept_;  // latest first
};

}  // namespace strata
