// The CUDA implementations of the selection and which one runs.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backend.h"
#include "kernels/topk_select.h"

namespace strata::cuda {

// op.variant when it is set, else the best on the device. Fails with kDevice when the device cannot
// run op.variant.
TopkVariant ResolveTopkVariant(const TopkSelect& op, const DeviceLimits& limits);

// One CTA (`cluster` 1) or a cluster of CTAs per row. `behind` lets the launch overlap the end of
// the launch before it.
void RunTopkRows(const TopkSelect& op, int cluster, bool behind, const DeviceLimits& limits,
                 cudaStream_t stream);
// CTAs of a cluster that suit these rows.
int ChooseTopkCluster(int64_t rows, int64_t capacity, const DeviceLimits& limits);

void RunTopkSplit(const TopkSelect& op, const DeviceLimits& limits, cudaStream_t stream);
size_t TopkSplitWorkspaceBytes(int64_t rows, int64_t capacity);

}  // namespace strata::cuda
