// UTF-8 that may be cut or invalid.
#pragma once

#include <string>
#include <string_view>

namespace strata {

// Moves the decodable front of `pending` to the result: whole sequences as they are, each invalid
// byte run as U+FFFD (one per maximal subpart, as Unicode recommends). What may still become a
// sequence with more bytes stays in `pending`.
std::string TakeCompleteUtf8(std::string& pending);

// The whole text with invalid and unfinished sequences replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace strata
