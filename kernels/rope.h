// Rotary position embedding. Frequencies are data (plain, linear, YaRN: models/ computes them); the
// ops only rotate.
#pragma once

#include "kernels/device.h"
#include "kernels/view.h"

namespace strata {

// cosines(r, j) = cos(a) * scale, sines(r, j) = sin(a) * scale with a = positions(r) *
// frequencies(j) rounded to fp32, as the reference implementation computes it; the cosine of that
// fp32 angle is then exact to fp32 rounding.
struct RopeTable {
  View<const int32_t, 1> positions;  // [rows]
  View<const float, 1> frequencies;  // [half]
  float scale = 1.0f;                // YaRN's attention factor on cos and sin; 1 elsewhere
  View<float, 2> cosines;            // [rows, half]
  View<float, 2> sines;              // [rows, half]
};
void Run(const RopeTable& op, Stream stream);

enum class RopePairing : uint8_t {
  kInterleaved,  // pair j is (x[2j], x[2j + 1])
  kHalfSplit,    // pair j is (x[j], x[j + half])
};

// Rotates the pairs of x in place: (a, b) -> (a cos - b sin, b cos + a sin); values stay where
// their pair stood.
struct Rope {
  View<float, 3> x;              // [rows, heads, 2 * half], any strides between rows and heads
  View<const float, 2> cosines;  // [rows, half]
  View<const float, 2> sines;    // [rows, half]
  RopePairing pairing = RopePairing::kInterleaved;
};
void Run(const Rope& op, Stream stream);

namespace cpu {
void Run(const RopeTable& op, Stream stream);
void Run(const Rope& op, Stream stream);
}  // namespace cpu
}  // namespace strata
