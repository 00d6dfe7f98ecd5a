// The CUDA implementations of the selection and which one runs.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backend.h"
#include "kernels/topk_select.h"

namespace strata::cuda {

// op.variant when it is set, else the best on the device. Fails with kDevice when the device cannot
// run op.variant.
TopkVariant ResolveTopkVariant(const TopkSelect& op, const DeviceLimits& limits);

// A cluster of CTAs per row (one CTA: any architecture). `shortlist` (sm_90a) first tries a list of
// what lies above a sampled cut.
struct TopkRowsPlan {
  int cluster = 1;
  bool shortlist = false;
};
TopkRowsPlan ChooseTopkRows(const TopkSelect& op, const DeviceLimits& limits);  // sm_90a
// `behind` lets the launch overlap the end of the launch before it.
void RunTopkRows(const TopkSelect& op, const TopkRowsPlan& plan, bool behind,
                 const DeviceLimits& limits, cudaStream_t stream);

void RunTopkSplit(const TopkSelect& op, const DeviceLimits& limits, cudaStream_t stream);
size_t TopkSplitWorkspaceBytes(int64_t rows, int64_t capacity);

}  // namespace strata::cuda
