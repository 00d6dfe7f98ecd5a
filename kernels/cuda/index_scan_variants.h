// The CUDA implementations of the index scan, what each serves, and which one runs.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/index_scan.h"

namespace strata::cuda {

constexpr int64_t kMaxGroupRows = 8;  // rows that share one read of the keys; longer groups are cut

// True when `variant` serves `op` on a device of `sm` (10 * major + minor). Otherwise `why`, when
// given, says what the variant serves.
bool Supports(ScanVariant variant, const IndexScan& op, int sm, std::string* why = nullptr);

// op.variant when it is set, else the best of those that serve the op. Fails with kDevice when the
// variant, or every variant, does not serve it.
ScanVariant ResolveScanVariant(const IndexScan& op, int sm);

void RunScanButterfly(const IndexScan& op, bool halve, int multiprocessors, cudaStream_t stream);
void RunScanMma(const IndexScan& op, int multiprocessors, cudaStream_t stream);

void RunScanSm90(const IndexScan& op, int multiprocessors, int shared_bytes, cudaStream_t stream);

}  // namespace strata::cuda
