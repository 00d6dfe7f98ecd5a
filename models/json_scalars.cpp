#include "models/json_scalars.h"

#include <algorithm>
#include <array>

namespace strata {

namespace {

bool IsDigit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

int HexValue(uint8_t byte) {
  if (IsDigit(byte)) return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

}  // namespace

void JsonStringText::HashPoint(uint32_t point) {
  if (point < 0x80) {
    HashByte(point);
  } else if (point < 0x800) {
    HashByte(0xC0 | point >> 6);
  } else if (point < 0x10000) {
    HashByte(0xE0 | point >> 12);
    HashByte(0x80 | (point >> 6 & 0x3F));
  } else {
    HashByte(0xF0 | point >> 18);
    HashByte(0x80 | (point >> 12 & 0x3F));
    HashByte(0x80 | (point >> 6 & 0x3F));
  }
  if (point >= 0x80) HashByte(0x80 | (point & 0x3F));
}

bool JsonStringText::PushHex(uint8_t byte) {
  const int value = HexValue(byte);
  if (value < 0) return false;
  const bool pair = phase == Phase::kPairHex;
  if (left == 4 && pair && value != 0xD) return false;
  // DC00 to DFFF is the second half of a pair and stands nowhere else.
  if (left == 3 && unit == 0xD && pair != (value >= 0xC)) return false;
  unit = static_cast<uint16_t>(unit << 4 | value);
  if (--left > 0) return true;
  if (pair) {
    HashPoint(0x10000u + ((first_unit & 0x3FFu) << 10) + (unit & 0x3FFu));
  } else if (unit >= 0xD800 && unit <= 0xDBFF) {
    first_unit = unit;
    unit = 0;
    phase = Phase::kPairEscape;
    return true;
  } else {
    HashPoint(unit);
  }
  unit = first_unit = 0;
  phase = Phase::kBoundary;
  return true;
}

bool JsonStringText::Push(uint8_t byte) {
  switch (phase) {
    case Phase::kBoundary:
      if (byte < 0x20 || byte == '"') return false;
      if (byte == '\\') {
        phase = Phase::kEscape;
      } else if (byte >= 0x80) {
        if (byte < 0xC2 || byte > 0xF4) return false;
        phase = Phase::kContinuation;
        left = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
        // No overlong forms, no surrogates, nothing above U+10FFFF.
        low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
        high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
        HashByte(byte);
      } else {
        HashByte(byte);
      }
      ++characters;
      return true;
    case Phase::kContinuation:
      if (byte < low || byte > high) return false;
      HashByte(byte);
      low = 0x80, high = 0xBF;
      if (--left == 0) {
        low = high = 0;
        phase = Phase::kBoundary;
      }
      return true;
    case Phase::kEscape: {
      phase = Phase::kBoundary;
      switch (byte) {
        case '"':
        case '\\':
        case '/':
          HashByte(byte);
          return true;
        case 'b':
          HashByte('\b');
          return true;
        case 'f':
          HashByte('\f');
          return true;
        case 'n':
          HashByte('\n');
          return true;
        case 'r':
          HashByte('\r');
          return true;
        case 't':
          HashByte('\t');
          return true;
        case 'u':
          phase = Phase::kHex;
          left = 4;
          return true;
        default:
          return false;
      }
    }
    case Phase::kPairEscape:
      phase = Phase::kPairU;
      return byte == '\\';
    case Phase::kPairU:
      phase = Phase::kPairHex;
      left = 4;
      return byte == 'u';
    case Phase::kHex:
    case Phase::kPairHex:
      return PushHex(byte);
  }
  return false;
}

bool JsonNumberText::Start(uint8_t byte) {
  if (byte == '-') {
    phase = Phase::kMinus;
    negative = true;
    return true;
  }
  if (!IsDigit(byte)) return false;
  phase = byte == '0' ? Phase::kZero : Phase::kInteger;
  integer_digits = 1;
  digits = byte - '0';
  return true;
}

void JsonNumberText::PushDigit(uint8_t byte) {
  if (integer_digits + fraction_digits < kJsonIntegerDigits) digits = digits * 10 + (byte - '0');
  uint8_t& count = phase == Phase::kInteger ? integer_digits : fraction_digits;
  if (count < UINT8_MAX) ++count;
}

bool JsonNumberText::Push(uint8_t byte) {
  const bool digit = IsDigit(byte);
  switch (phase) {
    case Phase::kMinus:
      if (!digit) return false;
      phase = byte == '0' ? Phase::kZero : Phase::kInteger;
      integer_digits = 1;
      digits = byte - '0';
      return true;
    case Phase::kInteger:
      if (digit) {
        PushDigit(byte);
        return true;
      }
      [[fallthrough]];
    case Phase::kZero:
      if (byte != '.' && byte != 'e' && byte != 'E') return false;
      phase = byte == '.' ? Phase::kPoint : Phase::kExponent;
      return true;
    case Phase::kPoint:
    case Phase::kFraction:
      if (digit) {
        phase = Phase::kFraction;
        PushDigit(byte);
        return true;
      }
      if (phase == Phase::kPoint || (byte != 'e' && byte != 'E')) return false;
      phase = Phase::kExponent;
      return true;
    case Phase::kExponent:
      if (byte == '+' || byte == '-') {
        phase = Phase::kExponentSign;
        return true;
      }
      [[fallthrough]];
    case Phase::kExponentSign:
    case Phase::kExponentDigits:
      if (!digit) return false;
      phase = Phase::kExponentDigits;
      exponent = static_cast<uint16_t>(std::min(9999, exponent * 10 + (byte - '0')));
      if (exponent_digits < UINT8_MAX) ++exponent_digits;
      return true;
  }
  return false;
}

bool JsonNumberText::Complete() const {
  return phase == Phase::kZero || phase == Phase::kInteger || phase == Phase::kFraction ||
         phase == Phase::kExponentDigits;
}

namespace {

// 10^0 to 10^19.
constexpr std::array<JsonDecimal, kJsonIntegerDigits + 1> kPowers = [] {
  std::array<JsonDecimal, kJsonIntegerDigits + 1> powers{};
  powers[0] = 1;
  for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * 10;
  return powers;
}();

// Whether a whole number in [first, last], counted in `step`, lies in [low, high]; all of first,
// last and step are >= 0.
bool Meets(JsonDecimal low, JsonDecimal high, JsonDecimal first, JsonDecimal last,
           JsonDecimal step) {
  if (high < 0) return false;
  const JsonDecimal from = low <= 0 ? 0 : (low + step - 1) / step;
  return std::max(from, first) <= std::min(high / step, last);
}

}  // namespace

bool JsonNumberText::CanBecome(const JsonNumberRange& range) const {
  if (range.integer && (phase > Phase::kInteger || (negative && phase == Phase::kZero)))
    return false;
  if (!range.bounded()) {
    return integer_digits <= kJsonIntegerDigits && fraction_digits <= kJsonFractionDigits &&
           exponent <= kJsonLargestExponent && exponent_digits <= 3;
  }
  const int limit = range.integer ? kJsonIntegerDigits : kJsonRangeDigits;
  const int used = integer_digits + fraction_digits;
  const int left = limit - used;
  if (phase >= Phase::kExponent || left < 0) return false;
  // Some readers refuse -0 where they expect an unsigned number, so it is not written.
  const JsonDecimal low = negative ? std::max<JsonDecimal>(-range.high, 1) : range.low;
  const JsonDecimal high = negative ? -range.low : range.high;
  const JsonDecimal written = digits;
  if (phase >= Phase::kPoint) {
    if (phase == Phase::kPoint && left == 0) return false;
    const JsonDecimal first = written * kPowers[left];
    return Meets(low, high, first, first + kPowers[left] - 1,
                 kPowers[kJsonDecimalPlaces - fraction_digits - left]);
  }
  // `more` further digits before the point, the rest behind it.
  const int most = phase == Phase::kZero ? 0 : left;
  for (int more = phase == Phase::kMinus ? 1 : 0; more <= most; ++more) {
    const int places = range.integer ? 0 : left - more;
    const JsonDecimal first = written * kPowers[more] * kPowers[places];
    const JsonDecimal count = kPowers[more] * kPowers[places];
    if (Meets(low, high, first, first + count - 1, kPowers[kJsonDecimalPlaces - places]))
      return true;
  }
  return false;
}

bool JsonNumberText::Is(const JsonNumberRange& range) const {
  if (!Complete() || !CanBecome(range)) return false;
  if (!range.bounded()) return true;
  const JsonDecimal magnitude = JsonDecimal{digits} * kPowers[kJsonDecimalPlaces - fraction_digits];
  const JsonDecimal value = negative ? -magnitude : magnitude;
  return value >= range.low && value <= range.high;
}

bool HasNumbers(const JsonNumberRange& range) {
  JsonNumberText text;
  for (const char byte : {'-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}) {
    text = JsonNumberText{};
    if (text.Start(static_cast<uint8_t>(byte)) && text.CanBecome(range)) return true;
  }
  return false;
}

}  // namespace strata
