// Answers that are JSON: response_format json_object and json_schema.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/json_automaton.h"
#include "models/json_schema.h"
#include "models/text_constraint.h"

namespace strata {

// One JSON value of the schema. Any tokens may spell it: one token may close a string, two objects
// and begin the next name.
class JsonLanguage {
 public:
  using State = JsonState;
  explicit JsonLanguage(JsonSchema schema) : schema_(std::move(schema)), automaton_(schema_) {}
  JsonLanguage(const JsonLanguage&) = delete;
  JsonLanguage& operator=(const JsonLanguage&) = delete;

  State Start() const { return automaton_.Start(); }
  bool Step(const State& from, uint8_t byte, State& to) const {
    return automaton_.Step(from, byte, to);
  }
  bool MayEnd(const State& state) const { return automaton_.MayEnd(state); }
  void AppendKey(const State& state, int64_t reach, std::string& key) const {
    automaton_.AppendKey(state, reach, key);
  }
  void Find(const JsonVocabulary& vocabulary, const State& state, std::vector<State>& walk,
            std::vector<uint32_t>& mask) const;

 private:
  const JsonSchema schema_;
  const JsonAutomaton automaton_;
};

using JsonConstraint = TextConstraint<JsonLanguage>;

}  // namespace strata
