// Tests and the methods of strings and mappings, and the helpers that filters share with them.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "models/jinja_runtime.h"
#include "models/jinja_text.h"

namespace strata::jinja {

namespace {

Value TextList(std::vector<std::string> texts) {
  return Value::MakeList(
      List(std::make_move_iterator(texts.begin()), std::make_move_iterator(texts.end())));
}

Value SplitText(const std::string& text, const Value& separator, int64_t most) {
  if (separator.is_undefined() || separator.is_none()) return TextList(SplitWords(text, most));
  const std::string cut = NeedText(separator, "split");
  if (cut.empty()) throw TemplateError{"split with an empty separator"};
  List parts;
  size_t at = 0;
  while (most != 0) {
    const size_t found = text.find(cut, at);
    if (found == std::string::npos) break;
    parts.emplace_back(text.substr(at, found - at));
    at = found + cut.size();
    --most;
  }
  parts.emplace_back(text.substr(at));
  return Value::MakeList(std::move(parts));
}

Value SplitFromRight(const std::string& text, const Value& separator, int64_t most) {
  if (separator.is_undefined() || separator.is_none()) {
    if (most >= 0) throw TemplateError{"rsplit with maxsplit needs a separator"};
    return TextList(SplitWords(text, most));
  }
  const std::string cut = NeedText(separator, "rsplit");
  if (cut.empty()) throw TemplateError{"rsplit with an empty separator"};
  List parts;
  size_t end = text.size();
  while (most != 0 && end > 0) {
    const size_t found = end >= cut.size() ? text.rfind(cut, end - cut.size()) : std::string::npos;
    if (found == std::string::npos) break;
    parts.emplace_back(text.substr(found + cut.size(), end - found - cut.size()));
    end = found;
    --most;
  }
  parts.emplace_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return Value::MakeList(std::move(parts));
}

// Jinja's undefined value is an empty sequence to these tests.
bool IsContainer(const Value& v) {
  return v.is_list() || v.is_string() || (v.is_dict() && !v.is_namespace()) || v.is_undefined();
}

using TestFunction = bool (*)(const Value&, const Value&);

const std::map<std::string, TestFunction>& Tests() {
  static const std::map<std::string, TestFunction> tests = {
      {"defined", [](const Value& v, const Value&) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v, const Value&) { return v.is_undefined(); }},
      {"none", [](const Value& v, const Value&) { return v.is_none(); }},
      {"string", [](const Value& v, const Value&) { return v.is_string(); }},
      {"mapping", [](const Value& v, const Value&) { return v.is_dict() && !v.is_namespace(); }},
      {"sequence", [](const Value& v, const Value&) { return IsContainer(v); }},
      {"iterable", [](const Value& v, const Value&) { return IsContainer(v); }},
      {"number", [](const Value& v, const Value&) { return v.is_number(); }},
      {"integer", [](const Value& v, const Value&) { return v.is_int(); }},
      {"float", [](const Value& v, const Value&) { return v.is_float(); }},
      {"boolean", [](const Value& v, const Value&) { return v.is_bool(); }},
      {"true", [](const Value& v, const Value&) { return v.is_bool() && v.Truth(); }},
      {"false", [](const Value& v, const Value&) { return v.is_bool() && !v.Truth(); }},
      {"callable", [](const Value& v, const Value&) { return v.is_function(); }},
      {"odd", [](const Value& v, const Value&) { return v.is_int() && v.integer() % 2 != 0; }},
      {"even", [](const Value& v, const Value&) { return v.is_int() && v.integer() % 2 == 0; }},
      {"divisibleby",
       [](const Value& v, const Value& by) {
         return v.is_int() && by.is_int() && by.integer() > 0 && v.integer() % by.integer() == 0;
       }},
      {"equalto", [](const Value& v, const Value& other) { return Equal(v, other); }},
      {"eq", [](const Value& v, const Value& other) { return Equal(v, other); }},
      {"ne", [](const Value& v, const Value& other) { return !Equal(v, other); }},
      {"in",
       [](const Value& v, const Value& container) {
         if (container.is_string() && v.is_string())
           return container.string().find(v.string()) != std::string::npos;
         if (container.is_dict()) return v.is_string() && container.Find(v.string()) != nullptr;
         return container.is_list() &&
                std::any_of(container.list().begin(), container.list().end(),
                            [&](const Value& member) { return Equal(member, v); });
       }},
  };
  return tests;
}

using Method = Value (*)(const Value&, const Arguments&, Budget&);

const std::map<std::string, Method>& StringMethods() {
  // The value stands in front of the arguments, so that the helpers count alike for filters and
  // methods.
  static const std::map<std::string, Method> methods = {
      {"strip",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         const std::string set = TextArgument(a, 0, "chars", "");
         return Strip(v.string(), set.empty() ? nullptr : &set, true, true);
       }},
      {"lstrip",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         const std::string set = TextArgument(a, 0, "chars", "");
         return Strip(v.string(), set.empty() ? nullptr : &set, true, false);
       }},
      {"rstrip",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         const std::string set = TextArgument(a, 0, "chars", "");
         return Strip(v.string(), set.empty() ? nullptr : &set, false, true);
       }},
      {"split",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         return SplitText(v.string(), Argument(a, 0, "sep"), IntegerArgument(a, 1, "maxsplit", -1));
       }},
      {"rsplit",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         return SplitFromRight(v.string(), Argument(a, 0, "sep"),
                               IntegerArgument(a, 1, "maxsplit", -1));
       }},
      {"splitlines",
       [](const Value& v, const Arguments&, Budget&) -> Value {
         return TextList(SplitLines(v.string()));
       }},
      {"startswith",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         return v.string().starts_with(TextArgument(a, 0, "prefix", ""));
       }},
      {"endswith",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         return v.string().ends_with(TextArgument(a, 0, "suffix", ""));
       }},
      {"upper",
       [](const Value& v, const Arguments&, Budget&) -> Value { return UpperCase(v.string()); }},
      {"lower",
       [](const Value& v, const Arguments&, Budget&) -> Value { return LowerCase(v.string()); }},
      {"title",
       [](const Value& v, const Arguments&, Budget&) -> Value { return TitleOfWords(v.string()); }},
      {"capitalize",
       [](const Value& v, const Arguments&, Budget&) -> Value { return Capitalise(v.string()); }},
      {"replace",
       [](const Value& v, const Arguments& a, Budget& budget) -> Value {
         return Replace(v.string(), TextArgument(a, 0, "old", ""), TextArgument(a, 1, "new", ""),
                        IntegerArgument(a, 2, "count", -1), budget);
       }},
      {"find",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         const size_t found = v.string().find(TextArgument(a, 0, "sub", ""));
         return found == std::string::npos ? int64_t{-1}
                                           : CountCharacters(v.string().substr(0, found));
       }},
      {"count",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         const std::string part = TextArgument(a, 0, "sub", "");
         if (part.empty()) return int64_t{0};
         int64_t count = 0;
         for (size_t at = v.string().find(part); at != std::string::npos;
              at = v.string().find(part, at + part.size()))
           ++count;
         return count;
       }},
      {"join",
       [](const Value& v, const Arguments& a, Budget& budget) -> Value {
         return Join(Iterate(Argument(a, 0, "iterable"), budget), v.string(), "", budget);
       }},
      {"isdigit",
       [](const Value& v, const Arguments&, Budget&) -> Value {
         return !v.string().empty() && std::all_of(v.string().begin(), v.string().end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
       }},
  };
  return methods;
}

const std::map<std::string, Method>& DictMethods() {
  static const std::map<std::string, Method> methods = {
      {"items",
       [](const Value& v, const Arguments&, Budget&) -> Value {
         return Value::MakeList(Pairs(v));
       }},
      {"keys",
       [](const Value& v, const Arguments&, Budget& budget) -> Value {
         return Value::MakeList(Iterate(v, budget));
       }},
      {"values",
       [](const Value& v, const Arguments&, Budget&) -> Value {
         List values;
         for (const auto& [key, value] : v.dict()) values.push_back(value);
         return Value::MakeList(std::move(values));
       }},
      {"get",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         const Value value = GetItem(v, Argument(a, 0, "key"));
         if (!value.is_undefined()) return value;
         const Value fallback = Argument(a, 1, "default");
         return fallback.is_undefined() ? Value(None{}) : fallback;
       }},
  };
  return methods;
}

}  // namespace

// The i-th argument behind the value, or the one called `name`; undefined when absent.
Value Argument(const Arguments& arguments, size_t i, const char* name) {
  if (arguments.positional.size() > i + 1) return arguments.positional[i + 1];
  for (const auto& [given, value] : arguments.named) {
    if (given == name) return value;
  }
  return Value();
}

std::string TextArgument(const Arguments& arguments, size_t i, const char* name,
                         const std::string& fallback) {
  const Value value = Argument(arguments, i, name);
  if (value.is_undefined() || value.is_none()) return fallback;
  if (!value.is_string())
    throw TemplateError{
        fmt::format("the argument '{}' is a {}, a string is needed", name, value.TypeName())};
  return value.string();
}

int64_t IntegerArgument(const Arguments& arguments, size_t i, const char* name, int64_t fallback) {
  const Value value = Argument(arguments, i, name);
  if (value.is_undefined() || value.is_none()) return fallback;
  if (!value.is_int() && !value.is_bool())
    throw TemplateError{
        fmt::format("the argument '{}' is a {}, a whole number is needed", name, value.TypeName())};
  return value.integer();
}

std::string NeedText(const Value& value, const char* what) {
  if (value.is_undefined()) return "";
  if (!value.is_string())
    throw TemplateError{fmt::format("{} needs a string, not a {}", what, value.TypeName())};
  return value.string();
}

std::string Replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t most, Budget& budget) {
  if (from.empty()) throw TemplateError{"replace needs a text to look for"};
  std::string result;
  size_t at = 0;
  while (most != 0) {
    const size_t found = text.find(from, at);
    if (found == std::string::npos) break;
    result.append(text, at, found - at);
    result += to;
    budget.ChargeText(result.size());
    at = found + from.size();
    --most;
  }
  result.append(text, at, std::string::npos);
  budget.ChargeText(result.size());
  return result;
}

std::string Join(const List& items, const std::string& separator, const std::string& attribute,
                 Budget& budget) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += separator;
    text += ToText(attribute.empty() ? items[i] : GetAttribute(items[i], attribute));
    budget.ChargeText(text.size());
  }
  return text;
}

List Pairs(const Value& value) {
  if (value.is_undefined()) return {};
  if (!value.is_dict())
    throw TemplateError{fmt::format("items needs a mapping, not a {}", value.TypeName())};
  List pairs;
  for (const auto& [key, item] : value.dict()) pairs.push_back(Value::MakeList({key, item}));
  return pairs;
}

bool KnownTest(const std::string& name) { return Tests().contains(name); }

bool CallTest(const std::string& name, const Arguments& arguments) {
  return Tests().at(name)(arguments.positional[0],
                          arguments.positional.size() > 1 ? arguments.positional[1] : Value());
}

Value FindMethod(const Value& object, const std::string& name, Budget& budget) {
  if (!object.is_string() && !object.is_dict()) return Value();
  const std::map<std::string, Method>& methods =
      object.is_string() ? StringMethods() : DictMethods();
  const auto found = methods.find(name);
  if (found == methods.end()) return Value();
  const Method method = found->second;
  return Value::MakeFunction(
      [object, method, &budget](const Arguments& arguments) {
        budget.Charge(static_cast<int64_t>(object.bytes() / 16));
        Arguments shifted = arguments;
        shifted.positional.insert(shifted.positional.begin(), object);
        return method(object, shifted, budget);
      },
      object);
}

Value GetItem(const Value& object, const Value& key) {
  if (object.is_dict()) {
    const Value* entry = object.Find(ToText(key));
    return entry == nullptr ? Value() : *entry;
  }
  if (!key.is_int()) return Value();
  int64_t index = key.integer();
  if (object.is_list()) {
    const int64_t size = static_cast<int64_t>(object.list().size());
    if (index < 0) index += size;
    return index < 0 || index >= size ? Value() : object.list()[static_cast<size_t>(index)];
  }
  if (object.is_string()) {
    const std::string& text = object.string();
    size_t at = index < 0 ? text.size() : 0;
    for (; index > 0 && at < text.size(); --index) at = NextCharacter(text, at);
    for (; index < 0 && at > 0; ++index) at = PreviousCharacter(text, at);
    if (index != 0 || at >= text.size()) return Value();
    return text.substr(at, NextCharacter(text, at) - at);
  }
  return Value();
}

Value GetAttribute(const Value& object, const std::string& path) {
  Value value = object;
  for (size_t at = 0; at <= path.size();) {
    if (value.is_undefined())
      throw TemplateError{fmt::format("an undefined value has no attribute '{}'", path.substr(at))};
    const size_t end = std::min(path.find('.', at), path.size());
    const std::string part = path.substr(at, end - at);
    const bool number = !part.empty() && part.size() < 19 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    value = GetItem(value, number ? Value(static_cast<int64_t>(std::stoll(part))) : Value(part));
    at = end + 1;
  }
  return value;
}

List Iterate(const Value& value, Budget& budget) {
  List items;
  if (value.is_list()) {
    items = value.list();
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.dict()) items.emplace_back(key);
  } else if (value.is_string()) {
    const std::string& text = value.string();
    for (size_t i = 0; i < text.size();) {
      const size_t end = NextCharacter(text, i);
      items.emplace_back(text.substr(i, end - i));
      i = end;
    }
  } else if (!value.is_undefined()) {
    throw TemplateError{fmt::format("a {} cannot be iterated over", value.TypeName())};
  }
  budget.Charge(static_cast<int64_t>(items.size()));
  return items;
}

}  // namespace strata::jinja
