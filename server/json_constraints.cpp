#include "server/json_constraints.h"

#include <algorithm>

#include "server/api_error.h"

namespace strata {

std::shared_ptr<const TokenConstraint> JsonConstraints::Get(const nlohmann::ordered_json* schema,
                                                            const std::string& path) {
  const std::string key = schema == nullptr ? "" : JsonText(*schema);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const auto& entry) { return entry.first == key; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().second;
  }
  if (!vocabulary_) {
    vocabulary_ = std::make_shared<const JsonVocabulary>(tokenizer_, vocabulary_size_, end_tokens_);
  }
  auto constraint = std::make_shared<const JsonConstraint>(
      vocabulary_,
      schema == nullptr ? JsonSchema::AnyObject() : JsonSchema::Compile(*schema, path));
  kept_.emplace_front(key, constraint);
  if (kept_.size() > kKept) kept_.pop_back();
  return constraint;
}

}  // namespace strata
