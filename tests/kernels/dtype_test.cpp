#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace strata {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The value of an e4m3 code by its definition.
double Fp8Value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}
bool IsNaNCode(int code) { return (code & 0x7f) == 0x7f; }

TEST(DTypeTest, EveryFp8CodeReadsAsDefinedAndWritesBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = Fp8ToFloat(static_cast<uint8_t>(code));
    if (IsNaNCode(code)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, Fp8Value(code)) << code;
    }
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(FloatToFp8(value), code);
  }
}

// The code nearest to a number, ties to the even one, everything past 448 saturated.
int NearestFp8(double value) {
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double distance = std::fabs(Fp8Value(code) - std::fabs(value));
    const double least = std::fabs(Fp8Value(best) - std::fabs(value));
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return std::signbit(value) ? best | 0x80 : best;
}

TEST(DTypeTest, Fp8RoundsToNearestEvenAndSaturates) {
  std::vector<float> values = {0.0f,      -0.0f,  448.0f,   464.0f,     1e30f,
                               kInfinity, 1e-30f, 0x1p-10f, 0x1.8p-10f, 0x1p-149f};
  for (int code = 0; code < 0x7e; ++code) {
    // Half way to the next code, and the floats beside it.
    const float middle = static_cast<float>((Fp8Value(code) + Fp8Value(code + 1)) / 2);
    for (float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInfinity)})
      values.push_back(value);
  }
  std::mt19937_64 engine(1);
  for (int i = 0; i < 20'000; ++i) {
    const float value = BitsToFloat(static_cast<uint32_t>(engine()));
    if (!std::isnan(value)) values.push_back(value);
    values.push_back(std::ldexp(static_cast<float>(engine() % 1'000'003), -22));
  }
  for (float value : values) {
    for (float sign : {1.0f, -1.0f}) {
      ASSERT_EQ(FloatToFp8(sign * value), NearestFp8(sign * value)) << sign * value;
    }
  }
  EXPECT_EQ(FloatToFp8(kNaN), 0x7f);
  EXPECT_EQ(FloatToFp8(-kNaN), 0xff);
}

TEST(DTypeTest, EveryBf16ValueSurvivesFp32) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(bits));
    ASSERT_EQ(FloatToBits(value), bits << 16);
    const uint16_t back = FloatToBf16(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Bf16ToFloat(back))) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST(DTypeTest, Bf16RoundsToNearestEven) {
  std::mt19937_64 engine(2);
  for (int i = 0; i < 300'000; ++i) {
    uint32_t bits = static_cast<uint32_t>(engine());
    if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // half way
    const float value = BitsToFloat(bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
      continue;
    }
    const uint32_t below = bits >> 16, rest = bits & 0xffffu;
    const bool up = rest > 0x8000u || (rest == 0x8000u && below % 2 == 1);
    ASSERT_EQ(FloatToBf16(value), below + (up ? 1 : 0)) << value;
  }
  EXPECT_EQ(Bf16ToFloat(FloatToBf16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(Bf16ToFloat(FloatToBf16(-kInfinity)), -kInfinity);
  // A NaN whose payload lies in the dropped half stays NaN.
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(BitsToFloat(0x7f800001u)))));
}

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(DTypeBytes(DType::kF32), 4);
  EXPECT_EQ(DTypeBytes(DType::kBf16), 2);
  EXPECT_EQ(DTypeBytes(DType::kFp8E4M3), 1);
  EXPECT_EQ(DTypeBytes(DType::kInt8), 1);
  EXPECT_EQ(DTypeBytes(DType::kI32), 4);
  EXPECT_STREQ(DTypeName(DType::kF32), "fp32");
  EXPECT_STREQ(DTypeName(DType::kBf16), "bf16");
  EXPECT_STREQ(DTypeName(DType::kFp8E4M3), "fp8");
  EXPECT_STREQ(DTypeName(DType::kInt8), "int8");
  EXPECT_STREQ(DTypeName(DType::kI32), "int32");
}

}  // namespace
}  // namespace strata
