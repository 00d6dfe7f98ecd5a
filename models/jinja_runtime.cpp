#include "models/jinja_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

namespace strata::jinja {

namespace {

constexpr int kExpressionsPerDepth =
    16;  // expression nodes nest this much deeper than calls and loops
constexpr int64_t kMaxRange = 1'000'000;

enum class Flow : uint8_t { kNormal, kBreak, kContinue };

// Variables of one block; look-ups go outwards.
struct Scope {
  explicit Scope(Scope* outer_scope) : outer(outer_scope) {}
  Value* Find(const std::string& name) {
    for (Scope* scope = this; scope != nullptr; scope = scope->outer) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end()) return &found->second;
    }
    return nullptr;
  }
  Scope* outer;
  std::map<std::string, Value> variables;
};

class Interpreter {
 public:
  Interpreter(const Program& program, const TemplateLimits& limits)
      : program_(program), budget_(limits) {}

  std::string Run(const Value& variables) {
    Scope globals(nullptr);
    AddGlobals(globals);
    for (const auto& [name, value] : variables.dict()) globals.variables[name] = value;
    Scope scope(&globals);
    std::string out;
    RunBlock(program_.body, scope, out);
    return out;
  }

 private:
  struct Nested {
    Nested(Interpreter& owner, int weight) : interpreter(owner), amount(weight) {
      interpreter.depth_ += amount;
      if (interpreter.depth_ > interpreter.budget_.limits().depth * kExpressionsPerDepth) {
        interpreter.depth_ -= amount;
        throw TemplateError{"the template nests too deep"};
      }
    }
    ~Nested() { interpreter.depth_ -= amount; }
    Interpreter& interpreter;
    int amount;
  };

  [[noreturn]] void Throw(int line, const std::string& message) const {
    throw TemplateError{fmt::format("line {}: {}", line, message)};
  }

  void AddGlobals(Scope& scope) {
    scope.variables["raise_exception"] =
        Value::MakeFunction([](const Arguments& arguments) -> Value {
          throw TemplateError{arguments.positional.empty()
                                  ? "the template refuses this conversation"
                                  : ToText(arguments.positional[0])};
        });
    scope.variables["namespace"] = Value::MakeFunction(
        [](const Arguments& arguments) { return Value::MakeNamespace(arguments.named); });
    scope.variables["dict"] = Value::MakeFunction(
        [](const Arguments& arguments) { return Value::MakeDict(arguments.named); });
    scope.variables["range"] =
        Value::MakeFunction([this](const Arguments& arguments) { return Range(arguments); });
    scope.variables["strftime_now"] = Value::MakeFunction([](const Arguments& arguments) -> Value {
      if (arguments.positional.empty() || !arguments.positional[0].is_string())
        throw TemplateError{"strftime_now needs a format"};
      const std::time_t now = std::time(nullptr);
      std::tm local{};
      localtime_r(&now, &local);
      char text[256];
      const size_t length =
          std::strftime(text, sizeof(text), arguments.positional[0].string().c_str(), &local);
      return std::string(text, length);
    });
  }

  Value Range(const Arguments& arguments) {
    const List& given = arguments.positional;
    if (given.empty() || given.size() > 3)
      throw TemplateError{"range takes one to three whole numbers"};
    for (const Value& value : given) {
      if (!value.is_int() && !value.is_bool())
        throw TemplateError{"range takes one to three whole numbers"};
    }
    const int64_t begin = given.size() > 1 ? given[0].integer() : 0;
    const int64_t end = given.size() > 1 ? given[1].integer() : given[0].integer();
    const int64_t step = given.size() > 2 ? given[2].integer() : 1;
    if (step == 0) throw TemplateError{"range with a step of 0"};
    const double count = std::ceil((static_cast<double>(end) - static_cast<double>(begin)) /
                                   static_cast<double>(step));
    if (count > static_cast<double>(kMaxRange))
      throw TemplateError{fmt::format("range of more than {} numbers", kMaxRange)};
    List items;
    for (int64_t i = 0; i < static_cast<int64_t>(count); ++i)
      items.emplace_back(static_cast<int64_t>(
          static_cast<uint64_t>(begin) + static_cast<uint64_t>(i) * static_cast<uint64_t>(step)));
    budget_.Charge(static_cast<int64_t>(items.size()));
    return Value::MakeList(std::move(items));
  }

  void Append(std::string& out, const std::string& text) {
    out += text;
    budget_.ChargeText(out.size() > budget_.limits().output_bytes ? out.size() : text.size());
  }

  Flow RunBlock(const Block& block, Scope& scope, std::string& out) {
    for (const StatementPtr& statement : block) {
      budget_.Charge(1);
      const Flow flow = RunStatement(*statement, scope, out);
      if (flow != Flow::kNormal) return flow;
    }
    return Flow::kNormal;
  }

  Flow RunStatement(const Statement& statement, Scope& scope, std::string& out) {
    switch (statement.kind) {
      case StatementKind::kText:
        Append(out, statement.text);
        return Flow::kNormal;
      case StatementKind::kOutput:
        Append(out, ToText(Evaluate(*statement.expressions[0], scope)));
        return Flow::kNormal;
      case StatementKind::kIf: {
        Nested nested(*this, kExpressionsPerDepth);
        for (size_t i = 0; i < statement.expressions.size(); ++i) {
          if (Evaluate(*statement.expressions[i], scope).Truth())
            return RunBlock(statement.blocks[i], scope, out);
        }
        if (statement.blocks.size() > statement.expressions.size())
          return RunBlock(statement.blocks.back(), scope, out);
        return Flow::kNormal;
      }
      case StatementKind::kFor:
        return RunFor(statement, scope, out);
      case StatementKind::kSet:
        RunSet(statement, scope);
        return Flow::kNormal;
      case StatementKind::kSetBlock: {
        scope.variables[statement.names[0]] = RenderBody(statement, scope);
        return Flow::kNormal;
      }
      case StatementKind::kFilterBlock:
        Append(out, ToText(RenderBody(statement, scope)));
        return Flow::kNormal;
      case StatementKind::kMacro:
        DefineMacro(statement, scope);
        return Flow::kNormal;
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNormal;
  }

  // The statement's rendered block, through its filters.
  Value RenderBody(const Statement& statement, Scope& scope) {
    Nested nested(*this, kExpressionsPerDepth);
    Scope inner(&scope);
    std::string text;
    RunBlock(statement.blocks[0], inner, text);
    if (statement.expressions[0] == nullptr) return text;
    inner.variables[kBodyName] = text;
    return Evaluate(*statement.expressions[0], inner);
  }

  void Unpack(const std::vector<std::string>& names, const Value& value, Scope& scope, int line) {
    if (names.size() == 1) {
      scope.variables[names[0]] = value;
      return;
    }
    if (!value.is_list() || value.list().size() != names.size()) {
      Throw(line,
            fmt::format("a {} cannot be unpacked into {} names", value.TypeName(), names.size()));
    }
    for (size_t i = 0; i < names.size(); ++i) scope.variables[names[i]] = value.list()[i];
  }

  void RunSet(const Statement& statement, Scope& scope) {
    const Value value = Evaluate(*statement.expressions[0], scope);
    if (statement.text.empty()) return Unpack(statement.names, value, scope, statement.line);
    Value* object = scope.Find(statement.names[0]);
    if (object == nullptr || !object->is_namespace())
      Throw(statement.line, fmt::format("'{}' is no namespace", statement.names[0]));
    // A macro refers to the scope that defined it and must not outlive it.
    ChargeFor(value);
    if (HoldsFunction(value)) Throw(statement.line, "a macro cannot be stored in a namespace");
    object->Set(statement.text, value);
  }

  // What looking through a whole value costs.
  void ChargeFor(const Value& value) { budget_.Charge(static_cast<int64_t>(value.bytes() / 16)); }

  Flow RunFor(const Statement& statement, Scope& scope, std::string& out) {
    Nested nested(*this, kExpressionsPerDepth);
    const Value iterable = Evaluate(*statement.expressions[0], scope);
    List items = iterable.is_undefined() ? List() : Iterate(iterable, budget_);
    if (statement.expressions[1] != nullptr) {
      List kept;
      for (const Value& item : items) {
        Scope inner(&scope);
        Unpack(statement.names, item, inner, statement.line);
        if (Evaluate(*statement.expressions[1], inner).Truth()) kept.push_back(item);
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      Scope inner(&scope);
      return statement.blocks.size() > 1 ? RunBlock(statement.blocks[1], inner, out)
                                         : Flow::kNormal;
    }
    const int64_t count = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < count; ++i) {
      Scope inner(&scope);
      Unpack(statement.names, items[static_cast<size_t>(i)], inner, statement.line);
      Dict loop = {{"index", i + 1},        {"index0", i},
                   {"revindex", count - i}, {"revindex0", count - i - 1},
                   {"first", i == 0},       {"last", i + 1 == count},
                   {"length", count}};
      if (i > 0) loop.emplace_back("previtem", items[static_cast<size_t>(i - 1)]);
      if (i + 1 < count) loop.emplace_back("nextitem", items[static_cast<size_t>(i + 1)]);
      inner.variables["loop"] = Value::MakeDict(std::move(loop));
      budget_.Charge(8);
      if (RunBlock(statement.blocks[0], inner, out) == Flow::kBreak) break;
    }
    return Flow::kNormal;
  }

  void DefineMacro(const Statement& statement, Scope& scope) {
    // A macro sees the scope it was defined in, which outlives every call: calls happen inside it.
    Scope* definition = &scope;
    scope.variables[statement.text] =
        Value::MakeFunction([this, &statement, definition](const Arguments& arguments) -> Value {
          Nested nested(*this, kExpressionsPerDepth);
          budget_.Charge(4);
          Scope inner(definition);
          if (arguments.positional.size() > statement.names.size()) {
            Throw(statement.line, fmt::format("macro {} takes {} arguments", statement.text,
                                              statement.names.size()));
          }
          for (size_t i = 0; i < statement.names.size(); ++i) {
            Value value;
            if (i < arguments.positional.size()) {
              value = arguments.positional[i];
            } else if (statement.expressions[i] != nullptr) {
              value = Evaluate(*statement.expressions[i], inner);
            }
            for (const auto& [name, given] : arguments.named) {
              if (name == statement.names[i]) value = given;
            }
            inner.variables[statement.names[i]] = value;
          }
          std::string text;
          RunBlock(statement.blocks[0], inner, text);
          return text;
        });
  }

  Arguments EvaluateArguments(const Expression& call, size_t first, Scope& scope) {
    Arguments arguments;
    for (size_t i = first; i < call.children.size(); ++i)
      arguments.positional.push_back(Evaluate(*call.children[i], scope));
    for (const auto& [name, value] : call.named)
      arguments.named.emplace_back(name, Evaluate(*value, scope));
    return arguments;
  }

  Value Evaluate(const Expression& expression, Scope& scope) {
    Nested nested(*this, 1);
    budget_.Charge(1);
    switch (expression.kind) {
      case ExpressionKind::kLiteral:
        return expression.value;
      case ExpressionKind::kName: {
        const Value* found = scope.Find(expression.text);
        return found == nullptr ? Value() : *found;
      }
      case ExpressionKind::kList: {
        List items;
        for (const ExpressionPtr& child : expression.children)
          items.push_back(Evaluate(*child, scope));
        return Value::MakeList(std::move(items));
      }
      case ExpressionKind::kDict: {
        Dict dict;
        for (size_t i = 0; i < expression.children.size(); i += 2) {
          const Value key = Evaluate(*expression.children[i], scope);
          SetEntry(dict, ToText(key), Evaluate(*expression.children[i + 1], scope));
        }
        return Value::MakeDict(std::move(dict));
      }
      case ExpressionKind::kAttribute:
        return Attribute(expression, scope);
      case ExpressionKind::kItem: {
        const Value object = Evaluate(*expression.children[0], scope);
        if (object.is_undefined()) Throw(expression.line, "an undefined value has no items");
        return Item(object, Evaluate(*expression.children[1], scope));
      }
      case ExpressionKind::kSlice:
        return Slice(expression, scope);
      case ExpressionKind::kCall: {
        const Value function = Evaluate(*expression.children[0], scope);
        if (!function.is_function()) {
          const Expression& callee = *expression.children[0];
          Throw(expression.line,
                fmt::format("'{}' is {}, not a function", callee.text, function.TypeName()));
        }
        return function.function()(EvaluateArguments(expression, 1, scope));
      }
      case ExpressionKind::kFilter:
        return CallFilter(expression.text, EvaluateArguments(expression, 0, scope), budget_);
      case ExpressionKind::kTest:
        return CallTest(expression.text, EvaluateArguments(expression, 0, scope)) !=
               expression.flag;
      case ExpressionKind::kUnary:
        return Unary(expression, scope);
      case ExpressionKind::kBinary:
        return Binary(expression, scope);
      case ExpressionKind::kConditional:
        if (Evaluate(*expression.children[1], scope).Truth())
          return Evaluate(*expression.children[0], scope);
        return expression.children[2] == nullptr ? Value()
                                                 : Evaluate(*expression.children[2], scope);
    }
    return Value();
  }

  Value Attribute(const Expression& expression, Scope& scope) {
    const Value object = Evaluate(*expression.children[0], scope);
    if (object.is_undefined())
      Throw(expression.line,
            fmt::format("an undefined value has no attribute '{}'", expression.text));
    // "list.0" is the first item.
    if (expression.text[0] >= '0' && expression.text[0] <= '9') {
      return Item(object, static_cast<int64_t>(std::stoll(expression.text)));
    }
    // As in Python, a method comes before an entry of the same name: arguments.items() holds for
    // arguments that have a field "items" too. A namespace has no methods.
    if (!object.is_namespace()) {
      const Value method = FindMethod(object, expression.text, budget_);
      if (!method.is_undefined() || !object.is_dict()) return method;
    }
    const Value* entry = object.Find(expression.text);
    return entry == nullptr ? Value() : *entry;
  }

  // A text's characters are counted from the end that the sign of the key says.
  Value Item(const Value& object, const Value& key) {
    if (object.is_string() && key.is_int()) {
      const int64_t size = static_cast<int64_t>(object.string().size());
      budget_.Charge(std::abs(std::clamp(key.integer(), -size, size)) / 16);
    }
    return GetItem(object, key);
  }

  Value Slice(const Expression& expression, Scope& scope) {
    const Value object = Evaluate(*expression.children[0], scope);
    int64_t bounds[3] = {0, 0, 1};
    bool given[3] = {};
    for (size_t i = 0; i < 3; ++i) {
      if (expression.children[i + 1] == nullptr) continue;
      const Value bound = Evaluate(*expression.children[i + 1], scope);
      if (bound.is_none()) continue;
      if (!bound.is_int()) Throw(expression.line, "slice bounds are whole numbers");
      bounds[i] = bound.integer();
      given[i] = true;
    }
    if (!object.is_string() && !object.is_list())
      Throw(expression.line, fmt::format("a {} cannot be sliced", object.TypeName()));
    const List items = Iterate(object, budget_);
    const int64_t size = static_cast<int64_t>(items.size());
    const int64_t step =
        std::clamp(bounds[2], -size - 1, size + 1);  // a longer one takes one item too
    if (step == 0) Throw(expression.line, "a slice step is 0");
    const auto place = [&](int64_t bound, int64_t low, int64_t high) {
      return std::clamp(bound < 0 ? bound + size : bound, low, high);
    };
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    const int64_t begin = given[0] ? place(bounds[0], low, high) : step > 0 ? 0 : size - 1;
    const int64_t end = given[1] ? place(bounds[1], low, high) : step > 0 ? size : -1;
    List taken;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step)
      taken.push_back(items[static_cast<size_t>(i)]);
    if (object.is_list()) return Value::MakeList(std::move(taken));
    std::string text;
    for (const Value& item : taken) text += item.string();
    return text;
  }

  Value Unary(const Expression& expression, Scope& scope) {
    const Value value = Evaluate(*expression.children[0], scope);
    if (expression.text == "not") return !value.Truth();
    if (!value.is_number())
      Throw(expression.line,
            fmt::format("'{}' needs a number, not a {}", expression.text, value.TypeName()));
    if (expression.text == "+") return value;
    if (value.is_float()) return -value.number();
    return static_cast<int64_t>(0 - static_cast<uint64_t>(value.integer()));
  }

  Value Binary(const Expression& expression, Scope& scope) {
    const std::string& operation = expression.text;
    const Value left = Evaluate(*expression.children[0], scope);
    if (operation == "and") return left.Truth() ? Evaluate(*expression.children[1], scope) : left;
    if (operation == "or") return left.Truth() ? left : Evaluate(*expression.children[1], scope);
    const Value right = Evaluate(*expression.children[1], scope);
    ChargeFor(left);
    ChargeFor(right);
    if (operation == "==") return Equal(left, right);
    if (operation == "!=") return !Equal(left, right);
    if (operation == "<") return Compare(left, right) < 0;
    if (operation == "<=") return Compare(left, right) <= 0;
    if (operation == ">") return Compare(left, right) > 0;
    if (operation == ">=") return Compare(left, right) >= 0;
    if (operation == "in") return Contains(expression, right, left);
    if (operation == "not in") return !Contains(expression, right, left);
    if (operation == "~") return Concat(ToText(left), ToText(right));
    if (operation == "+" && left.is_string() && right.is_string())
      return Concat(left.string(), right.string());
    if (operation == "+" && left.is_list() && right.is_list()) {
      List joined = left.list();
      joined.insert(joined.end(), right.list().begin(), right.list().end());
      budget_.Charge(static_cast<int64_t>(joined.size()));
      return Value::MakeList(std::move(joined));
    }
    if (operation == "*" && left.is_string() && right.is_int())
      return Repeat(left.string(), right.integer());
    return Arithmetic(expression, left, right);
  }

  std::string Concat(const std::string& a, const std::string& b) {
    budget_.ChargeText(a.size() + b.size());
    return a + b;
  }

  std::string Repeat(const std::string& text, int64_t times) {
    if (times <= 0 || text.empty()) return "";
    if (static_cast<uint64_t>(times) > budget_.limits().output_bytes / text.size())
      budget_.ChargeText(budget_.limits().output_bytes + 1);
    budget_.ChargeText(text.size() * static_cast<size_t>(times));
    std::string result;
    for (int64_t i = 0; i < times; ++i) result += text;
    return result;
  }

  bool Contains(const Expression& expression, const Value& container, const Value& item) {
    if (container.is_string() && item.is_string())
      return container.string().find(item.string()) != std::string::npos;
    if (container.is_undefined()) return false;
    if (container.is_dict()) return item.is_string() && container.Find(item.string()) != nullptr;
    if (container.is_list()) {
      budget_.Charge(static_cast<int64_t>(container.list().size()));
      return std::any_of(container.list().begin(), container.list().end(),
                         [&](const Value& member) { return Equal(member, item); });
    }
    Throw(expression.line,
          fmt::format("'in' needs a string, list or mapping, not a {}", container.TypeName()));
  }

  Value Arithmetic(const Expression& expression, const Value& left, const Value& right) {
    const std::string& operation = expression.text;
    if (!left.is_number() || !right.is_number()) {
      Throw(expression.line, fmt::format("'{}' cannot join a {} and a {}", operation,
                                         left.TypeName(), right.TypeName()));
    }
    const bool whole = !left.is_float() && !right.is_float();
    if ((operation == "/" || operation == "//" || operation == "%") && right.number() == 0.0)
      Throw(expression.line, "division by zero");
    if (operation == "/") return left.number() / right.number();
    if (operation == "**")
      return whole && right.integer() >= 0 ? Power(left.integer(), right.integer())
                                           : Value(std::pow(left.number(), right.number()));
    if (!whole) {
      const double a = left.number(), b = right.number();
      if (operation == "+") return a + b;
      if (operation == "-") return a - b;
      if (operation == "*") return a * b;
      const double quotient = std::floor(a / b);
      return operation == "//" ? quotient : a - quotient * b;
    }
    // Whole numbers wrap at 64 bits instead of growing.
    const int64_t a = left.integer(), b = right.integer();
    const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
    if (operation == "+") return static_cast<int64_t>(ua + ub);
    if (operation == "-") return static_cast<int64_t>(ua - ub);
    if (operation == "*") return static_cast<int64_t>(ua * ub);
    if (b == -1) return operation == "//" ? static_cast<int64_t>(0 - ua) : int64_t{0};
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) --quotient, rest += b;
    return operation == "//" ? quotient : rest;
  }

  static Value Power(int64_t base, int64_t exponent) {
    uint64_t result = 1, factor = static_cast<uint64_t>(base);
    for (; exponent > 0; exponent >>= 1) {
      if ((exponent & 1) != 0) result *= factor;
      factor *= factor;
    }
    return static_cast<int64_t>(result);
  }

  const Program& program_;
  Budget budget_;
  int depth_ = 0;
};

}  // namespace

std::string Render(const Program& program, const Value& variables, const TemplateLimits& limits) {
  return Interpreter(program, limits).Run(variables);
}

}  // namespace strata::jinja
