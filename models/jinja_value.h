// Values of the template language, with Python's truth, equality and spelling.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace strata::jinja {

class Value;
struct Arguments;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in insertion order
using Function = std::function<Value(const Arguments&)>;

struct Undefined {};
struct None {};

// What a value's text may be at most, itself or all that it holds.
constexpr size_t kMaxBytes = size_t{16} << 20;

// Raised while rendering; ChatTemplate turns it into Fail().
struct TemplateError {
  std::string message;
};

// Immutable but for namespaces, which {% set ns.x = ... %} changes. A namespace cannot stand inside
// another value, so no value can come to hold itself; and every container knows how deep it nests
// and how many bytes it would print at least, so that what is too deep to walk or to destroy, or
// doubles at every level, is refused where it is made.
class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(const char* value) : Value(std::string(value)) {}
  // Throws TemplateError when the value is too deep or too large, or holds a namespace.
  static Value MakeList(List items = {});
  static Value MakeDict(Dict items = {});
  static Value MakeNamespace(Dict items);
  // `captured`: what the function holds on to, for methods.
  static Value MakeFunction(Function function, const Value& captured = Value());
  static Value FromJson(const nlohmann::ordered_json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_string() const { return std::holds_alternative<Text>(data_); }
  bool is_list() const { return std::holds_alternative<Shared<List>>(data_); }
  bool is_dict() const { return std::holds_alternative<Shared<Dict>>(data_); }
  bool is_namespace() const { return is_dict() && std::get<Shared<Dict>>(data_)->is_namespace; }
  bool is_function() const { return std::holds_alternative<Shared<Function>>(data_); }

  const std::string& string() const { return *std::get<Text>(data_); }
  const List& list() const { return std::get<Shared<List>>(data_)->content; }
  const Dict& dict() const { return std::get<Shared<Dict>>(data_)->content; }
  const Function& function() const { return std::get<Shared<Function>>(data_)->content; }
  int64_t integer() const;  // of bool and int
  double number() const;    // of bool, int and float

  bool Truth() const;
  const char* TypeName() const;  // "string", "list", "mapping", ...
  int depth() const;             // 0 for what holds no other value
  size_t bytes() const;  // of the text it holds and its places, shared parts counted each time
  // The entry of a dict, or null.
  const Value* Find(const std::string& key) const;
  // Of a namespace.
  void Set(const std::string& key, Value value) const;

 private:
  template <class T>
  struct Box {
    T content;
    int depth = 0;
    size_t bytes = 0;
    bool is_namespace = false;
  };
  template <class T>
  using Shared = std::shared_ptr<Box<T>>;
  using Text = std::shared_ptr<const std::string>;

  template <class T>
  explicit Value(Shared<T> box) : data_(std::move(box)) {}
  static void Count(const Value& member, int& depth, size_t& bytes);

  std::variant<Undefined, None, bool, int64_t, double, Text, Shared<List>, Shared<Dict>,
               Shared<Function>>
      data_;
};

// The entry called `key`, added when there is none.
void SetEntry(Dict& dict, const std::string& key, Value value);

struct Arguments {
  List positional;
  Dict named;
};

bool Equal(const Value& a, const Value& b);
// Whether a function hides anywhere inside.
bool HoldsFunction(const Value& value);
// -1, 0, 1 for numbers and strings; throws TemplateError for others.
int Compare(const Value& a, const Value& b);
// What {{ value }} prints; containers print as Python's repr.
std::string ToText(const Value& value);
// The arguments of json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; all on one line without
  std::string comma = ", ";
  std::string colon = ": ";
};
std::string ToJson(const Value& value, const JsonStyle& style, int depth = 0);

}  // namespace strata::jinja
