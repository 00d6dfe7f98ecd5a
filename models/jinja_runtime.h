// Running a parsed template inside bounds.
#pragma once

#include <string>

#include "models/chat_template.h"
#include "models/jinja_ast.h"

namespace strata::jinja {

// Bookkeeping shared by the interpreter, filters and methods: everything that costs time or memory
// is charged here.
class Budget {
 public:
  explicit Budget(const TemplateLimits& limits) : limits_(limits) {}
  // Throws TemplateError when the steps, or the bytes of one text, are more than allowed.
  void Charge(int64_t steps) {
    steps_ += steps;
    if (steps_ > limits_.steps) throw TemplateError{"the template takes too many steps"};
  }
  void ChargeText(size_t bytes) {
    if (bytes > limits_.output_bytes)
      throw TemplateError{"the template makes a text that is too long"};
    Charge(1 + static_cast<int64_t>(bytes / 64));
  }
  const TemplateLimits& limits() const { return limits_; }

 private:
  TemplateLimits limits_;
  int64_t steps_ = 0;
};

// Throws TemplateError. `variables` is a dict.
std::string Render(const Program& program, const Value& variables, const TemplateLimits& limits);

// Filters, tests and methods by name; arguments.positional[0] is the value.
Value CallFilter(const std::string& name, const Arguments& arguments, Budget& budget);
bool CallTest(const std::string& name, const Arguments& arguments);
// A method of a string, list or dict; an undefined value when there is none of that name.
Value FindMethod(const Value& object, const std::string& name, Budget& budget);
// object[key] and object.key for data; undefined when absent.
Value GetItem(const Value& object, const Value& key);
// Members of a list, keys of a dict, characters of a string. Throws for others.
List Iterate(const Value& value, Budget& budget);
// What a filter's `attribute` names: entries and places, joined by dots.
Value GetAttribute(const Value& object, const std::string& path);

// The i-th argument behind the value, or the one called `name`; undefined when absent.
Value Argument(const Arguments& arguments, size_t i, const char* name);
// The same of one type; `fallback` when absent or none. Throw for other types.
std::string TextArgument(const Arguments& arguments, size_t i, const char* name,
                         const std::string& fallback);
int64_t IntegerArgument(const Arguments& arguments, size_t i, const char* name, int64_t fallback);
// A string; empty when undefined. Throws for others, naming `what` needs it.
std::string NeedText(const Value& value, const char* what);

// str.replace, at most `most` times; no bound below 0.
std::string Replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t most, Budget& budget);
// The items', or their attributes', texts.
std::string Join(const List& items, const std::string& separator, const std::string& attribute,
                 Budget& budget);
// The entries of a mapping as lists of two.
List Pairs(const Value& value);

}  // namespace strata::jinja
