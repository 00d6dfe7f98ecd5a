// The inside of JSON strings and numbers, byte by byte (RFC 8259), and numeric ranges decided
// exactly.
#pragma once

#include <cstdint>

namespace strata {

// Follows what stands between the quotes of a string: whole UTF-8 sequences, no raw control
// characters, \u escapes with complete surrogate pairs. Every accepted prefix can be completed.
struct JsonStringText {
  enum class Phase : uint8_t {
    kBoundary,      // between characters: the closing quote may come
    kContinuation,  // `left` bytes of a UTF-8 sequence are to come, the next in [low, high]
    kEscape,        // after a backslash
    kHex,           // `left` hexadecimal digits are to come
    kPairEscape,    // after a high surrogate: its partner's backslash
    kPairU,         // and its u
    kPairHex,       // and its digits
  };
  Phase phase = Phase::kBoundary;
  uint8_t left = 0;
  uint8_t low = 0, high = 0;
  uint16_t unit = 0;                    // of the digits so far
  uint16_t first_unit = 0;              // the high surrogate
  int64_t characters = 0;               // code points begun
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a of the decoded text

  // Takes any byte but the closing quote; false when it cannot stand here.
  bool Push(uint8_t byte);

 private:
  bool PushHex(uint8_t byte);
  void HashByte(uint32_t byte) { hash = (hash ^ byte) * 0x100000001b3u; }
  void HashPoint(uint32_t point);
};

// Numbers are bounded so that a model cannot write digits for ever and none overflows a double:
// 19 digits before the point, 20 behind it, an exponent of up to 279. With a range: no exponent,
// and 15 digits in all (19 for integers), so that decimal order is the order of the doubles that a
// reader makes of them. Integers and ranges are never written as -0.
constexpr int kJsonIntegerDigits = 19;
constexpr int kJsonFractionDigits = 20;
constexpr int kJsonLargestExponent = 279;
constexpr int kJsonRangeDigits = 15;

using JsonDecimal = __int128;  // in units of 10^-15
constexpr int kJsonDecimalPlaces = 15;
constexpr JsonDecimal kJsonDecimalOne = 1000000000000000;
constexpr JsonDecimal kJsonDecimalInfinity = kJsonDecimalOne * kJsonDecimalOne * 1000000;

struct JsonNumberRange {
  bool integer = false;  // written without point and exponent
  JsonDecimal low = -kJsonDecimalInfinity;
  JsonDecimal high = kJsonDecimalInfinity;  // both inclusive

  bool bounded() const { return low > -kJsonDecimalInfinity || high < kJsonDecimalInfinity; }
};

struct JsonNumberText {
  enum class Phase : uint8_t {
    kMinus,
    kZero,  // a leading zero: no digit may follow
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
  };
  Phase phase = Phase::kMinus;
  bool negative = false;
  uint8_t integer_digits = 0, fraction_digits = 0, exponent_digits = 0;  // stop at 255
  uint16_t exponent = 0;                                                 // stops at 9999
  uint64_t digits = 0;  // of integer and fraction part, while they are at most 19

  // The number's first byte: '-' or a digit.
  bool Start(uint8_t byte);
  bool Push(uint8_t byte);
  bool Complete() const;
  // Whether the number, as it stands or with more bytes, can be one of the range.
  bool CanBecome(const JsonNumberRange& range) const;
  // Whether it is one as it stands.
  bool Is(const JsonNumberRange& range) const;

 private:
  void PushDigit(uint8_t byte);
};

// Whether any number that may be written lies in the range.
bool HasNumbers(const JsonNumberRange& range);

}  // namespace strata
