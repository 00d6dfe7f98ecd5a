// Strided copies between views.
#pragma once

#include "kernels/device.h"
#include "kernels/view.h"

namespace strata {

// y(i, j, k) = x(i, j, k); the views do not overlap.
struct CopyRows {
  View<const float, 3> x;  // [rows, heads, width]
  View<float, 3> y;        // [rows, heads, width]
};
void Run(const CopyRows& op, Stream stream);

// y(i, :) = x(rows(i), :)
struct GatherRows {
  View<const float, 2> x;       // [rows, width]
  View<const int32_t, 1> rows;  // [count], each inside x
  View<float, 2> y;             // [count, width]
};
void Run(const GatherRows& op, Stream stream);

namespace cpu {
void Run(const CopyRows& op, Stream stream);
void Run(const GatherRows& op, Stream stream);
}  // namespace cpu
}  // namespace strata
