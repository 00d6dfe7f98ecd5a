// Text as Python's str sees it: its characters are the code points of UTF-8; a byte that belongs to
// no sequence counts as one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata::jinja {

// The place behind the character at `at`, which is inside the text, and that of the character in
// front of `at`, which is not at the text's begin.
size_t NextCharacter(std::string_view text, size_t at);
size_t PreviousCharacter(std::string_view text, size_t at);
int64_t CountCharacters(std::string_view text);

// str.strip, lstrip, rstrip: of white space (Unicode's, as str.isspace has it) when `characters` is
// null.
std::string Strip(const std::string& text, const std::string* characters, bool left, bool right);
// str.split() without a separator, at most `most` cuts; no bound below 0.
std::vector<std::string> SplitWords(const std::string& text, int64_t most);
// str.splitlines().
std::vector<std::string> SplitLines(const std::string& text);

// Letters beyond ASCII keep their case.
std::string LowerCase(std::string text);
std::string UpperCase(std::string text);
std::string Capitalise(const std::string& text);
// str.title(): a word starts behind every character that is no letter.
std::string TitleOfWords(const std::string& text);
// The filter `title`: a word starts behind white space, a hyphen and opening brackets alone.
std::string TitleOfParts(const std::string& text);

// repr(str): what is not printable is escaped, letters of all scripts stay.
std::string Quoted(const std::string& text);

}  // namespace strata::jinja
