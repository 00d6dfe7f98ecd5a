#include "models/call_language.h"

#include <algorithm>

#include "models/tool_arguments.h"

namespace strata {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view kEndThink = "</think>";
constexpr size_t kMaxTools = 128;
constexpr size_t kMaxParameters = 64;
constexpr size_t kMaxTextBytes = size_t{64} << 10;   // of names and listed values, all together
constexpr size_t kMaxSchemaBytes = size_t{1} << 20;  // of values' schemas with their definitions
constexpr size_t kMaxNameBytes = 256;                // what OutputParser takes for a name
constexpr std::pair<uint8_t, const char*> kTypes[] = {
    {kJsonInteger, "integer"}, {kJsonNumber, "number"}, {kJsonBoolean, "boolean"},
    {kJsonNull, "null"},       {kJsonObject, "object"}, {kJsonArray, "array"}};
enum : uint32_t { kNextCall, kNoMoreCalls };

// [matched + 1]: the longest proper start of the tag that also ends its first `matched` bytes.
std::vector<uint32_t> Borders(std::string_view tag) {
  std::vector<uint32_t> borders(tag.size() + 1, 0);
  for (size_t i = 1; i < tag.size(); ++i) {
    uint32_t length = borders[i];
    while (length > 0 && tag[i] != tag[length]) length = borders[length];
    borders[i + 1] = tag[i] == tag[length] ? length + 1 : 0;
  }
  return borders;
}

// How much of the tag stands at the end of the text once the byte has come.
uint32_t Matched(std::string_view tag, const std::vector<uint32_t>& borders, uint32_t matched,
                 uint8_t byte) {
  while (matched > 0 && static_cast<uint8_t>(tag[matched]) != byte) matched = borders[matched];
  return static_cast<uint8_t>(tag[matched]) == byte ? matched + 1 : 0;
}

void CheckName(const std::string& name, const std::string& what) {
  const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == '<' || c == '"';
  });
  if (plain && !name.empty() && name.size() <= kMaxNameBytes && name.front() != ' ' &&
      name.back() != ' ')
    return;
  Fail(ErrorCode::kUsage,
       fmt::format("{} '{}' cannot be written in this model's calls: names have 1 to {} bytes "
                   "without quotes, line breaks, '<' and spaces around them",
                   what, name.substr(0, kMaxNameBytes), kMaxNameBytes));
}

// What a request may have compiled for it.
class Budget {
 public:
  explicit Budget(size_t bytes, const char* what) : left_(bytes), bytes_(bytes), what_(what) {}
  void Take(size_t bytes) {
    if (bytes > left_) {
      Fail(ErrorCode::kUsage, fmt::format("the {} of these tools have more than {} bytes; calls of "
                                          "fewer or smaller tools can be enforced",
                                          what_, bytes_));
    }
    left_ -= bytes;
  }

 private:
  size_t left_;
  const size_t bytes_;
  const char* what_;
};

// The texts that the schema lists, when it allows these and nothing else.
std::vector<std::string> ListedTexts(const ordered_json& schema) {
  std::vector<std::string> texts;
  if (!schema.is_object()) return texts;
  ordered_json list = schema.value("enum", ordered_json());
  if (schema.contains("const")) list = ordered_json::array({schema["const"]});
  if (!list.is_array()) return texts;
  for (const ordered_json& entry : list) {
    if (entry.is_string()) texts.push_back(entry.get<std::string>());
  }
  return texts;
}

// What a value that is no string must be: its schema, else its kinds, else any JSON.
JsonSchema SchemaOf(ordered_json schema, const ordered_json& root, uint8_t kinds,
                    const std::string& path, Budget& budget) {
  if ((kinds & kJsonString) == 0) {
    const std::string text = schema.dump();
    budget.Take(text.size());
    // References go to the root of the tool's parameters.
    if (text.find("\"$ref\"") != std::string::npos) {
      for (const char* name : {"$defs", "definitions"}) {
        if (!root.contains(name) || schema.contains(name)) continue;
        budget.Take(root[name].dump().size());
        schema[name] = root[name];
      }
    }
    try {
      return JsonSchema::Compile(schema, path);
    } catch (const Error&) {
      // The call is enforced all the same, its values by their types.
    }
  }
  ordered_json types = ordered_json::array();
  for (const auto& [kind, name] : kTypes) {
    if ((kinds & kind) != 0) types.push_back(name);
  }
  if (types.empty()) return JsonSchema::Compile(true, path);
  return JsonSchema::Compile({{"type", std::move(types)}}, path);
}

}  // namespace

struct CallLanguage::Value {
  State::Mode mode = State::Mode::kText;
  JsonTrie literals;  // with the closing tag behind each
  std::unique_ptr<JsonSchema> schema;
  std::unique_ptr<JsonAutomaton> automaton;
};

struct CallLanguage::Tool {
  JsonTrie parts;             // openings of parameters -> index of `values`; the end of the call
  std::vector<Value> values;  // one for each way to open a parameter
  std::vector<uint32_t> parameter;  // [values]
  uint64_t required = 0;            // bits of parameters
};

class CallLanguage::Compiler {
 public:
  explicit Compiler(const CallSyntax& syntax) : syntax_(syntax) {}

  // `root`: the schema of the tool's parameters, if it has one.
  std::unique_ptr<Tool> MakeTool(const std::string& name, ordered_json root) {
    CheckName(name, "the tool");
    texts_.Take(name.size());
    if (!root.is_object()) root = ordered_json::object();
    ordered_json parameters = root.value("properties", ordered_json());
    if (!parameters.is_object()) parameters = ordered_json::object();
    std::vector<std::string> required;
    const ordered_json listed = root.value("required", ordered_json());
    for (const ordered_json& entry : listed.is_array() ? listed : ordered_json::array()) {
      if (parameters.size() > kMaxParameters) break;
      if (!entry.is_string()) continue;
      required.push_back(entry.get<std::string>());
      if (!parameters.contains(required.back())) parameters[required.back()] = true;
    }
    if (parameters.size() > kMaxParameters) {
      Fail(ErrorCode::kUsage, fmt::format("the tool '{}' has more than {} parameters; a call of at "
                                          "most that many can be enforced",
                                          name, kMaxParameters));
    }
    auto tool = std::make_unique<Tool>();
    uint32_t index = 0;
    SchemaKinds known(root);
    for (const auto& [key, schema] : parameters.items()) {
      CheckName(key, fmt::format("the parameter of '{}'", name));
      texts_.Take(key.size());
      if (std::find(required.begin(), required.end(), key) != required.end())
        tool->required |= uint64_t{1} << index;
      AddParameter(*tool, index++, key, schema, root, known, name + "." + key);
    }
    for (const char* lead : {"", "\n", "\n\n"})
      tool->parts.Add(lead + std::string(syntax_.call_close),
                      static_cast<uint32_t>(tool->values.size()));
    return tool;
  }

 private:
  // Every way to open the parameter, with the values that may stand behind it.
  void AddParameter(Tool& tool, uint32_t index, const std::string& key, const ordered_json& schema,
                    const ordered_json& root, SchemaKinds& known, const std::string& path) {
    const uint8_t kinds = known.Of(schema);
    const bool text = kinds == 0 || (kinds & kJsonString) != 0;
    const bool other = kinds == 0 || (kinds & ~kJsonString) != 0;
    for (const ValueOpening& opening : syntax_.value_open) {
      // The schema decides only where the markup has no say.
      if (opening.rule == ValueRule::kSchema && syntax_.value_open.size() > 1) continue;
      if (opening.rule == ValueRule::kString && !text) continue;
      if (opening.rule == ValueRule::kJson && !other) continue;
      const uint32_t id = static_cast<uint32_t>(tool.values.size());
      for (const char* lead : {"", "\n"}) {
        for (const std::string_view gap : syntax_.gaps) {
          tool.parts.Add(fmt::format("{}{}{}{}{}{}", lead, syntax_.key_open, key, syntax_.key_close,
                                     gap, opening.tag),
                         id);
        }
      }
      tool.parameter.push_back(index);
      Value& value = tool.values.emplace_back();
      if (opening.rule == ValueRule::kJson || !text) {
        value.mode = State::Mode::kJson;
        value.schema = std::make_unique<JsonSchema>(SchemaOf(schema, root, kinds, path, schemas_));
        value.automaton = std::make_unique<JsonAutomaton>(*value.schema);
      } else if (kinds == kJsonString) {
        for (const std::string& listed : ListedTexts(schema)) {
          texts_.Take(listed.size());
          value.mode = State::Mode::kLiteral;
          value.literals.Add(listed + std::string(syntax_.value_close), 0);
        }
      }
    }
  }

  const CallSyntax& syntax_;
  Budget texts_{kMaxTextBytes, "names and listed values"};
  Budget schemas_{kMaxSchemaBytes, "schemas"};
};

CallLanguage::CallLanguage(const CallSyntax& syntax, const CallRules& rules)
    : syntax_(syntax),
      several_(rules.several),
      in_reasoning_(rules.in_reasoning),
      think_close_(Borders(kEndThink)),
      call_open_(Borders(syntax.call_open)),
      value_close_(Borders(syntax.value_close)) {
  const std::string call_open(syntax.call_open);
  for (const char* lead : {"", "\n", "\n\n"}) {
    const std::string block(syntax.block_open);
    open_.Add(lead + block + (block.empty() ? "" : "\n") + call_open, kNextCall);
  }
  for (const char* lead : {"", "\n"}) {
    if (several_) after_.Add(lead + call_open, kNextCall);
  }
  for (const char* lead : {"", "\n"}) {
    if (!syntax.block_close.empty())
      after_.Add(lead + std::string(syntax.block_close), kNoMoreCalls);
  }
  if (rules.tools.size() > kMaxTools) {
    Fail(ErrorCode::kUsage, fmt::format("there are {} tools; calls of at most {} can be enforced",
                                        rules.tools.size(), kMaxTools));
  }
  Compiler compiler(syntax);
  for (const ordered_json& entry : rules.tools) {
    const ordered_json& function = entry["function"];
    const std::string name = function["name"].get<std::string>();
    names_.Add(name + std::string(syntax.name_close), static_cast<uint32_t>(tools_.size()));
    tools_.push_back(compiler.MakeTool(name, function.value("parameters", ordered_json())));
  }
}

CallLanguage::~CallLanguage() = default;

std::vector<std::string_view> CallLanguage::Spoken(const CallSyntax& syntax) {
  return {kEndThink,          syntax.mark,      syntax.block_open,
          syntax.block_close, syntax.call_open, syntax.call_close,
          syntax.key_open,    syntax.key_close, syntax.value_open.front().tag,
          syntax.value_close};
}

const CallLanguage::Value& CallLanguage::ValueOf(const State& state) const {
  return tools_[state.tool]->values[state.parameter];
}

CallState CallLanguage::Start() const {
  State state;
  state.mode = in_reasoning_ ? State::Mode::kReasoning : State::Mode::kOpen;
  return state;
}

bool CallLanguage::MayEnd(const State& state) const {
  return state.mode == State::Mode::kEnd ||
         (state.mode == State::Mode::kAfter && state.node == 0 && syntax_.block_close.empty());
}

bool CallLanguage::Step(const State& from, uint8_t byte, State& to) const {
  const auto enter = [&to](State::Mode mode) {
    to.mode = mode;
    to.node = 0;
  };
  to = from;
  switch (from.mode) {
    case State::Mode::kReasoning:
      to.node = Matched(kEndThink, think_close_, from.node, byte);
      to.call_open = Matched(syntax_.call_open, call_open_, from.call_open, byte);
      if (to.node == kEndThink.size()) {
        enter(State::Mode::kOpen);
        to.call_open = 0;
      }
      return to.call_open < syntax_.call_open.size();
    case State::Mode::kOpen:
    case State::Mode::kAfter:
      return StepOpening(from, byte, to);
    case State::Mode::kName:
      return StepName(from, byte, to);
    case State::Mode::kPart:
      return StepPart(from, byte, to);
    case State::Mode::kText:
      to.node = Matched(syntax_.value_close, value_close_, from.node, byte);
      if (to.node == syntax_.value_close.size()) enter(State::Mode::kPart);
      return true;
    case State::Mode::kLiteral: {
      const JsonTrie& literals = ValueOf(from).literals;
      to.node = literals.Child(from.node, byte);
      if (to.node == JsonTrie::kNone) return false;
      if (literals.Value(to.node) != JsonTrie::kNone) enter(State::Mode::kPart);
      return true;
    }
    case State::Mode::kJson:
      return StepJson(from, byte, to);
    case State::Mode::kClose:
      if (static_cast<uint8_t>(syntax_.value_close[from.node]) != byte) return false;
      if (++to.node == syntax_.value_close.size()) enter(State::Mode::kPart);
      return true;
    case State::Mode::kEnd:
      break;
  }
  return false;
}

bool CallLanguage::StepOpening(const State& from, uint8_t byte, State& to) const {
  const JsonTrie& trie = from.mode == State::Mode::kOpen ? open_ : after_;
  to.node = trie.Child(from.node, byte);
  if (to.node == JsonTrie::kNone) return false;
  const uint32_t value = trie.Value(to.node);
  if (value == JsonTrie::kNone) return true;
  to.mode = value == kNextCall ? State::Mode::kName : State::Mode::kEnd;
  to.node = 0;
  return true;
}

bool CallLanguage::StepName(const State& from, uint8_t byte, State& to) const {
  to.node = names_.Child(from.node, byte);
  if (to.node != JsonTrie::kNone) {
    // Without a tag behind it, a name may be the start of a longer one.
    if (syntax_.name_close.empty() || names_.Value(to.node) == JsonTrie::kNone) return true;
    to.tool = names_.Value(to.node);
  } else {
    to.tool = names_.Value(from.node);
    if (!syntax_.name_close.empty() || to.tool == JsonTrie::kNone) return false;
  }
  State begun = to;
  begun.mode = State::Mode::kPart;
  begun.node = 0;
  begun.used = 0;
  if (!syntax_.name_close.empty()) {
    to = begun;
    return true;
  }
  return StepPart(begun, byte, to = begun);
}

bool CallLanguage::StepPart(const State& from, uint8_t byte, State& to) const {
  const Tool& tool = *tools_[from.tool];
  to.node = tool.parts.Child(from.node, byte);
  if (to.node == JsonTrie::kNone) return false;
  const uint32_t end = static_cast<uint32_t>(tool.values.size());
  const auto may_come = [&](uint32_t part) {
    if (part == end) return (tool.required & ~from.used) == 0;
    return (from.used >> tool.parameter[part] & 1) == 0;
  };
  const std::vector<uint32_t>& below = tool.parts.Below(to.node);
  if (std::none_of(below.begin(), below.end(), may_come)) return false;
  const uint32_t part = tool.parts.Value(to.node);
  if (part == JsonTrie::kNone) return true;
  to.node = 0;
  if (part == end) {
    to.mode = several_ || !syntax_.block_close.empty() ? State::Mode::kAfter : State::Mode::kEnd;
    to.used = 0;
    return true;
  }
  const Value& value = tool.values[part];
  to.mode = value.mode;
  to.parameter = part;
  to.used |= uint64_t{1} << tool.parameter[part];
  if (value.automaton) to.json = value.automaton->Start();
  return true;
}

bool CallLanguage::StepJson(const State& from, uint8_t byte, State& to) const {
  const JsonAutomaton& automaton = *ValueOf(from).automaton;
  if (automaton.Step(from.json, byte, to.json)) {
    // The closing tag inside a string would end the value.
    to.node = Matched(syntax_.value_close, value_close_, from.node, byte);
    return to.node < syntax_.value_close.size();
  }
  if (!automaton.MayEnd(from.json) || static_cast<uint8_t>(syntax_.value_close[0]) != byte)
    return false;
  to.json = JsonState();
  to.mode = State::Mode::kClose;
  to.node = 1;
  return true;
}

void CallLanguage::AppendKey(const State& state, int64_t reach, std::string& key) const {
  key += static_cast<char>(state.mode);
  for (const uint64_t part : {uint64_t{state.node}, uint64_t{state.call_open}, uint64_t{state.tool},
                              uint64_t{state.parameter}, state.used})
    key.append(reinterpret_cast<const char*>(&part), sizeof part);
  if (state.mode == State::Mode::kJson) ValueOf(state).automaton->AppendKey(state.json, reach, key);
}

}  // namespace strata
