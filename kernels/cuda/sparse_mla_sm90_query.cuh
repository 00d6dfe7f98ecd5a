// How the sm_90a sparse attention kernel brings its query into wgmma's tiles.
#pragma once

#include "kernels/cuda/sparse_mla_sm90_types.cuh"

namespace strata::cuda::sm90 {

// Largest magnitude of eight packed bf16 values, joined to `largest`.
__device__ __forceinline__ __nv_bfloat162 JoinMagnitude(__nv_bfloat162 largest, uint4 v) {
  const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    largest = __hmax2(largest, __habs2(*reinterpret_cast<const __nv_bfloat162*>(&word[k])));
  }
  return largest;
}
__device__ __forceinline__ uint32_t Bf16PairToF16(uint32_t pair, float factor) {
  return PackF16(__uint_as_float(pair << 16) * factor,
                 __uint_as_float(pair & 0xFFFF0000u) * factor);
}
// The power of two that puts `largest` into [256, 512).
__device__ __forceinline__ float QueryUnit(float largest) {
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
  largest = largest == 0.0f ? 1.0f : fminf(fmaxf(largest, 8.7e-19f), 1.1e18f);
  return __uint_as_float((__float_as_uint(largest) & 0x7F800000u) - (8u << 23));
}
__device__ __forceinline__ float Inverse(float power) {
  return __uint_as_float(0x7F000000u - __float_as_uint(power));
}

// Four threads bring one head. The latent part becomes f16 after division by a power of two of the
// head's own; the RoPE part, and all of it beside bf16 rows, becomes bf16.
// Writes what head h was divided by to units[h].
template <bool kBf16>
__device__ __forceinline__ void LoadQuery(const Arguments& args, float* units, uint32_t tiles,
                                          int64_t row, int group) {
  const int h = threadIdx.x >> 2, c = threadIdx.x & 3, head = group * kUnitHeads + h;
  const bool real = head < args.heads;
  const int64_t base = row * args.query_row + head * args.query_head;
  // The thread's pieces of eight values. Odd heads take them pairwise swapped, so that the stores
  // of two heads touch every bank once.
  const auto piece_of = [&](int i) { return (4 * i + c) ^ (h & 1) << 2; };
  // Eight values from 8 * piece on: block of 128, half of it, chunk of 8.
  const auto store = [&](int piece, uint4 v) {
    const int tile = piece < 64 ? (piece >> 4) + 4 * (piece >> 3 & 1) : 8, chunk = piece & 7;
    StoreShared(tiles + tile * kTile + h * 128 + ((chunk ^ (h & 7)) << 4), v);
  };
  float unit = 1.0f;
  if (args.query_bf16) {
    const uint4* source =
        reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(args.query) + base);
    uint4 v[18];  // all in flight at once
#pragma unroll
    for (int i = 0; i < 18; ++i) {
      const bool inside = real && (i < 16 || args.has_rope);
      v[i] = inside ? __ldg(source + piece_of(i)) : make_uint4(0, 0, 0, 0);
    }
    if constexpr (!kBf16) {
      __nv_bfloat162 m = __float2bfloat162_rn(0.0f);
#pragma unroll
      for (int i = 0; i < 16; ++i) m = JoinMagnitude(m, v[i]);
      unit = QueryUnit(fmaxf(__low2float(m), __high2float(m)));
      const float factor = Inverse(unit);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        v[i] = make_uint4(Bf16PairToF16(v[i].x, factor), Bf16PairToF16(v[i].y, factor),
                          Bf16PairToF16(v[i].z, factor), Bf16PairToF16(v[i].w, factor));
      }
    }
#pragma unroll
    for (int i = 0; i < 18; ++i) store(piece_of(i), v[i]);
  } else {
    const float4* source =
        reinterpret_cast<const float4*>(static_cast<const float*>(args.query) + base);
    float4 v[36];
#pragma unroll
    for (int i = 0; i < 18; ++i) {
      const bool inside = real && (i < 16 || args.has_rope);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        v[2 * i + k] = inside ? __ldg(source + 2 * piece_of(i) + k) : make_float4(0, 0, 0, 0);
      }
    }
    float factor = 1.0f;
    if constexpr (!kBf16) {
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)),
                                       fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
      }
      unit = QueryUnit(largest);
      factor = Inverse(unit);
    }
#pragma unroll
    for (int i = 0; i < 18; ++i) {
      const float4 a = v[2 * i], b = v[2 * i + 1];
      if (kBf16 || i >= 16) {
        store(piece_of(i), make_uint4(PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y),
                                      PackBf16(b.z, b.w)));
      } else {
        store(piece_of(i),
              make_uint4(PackF16(a.x * factor, a.y * factor), PackF16(a.z * factor, a.w * factor),
                         PackF16(b.x * factor, b.y * factor), PackF16(b.z * factor, b.w * factor)));
      }
    }
  }
  if (c == 0) units[h] = unit;
}

}  // namespace strata::cuda::sm90
