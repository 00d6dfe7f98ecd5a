// CUDA runtime errors as Strata's own.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/status.h"

namespace strata::cuda {

// Fails with kDevice when `status` is an error; `what` names the call.
inline void CheckCuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    Fail(ErrorCode::kDevice, std::string(what) + ": " + cudaGetErrorString(status));
}

}  // namespace strata::cuda
