#include "models/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/jinja_text.h"
#include "models/json.h"

namespace strata::jinja {

namespace {

constexpr int kMaxNesting = kMessageDepth;
constexpr size_t kPlaceBytes = 16;  // what a place in a container counts

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string Repr(const Value& value) {
  return value.is_string() ? Quoted(value.string()) : ToText(value);
}

}  // namespace

void Value::Count(const Value& member, int& depth, size_t& bytes) {
  if (member.is_namespace()) throw TemplateError{"a namespace cannot be stored in another value"};
  depth = std::max(depth, member.depth() + 1);
  bytes += kPlaceBytes + member.bytes();
  if (depth > kMaxNesting) {
    throw TemplateError{fmt::format("a value is nested deeper than {}", kMaxNesting)};
  }
  if (bytes > kMaxBytes) {
    throw TemplateError{fmt::format("a value is larger than {} bytes", kMaxBytes)};
  }
}

Value Value::MakeList(List items) {
  auto box = std::make_shared<Box<List>>();
  for (const Value& item : items) Count(item, box->depth, box->bytes);
  box->content = std::move(items);
  return Value(std::move(box));
}

Value Value::MakeDict(Dict items) {
  auto box = std::make_shared<Box<Dict>>();
  for (const auto& [key, item] : items) {
    Count(item, box->depth, box->bytes);
    box->bytes += key.size();
  }
  box->content = std::move(items);
  return Value(std::move(box));
}

Value Value::MakeNamespace(Dict items) {
  const Value value = MakeDict(std::move(items));
  std::get<Shared<Dict>>(value.data_)->is_namespace = true;
  return value;
}

Value Value::MakeFunction(Function function, const Value& captured) {
  auto box = std::make_shared<Box<Function>>();
  // A namespace is free of functions, so a method of one holds no circle.
  if (!captured.is_namespace()) Count(captured, box->depth, box->bytes);
  box->content = std::move(function);
  return Value(std::move(box));
}

int Value::depth() const {
  if (is_list()) return std::get<Shared<List>>(data_)->depth;
  if (is_dict()) return std::get<Shared<Dict>>(data_)->depth;
  return is_function() ? std::get<Shared<Function>>(data_)->depth : 0;
}

size_t Value::bytes() const {
  if (is_string()) return string().size();
  if (is_list()) return std::get<Shared<List>>(data_)->bytes;
  if (is_dict()) return std::get<Shared<Dict>>(data_)->bytes;
  return is_function() ? std::get<Shared<Function>>(data_)->bytes : 0;
}

void SetEntry(Dict& dict, const std::string& key, Value value) {
  for (auto& [name, existing] : dict) {
    if (name == key) {
      existing = std::move(value);
      return;
    }
  }
  dict.emplace_back(key, std::move(value));
}

Value Value::FromJson(const nlohmann::ordered_json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  // Beyond 64 signed bits a number is a float: it keeps its size, not its last digits.
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return json.get<double>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List items;
    for (const auto& item : json) items.push_back(FromJson(item));
    return MakeList(std::move(items));
  }
  Dict items;
  for (const auto& [key, item] : json.items()) items.emplace_back(key, FromJson(item));
  return MakeDict(std::move(items));
}

int64_t Value::integer() const {
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  return std::get<int64_t>(data_);
}

double Value::number() const {
  return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::Truth() const {
  if (is_bool()) return std::get<bool>(data_);
  if (is_int()) return integer() != 0;
  if (is_float()) return number() != 0.0;
  if (is_string()) return !string().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return is_namespace() || !dict().empty();
  return is_function();
}

const char* Value::TypeName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (is_bool()) return "boolean";
  if (is_int()) return "integer";
  if (is_float()) return "float";
  if (is_string()) return "string";
  if (is_list()) return "list";
  if (is_dict()) return "mapping";
  return "function";
}

const Value* Value::Find(const std::string& key) const {
  if (!is_dict()) return nullptr;
  for (const auto& [name, value] : dict()) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Value::Set(const std::string& key, Value value) const {
  Box<Dict>& box = *std::get<Shared<Dict>>(data_);
  Dict changed = box.content;
  SetEntry(changed, key, std::move(value));
  const Value checked = MakeDict(std::move(changed));
  box.content = checked.dict();
  box.depth = checked.depth();
  box.bytes = checked.bytes();
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_float() || b.is_float() ? a.number() == b.number() : a.integer() == b.integer();
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_list() && b.is_list()) {
    return std::equal(a.list().begin(), a.list().end(), b.list().begin(), b.list().end(),
                      [](const Value& x, const Value& y) { return Equal(x, y); });
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().size() != b.dict().size()) return false;
    for (const auto& [key, value] : a.dict()) {
      const Value* other = b.Find(key);
      if (other == nullptr || !Equal(value, *other)) return false;
    }
    return true;
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool HoldsFunction(const Value& value) {
  if (value.is_list()) return std::any_of(value.list().begin(), value.list().end(), HoldsFunction);
  if (value.is_dict()) {
    return std::any_of(value.dict().begin(), value.dict().end(),
                       [](const auto& entry) { return HoldsFunction(entry.second); });
  }
  return value.is_function();
}

int Compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float())
      return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  }
  if (a.is_string() && b.is_string())
    return a.string() < b.string() ? -1 : a.string() > b.string() ? 1 : 0;
  throw TemplateError{fmt::format("a {} and a {} cannot be ordered", a.TypeName(), b.TypeName())};
}

std::string ToText(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.Truth() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.integer());
  if (value.is_float()) return FloatText(value.number());
  if (value.is_string()) return value.string();
  std::string text;
  if (value.is_list()) {
    for (const Value& item : value.list()) text += (text.empty() ? "" : ", ") + Repr(item);
    return "[" + text + "]";
  }
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict()) {
      text += (text.empty() ? "" : ", ") + Quoted(key) + ": " + Repr(item);
    }
    return "{" + text + "}";
  }
  return "<function>";
}

std::string ToJson(const Value& value, const JsonStyle& style, int depth) {
  if (value.is_undefined()) throw TemplateError{"an undefined value has no JSON"};
  if (value.is_function()) throw TemplateError{"a function has no JSON"};
  if (value.is_none()) return "null";
  if (value.is_bool()) return value.Truth() ? "true" : "false";
  if (value.is_float() && !std::isfinite(value.number()))
    return std::isnan(value.number()) ? "NaN" : value.number() > 0 ? "Infinity" : "-Infinity";
  if (value.is_number()) return ToText(value);
  const auto quote = [&](const std::string& text) {
    return nlohmann::ordered_json(text).dump(-1, ' ', style.ensure_ascii,
                                             nlohmann::ordered_json::error_handler_t::replace);
  };
  if (value.is_string()) return quote(value.string());
  const auto line = [&](int level) {
    std::string text = style.indent ? "\n" : "";
    for (int i = 0; style.indent && i < level; ++i) text += *style.indent;
    return text;
  };
  const std::string inner = line(depth + 1), outer = line(depth);
  std::string text;
  if (value.is_list()) {
    if (value.list().empty()) return "[]";
    for (const Value& item : value.list())
      text += (text.empty() ? "" : style.comma) + inner + ToJson(item, style, depth + 1);
    return "[" + text + outer + "]";
  }
  if (value.dict().empty()) return "{}";
  Dict entries = value.dict();
  if (style.sort_keys)
    std::sort(entries.begin(), entries.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [key, item] : entries) {
    text += (text.empty() ? "" : style.comma) + inner + quote(key) + style.colon +
            ToJson(item, style, depth + 1);
  }
  return "{" + text + outer + "}";
}

}  // namespace strata::jinja
