#include "models/json_automaton.h"

#include <algorithm>
#include <array>

namespace strata {

namespace {

using Mode = JsonState::Mode;
using Active = JsonState::Active;
using Alternative = JsonFrame::Alternative;

constexpr uint16_t kSpace = 1, kLine = 2;
constexpr int kIndentation = 4;  // blanks per level
// A name's node after a backslash that no listed name has here: what it escapes is not known yet.
constexpr uint32_t kEscaped = JsonTrie::kNone - 1;

bool IsBlank(uint8_t byte) { return byte == ' ' || byte == '\t' || byte == '\n'; }

}  // namespace

// At most as many as the compiler lets run side by side.
struct JsonAutomaton::Shapes {
  std::array<uint32_t, kMaxJsonAlternatives> list;
  size_t count = 0;

  void Add(uint32_t shape) { list[count++] = shape; }
  bool Meets(const std::vector<uint32_t>& shapes) const {
    for (size_t i = 0; i < count; ++i) {
      if (std::binary_search(shapes.begin(), shapes.end(), list[i])) return true;
    }
    return false;
  }
};

JsonState JsonAutomaton::Start() const {
  JsonState state;
  for (const uint32_t shape : schema_.alternatives(schema_.root()).shapes)
    state.active.push_back({.id = shape});
  return state;
}

bool JsonAutomaton::Step(const JsonState& from, uint8_t byte, JsonState& to) const {
  switch (from.mode) {
    case Mode::kInString:
      return StepString(from, byte, to);
    case Mode::kInName:
      return StepName(from, byte, to);
    case Mode::kInNumber:
      return StepNumber(from, byte, to);
    case Mode::kInWord:
      return StepWord(from, byte, to);
    case Mode::kEnd:
      return false;
    default:
      return StepBetween(from, byte, to);
  }
}

bool JsonAutomaton::StepBetween(const JsonState& from, uint8_t byte, JsonState& to) const {
  if (IsBlank(byte)) return StepBlank(from, byte, to);
  switch (from.mode) {
    case Mode::kArrayStart:
      if (byte == ']') return Close(from, to);
      return StartValue(from, byte, to);
    case Mode::kValue:
      return StartValue(from, byte, to);
    case Mode::kObjectStart:
      if (byte == '}') return Close(from, to);
      return byte == '"' && StartName(from, to);
    case Mode::kName:
      return byte == '"' && StartName(from, to);
    case Mode::kColon:
      if (byte != ':') return false;
      to.mode = Mode::kValue;
      to.blanks = 0;
      to.frame = from.frame;
      Expect(to);
      return true;
    case Mode::kAfterValue:
      if (byte == ',') return Comma(from, to);
      return (from.frame->object ? byte == '}' : byte == ']') && Close(from, to);
    default:
      return false;
  }
}

bool JsonAutomaton::StepBlank(const JsonState& from, uint8_t byte, JsonState& to) const {
  if (from.mode == Mode::kColon) return false;
  const int depth = from.frame ? from.frame->depth : 0;
  uint16_t blanks = 0;
  if (byte == '\n') {
    if (from.blanks != 0) return false;
    blanks = kLine;
  } else if (from.blanks == 0) {
    blanks = kSpace;
  } else {
    if (from.blanks < kLine || from.blanks - kLine >= kIndentation * depth) return false;
    blanks = static_cast<uint16_t>(from.blanks + 1);
  }
  to.mode = from.mode;
  to.blanks = blanks;
  to.active = from.active;
  to.frame = from.frame;
  return true;
}

bool JsonAutomaton::Fits(uint32_t alternatives, int depth) const {
  const JsonUnion& value = schema_.alternatives(alternatives);
  return !value.shapes.empty() && value.nesting + depth <= kMaxJsonNesting;
}

void JsonAutomaton::Expect(JsonState& to) const {
  to.active.clear();
  for (const Alternative& alternative : to.frame->alternatives) {
    if (alternative.pending == JsonFrame::kNone) continue;
    for (const uint32_t shape : schema_.alternatives(alternative.pending).shapes) {
      if (schema_.shape(shape).nesting + to.frame->depth <= kMaxJsonNesting)
        to.active.push_back({.id = shape});
    }
  }
  if (to.frame->alternatives.size() > 1) {
    std::sort(to.active.begin(), to.active.end(),
              [](const Active& a, const Active& b) { return a.id < b.id; });
    to.active.erase(std::unique(to.active.begin(), to.active.end(),
                                [](const Active& a, const Active& b) { return a.id == b.id; }),
                    to.active.end());
  }
}

bool JsonAutomaton::StartValue(const JsonState& from, uint8_t byte, JsonState& to) const {
  if (byte == '{' || byte == '[') return Open(from, byte == '{', to);
  to.active.clear();
  to.number = JsonNumberText{};
  const bool string = byte == '"';
  const bool number = to.number.Start(byte);
  if (!string && !number && byte != 't' && byte != 'f' && byte != 'n') return false;
  for (const Active& active : from.active) {
    const JsonShape& shape = schema_.shape(active.id);
    if (const auto* literals = std::get_if<JsonLiterals>(&shape.what)) {
      const uint32_t node = literals->texts.Child(JsonTrie::kRoot, byte);
      if (node != JsonTrie::kNone) to.active.push_back({.id = active.id, .node = node});
    } else if (string) {
      if (std::holds_alternative<JsonString>(shape.what)) to.active.push_back({.id = active.id});
    } else if (number) {
      const auto* range = std::get_if<JsonNumberRange>(&shape.what);
      if (range != nullptr && to.number.CanBecome(*range)) to.active.push_back({.id = active.id});
    }
  }
  to.mode = string ? Mode::kInString : number ? Mode::kInNumber : Mode::kInWord;
  to.blanks = 0;
  to.string = JsonStringText{};
  to.frame = from.frame;
  return !to.active.empty();
}

bool JsonAutomaton::Open(const JsonState& from, bool object, JsonState& to) const {
  auto frame = std::make_shared<JsonFrame>();
  frame->parent = from.frame;
  frame->depth = from.frame ? from.frame->depth + 1 : 1;
  frame->object = object;
  for (const Active& active : from.active) {
    const JsonShape& shape = schema_.shape(active.id);
    if (object ? !std::holds_alternative<JsonObject>(shape.what)
               : !std::holds_alternative<JsonArray>(shape.what))
      continue;
    Alternative alternative{.shape = active.id};
    if (!object && TakesItem(*frame, alternative))
      alternative.pending = std::get<JsonArray>(shape.what).Item(0);
    frame->alternatives.push_back(alternative);
  }
  if (frame->alternatives.empty()) return false;
  to.mode = object ? Mode::kObjectStart : Mode::kArrayStart;
  to.blanks = 0;
  to.frame = std::move(frame);
  Expect(to);
  return true;
}

bool JsonAutomaton::StepString(const JsonState& from, uint8_t byte, JsonState& to) const {
  const bool closes = byte == '"' && from.string.phase == JsonStringText::Phase::kBoundary;
  to.string = from.string;
  if (!closes && !to.string.Push(byte)) return false;
  to.active.clear();
  Shapes complete;
  for (const Active& active : from.active) {
    const JsonShape& shape = schema_.shape(active.id);
    if (const auto* text = std::get_if<JsonString>(&shape.what)) {
      if (closes) {
        if (to.string.characters >= text->min_length) complete.Add(active.id);
      } else if (to.string.characters <= text->max_length) {
        to.active.push_back(active);
      }
      continue;
    }
    const auto& literals = std::get<JsonLiterals>(shape.what);
    const uint32_t node = literals.texts.Child(active.node, byte);
    if (node == JsonTrie::kNone) continue;
    if (closes) {
      complete.Add(active.id);
    } else {
      to.active.push_back({.id = active.id, .node = node});
    }
  }
  to.frame = from.frame;
  if (closes) return complete.count > 0 && EndValue(complete, to);
  to.mode = Mode::kInString;
  return !to.active.empty();
}

JsonAutomaton::Shapes JsonAutomaton::CompleteNumbers(const JsonState& state) const {
  Shapes complete;
  for (const Active& active : state.active) {
    const JsonShape& shape = schema_.shape(active.id);
    if (const auto* range = std::get_if<JsonNumberRange>(&shape.what)) {
      if (state.number.Is(*range)) complete.Add(active.id);
    } else if (std::get<JsonLiterals>(shape.what).texts.Value(active.node) != JsonTrie::kNone) {
      complete.Add(active.id);
    }
  }
  return complete;
}

bool JsonAutomaton::StepNumber(const JsonState& from, uint8_t byte, JsonState& to) const {
  to.number = from.number;
  if (to.number.Push(byte)) {
    to.active.clear();
    for (const Active& active : from.active) {
      const JsonShape& shape = schema_.shape(active.id);
      if (const auto* range = std::get_if<JsonNumberRange>(&shape.what)) {
        if (to.number.CanBecome(*range)) to.active.push_back(active);
      } else {
        const uint32_t node = std::get<JsonLiterals>(shape.what).texts.Child(active.node, byte);
        if (node != JsonTrie::kNone) to.active.push_back({.id = active.id, .node = node});
      }
    }
    to.mode = Mode::kInNumber;
    to.frame = from.frame;
    return !to.active.empty();
  }
  // The byte after a number is the first that does not belong to it.
  if (!from.frame || (byte != ',' && byte != ']' && byte != '}' && !IsBlank(byte))) return false;
  const Shapes complete = CompleteNumbers(from);
  if (complete.count == 0) return false;
  JsonState ended;
  ended.frame = from.frame;
  return EndValue(complete, ended) && StepBetween(ended, byte, to);
}

bool JsonAutomaton::StepWord(const JsonState& from, uint8_t byte, JsonState& to) const {
  to.active.clear();
  Shapes complete;
  for (const Active& active : from.active) {
    const JsonTrie& texts = std::get<JsonLiterals>(schema_.shape(active.id).what).texts;
    const uint32_t node = texts.Child(active.node, byte);
    if (node == JsonTrie::kNone) continue;
    if (texts.Value(node) != JsonTrie::kNone) complete.Add(active.id);
    to.active.push_back({.id = active.id, .node = node});
  }
  to.frame = from.frame;
  if (complete.count > 0) return EndValue(complete, to);
  to.mode = Mode::kInWord;
  return !to.active.empty();
}

// Whether a listed property may come whose name begins as the node does.
bool JsonAutomaton::HasNameBelow(const JsonFrame& frame, const Alternative& alternative,
                                 uint32_t node) const {
  const auto& object = std::get<JsonObject>(schema_.shape(alternative.shape).what);
  const uint32_t last = object.next_required[alternative.next];
  const std::vector<uint32_t>& below = object.names.Below(node);
  for (auto index = std::lower_bound(below.begin(), below.end(), alternative.next);
       index != below.end() && *index <= last; ++index) {
    if (Fits(object.properties[*index].value, frame.depth)) return true;
  }
  return false;
}

bool JsonAutomaton::TakesAdditional(const JsonFrame& frame, const Alternative& alternative) const {
  const auto& object = std::get<JsonObject>(schema_.shape(alternative.shape).what);
  return object.next_required[alternative.next] == object.properties.size() &&
         Fits(object.additional, frame.depth);
}

bool JsonAutomaton::TakesItem(const JsonFrame& frame, const Alternative& alternative) const {
  const auto& array = std::get<JsonArray>(schema_.shape(alternative.shape).what);
  return frame.count < array.max_items && Fits(array.Item(frame.count), frame.depth);
}

bool JsonAutomaton::StartName(const JsonState& from, JsonState& to) const {
  const JsonFrame& frame = *from.frame;
  to.active.clear();
  for (size_t i = 0; i < frame.alternatives.size(); ++i) {
    const bool listed = HasNameBelow(frame, frame.alternatives[i], JsonTrie::kRoot);
    const bool additional = TakesAdditional(frame, frame.alternatives[i]);
    if (!listed && !additional) continue;
    const auto& object = std::get<JsonObject>(schema_.shape(frame.alternatives[i].shape).what);
    to.active.push_back({.id = static_cast<uint32_t>(i),
                         .node = object.properties.empty() ? JsonTrie::kNone : JsonTrie::kRoot,
                         .additional = additional});
  }
  to.mode = Mode::kInName;
  to.blanks = 0;
  to.string = JsonStringText{};
  to.frame = from.frame;
  return !to.active.empty();
}

bool JsonAutomaton::StepName(const JsonState& from, uint8_t byte, JsonState& to) const {
  using Phase = JsonStringText::Phase;
  if (byte == '"' && from.string.phase == Phase::kBoundary) return CloseName(from, to);
  to.string = from.string;
  if (!to.string.Push(byte)) return false;
  // As long as a name might turn out to be a listed one, only the listed spelling may be used: of
  // two ways to write a character, that is the one that is neither \u nor \/.
  const bool other_spelling = from.string.phase == Phase::kEscape && (byte == 'u' || byte == '/');
  to.active.clear();
  for (Active active : from.active) {
    const Alternative& alternative = from.frame->alternatives[active.id];
    const auto& object = std::get<JsonObject>(schema_.shape(alternative.shape).what);
    if (active.node == kEscaped) {
      if (other_spelling) continue;
      active.node = JsonTrie::kNone;
    } else if (active.node != JsonTrie::kNone) {
      if (other_spelling) active.additional = false;
      active.node = object.names.Child(active.node, byte);
      if (active.node == JsonTrie::kNone && to.string.phase == Phase::kEscape)
        active.node = kEscaped;
      const bool listed = active.node != JsonTrie::kNone && active.node != kEscaped;
      if (!active.additional && !(listed && HasNameBelow(*from.frame, alternative, active.node)))
        continue;
    }
    to.active.push_back(active);
  }
  to.mode = Mode::kInName;
  to.frame = from.frame;
  return !to.active.empty();
}

bool JsonAutomaton::CloseName(const JsonState& from, JsonState& to) const {
  const JsonFrame& frame = *from.frame;
  const uint64_t hash = from.string.hash;
  const bool repeated =
      frame.names && std::binary_search(frame.names->begin(), frame.names->end(), hash);
  auto next = std::make_shared<JsonFrame>();
  bool additional = false;
  for (const Active& active : from.active) {
    Alternative alternative = frame.alternatives[active.id];
    const auto& object = std::get<JsonObject>(schema_.shape(alternative.shape).what);
    const uint32_t index =
        active.node == JsonTrie::kNone ? JsonTrie::kNone : object.names.Value(active.node);
    if (index == JsonTrie::kNone) {
      if (!active.additional || repeated) continue;
      alternative.next = static_cast<uint32_t>(object.properties.size());
      alternative.pending = object.additional;
      additional = true;
    } else {
      if (index < alternative.next || index > object.next_required[alternative.next] ||
          !Fits(object.properties[index].value, frame.depth))
        continue;
      alternative.next = index + 1;
      alternative.pending = object.properties[index].value;
    }
    next->alternatives.push_back(alternative);
  }
  if (next->alternatives.empty()) return false;
  next->parent = frame.parent;
  next->depth = frame.depth;
  next->object = true;
  next->names = frame.names;
  if (additional) {
    auto names = frame.names ? std::make_shared<std::vector<uint64_t>>(*frame.names)
                             : std::make_shared<std::vector<uint64_t>>();
    const auto at = std::lower_bound(names->begin(), names->end(), hash);
    if (at == names->end() || *at != hash) names->insert(at, hash);
    next->names = std::move(names);
  }
  to.mode = Mode::kColon;
  to.blanks = 0;
  to.active.clear();
  to.frame = std::move(next);
  return true;
}

bool JsonAutomaton::Comma(const JsonState& from, JsonState& to) const {
  const JsonFrame& frame = *from.frame;
  to.blanks = 0;
  to.active.clear();
  if (frame.object) {
    const bool more = std::any_of(frame.alternatives.begin(), frame.alternatives.end(),
                                  [&](const Alternative& alternative) {
                                    return TakesAdditional(frame, alternative) ||
                                           HasNameBelow(frame, alternative, JsonTrie::kRoot);
                                  });
    to.mode = Mode::kName;
    to.frame = from.frame;
    return more;
  }
  auto next = std::make_shared<JsonFrame>(frame);
  next->alternatives.clear();
  for (Alternative alternative : frame.alternatives) {
    if (!TakesItem(frame, alternative)) continue;
    alternative.pending =
        std::get<JsonArray>(schema_.shape(alternative.shape).what).Item(frame.count);
    next->alternatives.push_back(alternative);
  }
  if (next->alternatives.empty()) return false;
  to.mode = Mode::kValue;
  to.frame = std::move(next);
  Expect(to);
  return true;
}

bool JsonAutomaton::Close(const JsonState& from, JsonState& to) const {
  const JsonFrame& frame = *from.frame;
  Shapes complete;
  for (const Alternative& alternative : frame.alternatives) {
    const JsonShape& shape = schema_.shape(alternative.shape);
    bool whole = false;
    if (frame.object) {
      const auto& object = std::get<JsonObject>(shape.what);
      whole = object.next_required[alternative.next] == object.properties.size();
    } else {
      whole = frame.count >= std::get<JsonArray>(shape.what).min_items;
    }
    if (whole) complete.Add(alternative.shape);
  }
  if (complete.count == 0) return false;
  to.frame = frame.parent;
  return EndValue(complete, to);
}

bool JsonAutomaton::EndValue(const Shapes& shapes, JsonState& to) const {
  to.blanks = 0;
  to.active.clear();
  if (!to.frame) {
    to.mode = Mode::kEnd;
    return true;
  }
  auto next = std::make_shared<JsonFrame>(*to.frame);
  std::erase_if(next->alternatives, [&](const Alternative& alternative) {
    return alternative.pending == JsonFrame::kNone ||
           !shapes.Meets(schema_.alternatives(alternative.pending).shapes);
  });
  for (Alternative& alternative : next->alternatives) alternative.pending = JsonFrame::kNone;
  ++next->count;
  to.mode = Mode::kAfterValue;
  to.frame = std::move(next);
  return true;
}

bool JsonAutomaton::MayEnd(const JsonState& state) const {
  if (state.mode == Mode::kInNumber && !state.frame) return CompleteNumbers(state).count > 0;
  return state.mode == Mode::kEnd;
}

int64_t JsonAutomaton::AnyCharacters(const JsonState& state) const {
  if (state.string.phase != JsonStringText::Phase::kBoundary) return -1;
  if (state.mode == Mode::kInName) {
    // An additional name can always go on, whatever it is so far.
    for (const Active& active : state.active) {
      if (active.additional) return kJsonUnlimited;
    }
    return -1;
  }
  if (state.mode != Mode::kInString) return -1;
  int64_t room = -1;
  for (const Active& active : state.active) {
    const auto* text = std::get_if<JsonString>(&schema_.shape(active.id).what);
    if (text == nullptr) continue;
    room = std::max(room, text->max_length == kJsonUnlimited
                              ? kJsonUnlimited
                              : text->max_length - state.string.characters);
  }
  return room;
}

JsonState JsonAutomaton::LiteralsOf(const JsonState& state) const {
  JsonState literals = state;
  std::erase_if(literals.active, [&](const Active& active) {
    return !std::holds_alternative<JsonLiterals>(schema_.shape(active.id).what);
  });
  return literals;
}

namespace {

class KeyWriter {
 public:
  explicit KeyWriter(std::string& key) : key_(key) {}
  void Number(uint64_t value) {  // seven bits a byte, so that small numbers are short
    for (; value >= 0x80; value >>= 7) key_ += static_cast<char>(value | 0x80);
    key_ += static_cast<char>(value);
  }
  // How far a count is below its bounds, as far as `reach` more can tell.
  void Bounds(int64_t count, int64_t least, int64_t most, int64_t reach) {
    Number(static_cast<uint64_t>(std::clamp<int64_t>(least - count, 0, reach)));
    Number(static_cast<uint64_t>(std::clamp<int64_t>(most - count, 0, reach)));
  }

 private:
  std::string& key_;
};

}  // namespace

void JsonAutomaton::AppendKey(const JsonState& state, int64_t reach, std::string& key) const {
  KeyWriter out(key);
  out.Number(static_cast<uint64_t>(state.mode));
  out.Number(state.blanks);
  const bool in_string = state.mode == Mode::kInString, in_name = state.mode == Mode::kInName;
  if (in_string || in_name) {
    const JsonStringText& text = state.string;
    for (const uint64_t part :
         {uint64_t{static_cast<uint8_t>(text.phase)}, uint64_t{text.left}, uint64_t{text.low},
          uint64_t{text.high}, uint64_t{text.unit}, uint64_t{text.first_unit}})
      out.Number(part);
  }
  bool bounded = false, additional = false;
  out.Number(state.active.size());
  for (const Active& active : state.active) {
    out.Number(active.id);
    out.Number(active.node);
    out.Number(active.additional);
    additional = additional || active.additional;
    if (in_name) continue;
    const JsonShape& shape = schema_.shape(active.id);
    const auto* text = std::get_if<JsonString>(&shape.what);
    if (in_string && text != nullptr)
      out.Bounds(state.string.characters, text->min_length, text->max_length, reach);
    const auto* range = std::get_if<JsonNumberRange>(&shape.what);
    bounded = bounded || (range != nullptr && range->bounded());
  }
  if (additional) out.Number(state.string.hash);
  if (state.mode == Mode::kInNumber) {
    const JsonNumberText& number = state.number;
    for (const uint64_t part : {uint64_t{static_cast<uint8_t>(number.phase)},
                                uint64_t{number.negative}, uint64_t{number.integer_digits},
                                uint64_t{number.fraction_digits}, uint64_t{number.exponent_digits},
                                uint64_t{number.exponent}, bounded ? number.digits : uint64_t{0}})
      out.Number(part);
  }
  for (const JsonFrame* frame = state.frame.get(); frame != nullptr; frame = frame->parent.get()) {
    out.Number(frame->object ? 1 : 2);
    out.Number(frame->alternatives.size());
    for (const Alternative& alternative : frame->alternatives) {
      out.Number(alternative.shape);
      out.Number(alternative.next);
      out.Number(alternative.pending);
      if (frame->object) continue;
      const auto& array = std::get<JsonArray>(schema_.shape(alternative.shape).what);
      out.Bounds(frame->count, array.min_items, array.max_items, reach);
      out.Number(static_cast<uint64_t>(
          std::min<int64_t>(frame->count, static_cast<int64_t>(array.prefix.size()))));
    }
    out.Number(frame->names ? frame->names->size() : 0);
    for (size_t i = 0; frame->names && i < frame->names->size(); ++i)
      out.Number((*frame->names)[i]);
  }
  out.Number(0);
}

}  // namespace strata
