// Values of the template language, with Python's truth, equality and spelling.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(const char* value) : data_(std::string(value)) {}
  static Value MakeList(List items = {}) { return Value(std::make_shared<List>(std::move(items))); }
  static Value MakeDict(Dict items = {}) { return Value(std::make_shared<Dict>(std::move(items))); }
  static Value MakeFunction(Function function) {
    return Value(std::make_shared<Function>(std::move(function)));
  }
  static Value FromJson(const nlohmann::ordered_json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<List>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(data_); }
  bool is_function() const { return std::holds_alternative<std::shared_ptr<Function>>(data_); }

  const std::string& string() const { return std::get<std::string>(data_); }
  List& list() const { return *std::get<std::shared_ptr<List>>(data_); }
  Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<Function>>(data_); }
  int64_t integer() const;  // of bool and int
  double number() const;    // of bool, int and float

  bool Truth() const;
  const char* TypeName() const;  // "string", "list", "mapping", ...
  // The entry of a dict, or null.
  Value* Find(const std::string& key) const;
  void Set(const std::string& key, Value value) const;

 private:
  explicit Value(std::shared_ptr<List> list) : data_(std::move(list)) {}
  explicit Value(std::shared_ptr<Dict> dict) : data_(std::move(dict)) {}
  explicit Value(std::shared_ptr<Function> function) : data_(std::move(function)) {}
  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Dict>, std::shared_ptr<Function>>
      data_;
};

struct Arguments {
  List positional;
  Dict named;
};

bool Equal(const Value& a, const Value& b, int depth = 0);
// Whether a function hides anywhere inside.
bool HoldsFunction(const Value& value, int depth = 0);
// -1, 0, 1 for numbers, strings and lists; throws TemplateError for others.
int Compare(const Value& a, const Value& b);
// What {{ value }} prints; containers print as Python's repr. `depth` bounds nesting.
std::string ToText(const Value& value, int depth = 0);
// json.dumps(value, ensure_ascii, indent, separators (", ", ": ")); indent below 0: one line.
std::string ToJson(const Value& value, int indent, bool ensure_ascii, int depth = 0);

// Raised while rendering; ChatTemplate turns it into Fail().
struct TemplateError {
  std::string message;
};

}  // namespace strata::jinja
