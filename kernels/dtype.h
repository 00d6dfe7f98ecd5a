// Storage types and their exact conversions. fp8 is e4m3fn: no infinities, NaN is 0x7f / 0xff,
// largest value 448.
#pragma once

#include <cstdint>

// Host and device. On the host always inlined: files compiled for several vector widths must not
// share a symbol.
#if defined(__CUDACC__)
#define STRATA_HD __host__ __device__
#else
#define STRATA_HD __attribute__((always_inline))
#endif

namespace strata {

enum class DType : uint8_t { kF32, kBf16, kFp8E4M3, kInt8, kI32 };

STRATA_HD constexpr int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBf16:
      return 2;
    case DType::kFp8E4M3:
      return 1;
    case DType::kInt8:
      return 1;
    case DType::kI32:
      return 4;
  }
  return 0;
}

const char* DTypeName(DType dtype);  // "fp32", "bf16", "fp8", "int8", "int32"

STRATA_HD inline float BitsToFloat(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}
STRATA_HD inline uint32_t FloatToBits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

STRATA_HD inline float Bf16ToFloat(uint16_t bits) { return BitsToFloat(uint32_t{bits} << 16); }

// Round to nearest even; NaN stays NaN.
STRATA_HD inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = FloatToBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

STRATA_HD inline float Fp8ToFloat(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return BitsToFloat(sign | 0x7fc00000u);
  if (magnitude >= 8u) return BitsToFloat(sign | ((magnitude << 20) + (120u << 23)));
  const float value = static_cast<float>(magnitude) * 0.001953125f;  // subnormal: 2^-9 steps
  return sign ? -value : value;
}

// Round to nearest even, saturating at +-448; NaN becomes 0x7f with the sign kept.
STRATA_HD inline uint8_t FloatToFp8(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;  // 448 and more
  if (magnitude < 0x3c800000u) {                      // below 2^-6: steps of 2^-9
    // Adding 2^14 leaves exactly the multiples of 2^-9 in the low mantissa bits, rounded to even.
    const uint32_t rounded = FloatToBits(BitsToFloat(magnitude) + 16384.0f) - 0x46800000u;
    return static_cast<uint8_t>(sign | rounded);
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  const uint32_t code = (rounded - (120u << 23)) >> 20;
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

}  // namespace strata
