#include "server/answer_constraints.h"

#include <algorithm>

#include "kernels/status.h"
#include "models/json_constraint.h"
#include "server/api_error.h"

namespace strata {

std::shared_ptr<const TokenConstraint> AnswerConstraints::Kept(
    const std::string& key,
    const std::function<std::shared_ptr<const TokenConstraint>()>& compile) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const auto& entry) { return entry.first == key; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return found->second;
  }
  std::shared_ptr<const TokenConstraint> constraint = compile();
  if (key.size() > kKeptKeyBytes) return constraint;
  kept_.emplace_front(key, constraint);
  if (kept_.size() > kKept) kept_.pop_back();
  return constraint;
}

std::shared_ptr<const TokenConstraint> AnswerConstraints::Json(const nlohmann::ordered_json* schema,
                                                               const std::string& path) {
  return Kept(schema == nullptr ? "json" : "json " + JsonText(*schema), [&] {
    if (!text_)
      text_ = std::make_shared<const JsonVocabulary>(tokenizer_, vocabulary_size_, end_tokens_);
    return std::make_shared<const JsonConstraint>(
        text_, schema == nullptr ? JsonSchema::AnyObject() : JsonSchema::Compile(*schema, path));
  });
}

std::shared_ptr<const TokenConstraint> AnswerConstraints::Calls(const CallRules& rules) {
  const CallSyntax* syntax = CallSyntaxOf(format_);
  if (syntax == nullptr) {
    Fail(ErrorCode::kUsage,
         "a call cannot be enforced: this model's chat template has no form for calls");
  }
  const std::string key = std::string("calls ") + (rules.several ? "several " : "one ") +
                          (rules.in_reasoning ? "reasoned " : "") + JsonText(rules.tools);
  return Kept(key, [&] {
    if (!with_tags_) {
      with_tags_ = std::make_shared<const JsonVocabulary>(tokenizer_, vocabulary_size_, end_tokens_,
                                                          CallLanguage::Spoken(*syntax));
    }
    return std::make_shared<const CallConstraint>(with_tags_, *syntax, rules);
  });
}

}  // namespace strata
