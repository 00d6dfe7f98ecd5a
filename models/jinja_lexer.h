// Cutting a template into text and the tokens of its tags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata::jinja {

enum class TokenKind : uint8_t {
  kText,
  kOutputBegin,
  kOutputEnd,
  kTagBegin,
  kTagEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of strings: with escapes resolved
  int line = 0;
};

// White space as transformers sets it: trim_blocks (a newline right after a tag goes) and
// lstrip_blocks (white space before a tag that starts its line goes); "-" strips everything, "+"
// keeps. Comments vanish, {% raw %} becomes text. Fail(kModelFile) names file and line of an
// unfinished tag, string or comment.
std::vector<Token> Tokenize(const std::string& source, const std::string& file_name);

// Fail(kModelFile, "FILE line L: MESSAGE")
[[noreturn]] void FailAt(const std::string& file_name, int line, const std::string& message);

}  // namespace strata::jinja
