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

}  // namespace strata::jinja
