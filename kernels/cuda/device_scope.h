// The current CUDA device, for a scope.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"

namespace strata::cuda {

// Makes a device current: launches into its streams, and what a kernel is allowed there, need it.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal) {
    CheckCuda(cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ == ordinal) return;
    CheckCuda(cudaSetDevice(ordinal), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace strata::cuda
