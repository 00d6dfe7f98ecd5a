// Every code of the small storage types, and the order of scores.
#include "kernels/dtype.h"

#include "kernels/order.h"
#include "tests/kernels/paged_fixture.h"

namespace strata {
namespace {

TEST(DTypeTest, EveryFp8CodeIsItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const std::byte stored{static_cast<uint8_t>(code)};
    const double value = CodeValue(DType::kFp8E4M3, &stored);
    const float converted = Fp8ToFloat(static_cast<uint8_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(converted)) << code;
    } else {
      EXPECT_EQ(converted, value) << code;
      EXPECT_EQ(std::signbit(converted), code >= 128) << code;
    }
    EXPECT_EQ(FloatToFp8(converted), code);
  }
}

// Between two neighbouring codes the nearer one wins; in the middle the even one.
TEST(DTypeTest, Fp8RoundsToNearestEvenAndSaturates) {
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = Fp8ToFloat(code), high = Fp8ToFloat(code + 1), middle = (low + high) / 2.0f;
    const uint8_t even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(FloatToFp8(middle), even) << middle;
    EXPECT_EQ(FloatToFp8(-middle), even | 0x80) << middle;
    EXPECT_EQ(FloatToFp8(std::nextafter(middle, low)), code) << middle;
    EXPECT_EQ(FloatToFp8(std::nextafter(middle, high)), code + 1) << middle;
  }
  for (float value : {448.0f, 449.0f, 465.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(FloatToFp8(value), 0x7e);
    EXPECT_EQ(FloatToFp8(-value), 0xfe);
  }
  EXPECT_EQ(FloatToFp8(1e-30f), 0);
  EXPECT_EQ(FloatToFp8(-1e-30f), 0x80);
  EXPECT_EQ(FloatToFp8(kNaN), 0x7f);
}

TEST(DTypeTest, EveryBf16CodeComesBackAndRoundingIsToNearestEven) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(code));
    EXPECT_EQ(FloatToBits(value), code << 16);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value)))) << code;
      continue;
    }
    EXPECT_EQ(FloatToBf16(value), code);
    if ((code & 0x7fff) >= 0x7f80) continue;  // infinity has no neighbour
    EXPECT_EQ(FloatToBf16(BitsToFloat(code << 16 | 0x8000)), code + code % 2) << code;
    EXPECT_EQ(FloatToBf16(BitsToFloat(code << 16 | 0x7fff)), code) << code;
    EXPECT_EQ(FloatToBf16(BitsToFloat(code << 16 | 0x8001)), code + 1) << code;
  }
  EXPECT_TRUE(
      std::isnan(Bf16ToFloat(FloatToBf16(BitsToFloat(0x7f800001)))));  // a payload below the cut
}

TEST(DTypeTest, NamesAndSizes) {
  EXPECT_EQ(std::string(DTypeName(DType::kF32)), "fp32");
  EXPECT_EQ(std::string(DTypeName(DType::kBf16)), "bf16");
  EXPECT_EQ(std::string(DTypeName(DType::kFp8E4M3)), "fp8");
  EXPECT_EQ(DTypeBytes(DType::kF32) * 10000 + DTypeBytes(DType::kBf16) * 1000 +
                DTypeBytes(DType::kFp8E4M3) * 100 + DTypeBytes(DType::kInt8) * 10 +
                DTypeBytes(DType::kI32),
            42114);
}

TEST(OrderTest, KeysOrderAsNumbersDoWithNaNLast) {
  const float ascending[] = {kNaN, -kInfinity, -3e38f, -1.0f, -1e-45f,
                             0.0f, 1e-45f,     1.0f,   3e38f, kInfinity};
  for (size_t i = 1; i < std::size(ascending); ++i)
    EXPECT_LT(OrderKey(FloatToBits(ascending[i - 1])), OrderKey(FloatToBits(ascending[i]))) << i;
  EXPECT_EQ(OrderKey(FloatToBits(-0.0f)), OrderKey(FloatToBits(0.0f)));
  EXPECT_EQ(OrderKey(FloatToBits(-kNaN)), OrderKey(FloatToBits(kNaN)));
  EXPECT_GT(SelectionKey(FloatToBits(1.0f), 3), SelectionKey(FloatToBits(1.0f), 4));
  EXPECT_GT(SelectionKey(FloatToBits(1.0f), 4), SelectionKey(FloatToBits(0.5f), 3));
}

}  // namespace
}  // namespace strata
