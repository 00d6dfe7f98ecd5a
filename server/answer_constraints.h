// What answers are held to, compiled: response formats and calls, kept for requests that ask for
// the same again.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "models/call_language.h"
#include "models/output_parser.h"
#include "models/tokenizer.h"

namespace strata {

// Any thread.
class AnswerConstraints {
 public:
  AnswerConstraints(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<int32_t> end_tokens,
                    OutputFormat format)
      : tokenizer_(tokenizer),
        vocabulary_size_(vocabulary),
        end_tokens_(std::move(end_tokens)),
        format_(format) {}

  // JSON of the schema; null asks for any object. `path` names the schema in errors. Fail(kUsage)
  // names what cannot be enforced, or what the model's vocabulary lacks for JSON.
  std::shared_ptr<const TokenConstraint> Json(const nlohmann::ordered_json* schema,
                                              const std::string& path);
  // Calls of these tools. Fail(kUsage) as CallLanguage, and where the model's format has no calls.
  std::shared_ptr<const TokenConstraint> Calls(const CallRules& rules);

 private:
  using Vocabulary = std::shared_ptr<const JsonVocabulary>;
  static constexpr size_t kKept = 32;
  static constexpr size_t kKeptKeyBytes = size_t{256} << 10;

  std::shared_ptr<const TokenConstraint> Kept(
      const std::string& key,
      const std::function<std::shared_ptr<const TokenConstraint>()>& compile);

  const Tokenizer& tokenizer_;
  const int64_t vocabulary_size_;
  const std::vector<int32_t> end_tokens_;
  const OutputFormat format_;
  std::mutex mutex_;             // guards the rest
  Vocabulary text_, with_tags_;  // each made for the first request that needs it
  std::list<std::pair<std::string, std::shared_ptr<const TokenConstraint>>> kept_;  // latest first
};

}  // namespace strata
