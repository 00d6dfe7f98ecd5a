// Row look-up, gating and residual sums.
#pragma once

#include "kernels/device.h"
#include "kernels/linear.h"
#include "kernels/view.h"

namespace strata {

// y(r, :) = table row ids(r), converted to fp32. An id outside the table gives a row of zeros on
// CUDA and Fail(kInternal) on the CPU: callers check token ids where they enter.
struct EmbedRows {
  Matrix table;                // [vocabulary, width], fp32 or bf16
  View<const int32_t, 1> ids;  // [rows]
  View<float, 2> y;            // [rows, width]
};
void Run(const EmbedRows& op, Stream stream);

// y(r, i) = silu(gate(r, i)) * up(r, i), silu(z) = z / (1 + exp(-z)); `limit` > 0 clamps gate to
// (-inf, limit] and up to [-limit, limit] first.
struct SiluMul {
  View<const float, 2> gate;  // [rows, width]
  View<const float, 2> up;    // [rows, width]
  float limit = 0.0f;
  View<float, 2> y;  // [rows, width]; may be gate or up
};
void Run(const SiluMul& op, Stream stream);

// y += x
struct AddRows {
  View<const float, 2> x;  // [rows, width]
  View<float, 2> y;        // [rows, width]
};
void Run(const AddRows& op, Stream stream);

namespace cpu {
void Run(const EmbedRows& op, Stream stream);
void Run(const SiluMul& op, Stream stream);
void Run(const AddRows& op, Stream stream);
}  // namespace cpu
}  // namespace strata
