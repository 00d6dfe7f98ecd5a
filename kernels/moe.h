// Mixture of experts with sigmoid routing (DeepSeek-V3 "noaux_tc", GLM-5).
#pragma once

#include "kernels/device.h"
#include "kernels/linear.h"
#include "kernels/view.h"

namespace strata {

constexpr int64_t kMaxRoutedExperts = 1024;

// s = sigmoid(logits). The choice is made on c = s + bias: when groups > 1 the score of a group is
// the sum of its two largest c, the `kept_groups` best groups stay and all other experts count as
// -infinity; then the top_k largest c win. Ties: the lower index. weights = the chosen s (not c),
// divided by (their sum + 1e-20) when `normalise`, times `scaling`. A NaN logit makes all of its
// row's weights NaN.
struct RouteExperts {
  View<const float, 2> logits;  // [rows, experts]
  View<const float, 1> bias;    // [experts], or empty data for none
  int64_t groups = 1;
  int64_t kept_groups = 1;
  bool normalise = true;
  float scaling = 1.0f;
  View<int32_t, 2> experts;  // [rows, top_k] ascending expert ids
  View<float, 2> weights;    // [rows, top_k] in the same order
};
void Run(const RouteExperts& op, Stream stream);

// y(r, :) = sum over k of weights(r, k) * down_e(silu(gate_e(x(r))) * up_e(x(r))), e = experts(r,
// k), added in ascending k. A row's result does not depend on the other rows.
struct MoeExperts {
  View<const float, 2> x;          // [rows, hidden]
  View<const int32_t, 2> experts;  // [rows, top_k]
  View<const float, 2> weights;    // [rows, top_k]
  View<const Matrix, 1>
      gate;                  // [experts] of [inner, hidden]; the array lies on the stream's device
  View<const Matrix, 1> up;  // [experts] of [inner, hidden]
  View<const Matrix, 1> down;  // [experts] of [hidden, inner]
  float limit = 0.0f;          // as SiluMul
  View<float, 2> y;            // [rows, hidden], overwritten
  View<std::byte, 1> workspace = {};
  // hidden, inner: widths of the experts.
  static size_t WorkspaceBytes(int64_t rows, int64_t top_k, int64_t experts, int64_t hidden,
                               int64_t inner);
};
void Run(const MoeExperts& op, Stream stream);

namespace cpu {
void Run(const RouteExperts& op, Stream stream);
void Run(const MoeExperts& op, Stream stream);
}  // namespace cpu
}  // namespace strata
