#include "models/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "kernels/status.h"
#include "models/jinja_text.h"

namespace strata::jinja {

namespace {

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

void AppendUtf8(std::string& out, uint32_t point) {
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else if (point < 0x800) {
    out += static_cast<char>(0xC0 | point >> 6);
    out += static_cast<char>(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    out += static_cast<char>(0xE0 | point >> 12);
    out += static_cast<char>(0x80 | (point >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (point & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | point >> 18);
    out += static_cast<char>(0x80 | (point >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (point >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (point & 0x3F));
  }
}

class Lexer {
 public:
  Lexer(const std::string& source, const std::string& file_name)
      : source_(source), file_name_(file_name) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) {
      const size_t open = FindOpen(at_);
      Text(open);
      if (open >= source_.size()) break;
      if (source_[open + 1] == '#') {
        Comment();
      } else {
        Tag();
      }
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  size_t FindOpen(size_t from) const {
    for (size_t i = from; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return source_.size();
  }

  // Emits the text up to `open`, stripped as the tags on both sides ask for, and moves there.
  void Text(size_t open) {
    std::string text = source_.substr(at_, open - at_);
    const int first_line = line_;
    Advance(open);
    if (strip_next_) {
      text = Strip(text, nullptr, true, false);
    } else if (trim_newline_ && text.starts_with('\n')) {
      text.erase(0, 1);
    }
    strip_next_ = trim_newline_ = false;
    if (open < source_.size()) {
      const char kind = source_[open + 1];
      const char mark = open + 2 < source_.size() ? source_[open + 2] : '\0';
      if (mark == '-') {
        text = Strip(text, nullptr, false, true);
      } else if (kind != '{' && mark != '+') {
        const size_t line = text.rfind('\n') + 1;  // 0 when there is no newline
        const bool line_start = line > 0 || StartsLine(open - text.size());
        if (line_start && Strip(text.substr(line), nullptr, true, false).empty()) text.resize(line);
      }
    }
    if (!text.empty()) tokens_.push_back({TokenKind::kText, std::move(text), first_line});
  }

  bool StartsLine(size_t position) const { return position == 0 || source_[position - 1] == '\n'; }

  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<long>(at_),
                                         source_.begin() + static_cast<long>(to), '\n'));
    at_ = to;
  }

  void Comment() {
    const size_t close = source_.find("#}", at_ + 2);
    if (close == std::string::npos) FailAt(file_name_, line_, "a comment {# is not closed");
    strip_next_ = source_[close - 1] == '-' && close > at_ + 2;
    trim_newline_ = !(source_[close - 1] == '+' && close > at_ + 2);
    Advance(close + 2);
  }

  void Tag() {
    const bool output = source_[at_ + 1] == '{';
    const std::string close = output ? "}}" : "%}";
    Add(output ? TokenKind::kOutputBegin : TokenKind::kTagBegin, "");
    const int open_line = line_;
    Advance(at_ + 2);
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) Advance(at_ + 1);
    const size_t first = tokens_.size();
    for (;;) {
      while (at_ < source_.size() && IsSpace(source_[at_])) Advance(at_ + 1);
      if (at_ >= source_.size())
        FailAt(file_name_, open_line, output ? "{{ is not closed" : "{% is not closed");
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool stripped = (rest[0] == '-' || rest[0] == '+') && rest.substr(1).starts_with(close);
      if (stripped || (rest.starts_with(close) && !(output && braces_ > 0))) {
        Add(output ? TokenKind::kOutputEnd : TokenKind::kTagEnd, "");
        strip_next_ = stripped && rest[0] == '-';
        trim_newline_ = !output && !(stripped && rest[0] == '+');
        Advance(at_ + close.size() + (stripped ? 1 : 0));
        break;
      }
      NextToken();
    }
    braces_ = 0;
    if (!output && tokens_.size() == first + 2 && tokens_[first].kind == TokenKind::kName &&
        tokens_[first].text == "raw")
      Raw(first);
  }

  // Turns everything up to {% endraw %} into text.
  void Raw(size_t first) {
    tokens_.resize(first - 1);
    size_t end = at_;
    for (;;) {
      end = source_.find("{%", end);
      if (end == std::string::npos) FailAt(file_name_, line_, "{% raw %} has no {% endraw %}");
      size_t word = end + 2;
      if (word < source_.size() && (source_[word] == '-' || source_[word] == '+')) ++word;
      while (word < source_.size() && IsSpace(source_[word])) ++word;
      if (source_.compare(word, 6, "endraw") == 0) break;
      end += 2;
    }
    Text(end);
    const size_t close = source_.find("%}", at_);
    if (close == std::string::npos) FailAt(file_name_, line_, "{% endraw is not closed");
    strip_next_ = source_[close - 1] == '-';
    trim_newline_ = true;
    Advance(close + 2);
  }

  void NextToken() {
    const char c = source_[at_];
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < source_.size() && (IsNameStart(source_[end]) || IsDigit(source_[end]))) ++end;
      Add(TokenKind::kName, source_.substr(at_, end - at_));
      Advance(end);
    } else if (IsDigit(c)) {
      Number();
    } else if (c == '"' || c == '\'') {
      String(c);
    } else {
      for (const char* two : {"==", "!=", "<=", ">=", "//", "**"}) {
        if (source_.compare(at_, 2, two) == 0) {
          Add(TokenKind::kOperator, two);
          Advance(at_ + 2);
          return;
        }
      }
      if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos) {
        FailAt(file_name_, line_, fmt::format("the character '{}' has no meaning in a tag", c));
      }
      braces_ += c == '{' ? 1 : c == '}' ? -1 : 0;
      Add(TokenKind::kOperator, std::string(1, c));
      Advance(at_ + 1);
    }
  }

  void Number() {
    size_t end = at_;
    while (end < source_.size() && (IsDigit(source_[end]) || source_[end] == '_')) ++end;
    TokenKind kind = TokenKind::kInteger;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      kind = TokenKind::kFloat;
      ++end;
      while (end < source_.size() && IsDigit(source_[end])) ++end;
    }
    std::string digits = source_.substr(at_, end - at_);
    std::erase(digits, '_');
    if (digits.size() > 18)
      FailAt(file_name_, line_, fmt::format("the number {} is too long", digits));
    Add(kind, digits);
    Advance(end);
  }

  void String(char quote) {
    const int start = line_;
    std::string text;
    size_t i = at_ + 1;
    const auto hex = [&](size_t digits) {
      uint32_t value = 0;
      for (size_t d = 0; d < digits; ++d, ++i) {
        const char c = i < source_.size() ? source_[i] : '\0';
        if (!IsDigit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F'))
          FailAt(file_name_, start, "a string has a broken escape");
        value = value * 16 + static_cast<uint32_t>(IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
      }
      return value;
    };
    for (;;) {
      if (i >= source_.size()) FailAt(file_name_, start, "a string is not closed");
      const char c = source_[i++];
      if (c == quote) break;
      if (c != '\\' || i >= source_.size()) {
        text += c;
        continue;
      }
      const char escaped = source_[i++];
      switch (escaped) {
        case 'n':
          text += '\n';
          break;
        case 't':
          text += '\t';
          break;
        case 'r':
          text += '\r';
          break;
        case 'a':
          text += '\a';
          break;
        case 'b':
          text += '\b';
          break;
        case 'f':
          text += '\f';
          break;
        case 'v':
          text += '\v';
          break;
        case '\\':
        case '\'':
        case '"':
          text += escaped;
          break;
        case 'x':
          AppendUtf8(text, hex(2));
          break;
        case 'u':
          AppendUtf8(text, hex(4));
          break;
        case 'U':
          AppendUtf8(text, std::min<uint32_t>(hex(8), 0x10FFFF));
          break;
        case '\n':
          break;
        default:
          if (escaped >= '0' && escaped <= '7') {
            uint32_t octal = static_cast<uint32_t>(escaped - '0');
            for (int d = 0; d < 2 && i < source_.size() && source_[i] >= '0' && source_[i] <= '7';
                 ++d)
              octal = octal * 8 + static_cast<uint32_t>(source_[i++] - '0');
            AppendUtf8(text, octal);
            break;
          }
          text += '\\';
          text += escaped;
      }
    }
    Add(TokenKind::kString, std::move(text));
    Advance(i);
  }

  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  const std::string& source_;
  const std::string& file_name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  int braces_ = 0;             // open { inside {{ }}, so that a dict's }} is not its end
  bool strip_next_ = false;    // the text after a -}} or -%}
  bool trim_newline_ = false;  // the text after a tag
};

}  // namespace

void FailAt(const std::string& file_name, int line, const std::string& message) {
  Fail(ErrorCode::kModelFile, fmt::format("{} line {}: {}", file_name, line, message));
}

std::vector<Token> Tokenize(const std::string& source, const std::string& file_name) {
  // As in Jinja, every line ends with \n alone, and one newline at the very end is dropped.
  std::string lines;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    lines += source[i] == '\r' ? '\n' : source[i];
  }
  if (lines.ends_with('\n')) lines.pop_back();
  return Lexer(lines, file_name).Run();
}

}  // namespace strata::jinja
