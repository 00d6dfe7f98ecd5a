// Quantised cache writes, one launch for all rows of a step. The bits are those of the CPU ops: the
// same divisions and roundings, and for pooled keys the same exponential, operation for operation.
// (Where an input is NaN, both store NaN; its payload may differ.) A page outside the block table
// is not written.
#include "kernels/cache_write.h"

#include <cuda_runtime.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_scope.h"

namespace strata::cuda {

namespace {

constexpr int kThreads = 128;

// The larger magnitude; NaN when either is.
__device__ __forceinline__ float Larger(float a, float b) { return a != a || b <= a ? a : b; }

__device__ __forceinline__ float WarpLargest(float x) {
  for (int offset = 16; offset > 0; offset >>= 1) x = Larger(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

// Largest magnitude of n values, known to every thread of the block.
__device__ float BlockLargest(const float* x, int64_t n) {
  __shared__ float warps[kThreads / 32];
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) largest = Larger(largest, fabsf(x[i]));
  largest = WarpLargest(largest);
  if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = largest;
  __syncthreads();
  largest = warps[0];
  for (int w = 1; w < kThreads / 32; ++w) largest = Larger(largest, warps[w]);
  return largest;
}

__device__ __forceinline__ float ScaleFor(float largest, float top) {
  const float scale = __fdiv_rn(largest, top);
  return scale == 0.0f ? 1.0f : scale;
}

__device__ __forceinline__ uint8_t Int8Code(float x) {
  const float rounded = rintf(x);
  const float code = rounded > 127.0f     ? 127.0f
                     : rounded < -127.0f  ? -127.0f
                     : rounded == rounded ? rounded
                                          : 0.0f;
  return static_cast<uint8_t>(static_cast<int8_t>(code));
}

// Where cell or key `index` of a sequence starts, `per_page` of them to a page; null outside the
// block table.
__device__ __forceinline__ std::byte* PageOf(const View<const int32_t, 2>& table, std::byte* base,
                                             int64_t page_stride, int64_t sequence, int64_t page) {
  if (sequence < 0 || sequence >= table.dim(0) || page >= table.dim(1)) return nullptr;
  return base + table(sequence, page) * page_stride;
}

// A block per row.
__global__ void __launch_bounds__(kThreads)
    WriteLatentKernel(const __grid_constant__ WriteLatent op) {
  const int64_t row = blockIdx.x, position = op.positions(row);
  if (position < 0) return;
  const LatentLayout layout = op.pages.layout;
  std::byte* out = PageOf(op.pages.block_table, op.pages.base, op.pages.page_stride,
                          op.rows.sequence(row), position / kPageCells);
  if (out == nullptr) return;
  out += position % kPageCells * layout.RowBytes();
  const float* x = op.values.row(row);
  const int64_t latent = layout.latent, width = latent + layout.rope;
  if (layout.dtype == DType::kF32 || layout.dtype == DType::kBf16) {
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      if (layout.dtype == DType::kF32) {
        reinterpret_cast<float*>(out)[i] = x[i];
      } else {
        reinterpret_cast<uint16_t*>(out)[i] = FloatToBf16(x[i]);
      }
    }
    return;
  }
  if (layout.dtype == DType::kInt8) {
    const float scale = ScaleFor(BlockLargest(x, latent), 127.0f);
    for (int64_t i = threadIdx.x; i < latent; i += kThreads) {
      out[i] = static_cast<std::byte>(Int8Code(__fdiv_rn(x[i], scale)));
    }
    if (threadIdx.x == 0) *reinterpret_cast<float*>(out + latent) = scale;
  } else {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int64_t begin = warp * kFp8ScaleBlock; begin < latent;
         begin += kThreads / 32 * kFp8ScaleBlock) {
      const int64_t end = begin + kFp8ScaleBlock < latent ? begin + kFp8ScaleBlock : latent;
      float largest = 0.0f;
      for (int64_t i = begin + lane; i < end; i += 32) largest = Larger(largest, fabsf(x[i]));
      const float scale = ScaleFor(WarpLargest(largest), 448.0f);
      for (int64_t i = begin + lane; i < end; i += 32)
        out[i] = static_cast<std::byte>(FloatToFp8(__fdiv_rn(x[i], scale)));
      if (lane == 0) reinterpret_cast<float*>(out + latent)[begin / kFp8ScaleBlock] = scale;
    }
  }
  uint16_t* rope = reinterpret_cast<uint16_t*>(out + latent + layout.ScaleBytes());
  for (int64_t i = threadIdx.x; i < layout.rope; i += kThreads)
    rope[i] = FloatToBf16(x[latent + i]);
}

// The block stores one key.
__device__ void StoreKey(const KeyPages& pages, int64_t sequence, int64_t index, const float* x) {
  const KeyLayout& layout = pages.layout;
  const int64_t per_page = layout.KeysPerPage(), slot = index % per_page;
  std::byte* page =
      PageOf(pages.block_table, pages.base, pages.page_stride, sequence, index / per_page);
  if (page == nullptr) return;
  std::byte* out = page + slot * layout.KeyBytes();
  if (layout.dtype != DType::kFp8E4M3) {
    for (int64_t i = threadIdx.x; i < layout.dim; i += kThreads) {
      if (layout.dtype == DType::kF32) {
        reinterpret_cast<float*>(out)[i] = x[i];
      } else {
        reinterpret_cast<uint16_t*>(out)[i] = FloatToBf16(x[i]);
      }
    }
    return;
  }
  const float scale = ScaleFor(BlockLargest(x, layout.dim), 448.0f);
  for (int64_t i = threadIdx.x; i < layout.dim; i += kThreads) {
    out[i] = static_cast<std::byte>(FloatToFp8(__fdiv_rn(x[i], scale)));
  }
  if (threadIdx.x == 0) reinterpret_cast<float*>(page + layout.ScaleOffset())[slot] = scale;
}

__global__ void __launch_bounds__(kThreads)
    WriteIndexKeysKernel(const __grid_constant__ WriteIndexKeys op) {
  const int64_t row = blockIdx.x, position = op.positions(row);
  if (position >= 0) StoreKey(op.pages, op.rows.sequence(row), position, op.keys.row(row));
}

// e^x by the additions and multiplications of the CPU ops, none of them fused.
__device__ float ExpInCpuOrder(float x) {
  x = x < -105.0f ? -105.0f : x;
  x = x > 90.0f ? 90.0f : x;
  const float magic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const float shifted = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), magic);
  const int n = __float_as_int(shifted) - __float_as_int(magic);
  const float whole = __fsub_rn(shifted, magic);
  float r = __fsub_rn(x, __fmul_rn(whole, 0.693359375f));
  r = __fsub_rn(r, __fmul_rn(whole, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
  p = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
  const int half = n >> 1;
  return __fmul_rn(__fmul_rn(p, __int_as_float((half + 127) << 23)),
                   __int_as_float((n - half + 127) << 23));
}

// Forms the pool that row `row` of the group from `begin` completes. A cell comes from the step's
// own rows where they have it, else from the ring. Returns without storing when `from_ring` says
// that another block forms this pool.
__device__ void FormPool(const WritePooledKeys& op, int64_t begin, int64_t row, bool from_ring) {
  __shared__ int64_t source[kPageCells];  // row of the step, or -1: the ring
  __shared__ float key[kMaxPooledDim];
  const int64_t kpool = op.pages.layout.kpool, dim = op.pages.layout.dim, cells = op.ring.dim(1);
  const int64_t position = op.positions(row), first_cell = position - kpool + 1,
                sequence = op.rows.sequence(row);
  __syncthreads();
  int missing = 0;
  for (int64_t c = threadIdx.x; c < kpool; c += kThreads) {
    int64_t r = row;
    while (r >= begin && (op.positions(r) < 0 || op.positions(r) > first_cell + c)) --r;
    source[c] = r >= begin && op.positions(r) == first_cell + c ? r : -1;
    missing |= source[c] < 0;
  }
  if ((__syncthreads_or(missing) != 0) != from_ring) return;
  const auto raw = [&](int64_t c, int64_t d) {
    return source[c] < 0 ? op.ring(sequence, (first_cell + c) % cells, d) : op.keys(source[c], d);
  };
  const auto logit = [&](int64_t c, int64_t d) {
    return __fadd_rn(source[c] < 0 ? op.ring(sequence, (first_cell + c) % cells, dim + d)
                                   : op.gate(source[c], d),
                     op.ape(c, d));
  };
  for (int64_t d = threadIdx.x; d < dim; d += kThreads) {
    float maximum = logit(0, d), sum = 0.0f, value = 0.0f;
    for (int64_t c = 1; c < kpool; ++c) {
      const float x = logit(c, d);
      maximum = maximum < x ? x : maximum;
    }
    for (int64_t c = 0; c < kpool; ++c) {
      const float weight = ExpInCpuOrder(__fsub_rn(logit(c, d), maximum));
      sum = __fadd_rn(sum, weight);
      value = __fadd_rn(value, __fmul_rn(weight, raw(c, d)));
    }
    key[d] = __fdiv_rn(value, sum);
  }
  __syncthreads();
  StoreKey(op.pages, sequence, position / kpool, key);
}

// A block per row forms the pool that the row completes, when all its cells are rows of this step.
// The block of a group's first row also forms the pools that need older cells, and then writes the
// ring: no other block touches it.
__global__ void __launch_bounds__(kThreads)
    WritePooledKeysKernel(const __grid_constant__ WritePooledKeys op) {
  const int64_t row = blockIdx.x, kpool = op.pages.layout.kpool, dim = op.keys.dim(1),
                cells = op.ring.dim(1);
  int64_t low = 0, high = op.rows.first_row.dim(0) -
                          1;  // the group of the row: first_row[low] <= row < first_row[high]
  if (row < op.rows.first_row(low) || row >= op.rows.first_row(high)) return;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (op.rows.first_row(middle) <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t begin = op.rows.first_row(low), end = op.rows.first_row(low + 1);
  const auto completes = [&](int64_t r) {
    return op.positions(r) >= 0 && (op.positions(r) + 1) % kpool == 0;
  };
  if (completes(row)) FormPool(op, begin, row, false);
  if (row != begin) return;
  for (int64_t r = begin; r < end; ++r) {
    if (completes(r)) FormPool(op, begin, r, true);
  }
  __syncthreads();
  int64_t written = 0;
  for (int64_t r = end - 1; r >= begin && written < cells; --r) {
    const int64_t position = op.positions(r);
    if (position < 0) continue;
    int replaced = 0;  // by a later row of the same ring cell
    for (int64_t later = r + 1 + threadIdx.x; later < end; later += kThreads) {
      replaced |= op.positions(later) >= 0 && op.positions(later) % cells == position % cells;
    }
    if (__syncthreads_or(replaced)) continue;
    float* cell = &op.ring(op.rows.sequence(r), position % cells, 0);
    for (int64_t d = threadIdx.x; d < dim; d += kThreads)
      cell[d] = op.keys(r, d), cell[dim + d] = op.gate(r, d);
    ++written;
  }
}

}  // namespace

void Run(const WriteLatent& op, Stream stream) {
  if (op.values.dim(0) == 0) return;
  const DeviceScope scope(stream.device.ordinal);
  WriteLatentKernel<<<static_cast<unsigned>(op.values.dim(0)), kThreads, 0,
                      static_cast<cudaStream_t>(stream.native)>>>(op);
  CheckCuda(cudaGetLastError(), "WriteLatent: launch");
}

void Run(const WriteIndexKeys& op, Stream stream) {
  if (op.keys.dim(0) == 0) return;
  const DeviceScope scope(stream.device.ordinal);
  WriteIndexKeysKernel<<<static_cast<unsigned>(op.keys.dim(0)), kThreads, 0,
                         static_cast<cudaStream_t>(stream.native)>>>(op);
  CheckCuda(cudaGetLastError(), "WriteIndexKeys: launch");
}

void Run(const WritePooledKeys& op, Stream stream) {
  if (op.keys.dim(0) == 0) return;
  const DeviceScope scope(stream.device.ordinal);
  WritePooledKeysKernel<<<static_cast<unsigned>(op.keys.dim(0)), kThreads, 0,
                          static_cast<cudaStream_t>(stream.native)>>>(op);
  CheckCuda(cudaGetLastError(), "WritePooledKeys: launch");
}

}  // namespace strata::cuda
