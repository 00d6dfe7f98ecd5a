// What the GPU benches share: random device data, the read floors, and the time of captured
// launches on a cold L2.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/dtype.h"

namespace strata::bench {

inline void CheckBench(cudaError_t status) { cuda::CheckCuda(status, "strata-bench"); }

STRATA_HD inline uint32_t MixBits(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull, x ^= x >> 33;
  return static_cast<uint32_t>(x);
}
// About normal: the sum of the four bytes of a random word.
STRATA_HD inline float RandomNormal(uint64_t seed) {
  const uint32_t m = MixBits(seed);
  return (static_cast<float>((m & 255) + (m >> 8 & 255) + (m >> 16 & 255) + (m >> 24)) - 510.0f) *
         (1.0f / 148.0f);
}

// Device memory with one owner.
template <class T>
class BenchArray {
 public:
  explicit BenchArray(size_t count) : count_(count) {
    CheckBench(
        cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(count, 1) * sizeof(T)));
    CheckBench(cudaMemset(data_, 0, std::max<size_t>(count, 1) * sizeof(T)));
    CheckBench(cudaDeviceSynchronize());  // the default stream is not ordered with the others
  }
  explicit BenchArray(const std::vector<T>& host) : BenchArray(host.size()) {
    CheckBench(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
    CheckBench(cudaDeviceSynchronize());
  }
  BenchArray(const BenchArray&) = delete;
  BenchArray& operator=(const BenchArray&) = delete;
  ~BenchArray() { cudaFree(data_); }
  T* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// Launches: a read in order, a read page by page through a block table, nothing.
void ReadFlat(const void* data, size_t bytes, uint32_t* sink, cudaStream_t stream);
void ReadPaged(int grid, const std::byte* base, int64_t page_bytes, const int32_t* table, int pages,
               uint32_t* sink, cudaStream_t stream);
void DoNothing(cudaStream_t stream);

// Times graphs of launches that share no data; an L2-sized read comes before each replay.
class ColdTimer {
 public:
  explicit ColdTimer(int replays) : replays_(replays), flush_(size_t{256} << 20), sink_(1) {
    CheckBench(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CheckBench(cudaEventCreate(&begin_));
    CheckBench(cudaEventCreate(&end_));
  }
  ColdTimer(const ColdTimer&) = delete;
  ColdTimer& operator=(const ColdTimer&) = delete;
  ~ColdTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  // Median microseconds of one of `launches` calls of launch(i, stream).
  template <class Launch>
  double Microseconds(int launches, const Launch& launch) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CheckBench(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) launch(i, stream_);
    CheckBench(cudaStreamEndCapture(stream_, &graph));
    CheckBench(cudaGraphInstantiate(&executable, graph, 0));
    std::vector<double> times;
    for (int r = 0; r < replays_ + 2; ++r) {
      ReadFlat(flush_.data(), flush_.size(), sink_.data(), stream_);
      CheckBench(cudaEventRecord(begin_, stream_));
      CheckBench(cudaGraphLaunch(executable, stream_));
      CheckBench(cudaEventRecord(end_, stream_));
      CheckBench(cudaEventSynchronize(end_));
      float milliseconds = 0;
      CheckBench(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (r >= 2) times.push_back(milliseconds * 1000.0 / launches);
    }
    CheckBench(cudaGraphExecDestroy(executable));
    CheckBench(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  double Flat(int launches, const std::byte* base, size_t bytes) {
    return Microseconds(launches, [&](int i, cudaStream_t stream) {
      ReadFlat(base + i * bytes, bytes, sink_.data(), stream);
    });
  }
  double Paged(int launches, const std::byte* base, int64_t page_bytes, const int32_t* table,
               int pages) {
    double best = 1e30;
    for (int grid : {396, 528, 1056}) {
      best = std::min(best, Microseconds(launches, [&](int i, cudaStream_t stream) {
                        ReadPaged(grid, base, page_bytes, table + static_cast<size_t>(i) * pages,
                                  pages, sink_.data(), stream);
                      }));
    }
    return best;
  }
  double Empty() {
    return Microseconds(32, [](int, cudaStream_t stream) { DoNothing(stream); });
  }
  cudaStream_t stream() const { return stream_; }

 private:
  int replays_;
  BenchArray<std::byte> flush_;
  BenchArray<uint32_t> sink_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
};

}  // namespace strata::bench
