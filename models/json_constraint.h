// Answers that are JSON: response_format json_object and json_schema.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/token_constraint.h"
#include "models/json_automaton.h"
#include "models/json_schema.h"
#include "models/json_vocabulary.h"

namespace strata {

// The whole answer is one JSON value of the schema, then an end token. Any tokens may spell it: one
// token may close a string, two objects and begin the next name.
//
// Masks that were found are kept by what the text's state can tell apart and shared by all clones,
// so make one constraint per schema and clone it for each answer. Clone is thread-safe.
class JsonConstraint final : public TokenConstraint {
 public:
  JsonConstraint(std::shared_ptr<const JsonVocabulary> vocabulary, JsonSchema schema);

  void Allowed(std::vector<uint32_t>& mask) const override;
  // Fail(kInternal) when Allowed would not give it.
  void Accept(int32_t token) override;
  std::unique_ptr<TokenConstraint> Clone() const override;

 private:
  struct Shared;
  explicit JsonConstraint(std::shared_ptr<Shared> shared);
  void Find(std::vector<uint32_t>& mask) const;
  void Walk(const TokenTrie& trie, const JsonState& from, std::vector<uint32_t>& mask) const;

  std::shared_ptr<Shared> shared_;
  JsonState state_;
  bool ended_ = false;
  mutable std::vector<JsonState> walk_;  // [depth in the trie]
};

}  // namespace strata
