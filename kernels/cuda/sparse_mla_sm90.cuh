// Sparse attention for sm_90a: one launch, fixed chunks of 64 ids, fixed order of the merge.
//
// A unit is one row and 64 of its heads. Its ids are cut into chunks of 64; a chunk is computed
// from zero accumulators against its own maximum, and the chunks' partial results are folded left
// to right by the same two rounded operations everywhere. So the answer is the same bits whether
// one CTA walks all chunks or the CTAs of a cluster take them apart, and the plan may follow the
// size of the batch.
//
// kCtas CTAs form the cluster of a unit (1: no cluster, the CTA walks all chunks), each with
// kChunks chunks. kParts CTAs (or clusters) cut the 512 output latents: each repeats the scores and
// multiplies its own part, which changes neither an operand nor an order.
//
// A CTA is 2 warpgroups that multiply and 2 that bring rows, with two buffers of one chunk: while a
// chunk is multiplied, the next one arrives in the other buffer and is converted there in place.
// A buffer holds nine tiles: latents 128 j .. 128 j + 127 are tile j (first 64) and tile 4 + j,
// step j of the chunk; RoPE values are tile 8, step 4 with the row facts. Each step of a buffer has
// a barrier that tells it is full, the buffer one that tells it is empty.
//
// fp8 and int8 rows become f16 tiles: element = code * scale / unit, the unit being a power of two
// just above the row's largest scale (int8: the scale itself), so that an element stays inside f16
// whatever the row's magnitude. The unit rejoins in the score and in P's exponent: P = 2^(score +
// log2 unit - maximum); the sum takes P / unit. bf16 rows are multiplied as they are.
#pragma once

#include "kernels/cuda/sparse_mla_sm90_parts.cuh"

namespace strata::cuda::sm90 {

enum class Format { kFp8, kInt8, kBf16 };

constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kChunk = 64;       // ids
constexpr int kUnitHeads = 64;   // the M of a wgmma
constexpr int kTile = 64 * 128;  // bytes: 64 rows of 64 16-bit values
constexpr int kThreads = 512;
constexpr int kMathThreads = 256;

struct Arguments {
  const void* query;
  int64_t query_row, query_head;  // elements
  bool query_bf16;
  const uint8_t* cache;
  int64_t page_stride;  // bytes
  const int32_t* block_table;
  int64_t table_stride;
  const int32_t* sequence;
  const int32_t* ids;
  int64_t ids_stride;
  int columns;
  const int32_t* lengths;
  float* out;
  int64_t out_row, out_head;
  float* lse;  // may be null
  int64_t lse_row;
  int heads, groups;
  int row_bytes;
  bool has_rope;
  float scale_log2;  // softmax scale * log2(e)
};

struct Small {
  float maximum[2][64], sum[2][64];
  // Facts of the rows in both buffers; log2_unit is -inf where there is no row.
  float unit[2 * kChunk], inverse_unit[2 * kChunk], log2_unit[2 * kChunk];
  float query_unit[64];  // what the f16 query was divided by
  uint4 raw_scales[kChunk];
  uint2 ratio[kChunk];        // fp8: the four scales / unit as f16
  float2 peer_facts[4 * 64];  // [chunk of a CTA][CTA][head]: maximum and sum, of heads folded here
  uint64_t full[2][5], empty[2];
  int last_column;
};
constexpr int kOffsetQuery = 0;
constexpr int kOffsetRows = 9 * kTile;
constexpr int kOffsetSmall = 27 * kTile;
constexpr int kSharedBytes = kOffsetSmall + static_cast<int>(sizeof(Small)) + 1024;
static_assert(kSharedBytes <= 232448);

// Arrivals that fill step `step` of a buffer: one of each of the 8 warps, and for the facts one of
// each thread that stated some.
__host__ __device__ constexpr int FullArrivals(int step) { return step == 4 ? kChunk : 8; }

// One more partial result joins: o = o * alpha + t * beta.
struct Fold {
  float alpha, beta;
};
__device__ __forceinline__ Fold FoldStep(float& maximum, float& sum, float next_maximum,
                                         float next_sum) {
  const float joint = fmaxf(maximum, next_maximum);
  const float reference = joint == -INFINITY ? 0.0f : joint;
  const Fold fold{Exp2(maximum - reference), Exp2(next_maximum - reference)};
  sum = __fmaf_rn(next_sum, fold.beta, __fmul_rn(sum, fold.alpha));
  maximum = joint;
  return fold;
}
__device__ __forceinline__ float Folded(float o, float t, Fold fold) {
  return __fmaf_rn(t, fold.beta, __fmul_rn(o, fold.alpha));
}

__device__ __forceinline__ float NaturalLse(float maximum, float sum) {
  return sum > 0.0f ? (maximum + log2f(sum)) * 0.6931471805599453f : -INFINITY;
}

// ---------------------------------------------------------------- bringing rows
// A warp owns 8 rows of every chunk; lane l knows the place of row l % 8.
template <Format kFormat>
struct RowLoader {
  const Arguments& args;
  Small* small;
  uint32_t tiles;
  const int32_t* ids;
  const int32_t* table;
  int length;
  int warp, lane;

  __device__ __forceinline__ int Id(int chunk) const {
    const int column = chunk * kChunk + warp * 8 + (lane & 7);
    int id = -1;
    if (column < args.columns) {
      asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(id) : "l"(ids + column));
    }
    return id;
  }
  // The row's place in the cache, page * 64 + cell; -1 when the id is not valid.
  __device__ __forceinline__ int Place(int id) const {
    if (static_cast<unsigned>(id) >= static_cast<unsigned>(length)) return -1;
    int page;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(page) : "l"(table + (id >> 6)));
    return page * 64 + (id & 63);
  }
  __device__ __forceinline__ const uint8_t* Address(int place) const {
    return args.cache + (place >> 6) * args.page_stride + (place & 63) * args.row_bytes;
  }
  // Every 128-byte line of the warp's rows into the L2, 16 lanes a row.
  __device__ __forceinline__ void Prefetch(int place) const {
    const int line = lane & 15, lines = (args.row_bytes + 127) / 128;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int from = __shfl_sync(~0u, place, 2 * p + (lane >> 4));
      if (from >= 0 && line < lines) PrefetchL2(Address(from) + line * 128);
    }
  }
  // Tile `tile` of row `r` of the chunk: where its 128 bytes start.
  __device__ __forceinline__ uint32_t TileRow(int r, int tile) const {
    return tiles + (buffer * 9 + tile) * kTile + r * 128;
  }

  __device__ __forceinline__ void Copy16(uint32_t target, int place, int offset) const {
    CopyAsync16(target, Address(max(place, 0)) + offset, place < 0 ? 0 : 16);
  }
  // 128 codes of four rows, 8 lanes a row: 64 land in tile `step`, 64 in tile 4 + `step`, each in
  // one half of the 128 bytes that their f16 values will fill; the half alternates, so that a row's
  // 128 bytes touch every bank once.
  __device__ __forceinline__ void CopyCodes(int r, int from, int step) const {
    const int high = lane >> 2 & 1;
    Copy16(TileRow(r, step + 4 * high) + (((r & 1) ^ high) << 6) + (lane & 3) * 16, from,
           step * 128 + (lane & 7) * 16);
  }
  // Asks for the chunk, row by row: a row's first touch pays for the translation of its address.
  __device__ __forceinline__ void CopyRows(int place) const {
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int r = warp * 8 + 4 * p + (lane >> 3), from = __shfl_sync(~0u, place, r & 7);
      const int rope = kFormat == Format::kBf16 ? 2 * kLatent : kLatent + 16;
      Copy16(TileRow(r, 8) + (((lane & 7) ^ (r & 7)) << 4), args.has_rope ? from : -1,
             rope + (lane & 7) * 16);
      if constexpr (kFormat == Format::kBf16) {  // as they are, 64 values to each tile
#pragma unroll
        for (int block = 0; block < 8; ++block) {
          Copy16(TileRow(r, block / 2 + 4 * (block & 1)) + (((lane & 7) ^ (r & 7)) << 4), from,
                 block * 128 + (lane & 7) * 16);
        }
      } else {
        if ((lane & 7) == 0) Copy16(SharedAddress(&small->raw_scales[r]), from, kLatent);
#pragma unroll
        for (int step = 0; step < 4; ++step) CopyCodes(r, from, step);
      }
    }
    CopyCommit();
  }
  // Codes of steps `step` and `step` + 1 to f16 in place. Eight lanes hold 64 codes of two adjacent
  // rows, whose f16 values touch every bank once; the warp reads its codes before it writes.
  __device__ __forceinline__ void Convert(int step) const {
    const int quarter = lane & 3, high = lane >> 3 & 1;
    const int first = warp * 8 + (lane >> 2 & 1) + (lane >> 4) * 2;
    uint4 codes[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int r = first + 4 * (p & 1);
      codes[p] =
          LoadShared(TileRow(r, step + p / 2 + 4 * high) + (((r & 1) ^ high) << 6) + quarter * 16);
    }
    __syncwarp();
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int r = first + 4 * (p & 1);
      const uint32_t at = TileRow(r, step + p / 2 + 4 * high), swizzle = r & 7;
      uint2 x, y, z, w;
      if constexpr (kFormat == Format::kFp8) {
        const __half2 pair = reinterpret_cast<const __half2*>(&small->ratio[r])[step / 2];
        const __half2 ratio = p / 2 ? __high2half2(pair) : __low2half2(pair);
        x = Fp8ToF16(codes[p].x, ratio), y = Fp8ToF16(codes[p].y, ratio);
        z = Fp8ToF16(codes[p].z, ratio), w = Fp8ToF16(codes[p].w, ratio);
      } else {
        x = Int8ToF16(codes[p].x), y = Int8ToF16(codes[p].y);
        z = Int8ToF16(codes[p].z), w = Int8ToF16(codes[p].w);
      }
      StoreShared(at + ((2 * quarter ^ swizzle) << 4), make_uint4(x.x, x.y, y.x, y.y));
      StoreShared(at + (((2 * quarter + 1) ^ swizzle) << 4), make_uint4(z.x, z.y, w.x, w.y));
      if (p & 1) Done(step + p / 2);
    }
  }
  // Lane l < 8 states the facts of row l.
  __device__ __forceinline__ void StateFacts(bool valid) const {
    if (lane >= 8) return;
    const int r = warp * 8 + lane, fact = buffer * kChunk + r;
    const uint4 scales = kFormat == Format::kBf16 ? make_uint4(0, 0, 0, 0) : small->raw_scales[r];
    float unit = 1.0f, inverse = 1.0f, log2_unit = 0.0f;
    if (kFormat == Format::kFp8 && valid) {
      const float s[4] = {__uint_as_float(scales.x), __uint_as_float(scales.y),
                          __uint_as_float(scales.z), __uint_as_float(scales.w)};
      const float largest = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
      const uint32_t bits =
          (__float_as_uint(fminf(fmaxf(largest, 8.7e-19f), 1.1e18f)) + 0x7FFFFFu) & 0x7F800000u;
      unit = __uint_as_float(bits), inverse = __uint_as_float(0x7F000000u - bits);
      log2_unit = static_cast<float>(static_cast<int>(bits >> 23) - 127);
      small->ratio[r] = make_uint2(Bits(__floats2half2_rn(s[0] * inverse, s[1] * inverse)),
                                   Bits(__floats2half2_rn(s[2] * inverse, s[3] * inverse)));
    }
    if (kFormat == Format::kFp8 && !valid) small->ratio[r] = make_uint2(0, 0);
    if (kFormat == Format::kInt8 && valid) {
      unit = fminf(fmaxf(__uint_as_float(scales.x), 8.7e-19f), 1.1e18f);
      inverse = __frcp_rn(unit), log2_unit = log2f(unit);
    }
    small->unit[fact] = unit, small->inverse_unit[fact] = inverse;
    small->log2_unit[fact] = valid ? log2_unit : -INFINITY;
  }

  // The chunks of this CTA: chunk, chunk + stride, ... below `chunks`, `left` of them at most.
  int chunk, stride, left, chunks;
  int buffer;

  __device__ __forceinline__ void Done(int step) const {
    __syncwarp();
    if (lane < FullArrivals(step) / 8) BarrierArrive(&small->full[buffer][step]);
  }
  __device__ __forceinline__ void Run(int first_id) {
    int place = Place(first_id);
    int next_id = left > 1 && chunk + stride < chunks ? Id(chunk + stride) : -1;
    for (int it = 0; left > 0 && chunk < chunks; ++it, --left, chunk += stride) {
      buffer = it & 1;
      BarrierWait(&small->empty[buffer], (it >> 1 & 1) ^ 1);
      CopyRows(place);
      const bool more = left > 1 && chunk + stride < chunks;
      const int next = more ? Place(next_id) : -1;
      next_id = left > 2 && chunk + 2 * stride < chunks ? Id(chunk + 2 * stride) : -1;
      if (more) Prefetch(next);
      CopyWait<0>();
      __syncwarp();
      StateFacts(place >= 0);
      Done(4);
      if constexpr (kFormat == Format::kBf16) {
#pragma unroll
        for (int step = 0; step < 4; ++step) Done(step);
      } else {
        Convert(0), Convert(2);
      }
      place = next;
    }
  }
};

// ---------------------------------------------------------------- the query
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
template <bool kBf16>
__device__ __forceinline__ void LoadQuery(const Arguments& args, Small* small, uint32_t tiles,
                                          int64_t row, int group) {
  const int h = threadIdx.x >> 2, c = threadIdx.x & 3, head = group * kUnitHeads + h;
  const bool real = head < args.heads;
  const int64_t base = row * args.query_row + head * args.query_head;
  // Eight values from 8 * piece on: block of 128, half of it, chunk of 8.
  const auto store = [&](int piece, uint4 v) {
    const int tile = piece < 64 ? (piece >> 4) + 4 * (piece >> 3 & 1) : 8, chunk = piece & 7;
    StoreShared(tiles + tile * kTile + h * 128 + ((chunk ^ (h & 7)) << 4), v);
  };
  float unit = 1.0f;
  if (args.query_bf16) {
    const uint4* source =
        reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(args.query) + base) + c;
    uint4 v[18];  // all in flight at once
#pragma unroll
    for (int i = 0; i < 18; ++i) {
      const bool inside = real && (i < 16 || args.has_rope);
      v[i] = inside ? __ldg(source + 4 * i) : make_uint4(0, 0, 0, 0);
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
    for (int i = 0; i < 18; ++i) store(c + 4 * i, v[i]);
  } else {
    const float4* source =
        reinterpret_cast<const float4*>(static_cast<const float*>(args.query) + base);
    float4 v[36];
#pragma unroll
    for (int i = 0; i < 18; ++i) {
      const bool inside = real && (i < 16 || args.has_rope);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        v[2 * i + k] = inside ? __ldg(source + 2 * (c + 4 * i) + k) : make_float4(0, 0, 0, 0);
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
        store(c + 4 * i, make_uint4(PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y),
                                    PackBf16(b.z, b.w)));
      } else {
        store(c + 4 * i,
              make_uint4(PackF16(a.x * factor, a.y * factor), PackF16(a.z * factor, a.w * factor),
                         PackF16(b.x * factor, b.y * factor), PackF16(b.z * factor, b.w * factor)));
      }
    }
  }
  if (c == 0) small->query_unit[h] = unit;
}

// ---------------------------------------------------------------- one chunk's arithmetic
// What a thread of the multiplying warpgroups knows about itself. It holds heads head0 and head0 +
// 8 in wgmma's order.
struct MathThread {
  int warpgroup, warp, lane, quad, head0;
  __device__ __forceinline__ MathThread() {
    const int warp_index = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);
    warpgroup = warp_index >> 2, warp = warp_index & 3, lane = threadIdx.x & 31, quad = lane & 3;
    head0 = warp * 16 + (lane >> 2);
  }
};

// Scores of this warpgroup's 64 rows, softmax against the chunk's maximum, and the product with
// kTiles tiles per warpgroup. On return `maximum` and `sum` (per head of the thread) are the
// chunk's own; take(slice, values) has been called for each of the 2 * kTiles slices of 32 latents,
// in order. kHeld: 64 x 64 results a warpgroup holds meanwhile.
template <Format kFormat, int kParts, int kHeld, class FoldWith, class Take>
__device__ __forceinline__ void Chunk(const Arguments& args, Small* small, uint32_t query,
                                      uint32_t rows, const MathThread& me, int part, int it,
                                      FoldWith&& fold_with, Take&& take) {
  constexpr bool kBf16 = kFormat == Format::kBf16;
  constexpr int kTiles = 4 / kParts;
  const int buffer = it & 1, parity = it >> 1 & 1, w = me.warpgroup;
  const int r0 = me.head0, r1 = r0 + 8;
  const int fact = buffer * kChunk + w * 32 + 2 * me.quad;  // of this thread's first row
  rows += buffer * 9 * kTile;
  const uint64_t query_tile = TileDescriptor(query), row_tile = TileDescriptor(rows + w * 32 * 128);
  float s[16], rope[16];
  // The rows were written by ordinary stores of other threads; the fence lets the tensor cores see
  // them. It stands here and not with the writers, whose copies in flight it would wait for.
  BarrierWait(&small->full[buffer][4], parity);
  FenceAsync();
  MmaFence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t step = static_cast<uint64_t>(8 * (kTile >> 4) + 2 * k);
    MmaScores<true>(rope, query_tile + step, row_tile + step, k > 0);
  }
  MmaCommit();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    BarrierWait(&small->full[buffer][j], parity);
    FenceAsync();
    MmaFence();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint64_t step = static_cast<uint64_t>((j + 4 * h) * (kTile >> 4) + 2 * k);
        MmaScores<kBf16>(s, query_tile + step, row_tile + step, j + h + k > 0);
      }
    }
    MmaCommit();
  }
  MmaWait<0>();

  const float scale0 = small->query_unit[r0] * args.scale_log2,
              scale1 = small->query_unit[r1] * args.scale_log2;
  float x0 = -INFINITY, x1 = -INFINITY;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 u = *reinterpret_cast<const float2*>(&small->unit[fact + 8 * j]);
    const float2 l = *reinterpret_cast<const float2*>(&small->log2_unit[fact + 8 * j]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float latent = s[4 * j + i] * ((i & 1) ? u.y : u.x);
      s[4 * j + i] = __fmaf_rn(latent, i < 2 ? scale0 : scale1,
                               __fmaf_rn(rope[4 * j + i], args.scale_log2, (i & 1) ? l.y : l.x));
    }
    x0 = fmaxf(x0, fmaxf(s[4 * j], s[4 * j + 1]));
    x1 = fmaxf(x1, fmaxf(s[4 * j + 2], s[4 * j + 3]));
  }
#pragma unroll
  for (int d = 1; d < 4; d <<= 1) {
    x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, d));
    x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, d));
  }
  if (me.quad == 0) small->maximum[w][r0] = x0, small->maximum[w][r1] = x1;
  NamedSync(1, kMathThreads);
  const float m0 = fmaxf(x0, small->maximum[1 - w][r0]), m1 = fmaxf(x1, small->maximum[1 - w][r1]);
  const float e0 = m0 == -INFINITY ? 0.0f : m0, e1 = m1 == -INFINITY ? 0.0f : m1;
  uint32_t weights[8];
  float a0 = 0.0f, a1 = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float u0 = Exp2(s[4 * j] - e0), u1 = Exp2(s[4 * j + 1] - e0);
    const float v0 = Exp2(s[4 * j + 2] - e1), v1 = Exp2(s[4 * j + 3] - e1);
    if constexpr (kBf16) {
      a0 += u0 + u1, a1 += v0 + v1;
      weights[2 * j] = PackBf16(u0, u1), weights[2 * j + 1] = PackBf16(v0, v1);
    } else {
      const float2 g = *reinterpret_cast<const float2*>(&small->inverse_unit[fact + 8 * j]);
      a0 += u0 * g.x + u1 * g.y, a1 += v0 * g.x + v1 * g.y;
      weights[2 * j] = PackF16(u0, u1), weights[2 * j + 1] = PackF16(v0, v1);
    }
  }
#pragma unroll
  for (int d = 1; d < 4; d <<= 1) {
    a0 += __shfl_xor_sync(~0u, a0, d);
    a1 += __shfl_xor_sync(~0u, a1, d);
  }
  if (me.quad == 0) small->sum[w][r0] = a0, small->sum[w][r1] = a1;
  // The weights cross between the warpgroups through the RoPE tile, which the scores have finished
  // with. Writer and reader hold the same fragment, so it travels in lane order.
  const uint32_t exchange = rows + 8 * kTile + (threadIdx.x & 127) * 16;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    StoreShared(exchange + w * 4096 + k * 2048, make_uint4(weights[4 * k], weights[4 * k + 1],
                                                           weights[4 * k + 2], weights[4 * k + 3]));
  }
  NamedSync(2, kMathThreads);
  uint32_t p[16];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint4 u = LoadShared(exchange + k * 2048);
    p[4 * k] = u.x, p[4 * k + 1] = u.y, p[4 * k + 2] = u.z, p[4 * k + 3] = u.w;
  }
  const float l0 = small->sum[0][r0] + small->sum[1][r0],
              l1 = small->sum[0][r1] + small->sum[1][r1];
  fold_with(m0, l0, m1, l1);

  // Slices of 32 latents, each from zero; the next ones run while slice j is folded.
  constexpr int kAhead = kTiles > 1 ? 2 : 1;
  float x[1 + kAhead][16];
  auto issue = [&](float(&y)[16], int j) {
    const uint32_t at = rows + (part * kTiles + j / 2 + 4 * w) * kTile + (j & 1) * 64;
    const uint64_t values = TileDescriptor(at);
    MmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) MmaValues<kBf16>(y, p + 4 * k, values + k * 128, k > 0);
    MmaCommit();
  };
#pragma unroll
  for (int j = 0; j < kAhead; ++j) issue(x[j], j);
#pragma unroll
  for (int j = 0; j < 2 * kTiles; ++j) {
    if (j + kAhead < 2 * kTiles) {
      issue(x[(j + kAhead) % (1 + kAhead)], j + kAhead);
      MmaWait<kAhead>();
    } else if (kAhead == 2 && j + 2 == 2 * kTiles) {
      MmaWait<1>();
    } else {
      MmaWait<0>();
    }
    if (j == 2 * kTiles - 1) BarrierArrive(&small->empty[buffer]);
    take(j, x[j % (1 + kAhead)]);
  }
}

// ---------------------------------------------------------------- the kernel
template <Format kFormat, int kCtas, int kChunks, int kParts>
__global__ void __launch_bounds__(kThreads, 1)
    SparseMlaKernel(const __grid_constant__ Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr bool kWalk = kCtas == 1;
  constexpr int kTiles = 4 / kParts;
  constexpr int kStage =
      kLatent / kParts + 8;  // floats per head of a staged partial: 8 banks apart
  static_assert(kWalk || kChunks * 64 * kStage * 4 <= 18 * kTile);
  extern __shared__ char raw[];
  char* shared = raw + ((1024 - (SharedAddress(raw) & 1023)) & 1023);
  Small* small = reinterpret_cast<Small*>(shared + kOffsetSmall);
  const int rank = kWalk ? 0 : static_cast<int>(blockIdx.x) % kCtas;
  const int part = static_cast<int>(blockIdx.x) / kCtas % kParts;
  const int unit = static_cast<int>(blockIdx.x) / kCtas / kParts;
  const int group = unit % args.groups;
  const int64_t row = unit / args.groups;

  const int32_t* ids = args.ids + row * args.ids_stride;
  // What the rows' addresses hang on is asked for at once.
  int length, sequence, first_id = -1;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(length) : "l"(args.lengths + row));
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(sequence) : "l"(args.sequence + row));
  const int first_column =
      rank * kChunk + static_cast<int>(threadIdx.x >> 5 & 7) * 8 + (threadIdx.x & 7);
  if (threadIdx.x >= kMathThreads && first_column < args.columns) {
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(first_id) : "l"(ids + first_column));
  }
  if (threadIdx.x == 0) {
    for (int b = 0; b < 2; ++b) {
      for (int i = 0; i < 5; ++i) BarrierInit(&small->full[b][i], FullArrivals(i));
      BarrierInit(&small->empty[b], kMathThreads);
    }
    small->last_column = -1;
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if constexpr (!kWalk) ClusterArriveRelaxed();
  int chunks = (args.columns + kChunk - 1) / kChunk;
  if (length < args.columns) {  // a short row: the columns behind its last valid id are not walked
    int last = -1;
    for (int c = threadIdx.x; c < args.columns; c += kThreads) {
      if (static_cast<unsigned>(__ldg(ids + c)) < static_cast<unsigned>(length)) last = c;
    }
    last = __reduce_max_sync(~0u, last);
    if ((threadIdx.x & 31) == 0) atomicMax(&small->last_column, last);
    __syncthreads();
    chunks = max(1, small->last_column / kChunk + 1);
  }
  const int chunk_limit = kWalk ? 1 << 30 : kChunks;

  if (threadIdx.x >= kMathThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
    RowLoader<kFormat> loader{args,
                              small,
                              SharedAddress(shared + kOffsetRows),
                              ids,
                              args.block_table + sequence * args.table_stride,
                              length,
                              static_cast<int>(threadIdx.x - kMathThreads) >> 5,
                              static_cast<int>(threadIdx.x) & 31,
                              rank,
                              kCtas,
                              chunk_limit,
                              chunks,
                              0};
    loader.Run(first_id);
    if constexpr (!kWalk) {
      ClusterWait();
      ClusterArrive(), ClusterWait();
      ClusterArriveRelaxed(), ClusterWait();
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
  const MathThread me;
  const int r0 = me.head0, r1 = r0 + 8;
  const uint32_t query = SharedAddress(shared + kOffsetQuery),
                 rows = SharedAddress(shared + kOffsetRows);
  LoadQuery<kFormat == Format::kBf16>(args, small, query, row, group);
  FenceAsync();
  NamedSync(1, kMathThreads);

  if constexpr (kWalk) {
    float o[kTiles][32];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 32; ++i) o[j][i] = 0.0f;
    }
    float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.0f, l1 = 0.0f;
    for (int it = 0; it < chunks; ++it) {
      Fold f0, f1;
      Chunk<kFormat, kParts, kTiles * kChunks>(
          args, small, query, rows, me, part, it,
          [&](float cm0, float cl0, float cm1, float cl1) {
            f0 = FoldStep(m0, l0, cm0, cl0), f1 = FoldStep(m1, l1, cm1, cl1);
          },
          [&](int j, float(&y)[16]) {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
              float& z = o[j / 2][(j & 1) * 16 + i];
              z = Folded(z, y[i], (i & 2) ? f1 : f0);
            }
          });
    }
    const float n0 = l0 > 0.0f ? 1.0f / l0 : 0.0f, n1 = l1 > 0.0f ? 1.0f / l1 : 0.0f;
    const int h0 = group * kUnitHeads + r0, h1 = h0 + 8;
    float* target =
        args.out + row * args.out_row + h0 * args.out_head + 2 * me.quad + me.warpgroup * 64;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float* p = target + (part * kTiles + j) * 128 + i * 8;
        if (h0 < args.heads) {
          *reinterpret_cast<float2*>(p) = make_float2(o[j][4 * i] * n0, o[j][4 * i + 1] * n0);
        }
        if (h1 < args.heads) {
          *reinterpret_cast<float2*>(p + 8 * args.out_head) =
              make_float2(o[j][4 * i + 2] * n1, o[j][4 * i + 3] * n1);
        }
      }
    }
    if (args.lse != nullptr && part == 0 && me.warpgroup == 0 && me.quad == 0) {
      if (h0 < args.heads) args.lse[row * args.lse_row + h0] = NaturalLse(m0, l0);
      if (h1 < args.heads) args.lse[row * args.lse_row + h1] = NaturalLse(m1, l1);
    }
  } else {
    // CTA r folds heads r * kHeads .. of the unit. Every CTA lays its partial results over its row
    // tiles and hands each owner its maxima and sums; the owner pulls the rest in 16-byte reads,
    // beginning with its own rank so that the CTAs never queue on one, parks them over its query
    // tiles and folds them in chunk order.
    constexpr int kHeads = kUnitHeads / kCtas;
    float o[kChunks][kTiles][32];
    float m0[kChunks], m1[kChunks], l0[kChunks], l1[kChunks];
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      m0[k] = m1[k] = -INFINITY, l0[k] = l1[k] = 0.0f;
      if (rank + k * kCtas < chunks) {
        Chunk<kFormat, kParts, kTiles * kChunks>(
            args, small, query, rows, me, part, k,
            [&](float cm0, float cl0, float cm1, float cl1) {
              m0[k] = cm0, l0[k] = cl0, m1[k] = cm1, l1[k] = cl1;
            },
            [&](int j, float(&y)[16]) {
#pragma unroll
              for (int i = 0; i < 16; ++i) o[k][j / 2][(j & 1) * 16 + i] = y[i];
            });
      } else {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 32; ++i) o[k][j][i] = 0.0f;
        }
      }
    }
    ClusterWait();  // every CTA has started
    NamedSync(1, kMathThreads);
    float* stage = reinterpret_cast<float*>(shared + kOffsetRows);
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      if (me.warpgroup == 0 && me.quad == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int head = h ? r1 : r0;
          const uint32_t at = PeerAddress(
              SharedAddress(&small->peer_facts[(k * kCtas + rank) * kHeads + head % kHeads]),
              head / kHeads);
          asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at),
                       "f"(h ? m1[k] : m0[k]), "f"(h ? l1[k] : l0[k])
                       : "memory");
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float* p =
              stage + (k * 64 + r0) * kStage + j * 128 + me.warpgroup * 64 + i * 8 + 2 * me.quad;
          *reinterpret_cast<float2*>(p) = make_float2(o[k][j][4 * i], o[k][j][4 * i + 1]);
          *reinterpret_cast<float2*>(p + 8 * kStage) =
              make_float2(o[k][j][4 * i + 2], o[k][j][4 * i + 3]);
        }
      }
    }
    ClusterArrive(), ClusterWait();
    constexpr int kPieces = kLatent / kParts / 4;  // 16-byte pieces of a head's part
#pragma unroll 1
    for (int piece = threadIdx.x; piece < kHeads * kPieces; piece += kMathThreads) {
      const int own_head = piece / kPieces, d = piece % kPieces * 4;
      const int h = rank * kHeads + own_head, head = group * kUnitHeads + h;
      float m = -INFINITY, l = 0.0f, y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      constexpr int kFlight = kChunks < 2 ? kChunks : 2;  // chunks of a CTA pulled at a time
      uint4 v[kFlight][kCtas];
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        if (k % kFlight == 0) {
#pragma unroll
          for (int f = 0; f < kFlight; ++f) {
#pragma unroll
            for (int i = 0; i < kCtas; ++i) {
              if (k + f >= kChunks) continue;
              v[f][i] = LoadPeer(PeerAddress(SharedAddress(stage + ((k + f) * 64 + h) * kStage + d),
                                             (rank + i) & (kCtas - 1)));
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kCtas; ++i) {
          StoreShared(query + (((rank + i) & (kCtas - 1)) * kMathThreads + threadIdx.x) * 16,
                      v[k % kFlight][i]);
        }
#pragma unroll
        for (int r = 0; r < kCtas; ++r) {
          const float2 facts = small->peer_facts[(k * kCtas + r) * kHeads + own_head];
          const Fold f = FoldStep(m, l, facts.x, facts.y);
          const uint4 u = LoadShared(query + (r * kMathThreads + threadIdx.x) * 16);
          y[0] = Folded(y[0], __uint_as_float(u.x), f),
          y[1] = Folded(y[1], __uint_as_float(u.y), f);
          y[2] = Folded(y[2], __uint_as_float(u.z), f),
          y[3] = Folded(y[3], __uint_as_float(u.w), f);
        }
      }
      const float n = l > 0.0f ? 1.0f / l : 0.0f;
      if (head < args.heads) {
        *reinterpret_cast<float4*>(args.out + row * args.out_row + head * args.out_head +
                                   part * (kLatent / kParts) + d) =
            make_float4(y[0] * n, y[1] * n, y[2] * n, y[3] * n);
        if (args.lse != nullptr && part == 0 && d == 0)
          args.lse[row * args.lse_row + head] = NaturalLse(m, l);
      }
    }
    __syncwarp();
    ClusterArriveRelaxed();
    ClusterWait();  // no CTA leaves while a peer may still read it
  }
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#error "sm_90 builds of this file need the architecture-specific target: 90a"
#endif
}

}  // namespace strata::cuda::sm90
