// The hot loops of the index scan, one table per vector width; all compute the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace strata::cpu {

constexpr int64_t kScanTile = 64;  // candidates whose keys stand in a panel together

// Values of a key in a panel: whole runs of 64 stored bytes, zeros behind the key's own values.
STRATA_HD inline int64_t PanelValues(DType dtype, int64_t dim) {
  const int64_t run = dtype == DType::kF32 ? 16 : dtype == DType::kBf16 ? 32 : 64;
  return (dim + run - 1) / run * run;
}
// A panel holds kScanTile keys as fp32 codes, transposed by groups of sixteen: value d of key j is
// at panel[(j / 16 * PanelValues + d) * 16 + j % 16].

// One row of queries against a panel.
struct ScanRowArgs {
  const float* query;  // [heads, dim]
  int64_t head_stride;
  const float* weights;  // [heads]
  int64_t heads;
  int64_t dim;
  const float* panel;
  int64_t panel_values;
  const float* key_scales;  // [kScanTile] multiplies the sums, or null
  int64_t visible;          // candidates to score, at most kScanTile
  float* scores;            // [visible]
};

struct ScanLoops {
  // Fills a panel from the first `count` of the addresses; places of a started group behind them
  // repeat the last key.
  void (*fill_panel)(const std::byte* const* keys, int64_t count, DType dtype, int64_t dim,
                     float* panel);
  void (*score_row)(const ScanRowArgs& args);
};

namespace baseline {
extern const ScanLoops kScanLoops;
}
namespace avx2 {
extern const ScanLoops kScanLoops;
}
namespace avx512 {
extern const ScanLoops kScanLoops;
}

// The table of ChosenIsa().
const ScanLoops& ChosenScanLoops();

}  // namespace strata::cpu
