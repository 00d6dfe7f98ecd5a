// Answers that are tool calls: tool_choice "required" or a named function.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/call_syntax.h"
#include "models/json_automaton.h"
#include "models/text_constraint.h"

namespace strata {

// What may be called, and how often.
struct CallRules {
  nlohmann::ordered_json tools;  // OpenAI's list, only those that may be called; not empty
  bool several = true;           // one call or more; else exactly one
  bool in_reasoning = false;     // the text starts as reasoning, which goes on up to </think>
};

struct CallState {
  enum class Mode : uint8_t {
    kReasoning,
    kOpen,  // the first call's opening
    kName,
    kPart,     // a parameter's opening or the end of the call
    kText,     // a value as it stands
    kLiteral,  // one of the texts that a schema lists
    kJson,
    kClose,  // the closing tag behind a JSON value
    kAfter,  // the next call's opening or the end of them all
    kEnd,
  };
  Mode mode = Mode::kOpen;
  // Where the text stands in what may come here; in free text: how much of its closing tag is
  // there.
  uint32_t node = 0;
  uint32_t call_open = 0;  // in reasoning: how much of a call's opening is there
  uint32_t tool = 0, parameter = 0;
  uint64_t used = 0;  // the parameters that the call has
  JsonState json;
};

// Texts of one or more complete calls, as the model's format writes them: the name is one of the
// tools', each parameter one that its schema lists, none comes twice, and the required ones come.
// A value that can only be a string is any text, or one of the schema's `enum` or `const`; one that
// can be no string is JSON of its schema, or of its type where the schema asks for what cannot be
// enforced (json_schema.h); where the format leaves it to the schema, one that may be either is any
// text. Reasoning is free but for the opening of a call. OutputParser reads every such text as
// these calls, behind their reasoning.
class CallLanguage {
 public:
  using State = CallState;

  // Fail(kUsage) names the tool or parameter that the format cannot write: names with quotes, line
  // breaks or '<', white space around them, or more than 64 parameters. It also bounds what a
  // request can have compiled: 128 tools, the bytes of their texts and schemas.
  CallLanguage(const CallSyntax& syntax, const CallRules& rules);
  ~CallLanguage();
  CallLanguage(const CallLanguage&) = delete;
  CallLanguage& operator=(const CallLanguage&) = delete;

  // Special tokens that may be part of the text.
  static std::vector<std::string_view> Spoken(const CallSyntax& syntax);

  State Start() const;
  bool Step(const State& from, uint8_t byte, State& to) const;
  bool MayEnd(const State& state) const;
  void AppendKey(const State& state, int64_t reach, std::string& key) const;
  void Find(const JsonVocabulary& vocabulary, const State& state, std::vector<State>& walk,
            std::vector<uint32_t>& mask) const {
    WalkTokens(vocabulary.all(), *this, state, walk, mask);
  }

 private:
  struct Value;
  struct Tool;
  class Compiler;

  bool StepOpening(const State& from, uint8_t byte, State& to) const;
  bool StepName(const State& from, uint8_t byte, State& to) const;
  bool StepPart(const State& from, uint8_t byte, State& to) const;
  bool StepJson(const State& from, uint8_t byte, State& to) const;
  const Value& ValueOf(const State& state) const;

  const CallSyntax& syntax_;
  const bool several_, in_reasoning_;
  JsonTrie open_, after_, names_;
  std::vector<uint32_t> think_close_, call_open_, value_close_;  // Knuth, Morris and Pratt's tables
  std::vector<std::unique_ptr<Tool>> tools_;
};

using CallConstraint = TextConstraint<CallLanguage>;

}  // namespace strata
