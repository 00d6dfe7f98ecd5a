#include "tools/bench/bench_cuda.h"

namespace strata::bench {

namespace {

// Eight 16-byte loads in flight per thread.
__global__ void __launch_bounds__(256)
    ReadFlatKernel(const uint4* data, size_t count, uint32_t* sink) {
  uint32_t x = 0;
  const size_t step = static_cast<size_t>(gridDim.x) * 256 * 8;
  for (size_t i = blockIdx.x * size_t{2048} + threadIdx.x; i < count; i += step) {
    uint4 v[8];
#pragma unroll
    for (int u = 0; u < 8; ++u)
      v[u] = i + u * 256 < count ? __ldg(data + i + u * 256) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < 8; ++u) x ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (x == 0x12345678u) *sink = x;
}
// A CTA per page in turn, the next page's id loaded ahead.
__global__ void __launch_bounds__(256)
    ReadPagedKernel(const std::byte* base, int64_t page_bytes, const int32_t* table, int pages,
                    uint32_t* sink) {
  uint32_t x = 0;
  const int pieces = static_cast<int>(page_bytes / 16);
  int page = static_cast<int>(blockIdx.x) < pages ? __ldg(table + blockIdx.x) : 0;
  for (int p = blockIdx.x; p < pages; p += gridDim.x) {
    const uint4* data = reinterpret_cast<const uint4*>(base + page * page_bytes);
    if (p + static_cast<int>(gridDim.x) < pages) page = __ldg(table + p + gridDim.x);
    uint4 v[4];
    for (int first = threadIdx.x; first < pieces; first += 1024) {
#pragma unroll
      for (int u = 0; u < 4; ++u)
        v[u] = first + u * 256 < pieces ? __ldg(data + first + u * 256) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int u = 0; u < 4; ++u) x ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
  }
  if (x == 0x12345678u) *sink = x;
}
__global__ void EmptyKernel() {}

}  // namespace

void ReadFlat(const void* data, size_t bytes, uint32_t* sink, cudaStream_t stream) {
  ReadFlatKernel<<<1056, 256, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
}
void ReadPaged(int grid, const std::byte* base, int64_t page_bytes, const int32_t* table, int pages,
               uint32_t* sink, cudaStream_t stream) {
  ReadPagedKernel<<<grid, 256, 0, stream>>>(base, page_bytes, table, pages, sink);
}
void DoNothing(cudaStream_t stream) { EmptyKernel<<<1, 32, 0, stream>>>(); }

}  // namespace strata::bench
