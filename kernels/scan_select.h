// Scan and selection as one unit: what IndexScan and then TopkSelect over its scores give, bit for
// bit.
#pragma once

#include "kernels/index_scan.h"
#include "kernels/topk_select.h"

namespace strata {

// `select.scores` and `select.lengths` are the scan's; what the caller sets there is not read. The
// scores are scratch: they are written, and hold the scan's answer afterwards.
struct ScanSelect {
  IndexScan scan;
  TopkSelect select;

  static size_t WorkspaceBytes(int64_t rows, int64_t capacity, int64_t k, Stream stream) {
    return TopkSelect::WorkspaceBytes(rows, capacity, k, stream);
  }
};
void Run(const ScanSelect& op, Stream stream);

}  // namespace strata
