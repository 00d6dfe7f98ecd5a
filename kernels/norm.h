// Normalisations over the last dimension, in fp32.
#pragma once

#include "kernels/device.h"
#include "kernels/view.h"

namespace strata {

// y(r, i) = weight(i) * (x(r, i) / sqrt(mean_i x^2 + epsilon))
struct RmsNorm {
  View<const float, 2> x;       // [rows, width]
  View<const float, 1> weight;  // [width]
  float epsilon = 1e-6f;
  View<float, 2> y;  // [rows, width]; may be x
};
void Run(const RmsNorm& op, Stream stream);

// y(r, i) = (x(r, i) - mean) / sqrt(variance + epsilon) * weight(i) + bias(i), biased variance
struct LayerNorm {
  View<const float, 2> x;       // [rows, width]
  View<const float, 1> weight;  // [width]
  View<const float, 1> bias;    // [width]
  float epsilon = 1e-6f;
  View<float, 2> y;  // [rows, width]; may be x
};
void Run(const LayerNorm& op, Stream stream);

namespace cpu {
void Run(const RmsNorm& op, Stream stream);
void Run(const LayerNorm& op, Stream stream);
}  // namespace cpu
}  // namespace strata
