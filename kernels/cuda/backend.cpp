#include "kernels/cuda/backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_scope.h"
#include "kernels/status.h"

namespace strata {

namespace cuda {

const DeviceLimits& LimitsOf(int ordinal) {
  constexpr int kMaxDevices = 64;
  static std::array<std::once_flag, kMaxDevices> once;
  static std::array<DeviceLimits, kMaxDevices> limits;
  if (ordinal < 0 || ordinal >= kMaxDevices)
    Fail(ErrorCode::kDevice, fmt::format("no CUDA device {}", ordinal));
  std::call_once(once[ordinal], [ordinal] {
    const auto read = [ordinal](cudaDeviceAttr attribute) {
      int value = 0;
      CheckCuda(cudaDeviceGetAttribute(&value, attribute, ordinal), "cudaDeviceGetAttribute");
      return value;
    };
    DeviceLimits& found = limits[ordinal];
    found.sm =
        10 * read(cudaDevAttrComputeCapabilityMajor) + read(cudaDevAttrComputeCapabilityMinor);
    found.multiprocessors = read(cudaDevAttrMultiProcessorCount);
    found.shared_bytes = read(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    found.max_cluster = found.sm == 90 ? 16 : 1;
  });
  return limits[ordinal];
}

void AllowSharedBytes(const void* kernel, int bytes, const char* what) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> allowed;
  int ordinal = 0;
  CheckCuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  int& most = allowed[{ordinal, kernel}];
  if (bytes <= most) return;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), what);
  most = bytes;
}

}  // namespace cuda

namespace {

using cuda::CheckCuda;
using cuda::DeviceScope;

cudaStream_t Native(Stream stream) { return static_cast<cudaStream_t>(stream.native); }

class CudaGraph : public Graph {
 public:
  explicit CudaGraph(cudaGraphExec_t executable) : executable_(executable) {}
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void Replay(Stream stream) override {
    CheckCuda(cudaGraphLaunch(executable_, Native(stream)), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_;
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(int ordinal) : ordinal_(ordinal) {
    const DeviceScope scope(ordinal_);
    cudaDeviceProp properties;
    CheckCuda(cudaGetDeviceProperties(&properties, ordinal_), "cudaGetDeviceProperties");
    info_.name = properties.name;
    info_.sm = 10 * properties.major + properties.minor;
    info_.multiprocessors = properties.multiProcessorCount;
    info_.memory_bytes = properties.totalGlobalMem;
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaBackend() override { cudaStreamDestroy(stream_); }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  Buffer Allocate(size_t bytes) override {
    const DeviceScope scope(ordinal_);
    if (bytes == 0) bytes = 64;
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) != cudaSuccess) {
      cudaGetLastError();
      Fail(ErrorCode::kCapacity,
           fmt::format("cannot allocate {} bytes on {}; lower --max-context", bytes, info_.name));
    }
    // The default stream's fill is not ordered with non-blocking streams: wait for it here.
    CheckCuda(cudaMemset(data, 0, bytes), "cudaMemset");
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return Buffer(static_cast<std::byte*>(data), bytes,
                  [](std::byte* base, size_t) { cudaFree(base); });
  }

  Stream DefaultStream() override {
    return Stream{Device{DeviceKind::kCuda, ordinal_}, nullptr, stream_};
  }

  std::unique_ptr<Graph> Capture(Stream stream, const std::function<void(Stream)>& body) override {
    const DeviceScope scope(ordinal_);
    CheckCuda(cudaStreamBeginCapture(Native(stream), cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      body(stream);
    } catch (...) {
      // The stream leaves capture mode, whatever stopped the body.
      cudaStreamEndCapture(Native(stream), &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    CheckCuda(cudaStreamEndCapture(Native(stream), &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    CheckCuda(status, "cudaGraphInstantiate");
    return std::make_unique<CudaGraph>(executable);
  }

  void Synchronize(Stream stream) override {
    CheckCuda(cudaStreamSynchronize(Native(stream)), "cudaStreamSynchronize");
  }
  const DeviceInfo& Info() const override { return info_; }

 private:
  int ordinal_;
  DeviceInfo info_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(int ordinal) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    count = 0;
  }
  if (ordinal < 0 || ordinal >= count) {
    Fail(ErrorCode::kDevice,
         fmt::format("CUDA device {} is not there, {} found; run on the CPU instead", ordinal,
                     count));
  }
  return std::make_unique<CudaBackend>(ordinal);
}

}  // namespace strata
