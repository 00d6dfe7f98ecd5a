// A typed array on the current CUDA device, with one owner.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "kernels/status.h"

namespace strata {

inline void CheckParityCuda(cudaError_t status) {
  if (status != cudaSuccess)
    Fail(ErrorCode::kDevice, std::string("strata-parity: ") + cudaGetErrorString(status));
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    CheckParityCuda(cudaMalloc(reinterpret_cast<void**>(&data_), (count + 1) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    CheckParityCuda(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  // Fills with 0xff: NaN, or -1.
  void Poison() { CheckParityCuda(cudaMemset(data_, 0xff, count_ * sizeof(T))); }
  std::vector<T> Host() const {
    std::vector<T> host(count_);
    CheckParityCuda(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  T* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace strata
