// The lightning indexer's scan: scores every candidate key of a row's sequence against its queries.
#pragma once

#include "kernels/device.h"
#include "kernels/paged.h"

namespace strata {

constexpr int64_t kScanHistogramBins = 2048;  // the top 11 bits of OrderKey

// Implementations on CUDA. kMulti and kHalve give the same bits, whatever rows are grouped.
enum class ScanVariant : uint8_t {
  kAuto,   // the best that serves the op on its device
  kMulti,  // a warp per key, a butterfly per (row, head): fp32 queries
  kHalve,  // the same additions, many values at a time: fp32 queries
  kMma,    // tensor cores, sm_80 and up: bf16 queries and keys
  kSm90,   // tensor cores, sm_90a: bf16 queries and keys, or fp8 queries and keys
};
const char* ScanVariantName(ScanVariant variant);
// What STRATA_SCORES_HALVE asks for: 0 is kMulti, 1 is kHalve, -1 (unset) kAuto.
ScanVariant SwitchedScanVariant(int scores_halve);

// scores(r, j) = sum_h weights(r, h) * max(0, sum_d query(r, h, d) * key(j, d)), fp32 accumulation,
// for j < lengths(r). `weights` carries every scale of the query side; an fp8 key's own scale
// multiplies the sum. Entries at and behind lengths(r) are not written; a negative length counts as
// 0, one beyond the capacity is refused on the CPU and counts as the capacity on CUDA. NaN in a
// product makes the score NaN. Variants for tensor cores pad heads (to a multiple of 8, 32 or 64)
// with zeros, so that a key with an infinite value scores NaN where they do. The keys of a sequence
// are read once for all rows of its group.
struct IndexScan {
  // [rows, heads, dim]. CPU: fp32. CUDA: what the chosen variant states.
  AnyView<3> query;
  View<const float, 2> weights;  // [rows, heads]
  RowMap rows;
  View<const int32_t, 1> lengths;  // [rows] visible candidates (keys, not cells), 0 is allowed
  KeyPages keys;
  View<float, 2> scores;  // [rows, capacity]
  // Optional [rows, kScanHistogramBins]: counts of OrderKey(score) >> 21 are added.
  View<uint32_t, 2> histogram = {};
  ScanVariant variant = ScanVariant::kAuto;  // CUDA only
};
void Run(const IndexScan& op, Stream stream);

namespace cpu {
void Run(const IndexScan& op, Stream stream);
}  // namespace cpu
namespace cuda {
void Run(const IndexScan& op, Stream stream);
}  // namespace cuda
}  // namespace strata
