// CUDA runtime errors as Strata's own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/status.h"

namespace strata::cuda {

// Fails with kDevice when `status` is an error; `what` names the call.
inline void CheckCuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would report it again
  Fail(ErrorCode::kDevice, std::string(what) + ": " + cudaGetErrorString(status));
}

// A launch whose y or z dimension counts `lines`, which CUDA limits; `op` and `what` are named.
inline void CheckGrid(int64_t lines, const char* op, const char* what) {
  if (lines > 65535) {
    Fail(ErrorCode::kShape, std::string(op) + ": " + std::to_string(lines) + " " + what +
                                "; this variant takes up to 65535 at once");
  }
}

// Lets `kernel` ask for `bytes` of dynamic shared memory on the current device. The limit only
// grows: another thread may be about to launch the kernel with what it has asked for.
void AllowSharedBytes(const void* kernel, int bytes, const char* what);
template <class... Arguments>
void AllowSharedBytes(void (*kernel)(Arguments...), int bytes, const char* what) {
  AllowSharedBytes(reinterpret_cast<const void*>(kernel), bytes, what);
}

}  // namespace strata::cuda
