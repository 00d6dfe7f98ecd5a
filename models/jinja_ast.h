// The parsed form of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/jinja_value.h"

namespace strata::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind : uint8_t {
  kLiteral,      // value
  kName,         // text
  kList,         // children
  kDict,         // children: key, value, key, value ...
  kAttribute,    // children[0] . text
  kItem,         // children[0] [ children[1] ]
  kSlice,        // children[0] [ children[1] : children[2] : children[3] ], absent ones null
  kCall,         // children[0] ( children[1..], named )
  kFilter,       // children[0] | text ( children[1..], named )
  kTest,         // children[0] is text ( children[1..] ), negated when flag
  kUnary,        // text: not - +
  kBinary,       // text: + - * / // % ** ~ == != < <= > >= and or in, "not in"
  kConditional,  // children[0] if children[1] else children[2] (may be null)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  int depth = 0;  // of the tree below
  Value value;
  std::string text;
  bool flag = false;
  std::vector<ExpressionPtr> children;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

enum class StatementKind : uint8_t {
  kText,    // text
  kOutput,  // expressions[0]
  kIf,      // expressions[i] guards blocks[i]; one more block is the else
  kFor,  // names in expressions[0], filtered by expressions[1] (may be null); blocks[0], blocks[1]
         // for an empty loop
  kSet,  // names = expressions[0], or attribute `text` of names[0]
  kSetBlock,  // names[0] = rendered blocks[0], through the filters of expressions[0] (may be null)
  kMacro,     // text(names, defaults in expressions, null where there is none) = blocks[0]
  kFilterBlock,  // expressions[0] is a filter chain over the rendered blocks[0]
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  std::vector<std::string> names;
  std::vector<ExpressionPtr> expressions;
  std::vector<Block> blocks;
};

struct Program {
  std::string file_name;
  Block body;
};

// Fail(kModelFile): "FILE line L: ..." naming the feature that is not known.
std::shared_ptr<const Program> Parse(const std::string& source, const std::string& file_name,
                                     int max_depth);

// Names that Parse accepts, so that an unknown one is refused when the template is loaded.
bool KnownFilter(const std::string& name);
bool KnownTest(const std::string& name);

// The template's own text where a block's body goes into a filter: the name that stands for it.
constexpr const char* kBodyName =
    "\x01"
    "body";

}  // namespace strata::jinja
