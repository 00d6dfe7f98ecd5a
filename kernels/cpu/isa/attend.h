// The hot loops of sparse attention, one table per vector width; all compute the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace strata::cpu {

// One row of sparse attention over `count` cells at known addresses.
struct AttendArgs {
  const std::byte* const* cells;  // [count] addresses of the latent rows
  int64_t count;
  DType dtype;
  int64_t latent;
  int64_t rope;
  int64_t rope_offset;   // bytes from the row's start to its RoPE part
  int64_t scale_offset;  // bytes to its scales (quantised types)
  const float* query;    // [heads, latent + rope]
  int64_t query_stride;
  int64_t heads;
  float scale;
  float* probabilities;        // [heads, probability_stride]: scores, then exp(score - max)
  int64_t probability_stride;  // at least count, a multiple of 16
  float* sums;                 // [heads] sum of the probabilities
  float* maxima;               // [heads]
  float* out;                  // [heads, latent]
  int64_t out_stride;
  float* cells_fp32;  // [2, AttendCellFloats] scratch, a pair for each worker
};
// A whole cell as fp32 with zeros behind it: needed where a part does not fill whole runs of
// sixteen.
STRATA_HD inline int64_t AttendCellFloats(int64_t latent, int64_t rope) {
  return (latent + rope + 31) / 16 * 16;
}

struct AttendLoops {
  // Scores of cells [begin, end) into probabilities.
  void (*scores)(const AttendArgs& args, int64_t begin, int64_t end);
  // Maximum, exp and sum of all heads.
  void (*softmax)(const AttendArgs& args);
  // out(:, d) for d in [begin, end): multiples of 16, or the end of the latent.
  void (*values)(const AttendArgs& args, int64_t begin, int64_t end);
};

namespace baseline {
extern const AttendLoops kAttendLoops;
}
namespace avx2 {
extern const AttendLoops kAttendLoops;
}
namespace avx512 {
extern const AttendLoops kAttendLoops;
}

// The table of ChosenIsa().
const AttendLoops& ChosenAttendLoops();

}  // namespace strata::cpu
