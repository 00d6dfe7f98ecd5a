// Choosing a token from logits.
#pragma once

#include "kernels/device.h"
#include "kernels/view.h"

namespace strata {

// Row r, in this order: keep the top_k largest logits (0 keeps all; ties lowest id first), divide
// by temperature, softmax, keep the smallest set of best tokens whose probability reaches top_p,
// drop tokens below min_p times the best one's probability, renormalise, then take the first token
// (best first, ties lowest id) at which the running sum exceeds uniform(r). temperature 0 is
// greedy: the largest logit, lowest id on a tie. A NaN logit counts as -infinity; +infinity is
// certain. logprobs(r) = log softmax of the row as it came in (temperature 1, nothing dropped) at
// the chosen token.
struct SampleTokens {
  View<const float, 2> logits;       // [rows, vocabulary]
  View<const float, 1> temperature;  // [rows], 0 or more
  View<const int32_t, 1> top_k;      // [rows], 0 = all
  View<const float, 1> top_p;        // [rows], (0, 1]
  View<const float, 1> min_p;        // [rows], [0, 1)
  View<const float, 1> uniform;      // [rows], [0, 1)
  View<int32_t, 1> tokens;           // [rows]; -1 when every logit of the row is NaN or -infinity
  View<float, 1> logprobs;           // [rows]
  View<std::byte, 1> workspace = {};
  static size_t WorkspaceBytes(int64_t rows, int64_t vocabulary);
};
void Run(const SampleTokens& op, Stream stream);

namespace cpu {
void Run(const SampleTokens& op, Stream stream);
}  // namespace cpu
}  // namespace strata
