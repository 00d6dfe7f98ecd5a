#include "models/jinja_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace strata::jinja {

namespace {

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

uint32_t CodePoint(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead;
  uint32_t point = lead & (0xFFu >> (character.size() + 1));
  for (const char c : character.substr(1)) point = point << 6 | (c & 0x3F);
  return point;
}

bool IsSpace(std::string_view character) {
  const uint32_t c = CodePoint(character);
  if (character.size() == 1)
    return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool EndsLine(std::string_view character) {
  const uint32_t c = CodePoint(character);
  if (character.size() == 1) return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E);
  return c == 0x85 || c == 0x2028 || c == 0x2029;
}

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }

template <class StartsWord>
std::string Title(std::string text, const StartsWord& starts_word_behind) {
  bool start = true;
  for (size_t i = 0; i < text.size();) {
    const size_t end = NextCharacter(text, i);
    text[i] = start ? Upper(text[i]) : Lower(text[i]);
    start = starts_word_behind(std::string_view(text).substr(i, end - i));
    i = end;
  }
  return text;
}

// str.isprintable of one character beyond ASCII: neither of Unicode's "other" nor a separator.
bool IsPrintable(std::string_view character) {
  struct CodeFree {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct MatchFree {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  static const std::unique_ptr<pcre2_code, CodeFree> unprintable([] {
    int error = 0;
    PCRE2_SIZE offset = 0;
    return pcre2_compile(reinterpret_cast<PCRE2_SPTR>("[\\p{C}\\p{Z}]"), PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
  }());
  const std::unique_ptr<pcre2_match_data, MatchFree> match(pcre2_match_data_create(1, nullptr));
  return pcre2_match(unprintable.get(), reinterpret_cast<PCRE2_SPTR>(character.data()),
                     character.size(), 0, 0, match.get(), nullptr) < 0;
}

}  // namespace

size_t NextCharacter(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && end < at + 4 && Continues(text[end])) ++end;
  return end;
}

size_t PreviousCharacter(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while (begin > 0 && begin + 4 > at && Continues(text[begin])) --begin;
  return begin;
}

int64_t CountCharacters(std::string_view text) {
  int64_t count = 0;
  for (size_t i = 0; i < text.size(); i = NextCharacter(text, i)) ++count;
  return count;
}

std::string Strip(const std::string& text, const std::string* characters, bool left, bool right) {
  const auto drop = [&](size_t from, size_t to) {
    const std::string_view character = std::string_view(text).substr(from, to - from);
    return characters == nullptr ? IsSpace(character)
                                 : characters->find(character) != std::string::npos;
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end && drop(begin, NextCharacter(text, begin)))
    begin = NextCharacter(text, begin);
  while (right && end > begin && drop(PreviousCharacter(text, end), end))
    end = PreviousCharacter(text, end);
  return text.substr(begin, end - begin);
}

std::vector<std::string> SplitWords(const std::string& text, int64_t most) {
  std::vector<std::string> words;
  const auto space = [&](size_t at) {
    return IsSpace(std::string_view(text).substr(at, NextCharacter(text, at) - at));
  };
  for (size_t i = 0; i < text.size();) {
    while (i < text.size() && space(i)) i = NextCharacter(text, i);
    if (i >= text.size()) break;
    size_t end = i;
    while (end < text.size() && !space(end)) end = NextCharacter(text, end);
    if (most-- == 0) end = text.size();  // the rest, with the white space at its end
    words.push_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

std::vector<std::string> SplitLines(const std::string& text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    size_t end = NextCharacter(text, i);
    if (EndsLine(std::string_view(text).substr(i, end - i))) {
      lines.push_back(text.substr(begin, i - begin));
      if (text[i] == '\r' && end < text.size() && text[end] == '\n') ++end;
      begin = end;
    }
    i = end;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string LowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), Lower);
  return text;
}

std::string UpperCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), Upper);
  return text;
}

std::string Capitalise(const std::string& text) {
  std::string result = LowerCase(text);
  if (!result.empty()) result[0] = Upper(result[0]);
  return result;
}

std::string TitleOfWords(const std::string& text) {
  return Title(text,
               [](std::string_view c) { return c.size() == 1 && Lower(c[0]) == Upper(c[0]); });
}

std::string TitleOfParts(const std::string& text) {
  return Title(text, [](std::string_view c) {
    return IsSpace(c) || std::string_view("-({[<").find(c) != std::string_view::npos;
  });
}

std::string Quoted(const std::string& text) {
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (size_t i = 0; i < text.size();) {
    const size_t end = NextCharacter(text, i);
    const std::string_view character = std::string_view(text).substr(i, end - i);
    const uint32_t point = CodePoint(character);
    const bool ascii = static_cast<unsigned char>(text[i]) < 0x80;
    if (text[i] == quote || text[i] == '\\') {
      result += '\\';
      result += text[i];
    } else if (text[i] == '\n') {
      result += "\\n";
    } else if (text[i] == '\r') {
      result += "\\r";
    } else if (text[i] == '\t') {
      result += "\\t";
    } else if (ascii ? point >= 0x20 && point < 0x7F : IsPrintable(character)) {
      result += character;
    } else {
      result += point < 0x100     ? fmt::format("\\x{:02x}", point)
                : point < 0x10000 ? fmt::format("\\u{:04x}", point)
                                  : fmt::format("\\U{:08x}", point);
    }
    i = end;
  }
  return result + quote;
}

}  // namespace strata::jinja
