// Devices, streams, memory. Nothing is ambient: an op gets its stream, a stream names its device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/thread_pool.h"
#include "kernels/view.h"

namespace strata {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;
};

// Where an op runs. CPU: `pool` runs it and it is finished when run() returns. CUDA: `native` is
// the cudaStream_t.
struct Stream {
  Device device;
  ThreadPool* pool = nullptr;
  void* native = nullptr;
};

struct DeviceInfo {
  std::string name;  // "cpu (avx512, 2 threads)", "NVIDIA H200"
  int sm = 0;        // CUDA: 90 for sm_90; CPU: 0
  int multiprocessors = 0;
  size_t memory_bytes = 0;
};

// Device memory with one owner; zero-filled on allocation.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* data, size_t bytes, std::function<void(std::byte*, size_t)> release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) release_(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::function<void(std::byte*, size_t)> release_;
};

// A captured step: replaying runs the captured ops again over the same views, with lengths read on
// the device.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Replay(Stream stream) = 0;
};

// One per device. Thread-safe only in that different backends are independent.
class Backend {
 public:
  virtual ~Backend() = default;
  // Zero-filled, 64-byte aligned; Fail(kCapacity) names the bytes. Never called inside a step.
  virtual Buffer Allocate(size_t bytes) = 0;
  virtual Stream DefaultStream() = 0;
  virtual std::unique_ptr<Graph> Capture(Stream stream,
                                         const std::function<void(Stream)>& body) = 0;
  virtual void Synchronize(Stream stream) = 0;
  virtual const DeviceInfo& Info() const = 0;
};

// The CPU backend. `threads` 0 takes the number of cores this process may use.
std::unique_ptr<Backend> MakeCpuBackend(int threads);

// A bump allocator over one buffer: taken at the start of a step, reset at its end. Take() is
// 64-byte aligned and fails with kInternal when the buffer is too small: sizes are computed up
// front.
class Arena {
 public:
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}
  template <class T, int R>
  View<T, R> Take(const int64_t (&shape)[R]) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return MakeView(static_cast<T*>(TakeBytes(static_cast<size_t>(count) * sizeof(T))), shape);
  }
  void* TakeBytes(size_t bytes);
  void Reset() { used_ = 0; }
  // Gives back everything taken since `mark` (a former used()).
  void Release(size_t mark) { used_ = mark; }
  size_t used() const { return used_; }
  size_t bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
  size_t used_ = 0;
};

}  // namespace strata
