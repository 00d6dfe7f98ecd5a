#include "models/tool_arguments.h"

#include "models/json.h"

namespace strata {

namespace {

using nlohmann::ordered_json;

constexpr int kSchemaDepth = 16;   // of anyOf and $ref inside each other
constexpr int kSchemaSteps = 256;  // looked at for one parameter: references may fan out

std::string_view Trim(std::string_view text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

uint8_t KindOf(const ordered_json& value) {
  if (value.is_string()) return kJsonString;
  if (value.is_object()) return kJsonObject;
  if (value.is_array()) return kJsonArray;
  if (value.is_boolean()) return kJsonBoolean;
  if (value.is_null()) return kJsonNull;
  return value.is_number_integer() ? kJsonInteger | kJsonNumber : kJsonNumber;
}

// Of text that is JSON, without white space around it.
uint8_t KindOfText(std::string_view json) {
  switch (json.front()) {
    case '"':
      return kJsonString;
    case '{':
      return kJsonObject;
    case '[':
      return kJsonArray;
    case 't':
    case 'f':
      return kJsonBoolean;
    case 'n':
      return kJsonNull;
    default:
      return json.find_first_of(".eE") == std::string_view::npos ? kJsonInteger | kJsonNumber
                                                                 : kJsonNumber;
  }
}

// What comes back as JSON when a client repeats the call: not too deep, no key twice. A byte order
// mark, which the parser passes over, is no JSON to others.
bool IsJson(std::string_view text) {
  if (text.empty() || text.front() == '\xEF') return false;
  try {
    ParseJson(text, "value");
    return true;
  } catch (const Error&) {
    return false;
  }
}

uint8_t KindOfName(const ordered_json& name) {
  static const std::map<std::string, uint8_t> kKinds = {
      {"string", kJsonString},   {"integer", kJsonInteger}, {"number", kJsonNumber},
      {"boolean", kJsonBoolean}, {"null", kJsonNull},       {"object", kJsonObject},
      {"array", kJsonArray}};
  if (!name.is_string()) return 0;
  const auto found = kKinds.find(name.get<std::string>());
  return found == kKinds.end() ? 0 : found->second;
}

const ordered_json* Member(const ordered_json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

uint8_t SchemaKinds::OfReference(const ordered_json& reference, int depth, int& steps) {
  const std::string text = reference.is_string() ? reference.get<std::string>() : "";
  std::vector<std::string> names;
  const ordered_json* target = JsonPlaces::IsReference(text) ? places_.Find(text, names) : nullptr;
  if (target == nullptr) return 0;
  if (const auto known = known_.find(target); known != known_.end()) return known->second;
  return known_[target] = Of(*target, depth, steps);
}

uint8_t SchemaKinds::Of(const ordered_json& schema, int depth, int& steps) {
  if (!schema.is_object() || depth > kSchemaDepth || ++steps > kSchemaSteps) return 0;
  if (const ordered_json* type = Member(schema, "type")) {
    if (!type->is_array()) return KindOfName(*type);
    uint8_t kinds = 0;
    for (const ordered_json& name : *type) kinds |= KindOfName(name);
    return kinds;
  }
  if (const ordered_json* reference = Member(schema, "$ref"))
    return OfReference(*reference, depth + 1, steps);
  for (const char* name : {"anyOf", "oneOf", "allOf"}) {
    const ordered_json* choices = Member(schema, name);
    if (choices == nullptr || !choices->is_array()) continue;
    uint8_t kinds = 0;
    for (const ordered_json& choice : *choices) {
      const uint8_t some = Of(choice, depth + 1, steps);
      if (some == 0 && std::string_view(name) != "allOf") return 0;
      kinds |= some;
    }
    return kinds;
  }
  uint8_t kinds = 0;
  if (const ordered_json* values = Member(schema, "enum");
      values != nullptr && values->is_array()) {
    for (const ordered_json& value : *values) kinds |= KindOf(value);
  } else if (const ordered_json* value = Member(schema, "const")) {
    kinds = KindOf(*value);
  }
  return kinds;
}

uint8_t SchemaKinds::Of(const ordered_json& schema) {
  int steps = 0;
  return Of(schema, 0, steps);
}

ToolArguments::ToolArguments(const ordered_json& tools) {
  if (!tools.is_array()) return;
  for (const ordered_json& tool : tools) {
    const ordered_json* function = Member(tool, "function");
    const ordered_json* name = function == nullptr ? nullptr : Member(*function, "name");
    if (name == nullptr || !name->is_string()) continue;
    Kinds& kinds = tools_[name->get<std::string>()];
    const ordered_json* schema = Member(*function, "parameters");
    const ordered_json* properties = schema == nullptr ? nullptr : Member(*schema, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    SchemaKinds known(*schema);
    for (const auto& [parameter, value] : properties->items()) {
      if (const uint8_t some = known.Of(value)) kinds[parameter] = some;
    }
  }
}

std::string JsonString(std::string_view text) {
  return ordered_json(text).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string JsonOrString(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  return IsJson(trimmed) ? std::string(trimmed) : JsonString(text);
}

std::string ToolArguments::Json(const std::string& tool, const std::string& parameter,
                                std::string_view text) const {
  uint8_t allowed = 0;
  if (const auto kinds = tools_.find(tool); kinds != tools_.end()) {
    const auto found = kinds->second.find(parameter);
    if (found != kinds->second.end()) allowed = found->second;
  }
  if (allowed == kJsonString) return JsonString(text);
  const std::string_view trimmed = Trim(text);
  if (!IsJson(trimmed)) return JsonString(text);
  // Where a string is allowed, only what can be nothing but another allowed kind is not one.
  if ((allowed & kJsonString) != 0 && (allowed & KindOfText(trimmed) & ~kJsonString) == 0)
    return JsonString(text);
  return std::string(trimmed);
}

}  // namespace strata
