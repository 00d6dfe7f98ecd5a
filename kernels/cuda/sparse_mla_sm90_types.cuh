// What the parts of the sm_90a sparse attention kernel share: sizes, arguments, shared memory, and
// how partial results join.
#pragma once

#include "kernels/cuda/sparse_mla_sm90_parts.cuh"

namespace strata::cuda::sm90 {

enum class Format { kFp8, kInt8, kBf16 };

constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kChunk = 64;       // ids
constexpr int kUnitHeads = 64;   // the M of a wgmma
constexpr int kTile = 64 * 128;  // bytes: 64 rows of 64 16-bit values
constexpr int kTiles = 9;        // of a chunk, and of the query
constexpr int kThreads = 512;
constexpr int kMathThreads = 256;
constexpr int kWarps = 8;            // that multiply; that bring rows
constexpr int kWarpRows = 8;         // of a chunk, brought by one warp
constexpr int kMaxSplitChunks = 64;  // of a row whose partial results are folded by a second kernel

// How the CTAs of a unit divide its chunks: one takes all, two take half each, each takes one, or
// pairs of neighbours are dealt out.
enum class Spread { kWalk, kHalves, kChunks, kPairs };

struct Arguments {
  const void* query;
  int64_t query_row, query_head;  // elements
  bool query_bf16;
  const uint8_t* cache;
  int64_t page_stride;  // bytes
  const int32_t* block_table;
  int64_t table_stride;
  int cells;  // that a row of the block table covers
  const int32_t* sequence;
  const int32_t* ids;
  int64_t ids_stride;
  int columns, chunks;  // chunks: of all columns
  int half;             // chunks of a unit's first half
  const int32_t* lengths;
  float* out;
  int64_t out_row, out_head;
  float* lse;  // may be null
  int64_t lse_row;
  int heads, groups;
  int row_bytes;
  bool has_rope;
  float scale_log2;  // softmax scale * log2(e)
  int splits;
  // What is left for a second kernel: a partial result of each chunk, or of each pair of chunks.
  int partials;
  float2* facts;  // [units][partials][64 heads]: reference, sum
  uint4* values;  // [units][partials][Partial::kPieces][128 threads]
};

// A partial result's values as one thread of wgmma's layout holds them, in pieces of 16 bytes:
// heads head0 and head0 + 8, columns 2 quad and 2 quad + 1 of 8, of one (fp32) or two (f16) runs of
// 8 latents.
template <bool kBf16>
struct Partial {
  static constexpr int kRuns = kBf16 ? 1 : 2;
  static constexpr int kPieces = kLatent / 8 / kRuns;
};

// Shared memory: the query's tiles, the tiles of one chunk (bf16: of two), the codes that are on
// their way (bf16: none), and this. 8-bit rows fill it to the last byte that a CTA can have.
template <bool kBf16>
struct Small {
  static constexpr int kBuffers = kBf16 ? 2 : 1;
  // Per head, from the scoring warpgroup to the other.
  float reference[kBuffers][64], sum[64];
  float log2_unit[kBuffers * kChunk];  // of the rows in the tiles; -infinity where there is no row
  uint64_t full[kBuffers][4], empty[kBuffers][4];
  // Tile 8 and the row facts: brought, no longer needed; the weights that take the tile's place.
  // Every thread that has written or read them arrives.
  uint64_t facts_full[kBuffers], facts_empty[kBuffers], weights_full[kBuffers];
  uint64_t landed[kBf16 ? 1 : kWarps][2];  // 8-bit rows: a warp's codes of a chunk, by chunk & 1
  int last_column;
};
constexpr int kMaxCodeRow = 656;
constexpr int kOffsetQuery = 0;
constexpr int kOffsetRows = kTiles * kTile;
constexpr int kOffsetCodes = 2 * kTiles * kTile;
template <bool kBf16>
constexpr int kOffsetSmall = kBf16 ? 3 * kTiles* kTile : kOffsetCodes + 2 * kChunk* kMaxCodeRow;
template <bool kBf16>
constexpr int kSharedBytes = kOffsetSmall<kBf16> + static_cast<int>(sizeof(Small<kBf16>));
static_assert(kSharedBytes<false> <= 232448 && kSharedBytes<true> <= 232448);

// Step j of a chunk: latents 128 j .. 128 j + 127, in tile j (first 64) and tile 4 + j. One of each
// warp that brings rows fills it, one of each that multiplies empties it.
constexpr int kSteps = 4;
// Named barrier of the multiplying warpgroups.
constexpr int kMathBarrier = 1;

// One more partial result joins: o = o * alpha + t * beta. References are whole numbers, so that
// both factors are powers of two.
struct Fold {
  float alpha, beta;
};
__device__ __forceinline__ Fold FoldReference(float& reference, float next) {
  const float joint = fmaxf(reference, next);
  const float base = joint == -INFINITY ? 0.0f : joint;
  const Fold fold{Exp2(reference - base), Exp2(next - base)};
  reference = joint;
  return fold;
}
__device__ __forceinline__ float Folded(float o, float t, Fold fold) {
  return __fmaf_rn(t, fold.beta, __fmul_rn(o, fold.alpha));
}

// The output value; the sum turns -0, which a fold leaves or not by its plan, into 0.
__device__ __forceinline__ float Normalised(float o, float inverse_sum) {
  return __fmaf_rn(o, inverse_sum, 0.0f);
}
__device__ __forceinline__ float NaturalLse(float reference, float sum) {
  return sum == 0.0f ? -INFINITY : (reference + log2f(sum)) * 0.6931471805599453f;
}

// What has been folded of one head: its reference and its sum.
struct State {
  float m = -INFINITY, l = 0.0f;
  __device__ __forceinline__ Fold Join(float next_m, float next_l) {
    const Fold fold = FoldReference(m, next_m);
    l = Folded(l, next_l, fold);
    return fold;
  }
};

// What a thread of a multiplying warpgroup knows about itself. It holds heads head0 and head0 + 8
// in wgmma's order.
struct MathThread {
  int lane, quad, head0;
  __device__ __forceinline__ MathThread() {
    lane = threadIdx.x & 31, quad = lane & 3;
    head0 = static_cast<int>(threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
  }
};

}  // namespace strata::cuda::sm90
