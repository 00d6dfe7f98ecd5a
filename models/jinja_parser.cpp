#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "models/jinja_ast.h"
#include "models/jinja_lexer.h"

namespace strata::jinja {

namespace {

constexpr int kMaxTree = 1000;

class Parser {
 public:
  Parser(const std::string& source, const std::string& file_name, int max_depth)
      : file_name_(file_name), max_depth_(max_depth), tokens_(Tokenize(source, file_name)) {}

  Block ParseAll() {
    Block body = ParseBlock({});
    if (Now().kind != TokenKind::kEnd)
      Refuse(fmt::format("'{}' has no opening tag", tokens_[at_ + 1].text));
    return body;
  }

 private:
  // Counts recursion; the parser's own stack is what it protects.
  struct Nested {
    explicit Nested(Parser& owner) : parser(owner) {
      if (++parser.depth_ > parser.max_depth_)
        parser.Refuse(fmt::format("nested deeper than {}", parser.max_depth_));
    }
    ~Nested() { --parser.depth_; }
    Parser& parser;
  };

  const Token& Now() const { return tokens_[at_]; }
  const Token& Peek(size_t ahead = 1) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  [[noreturn]] void Refuse(const std::string& message) const {
    FailAt(file_name_, Now().line, message);
  }

  bool Is(TokenKind kind, const char* text) const {
    return Now().kind == kind && Now().text == text;
  }
  bool IsOperator(const char* text) const { return Is(TokenKind::kOperator, text); }
  bool IsName(const char* text) const { return Is(TokenKind::kName, text); }
  bool AcceptOperator(const char* text) {
    if (!IsOperator(text)) return false;
    ++at_;
    return true;
  }
  bool AcceptName(const char* text) {
    if (!IsName(text)) return false;
    ++at_;
    return true;
  }
  void NeedOperator(const char* text) {
    if (!AcceptOperator(text))
      Refuse(fmt::format("'{}' is expected before '{}'", text, Now().text));
  }
  std::string NeedName() {
    if (Now().kind != TokenKind::kName)
      Refuse(fmt::format("a name is expected before '{}'", Now().text));
    return tokens_[at_++].text;
  }
  void NeedTagEnd() {
    if (Now().kind != TokenKind::kTagEnd)
      Refuse(fmt::format("'%}}' is expected before '{}'", Now().text));
    ++at_;
  }

  // Chains make trees as deep as they are long; what is too deep to walk or destroy is refused.
  void Deepen(Expression& parent, const Expression& child) const {
    parent.depth = std::max(parent.depth, child.depth + 1);
    if (parent.depth > kMaxTree) {
      Refuse(fmt::format("an expression is nested, or a chain, deeper than {}", kMaxTree));
    }
  }
  void Adopt(Expression& parent, ExpressionPtr child) const {
    if (child != nullptr) Deepen(parent, *child);
    parent.children.push_back(std::move(child));
  }

  // --- statements

  // Statements up to a tag that begins with one of `ends` (left in place at its tag begin), or the
  // end of the file.
  Block ParseBlock(std::initializer_list<const char*> ends) {
    Nested nested(*this);
    Block block;
    for (;;) {
      const Token& token = Now();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() > 0) Refuse(fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
        return block;
      }
      if (token.kind == TokenKind::kText) {
        block.push_back(New(StatementKind::kText));
        block.back()->text = token.text;
        ++at_;
      } else if (token.kind == TokenKind::kOutputBegin) {
        block.push_back(New(StatementKind::kOutput));
        ++at_;
        block.back()->expressions.push_back(ParseTupleOrExpression());
        if (Now().kind != TokenKind::kOutputEnd)
          Refuse(fmt::format("'}}}}' is expected before '{}'", Now().text));
        ++at_;
      } else {
        const std::string& word = Peek().text;
        if (Peek().kind == TokenKind::kName) {
          for (const char* end : ends) {
            if (word == end) return block;
          }
          if (word == "endif" || word == "endfor" || word == "else" || word == "elif" ||
              word == "endmacro" || word == "endset" || word == "endfilter" ||
              word == "endgeneration") {
            if (ends.size() > 0)
              Refuse(fmt::format("{{% {} %}} stands where {{% {} %}} is expected", word,
                                 *(ends.end() - 1)));
            return block;
          }
        }
        ++at_;
        ParseTag(block);
      }
    }
  }

  StatementPtr New(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = Now().line;
    return statement;
  }

  void EndTag(const char* word) {
    ++at_;  // the tag begin that ParseBlock stopped at
    if (!AcceptName(word)) Refuse(fmt::format("{{% {} %}} is expected", word));
    NeedTagEnd();
  }

  void ParseTag(Block& block) {
    const std::string word = NeedName();
    if (word == "if") {
      block.push_back(ParseIf());
    } else if (word == "for") {
      block.push_back(ParseFor());
    } else if (word == "set") {
      block.push_back(ParseSet());
    } else if (word == "macro") {
      block.push_back(ParseMacro());
    } else if (word == "filter") {
      block.push_back(New(StatementKind::kFilterBlock));
      block.back()->expressions.push_back(ParseBodyFilters());
      NeedTagEnd();
      block.back()->blocks.push_back(ParseBlock({"endfilter"}));
      EndTag("endfilter");
    } else if (word ==
               "generation") {  // marks the assistant's text for training; rendering only shows it
      NeedTagEnd();
      Block body = ParseBlock({"endgeneration"});
      EndTag("endgeneration");
      for (StatementPtr& statement : body) block.push_back(std::move(statement));
    } else if (word == "break" || word == "continue") {
      if (loops_ == 0) Refuse(fmt::format("{{% {} %}} stands outside a loop", word));
      block.push_back(New(word == "break" ? StatementKind::kBreak : StatementKind::kContinue));
      NeedTagEnd();
    } else {
      Refuse(
          fmt::format("the tag '{}' is not supported (if, for, set, macro, filter, raw, "
                      "generation, break and continue are)",
                      word));
    }
  }

  StatementPtr ParseIf() {
    StatementPtr statement = New(StatementKind::kIf);
    for (;;) {
      statement->expressions.push_back(ParseExpression());
      NeedTagEnd();
      statement->blocks.push_back(ParseBlock({"elif", "else", "endif"}));
      ++at_;
      if (AcceptName("elif")) continue;
      if (AcceptName("else")) {
        NeedTagEnd();
        statement->blocks.push_back(ParseBlock({"endif"}));
        ++at_;
      }
      if (!AcceptName("endif")) Refuse("{% endif %} is expected");
      NeedTagEnd();
      return statement;
    }
  }

  StatementPtr ParseFor() {
    StatementPtr statement = New(StatementKind::kFor);
    do {
      statement->names.push_back(NeedName());
    } while (AcceptOperator(","));
    if (!AcceptName("in")) Refuse("'in' is expected in a for tag");
    statement->expressions.push_back(ParseOr());
    statement->expressions.push_back(AcceptName("if") ? ParseExpression() : nullptr);
    if (IsName("recursive")) Refuse("recursive loops are not supported");
    NeedTagEnd();
    ++loops_;
    statement->blocks.push_back(ParseBlock({"else", "endfor"}));
    --loops_;
    ++at_;
    if (AcceptName("else")) {
      NeedTagEnd();
      statement->blocks.push_back(ParseBlock({"endfor"}));
      ++at_;
    }
    if (!AcceptName("endfor")) Refuse("{% endfor %} is expected");
    NeedTagEnd();
    return statement;
  }

  StatementPtr ParseSet() {
    StatementPtr statement = New(StatementKind::kSet);
    statement->names.push_back(NeedName());
    if (AcceptOperator(".")) {
      statement->text = NeedName();
    } else {
      while (AcceptOperator(",")) statement->names.push_back(NeedName());
    }
    if (AcceptOperator("=")) {
      statement->expressions.push_back(ParseTupleOrExpression());
      NeedTagEnd();
      return statement;
    }
    if (statement->names.size() != 1 || !statement->text.empty())
      Refuse("'=' is expected in a set tag");
    statement->kind = StatementKind::kSetBlock;
    statement->expressions.push_back(IsOperator("|") ? ParseBodyFilters() : nullptr);
    NeedTagEnd();
    statement->blocks.push_back(ParseBlock({"endset"}));
    EndTag("endset");
    return statement;
  }

  StatementPtr ParseMacro() {
    StatementPtr statement = New(StatementKind::kMacro);
    statement->text = NeedName();
    NeedOperator("(");
    while (!AcceptOperator(")")) {
      statement->names.push_back(NeedName());
      statement->expressions.push_back(AcceptOperator("=") ? ParseExpression() : nullptr);
      if (!IsOperator(")")) NeedOperator(",");
    }
    NeedTagEnd();
    const int outer_loops = loops_;
    loops_ = 0;
    statement->blocks.push_back(ParseBlock({"endmacro"}));
    loops_ = outer_loops;
    EndTag("endmacro");
    return statement;
  }

  // A chain of filters over the body of a block: "trim | upper" or "| trim".
  ExpressionPtr ParseBodyFilters() {
    ExpressionPtr body = NewExpression(ExpressionKind::kName);
    body->text = kBodyName;
    if (!IsOperator("|")) body = ParseOneFilter(std::move(body));
    return ParseFilters(std::move(body));
  }

  // --- expressions, loosest binding first

  ExpressionPtr NewExpression(ExpressionKind kind) const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = Now().line;
    return expression;
  }

  ExpressionPtr Binary(const std::string& operation, ExpressionPtr left,
                       ExpressionPtr right) const {
    ExpressionPtr expression = NewExpression(ExpressionKind::kBinary);
    expression->text = operation;
    Adopt(*expression, std::move(left));
    Adopt(*expression, std::move(right));
    return expression;
  }

  ExpressionPtr ParseTupleOrExpression() {
    ExpressionPtr first = ParseExpression();
    if (!IsOperator(",")) return first;
    ExpressionPtr tuple = NewExpression(ExpressionKind::kList);
    Adopt(*tuple, std::move(first));
    while (AcceptOperator(",")) {
      if (Now().kind == TokenKind::kTagEnd || Now().kind == TokenKind::kOutputEnd) break;
      Adopt(*tuple, ParseExpression());
    }
    return tuple;
  }

  ExpressionPtr ParseExpression() {
    Nested nested(*this);
    ExpressionPtr value = ParseOr();
    while (AcceptName("if")) {
      ExpressionPtr conditional = NewExpression(ExpressionKind::kConditional);
      Adopt(*conditional, std::move(value));
      Adopt(*conditional, ParseOr());
      Adopt(*conditional, AcceptName("else") ? ParseExpression() : nullptr);
      value = std::move(conditional);
    }
    return value;
  }

  ExpressionPtr ParseOr() {
    ExpressionPtr left = ParseAnd();
    while (AcceptName("or")) left = Binary("or", std::move(left), ParseAnd());
    return left;
  }

  ExpressionPtr ParseAnd() {
    ExpressionPtr left = ParseNot();
    while (AcceptName("and")) left = Binary("and", std::move(left), ParseNot());
    return left;
  }

  ExpressionPtr ParseNot() {
    if (!AcceptName("not")) return ParseComparison();
    Nested nested(*this);
    ExpressionPtr expression = NewExpression(ExpressionKind::kUnary);
    expression->text = "not";
    Adopt(*expression, ParseNot());
    return expression;
  }

  ExpressionPtr ParseComparison() {
    ExpressionPtr left = ParseSum();
    for (bool first = true;; first = false) {
      std::string operation;
      for (const char* candidate : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (AcceptOperator(candidate)) {
          operation = candidate;
          break;
        }
      }
      if (operation.empty() && AcceptName("in")) operation = "in";
      if (operation.empty() && IsName("not") && Peek().kind == TokenKind::kName &&
          Peek().text == "in") {
        at_ += 2;
        operation = "not in";
      }
      if (operation.empty()) return left;
      if (!first) Refuse("chains of comparisons, such as 1 < x < 3, are not supported");
      left = Binary(operation, std::move(left), ParseSum());
    }
  }

  ExpressionPtr ParseSum() {
    ExpressionPtr left = ParseConcat();
    for (;;) {
      const char* operation = IsOperator("+") ? "+" : IsOperator("-") ? "-" : nullptr;
      if (operation == nullptr) return left;
      ++at_;
      left = Binary(operation, std::move(left), ParseConcat());
    }
  }

  ExpressionPtr ParseConcat() {
    ExpressionPtr left = ParseProduct();
    while (AcceptOperator("~")) left = Binary("~", std::move(left), ParseProduct());
    return left;
  }

  ExpressionPtr ParseProduct() {
    ExpressionPtr left = ParsePower();
    for (;;) {
      std::string operation;
      for (const char* candidate : {"*", "//", "/", "%"}) {
        if (AcceptOperator(candidate)) {
          operation = candidate;
          break;
        }
      }
      if (operation.empty()) return left;
      left = Binary(operation, std::move(left), ParsePower());
    }
  }

  // Jinja's own order, unlike Python's: a sign binds tighter than **, which groups to the left.
  ExpressionPtr ParsePower() {
    ExpressionPtr left = ParseUnary(true);
    while (AcceptOperator("**")) left = Binary("**", std::move(left), ParseUnary(true));
    return left;
  }

  // Filters and tests apply to a value with its signs: -1 | abs is 1.
  ExpressionPtr ParseUnary(bool with_filters) {
    Nested nested(*this);
    ExpressionPtr value;
    for (const char* sign : {"-", "+"}) {
      if (value != nullptr || !AcceptOperator(sign)) continue;
      value = NewExpression(ExpressionKind::kUnary);
      value->text = sign;
      Adopt(*value, ParseUnary(false));
    }
    if (value == nullptr) value = ParsePostfix(ParsePrimary());
    return with_filters ? ParseFilters(std::move(value)) : std::move(value);
  }

  ExpressionPtr ParsePostfix(ExpressionPtr value) {
    for (;;) {
      if (AcceptOperator(".")) {
        ExpressionPtr attribute = NewExpression(ExpressionKind::kAttribute);
        attribute->text = Now().kind == TokenKind::kInteger ? tokens_[at_++].text : NeedName();
        Adopt(*attribute, std::move(value));
        value = std::move(attribute);
      } else if (AcceptOperator("[")) {
        value = ParseSubscript(std::move(value));
      } else if (AcceptOperator("(")) {
        ExpressionPtr call = NewExpression(ExpressionKind::kCall);
        Adopt(*call, std::move(value));
        ParseArguments(*call);
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr ParseSubscript(ExpressionPtr value) {
    ExpressionPtr item = NewExpression(ExpressionKind::kItem);
    Adopt(*item, std::move(value));
    ExpressionPtr first = IsOperator(":") ? nullptr : ParseExpression();
    if (AcceptOperator(":")) {
      item->kind = ExpressionKind::kSlice;
      Adopt(*item, std::move(first));
      Adopt(*item, IsOperator(":") || IsOperator("]") ? nullptr : ParseExpression());
      Adopt(*item, AcceptOperator(":") && !IsOperator("]") ? ParseExpression() : nullptr);
    } else {
      Adopt(*item, std::move(first));
    }
    NeedOperator("]");
    return item;
  }

  // Arguments behind an opening parenthesis.
  void ParseArguments(Expression& call) {
    while (!AcceptOperator(")")) {
      if (IsOperator("*") || IsOperator("**")) Refuse("* and ** arguments are not supported");
      if (Now().kind == TokenKind::kName && Peek().kind == TokenKind::kOperator &&
          Peek().text == "=") {
        const std::string name = NeedName();
        ++at_;
        ExpressionPtr value = ParseExpression();
        Deepen(call, *value);
        call.named.emplace_back(name, std::move(value));
      } else {
        Adopt(call, ParseExpression());
      }
      if (!IsOperator(")")) NeedOperator(",");
    }
  }

  ExpressionPtr ParseOneFilter(ExpressionPtr value) {
    ExpressionPtr filter = NewExpression(ExpressionKind::kFilter);
    filter->text = NeedName();
    if (!KnownFilter(filter->text))
      Refuse(fmt::format("the filter '{}' is not supported", filter->text));
    Adopt(*filter, std::move(value));
    if (AcceptOperator("(")) ParseArguments(*filter);
    return filter;
  }

  // Filters and tests behind a value; both bind tighter than arithmetic.
  ExpressionPtr ParseFilters(ExpressionPtr value) {
    for (;;) {
      if (AcceptOperator("|")) {
        value = ParsePostfix(ParseOneFilter(std::move(value)));
      } else if (AcceptName("is")) {
        ExpressionPtr test = NewExpression(ExpressionKind::kTest);
        test->flag = AcceptName("not");
        test->text = NeedName();
        if (!KnownTest(test->text))
          Refuse(fmt::format("the test '{}' is not supported", test->text));
        Adopt(*test, std::move(value));
        if (AcceptOperator("(")) {
          ParseArguments(*test);
        } else if (StartsTestArgument()) {
          Adopt(*test, ParsePostfix(ParsePrimary()));
        }
        value = std::move(test);
      } else {
        return value;
      }
    }
  }

  // "x is divisibleby 3": a bare argument, not the words that may follow a test.
  bool StartsTestArgument() const {
    if (Now().kind == TokenKind::kString || Now().kind == TokenKind::kInteger ||
        Now().kind == TokenKind::kFloat)
      return true;
    if (Now().kind != TokenKind::kName) return IsOperator("[") || IsOperator("{");
    for (const char* word : {"and", "or", "else", "if", "is", "in", "not"}) {
      if (Now().text == word) return false;
    }
    return true;
  }

  ExpressionPtr ParsePrimary() {
    Nested nested(*this);
    const Token& token = Now();
    ExpressionPtr literal = NewExpression(ExpressionKind::kLiteral);
    if (token.kind == TokenKind::kString) {
      std::string text;
      while (Now().kind == TokenKind::kString)
        text += tokens_[at_++].text;  // neighbours join, as in Python
      literal->value = std::move(text);
      return literal;
    }
    if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
      literal->value = token.kind == TokenKind::kInteger
                           ? Value(static_cast<int64_t>(std::stoll(token.text)))
                           : Value(std::stod(token.text));
      ++at_;
      return literal;
    }
    if (token.kind == TokenKind::kName) {
      const std::string name = NeedName();
      if (name == "true" || name == "True")
        literal->value = true;
      else if (name == "false" || name == "False")
        literal->value = false;
      else if (name == "none" || name == "None")
        literal->value = None{};
      else {
        literal->kind = ExpressionKind::kName;
        literal->text = name;
      }
      return literal;
    }
    if (AcceptOperator("(")) return ParseParenthesis();
    if (AcceptOperator("[")) {
      literal->kind = ExpressionKind::kList;
      while (!AcceptOperator("]")) {
        Adopt(*literal, ParseExpression());
        if (!IsOperator("]")) NeedOperator(",");
      }
      return literal;
    }
    if (AcceptOperator("{")) {
      literal->kind = ExpressionKind::kDict;
      while (!AcceptOperator("}")) {
        Adopt(*literal, ParseExpression());
        NeedOperator(":");
        Adopt(*literal, ParseExpression());
        if (!IsOperator("}")) NeedOperator(",");
      }
      return literal;
    }
    Refuse(token.text.empty() ? std::string("an expression is missing")
                              : fmt::format("'{}' does not start an expression", token.text));
  }

  // A grouped expression or a tuple.
  ExpressionPtr ParseParenthesis() {
    ExpressionPtr tuple = NewExpression(ExpressionKind::kList);
    if (AcceptOperator(")")) return tuple;
    ExpressionPtr first = ParseExpression();
    if (AcceptOperator(")")) return first;
    Adopt(*tuple, std::move(first));
    while (!AcceptOperator(")")) {
      NeedOperator(",");
      if (!IsOperator(")")) Adopt(*tuple, ParseExpression());
    }
    return tuple;
  }

  const std::string& file_name_;
  int max_depth_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

std::shared_ptr<const Program> Parse(const std::string& source, const std::string& file_name,
                                     int max_depth) {
  auto program = std::make_shared<Program>();
  program->file_name = file_name;
  program->body = Parser(source, file_name, max_depth).ParseAll();
  return program;
}

}  // namespace strata::jinja
