// A typed array on the current CUDA device, with one owner. What is written to it is there when the
// call returns: the default stream's copies and fills are not ordered with the non-blocking streams
// that ops run on.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <type_traits>
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
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { Assign(host); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  // As many values as the array has.
  void Assign(const std::vector<T>& host) {
    if (host.size() != count_) Fail(ErrorCode::kInternal, "strata-parity: sizes differ");
    CheckParityCuda(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
    CheckParityCuda(cudaDeviceSynchronize());
  }
  void FillBytes(int byte) const {
    CheckParityCuda(cudaMemset(data_, byte, count_ * sizeof(T)));
    CheckParityCuda(cudaDeviceSynchronize());
  }
  // NaN, or a number that no op writes (-1 is one that they do).
  void Poison() const { FillBytes(std::is_integral_v<T> ? 0x4d : 0xff); }
  // What the ops that have been launched leave.
  std::vector<T> Host() const {
    CheckParityCuda(cudaDeviceSynchronize());
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
