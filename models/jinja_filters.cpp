// The filters.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "models/jinja_runtime.h"
#include "models/jinja_text.h"

namespace strata::jinja {

namespace {

void Sort(List& items, const std::string& attribute, bool reverse, bool case_sensitive,
          Budget& budget) {
  budget.Charge(static_cast<int64_t>(items.size()) * 20);
  const auto key = [&](const Value& item) {
    Value value = attribute.empty() ? item : GetAttribute(item, attribute);
    if (value.is_string() && !case_sensitive) value = LowerCase(value.string());
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
    const Value value = by_attribute ? GetAttribute(item, attribute) : item;
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
      const Value value = GetAttribute(item, attribute);
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
  if (value.is_list()) return static_cast<int64_t>(value.list().size());
  if (value.is_string()) return CountCharacters(value.string());
  return static_cast<int64_t>(Iterate(value, budget).size());
}

// Of transformers' tojson(value, ensure_ascii, indent, separators, sort_keys).
JsonStyle JsonStyleOf(const Arguments& arguments) {
  constexpr size_t kMostBytes = 16;  // of what is repeated for every place
  JsonStyle style;
  style.ensure_ascii = Argument(arguments, 0, "ensure_ascii").Truth();
  style.sort_keys = Argument(arguments, 3, "sort_keys").Truth();
  const Value indent = Argument(arguments, 1, "indent");
  if (!indent.is_undefined() && !indent.is_none()) {
    style.comma = ",";
    style.indent = indent.is_string()
                       ? indent.string()
                       : std::string(static_cast<size_t>(std::clamp<int64_t>(
                                         IntegerArgument(arguments, 1, "indent", 0), 0, 1000)),
                                     ' ');
  }
  const Value separators = Argument(arguments, 2, "separators");
  if (!separators.is_undefined() && !separators.is_none()) {
    if (!separators.is_list() || separators.list().size() != 2)
      throw TemplateError{"tojson's separators are a pair of strings"};
    style.comma = NeedText(separators.list()[0], "tojson's separators");
    style.colon = NeedText(separators.list()[1], "tojson's separators");
  }
  if (std::max({style.indent.value_or("").size(), style.comma.size(), style.colon.size()}) >
      kMostBytes)
    throw TemplateError{
        fmt::format("tojson indents and separates by {} bytes at most", kMostBytes)};
  for (const auto& [name, value] : arguments.named) {
    if (name != "ensure_ascii" && name != "indent" && name != "separators" && name != "sort_keys")
      throw TemplateError{fmt::format("tojson has no argument '{}'", name)};
  }
  return style;
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
         std::string text = ToJson(a.positional[0], JsonStyleOf(a));
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
       [](const Arguments& a, Budget&) -> Value { return UpperCase(ToText(a.positional[0])); }},
      {"lower",
       [](const Arguments& a, Budget&) -> Value { return LowerCase(ToText(a.positional[0])); }},
      {"title",
       [](const Arguments& a, Budget&) -> Value { return TitleOfParts(ToText(a.positional[0])); }},
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
           return LowerCase(x.list()[0].string()) < LowerCase(y.list()[0].string());
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
      {"float",
       [](const Arguments& a, Budget&) -> Value {
         const Value fallback = Argument(a, 0, "default");
         return ToFloat(a.positional[0], fallback.is_number() ? fallback.number() : 0.0);
       }},
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
         const bool case_sensitive = Argument(a, 0, "case_sensitive").Truth();
         List kept, keys;
         for (const Value& item : Iterate(a.positional[0], budget)) {
           budget.Charge(static_cast<int64_t>(keys.size()));
           const Value key =
               item.is_string() && !case_sensitive ? Value(LowerCase(item.string())) : item;
           if (std::any_of(keys.begin(), keys.end(),
                           [&](const Value& other) { return Equal(other, key); }))
             continue;
           keys.push_back(key);
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

}  // namespace

bool KnownFilter(const std::string& name) { return FindFilter(name) != nullptr; }

Value CallFilter(const std::string& name, const Arguments& arguments, Budget& budget) {
  // These do not look into the members: the length of a long conversation, asked for at every
  // message, costs little.
  static const std::set<std::string> shallow = {"length", "count", "default", "d",   "first",
                                                "last",   "list",  "items",   "safe"};
  if (!shallow.contains(name) || arguments.positional[0].is_string())
    budget.Charge(static_cast<int64_t>(arguments.positional[0].bytes() / 16));
  return FindFilter(name)(arguments, budget);
}

}  // namespace strata::jinja
