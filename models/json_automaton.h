// A pushdown automaton over bytes: where a JSON text stands and what may come next under a schema.
//
// The text alone decides the stack: which objects and lists are open, how many items they have,
// where in a string or number the text stands. Each open value carries the set of the schema's
// alternatives that the text so far can still become, so anyOf costs a set per level and never a
// set of stacks. Every alternative in a set can be completed by itself: no accepted byte leads to a
// dead end.
//
// Blanks: one space or tab, or one line break and at most four blanks of indentation per level, in
// each place where JSON has them; none before a colon and none after the whole value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/json_scalars.h"
#include "models/json_schema.h"

namespace strata {

// An open object or list. Immutable and shared between states.
struct JsonFrame {
  struct Alternative {
    uint32_t shape = 0;
    uint32_t next = 0;         // objects: the first property that may still come; all: additional
    uint32_t pending = kNone;  // the union of the value that is to come or being written
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  std::shared_ptr<const JsonFrame> parent;
  int depth = 1;  // of its items: how many frames are open
  bool object = false;
  int64_t count = 0;  // lists: complete items
  // Objects: hashes of the names written as additional ones, ascending; null: none.
  std::shared_ptr<const std::vector<uint64_t>> names;
  std::vector<Alternative> alternatives;  // ascending by shape
};

struct JsonState {
  enum class Mode : uint8_t {
    kValue,        // a value comes
    kArrayStart,   // a value or ]
    kObjectStart,  // a name or }
    kName,         // a name comes
    kInName,
    kColon,
    kInString,
    kInNumber,
    kInWord,      // true, false, null
    kAfterValue,  // a comma or the closing bracket
    kEnd,
  };
  struct Active {
    uint32_t id = 0;          // shape; in a name: index of the frame's alternative
    uint32_t node = 0;        // in the trie of its literals or names; kNone: none of them
    bool additional = false;  // in a name: may become one that is not listed
  };

  Mode mode = Mode::kValue;
  uint16_t blanks = 0;  // 0: none here; 1: a space; 2 + n: a line break and n blanks
  JsonStringText string;
  JsonNumberText number;
  std::vector<Active> active;  // of the value that is to come or being written, or of the name
  std::shared_ptr<const JsonFrame> frame;  // innermost; null outside the top value
};

// Thread-safe; refers to the schema.
class JsonAutomaton {
 public:
  explicit JsonAutomaton(const JsonSchema& schema) : schema_(schema) {}

  JsonState Start() const;
  // False when the byte cannot come; `to` is then unspecified. `to` must not be `from`.
  bool Step(const JsonState& from, uint8_t byte, JsonState& to) const;
  // Whether the text is a complete value.
  bool MayEnd(const JsonState& state) const;

  // How many complete characters without quote and backslash may come here whatever they are; -1:
  // that is not known.
  int64_t AnyCharacters(const JsonState& state) const;
  // In a string: the same text, to become a literal and nothing else.
  JsonState LiteralsOf(const JsonState& state) const;
  // Appends bytes that are equal only for states after which the same texts of up to `reach` bytes
  // may come.
  void AppendKey(const JsonState& state, int64_t reach, std::string& key) const;

 private:
  struct Shapes;  // a small set
  using Frame = std::shared_ptr<const JsonFrame>;

  bool StepBetween(const JsonState& from, uint8_t byte, JsonState& to) const;
  bool StepBlank(const JsonState& from, uint8_t byte, JsonState& to) const;
  bool StepString(const JsonState& from, uint8_t byte, JsonState& to) const;
  bool StepNumber(const JsonState& from, uint8_t byte, JsonState& to) const;
  bool StepWord(const JsonState& from, uint8_t byte, JsonState& to) const;
  bool StepName(const JsonState& from, uint8_t byte, JsonState& to) const;
  bool StartValue(const JsonState& from, uint8_t byte, JsonState& to) const;
  bool Open(const JsonState& from, bool object, JsonState& to) const;
  bool StartName(const JsonState& from, JsonState& to) const;
  bool CloseName(const JsonState& from, JsonState& to) const;
  bool Comma(const JsonState& from, JsonState& to) const;
  bool Close(const JsonState& from, JsonState& to) const;
  // A value of exactly these shapes is complete; to.frame is the frame around it.
  bool EndValue(const Shapes& shapes, JsonState& to) const;
  // to.active: what the pending unions of to.frame allow.
  void Expect(JsonState& to) const;

  bool Fits(uint32_t alternatives, int depth) const;
  bool HasNameBelow(const JsonFrame& frame, const JsonFrame::Alternative& alternative,
                    uint32_t node) const;
  bool TakesAdditional(const JsonFrame& frame, const JsonFrame::Alternative& alternative) const;
  bool TakesItem(const JsonFrame& frame, const JsonFrame::Alternative& alternative) const;
  Shapes CompleteNumbers(const JsonState& state) const;

  const JsonSchema& schema_;
};

}  // namespace strata
