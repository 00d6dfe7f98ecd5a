// Filters, tests and the methods of strings, lists and mappings.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "models/jinja_runtime.h"

namespace strata::jinja {

namespace {

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
template <class F>
std::string Mapped(std::string text, const F& map) {
  for (char& c : text) c = map(c);
  return text;
}

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

std::string Strip(const std::string& text, const std::string* characters, bool left, bool right) {
  const auto drop = [&](char c) {
    return characters == nullptr ? IsSpace(c) : characters->find(c) != std::string::npos;
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end && drop(text[begin])) ++begin;
  while (right && end > begin && drop(text[end - 1])) --end;
  return text.substr(begin, end - begin);
}

std::string Capitalise(const std::string& text) {
  std::string result = Mapped(text, Lower);
  if (!result.empty()) result[0] = Upper(result[0]);
  return result;
}

std::string TitleCase(const std::string& text) {
  std::string result = Mapped(text, Lower);
  bool start = true;
  for (char& c : result) {
    if (start) c = Upper(c);
    const bool letter = Lower(c) != Upper(c) || static_cast<unsigned char>(c) >= 0x80;
    start = !letter && c != '\'';
  }
  return result;
}

std::string Replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t most, Budget& budget) {
  std::string result;
  size_t at = 0;
  while (most != 0) {
    const size_t found = text.find(from, at);
    if (found == std::string::npos || from.empty()) break;
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

List SplitText(const std::string& text, const Value& separator, int64_t most) {
  List parts;
  if (separator.is_undefined() || separator.is_none()) {
    for (size_t i = 0; i < text.size();) {
      while (i < text.size() && IsSpace(text[i])) ++i;
      if (i >= text.size()) break;
      size_t end = i;
      while (end < text.size() && !IsSpace(text[end])) ++end;
      if (most-- == 0) end = Strip(text, nullptr, false, true).size();
      parts.emplace_back(text.substr(i, end - i));
      i = end;
    }
    return parts;
  }
  const std::string cut = NeedText(separator, "split");
  if (cut.empty()) throw TemplateError{"split with an empty separator"};
  size_t at = 0;
  while (most != 0) {
    const size_t found = text.find(cut, at);
    if (found == std::string::npos) break;
    parts.emplace_back(text.substr(at, found - at));
    at = found + cut.size();
    --most;
  }
  parts.emplace_back(text.substr(at));
  return parts;
}

List SplitFromRight(const std::string& text, const std::string& cut, int64_t most) {
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
  return parts;
}

std::string Join(const List& items, const std::string& separator, const std::string& attribute,
                 Budget& budget) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += separator;
    text += ToText(attribute.empty() ? items[i] : GetItem(items[i], attribute));
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

void Sort(List& items, const std::string& attribute, bool reverse, bool case_sensitive,
          Budget& budget) {
  budget.Charge(static_cast<int64_t>(items.size()) * 20);
  const auto key = [&](const Value& item) {
    Value value = attribute.empty() ? item : GetItem(item, attribute);
    if (value.is_string() && !case_sensitive) value = Mapped(value.string(), Lower);
    return value;
  };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    return reverse ? Compare(key(b), key(a)) < 0 : Compare(key(a), key(b)) < 0;
  });
}

// select, reject, selectattr, rejectattr: members whose (attribute's) test, or truth, is as wanted.
Value Choose(const Arguments& arguments, bool by_attribute, bool wanted, Budget& budget) {
  const size_t test_at = by_attribute ? 2 : 1;
  const std::string attribute = by_attribute ? TextArgument(arguments, 0, "attribute", "") : "";
  List kept;
  for (const Value& item : Iterate(arguments.positional[0], budget)) {
    const Value value = by_attribute ? GetItem(item, attribute) : item;
    bool passes = value.Truth();
    if (arguments.positional.size() > test_at) {
      Arguments test;
      test.positional.push_back(value);
      test.positional.insert(test.positional.end(),
                             arguments.positional.begin() + static_cast<long>(test_at) + 1,
                             arguments.positional.end());
      const std::string name = NeedText(arguments.positional[test_at], "a test's name");
      if (!KnownTest(name))
        throw TemplateError{fmt::format("the test '{}' is not supported", name)};
      passes = CallTest(name, test);
    }
    if (passes == wanted) kept.push_back(item);
  }
  return Value::MakeList(std::move(kept));
}

Value Map(const Arguments& arguments, Budget& budget) {
  List mapped;
  const std::string attribute =
      TextArgument(Arguments{{Value()}, arguments.named}, 0, "attribute", "");
  const Value fallback = Argument(Arguments{{Value()}, arguments.named}, 0, "default");
  for (const Value& item : Iterate(arguments.positional[0], budget)) {
    if (!attribute.empty()) {
      const Value value = GetItem(item, attribute);
      mapped.push_back(value.is_undefined() ? fallback : value);
      continue;
    }
    if (arguments.positional.size() < 2)
      throw TemplateError{"map needs a filter's name or attribute="};
    const std::string name = NeedText(arguments.positional[1], "a filter's name");
    if (!KnownFilter(name))
      throw TemplateError{fmt::format("the filter '{}' is not supported", name)};
    Arguments inner;
    inner.positional.push_back(item);
    inner.positional.insert(inner.positional.end(), arguments.positional.begin() + 2,
                            arguments.positional.end());
    mapped.push_back(CallFilter(name, inner, budget));
  }
  return Value::MakeList(std::move(mapped));
}

int64_t ToInteger(const Value& value, int64_t fallback) {
  if (value.is_float())
    return std::fabs(value.number()) < 9e18 ? static_cast<int64_t>(value.number()) : fallback;
  if (value.is_number()) return value.integer();
  if (!value.is_string()) return fallback;
  const std::string text = Strip(value.string(), nullptr, true, true);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' || !(std::fabs(number) < 9e18) ? fallback
                                                                     : static_cast<int64_t>(number);
}

double ToFloat(const Value& value, double fallback) {
  if (value.is_number()) return value.number();
  if (!value.is_string()) return fallback;
  const std::string text = Strip(value.string(), nullptr, true, true);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? fallback : number;
}

std::string Indent(const std::string& text, const std::string& margin, bool first, bool blank,
                   Budget& budget) {
  std::string result;
  size_t at = 0;
  bool first_line = true;
  while (at <= text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (!first_line) result += '\n';
    if ((first_line ? first : true) && (blank || !line.empty())) result += margin;
    result += line;
    budget.ChargeText(result.size());
    first_line = false;
    at = end + 1;
  }
  return result;
}

int64_t Length(const Value& value, Budget& budget) {
  if (value.is_undefined()) return 0;
  if (value.is_dict()) return static_cast<int64_t>(value.dict().size());
  return static_cast<int64_t>(Iterate(value, budget).size());
}

using FilterFunction = Value (*)(const Arguments&, Budget&);

const std::map<std::string, FilterFunction>& Filters() {
  static const std::map<std::string, FilterFunction> filters = {
      {"trim",
       [](const Arguments& a, Budget&) -> Value {
         const Value characters = Argument(a, 0, "chars");
         const std::string given = characters.is_string() ? characters.string() : "";
         return Strip(ToText(a.positional[0]), characters.is_string() ? &given : nullptr, true,
                      true);
       }},
      {"tojson",
       [](const Arguments& a, Budget& budget) -> Value {
         const Value ascii = Argument(Arguments{{Value()}, a.named}, 0, "ensure_ascii");
         std::string text = ToJson(
             a.positional[0],
             static_cast<int>(std::clamp<int64_t>(IntegerArgument(a, 0, "indent", -1), -1, 16)),
             ascii.Truth());
         budget.ChargeText(text.size());
         return text;
       }},
      {"length",
       [](const Arguments& a, Budget& budget) -> Value { return Length(a.positional[0], budget); }},
      {"count",
       [](const Arguments& a, Budget& budget) -> Value { return Length(a.positional[0], budget); }},
      {"default",
       [](const Arguments& a, Budget&) -> Value {
         const Value& value = a.positional[0];
         const bool replace =
             value.is_undefined() || (Argument(a, 1, "boolean").Truth() && !value.Truth());
         const Value fallback = Argument(a, 0, "default_value");
         return !replace ? value : fallback.is_undefined() ? Value("") : fallback;
       }},
      {"join",
       [](const Arguments& a, Budget& budget) -> Value {
         return Join(Iterate(a.positional[0], budget), TextArgument(a, 0, "d", ""),
                     TextArgument(a, 1, "attribute", ""), budget);
       }},
      {"upper",
       [](const Arguments& a, Budget&) -> Value { return Mapped(ToText(a.positional[0]), Upper); }},
      {"lower",
       [](const Arguments& a, Budget&) -> Value { return Mapped(ToText(a.positional[0]), Lower); }},
      {"title",
       [](const Arguments& a, Budget&) -> Value { return TitleCase(ToText(a.positional[0])); }},
      {"capitalize",
       [](const Arguments& a, Budget&) -> Value { return Capitalise(ToText(a.positional[0])); }},
      {"replace",
       [](const Arguments& a, Budget& budget) -> Value {
         return Replace(ToText(a.positional[0]), TextArgument(a, 0, "old", ""),
                        TextArgument(a, 1, "new", ""), IntegerArgument(a, 2, "count", -1), budget);
       }},
      {"first",
       [](const Arguments& a, Budget& budget) -> Value {
         const List items = Iterate(a.positional[0], budget);
         return items.empty() ? Value() : items.front();
       }},
      {"last",
       [](const Arguments& a, Budget& budget) -> Value {
         const List items = Iterate(a.positional[0], budget);
         return items.empty() ? Value() : items.back();
       }},
      {"list",
       [](const Arguments& a, Budget& budget) -> Value {
         return Value::MakeList(Iterate(a.positional[0], budget));
       }},
      {"items",
       [](const Arguments& a, Budget&) -> Value {
         return Value::MakeList(Pairs(a.positional[0]));
       }},
      {"dictsort",
       [](const Arguments& a, Budget& budget) -> Value {
         List pairs = Pairs(a.positional[0]);
         budget.Charge(static_cast<int64_t>(pairs.size()) * 20);
         std::stable_sort(pairs.begin(), pairs.end(), [](const Value& x, const Value& y) {
           return Mapped(x.list()[0].string(), Lower) < Mapped(y.list()[0].string(), Lower);
         });
         return Value::MakeList(std::move(pairs));
       }},
      {"map", [](const Arguments& a, Budget& budget) { return Map(a, budget); }},
      {"select", [](const Arguments& a, Budget& budget) { return Choose(a, false, true, budget); }},
      {"reject",
       [](const Arguments& a, Budget& budget) { return Choose(a, false, false, budget); }},
      {"selectattr",
       [](const Arguments& a, Budget& budget) { return Choose(a, true, true, budget); }},
      {"rejectattr",
       [](const Arguments& a, Budget& budget) { return Choose(a, true, false, budget); }},
      {"string", [](const Arguments& a, Budget&) -> Value { return ToText(a.positional[0]); }},
      {"safe", [](const Arguments& a, Budget&) -> Value { return a.positional[0]; }},
      {"int",
       [](const Arguments& a, Budget&) -> Value {
         return ToInteger(a.positional[0], IntegerArgument(a, 0, "default", 0));
       }},
      {"float", [](const Arguments& a, Budget&) -> Value { return ToFloat(a.positional[0], 0.0); }},
      {"abs",
       [](const Arguments& a, Budget&) -> Value {
         const Value& value = a.positional[0];
         if (!value.is_number()) throw TemplateError{"abs needs a number"};
         return value.is_float()
                    ? Value(std::fabs(value.number()))
                    : Value(value.integer() < 0
                                ? static_cast<int64_t>(0 - static_cast<uint64_t>(value.integer()))
                                : value.integer());
       }},
      {"round",
       [](const Arguments& a, Budget&) -> Value {
         if (!a.positional[0].is_number()) throw TemplateError{"round needs a number"};
         const double unit = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(
                                                IntegerArgument(a, 0, "precision", 0), -15, 15)));
         return std::nearbyint(a.positional[0].number() * unit) / unit;
       }},
      {"reverse",
       [](const Arguments& a, Budget& budget) -> Value {
         List items = Iterate(a.positional[0], budget);
         std::reverse(items.begin(), items.end());
         return a.positional[0].is_string() ? Value(Join(items, "", "", budget))
                                            : Value::MakeList(std::move(items));
       }},
      {"sort",
       [](const Arguments& a, Budget& budget) -> Value {
         List items = Iterate(a.positional[0], budget);
         Sort(items, TextArgument(a, 2, "attribute", ""), Argument(a, 0, "reverse").Truth(),
              Argument(a, 1, "case_sensitive").Truth(), budget);
         return Value::MakeList(std::move(items));
       }},
      {"unique",
       [](const Arguments& a, Budget& budget) -> Value {
         List kept;
         for (const Value& item : Iterate(a.positional[0], budget)) {
           budget.Charge(static_cast<int64_t>(kept.size()));
           if (std::none_of(kept.begin(), kept.end(),
                            [&](const Value& other) { return Equal(other, item); }))
             kept.push_back(item);
         }
         return Value::MakeList(std::move(kept));
       }},
      {"indent",
       [](const Arguments& a, Budget& budget) -> Value {
         const Value width = Argument(a, 0, "width");
         const std::string margin =
             width.is_string() ? width.string()
                               : std::string(static_cast<size_t>(std::clamp<int64_t>(
                                                 IntegerArgument(a, 0, "width", 4), 0, 256)),
                                             ' ');
         return Indent(ToText(a.positional[0]), margin, Argument(a, 1, "first").Truth(),
                       Argument(a, 2, "blank").Truth(), budget);
       }},
  };
  return filters;
}

FilterFunction FindFilter(const std::string& name) {
  const auto found = Filters().find(name == "d" ? "default" : name);
  return found == Filters().end() ? nullptr : found->second;
}

using TestFunction = bool (*)(const Value&, const Value&);

const std::map<std::string, TestFunction>& Tests() {
  static const std::map<std::string, TestFunction> tests = {
      {"defined", [](const Value& v, const Value&) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v, const Value&) { return v.is_undefined(); }},
      {"none", [](const Value& v, const Value&) { return v.is_none(); }},
      {"string", [](const Value& v, const Value&) { return v.is_string(); }},
      {"mapping", [](const Value& v, const Value&) { return v.is_dict(); }},
      {"sequence",
       [](const Value& v, const Value&) { return v.is_list() || v.is_string() || v.is_dict(); }},
      {"iterable",
       [](const Value& v, const Value&) { return v.is_list() || v.is_string() || v.is_dict(); }},
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
         return Value::MakeList(
             SplitText(v.string(), Argument(a, 0, "sep"), IntegerArgument(a, 1, "maxsplit", -1)));
       }},
      {"rsplit",
       [](const Value& v, const Arguments& a, Budget&) -> Value {
         return Value::MakeList(SplitFromRight(v.string(), TextArgument(a, 0, "sep", " "),
                                               IntegerArgument(a, 1, "maxsplit", -1)));
       }},
      {"splitlines",
       [](const Value& v, const Arguments&, Budget&) -> Value {
         List lines = SplitText(v.string(), "\n", -1);
         if (!lines.empty() && lines.back().string().empty()) lines.pop_back();
         return Value::MakeList(std::move(lines));
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
       [](const Value& v, const Arguments&, Budget&) -> Value {
         return Mapped(v.string(), Upper);
       }},
      {"lower",
       [](const Value& v, const Arguments&, Budget&) -> Value {
         return Mapped(v.string(), Lower);
       }},
      {"title",
       [](const Value& v, const Arguments&, Budget&) -> Value { return TitleCase(v.string()); }},
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
         return found == std::string::npos ? int64_t{-1} : static_cast<int64_t>(found);
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

bool KnownFilter(const std::string& name) { return FindFilter(name) != nullptr; }
bool KnownTest(const std::string& name) { return Tests().contains(name); }

Value CallFilter(const std::string& name, const Arguments& arguments, Budget& budget) {
  budget.Charge(static_cast<int64_t>(arguments.positional[0].bytes() / 16));
  return FindFilter(name)(arguments, budget);
}

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
    TemplateLimits limits;
    Budget budget(limits);
    const List characters = Iterate(object, budget);
    return GetItem(Value::MakeList(characters), key);
  }
  return Value();
}

List Iterate(const Value& value, Budget& budget) {
  List items;
  if (value.is_list()) {
    items = value.list();
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.dict()) items.emplace_back(key);
  } else if (value.is_string()) {
    const std::string& text = value.string();
    for (size_t i = 0; i < text.size();) {  // characters, not bytes
      size_t end = i + 1;
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
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
