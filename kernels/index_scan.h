// The lightning indexer's scan: every candidate key of a row's sequence is scored against the row's queries.
#pragma once

#include "kernels/device.h"
#include "kernels/paged.h"

namespace strata {

constexpr int64_t kScanHistogramBins = 2048;  // the top 11 bits of OrderKey

// scores(r, j) = sum_h weights(r, h) * max(0, sum_d query(r, h, d) * key(j, d)), fp32 accumulation, for j < lengths(r).
// `weights` carries every scale of the query side; an fp8 key's own scale multiplies the sum. Entries at and behind
// lengths(r) are not written. The keys of a sequence are read once for all rows of its group.
struct IndexScan {
  AnyView<3> query;                 // [rows, heads, dim]; CPU: fp32. CUDA: what the chosen variant states
  View<const float, 2> weights;     // [rows, heads]
  RowMap rows;
  View<const int32_t, 1> lengths;   // [rows] visible candidates (keys, not cells), 0 is allowed
  KeyPages keys;
  View<float, 2> scores;            // [rows, capacity]
  View<uint32_t, 2> histogram = {}; // optional [rows, kScanHistogramBins]: counts of OrderKey(score) >> 21 are added
};
void Run(const IndexScan& op, Stream stream);

namespace cpu {
void Run(const IndexScan& op, Stream stream);
}  // namespace cpu
namespace cuda {
void Run(const IndexScan& op, Stream stream);
}  // namespace cuda
}  // namespace strata
