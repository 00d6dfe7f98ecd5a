#include "models/utf8.h"

namespace strata {

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

enum class Sequence { kComplete, kInvalid, kUnfinished };

// Classifies the sequence at the front of `text` and gives its length: of the sequence, of the
// invalid part, or of what is there of an unfinished one.
Sequence Classify(std::string_view text, size_t& length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  length = 1;
  if (lead < 0x80) return Sequence::kComplete;
  size_t needed;
  unsigned char low = 0x80, high = 0xBF;  // range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    needed = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    needed = 3;
    if (lead == 0xE0) low = 0xA0;   // no overlong forms
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    needed = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;  // nothing above U+10FFFF
  } else {
    return Sequence::kInvalid;
  }
  for (; length < needed; ++length) {
    if (length == text.size()) return Sequence::kUnfinished;
    if (byte(length) < low || byte(length) > high) return Sequence::kInvalid;
    low = 0x80, high = 0xBF;
  }
  return Sequence::kComplete;
}

}  // namespace

std::string TakeCompleteUtf8(std::string& pending) {
  std::string taken;
  std::string_view rest = pending;
  while (!rest.empty()) {
    size_t length = 0;
    const Sequence sequence = Classify(rest, length);
    if (sequence == Sequence::kUnfinished) break;
    if (sequence == Sequence::kComplete) {
      taken += rest.substr(0, length);
    } else {
      taken += kReplacement;
    }
    rest.remove_prefix(length);
  }
  pending = std::string(rest);
  return taken;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string pending(text);
  std::string result = TakeCompleteUtf8(pending);
  return pending.empty() ? result : result + kReplacement;
}

}  // namespace strata
