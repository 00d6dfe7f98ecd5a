// Sparse attention for sm_90a: fixed chunks of 64 ids, fixed order of the merge.
//
// A unit is one row and 64 of its heads. Its ids are cut into chunks of 64; a chunk is computed
// from zero accumulators against its own reference, and the chunks' partial results are folded left
// to right by two rounded operations. How many CTAs a unit gets follows the size of the batch:
// - many units: one CTA walks all chunks of each (Spread::kWalk);
// - fewer: a cluster of two CTAs, each walks half of the chunks, then they join (kHalves);
// - few: pairs of chunks are dealt out to more CTAs, which leave a partial result of each in the
//   workspace for a second kernel to fold (kPairs);
// - very few: each chunk has its CTA (kChunks), the second kernel folds pairs first.
// The last two give the same bits; each of the others has an order of its own. kParts CTAs cut the
// 512 output latents: each repeats the scores and multiplies its own part, which changes neither an
// operand nor an order.
//
// A CTA is 2 warpgroups that multiply and 2 that bring rows (sparse_mla_sm90_rows.cuh). A chunk has
// nine tiles: latents 128 j .. 128 j + 127 are tile j (first 64) and tile 4 + j, step j of the
// chunk; RoPE values are tile 8, which goes with the row facts. Each step has a barrier that tells
// it is full and one that tells it is empty, and so has tile 8. 8-bit rows wait beside the
// tiles as they are stored, two chunks ahead, and are converted into a step as soon as the product
// before has left it; bf16 rows arrive in a second set of tiles.
//
// fp8 and int8 rows become f16 tiles: element = code * scale / unit, the unit being a power of two
// not below the row's largest scale (int8: the scale itself), so that an element stays inside f16
// whatever the row's magnitude. The unit rejoins in the score and in P's exponent: P = 2^(score +
// log2 unit - reference); the sum takes P / unit. A chunk's values are f16 sums: at most 64
// products of P <= 1 and an element <= 448. bf16 rows are multiplied as they are, with fp32 sums.
#pragma once

#include <type_traits>

#include "kernels/cuda/sparse_mla_sm90_query.cuh"
#include "kernels/cuda/sparse_mla_sm90_rows.cuh"
#include "kernels/cuda/sparse_mla_sm90_types.cuh"

namespace strata::cuda::sm90 {

// 2^log2_unit and its inverse; 0 and something finite for -infinity. An fp8 row's unit is a power
// of two between 2^-60 and 2^60.
template <Format kFormat>
__device__ __forceinline__ float UnitOf(float log2_unit) {
  if constexpr (kFormat == Format::kInt8) return Exp2(log2_unit);
  return __uint_as_float(__float_as_uint(log2_unit + (12582912.0f + 127.0f)) << 23);
}
template <Format kFormat>
__device__ __forceinline__ float InverseUnitOf(float log2_unit) {
  if constexpr (kFormat == Format::kInt8) return Exp2(-fmaxf(log2_unit, -60.0f));
  return Inverse(UnitOf<kFormat>(log2_unit));
}

// The arithmetic of one chunk. The first of the two multiplying warpgroups scores: 64 heads x 64
// rows by one warpgroup read no more of shared memory than the tensor cores take time. Each
// multiplies the weights with its half of the latents.
template <Format kFormat, int kParts, bool kScores>
struct Multiplier {
  static constexpr bool kBf16 = kFormat == Format::kBf16;
  static constexpr int kBuffers = Small<kBf16>::kBuffers;
  static constexpr int kPartTiles = 4 / kParts;  // tiles of a warpgroup
  static constexpr int kSlices = (kBf16 ? 2 : 1) * kPartTiles;
  static constexpr int kWarpgroup = kScores ? 0 : 1;
  using Slice = std::conditional_t<kBf16, float, uint32_t>;

  const Arguments& args;
  const MathThread& me;
  Small<kBf16>* small;
  uint32_t query, tiles;
  int part;
  float scale0, scale1;  // of the latent scores of heads head0 and head0 + 8

  __device__ __forceinline__ void Free(int buffer, int step) const {
    if (me.lane == 0) BarrierArrive(&small->empty[buffer][step]);
  }
  // Frees tile 8 and the facts for a later chunk.
  __device__ __forceinline__ void FreeFacts(int buffer) const {
    BarrierArrive(&small->facts_empty[buffer]);
  }
  // Frees the steps whose values other CTAs multiply.
  __device__ __forceinline__ void FreeOtherParts(int buffer) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j / kPartTiles != part) Free(buffer, j);
    }
  }
  // The tile of this warpgroup's slice `slice`.
  __device__ __forceinline__ int SliceTile(int slice) const {
    return part * kPartTiles + (kBf16 ? slice / 2 : slice) + 4 * kWarpgroup;
  }
  // Weights cross between the warpgroups through the RoPE tile, which the scores have finished
  // with. Writer and reader hold the same fragment, so it travels in lane order.
  __device__ __forceinline__ uint32_t Exchange(int buffer) const {
    return tiles + (buffer * kTiles + 8) * kTile + (threadIdx.x & 127) * 16;
  }

  // Scores in base 2, with log2 of the rows' units; -infinity where there is no row.
  __device__ __forceinline__ void Scores(int buffer, int parity, float (&s)[32]) const {
    const uint64_t query_tile = TileDescriptor(query),
                   row_tile = TileDescriptor(tiles + buffer * kTiles * kTile);
    float rope[32];
    // The rows were written by ordinary stores of other threads; the fence lets the tensor cores
    // see them. It stands here and not with the writers, whose copies in flight it would wait for.
    BarrierWait(&small->facts_full[buffer], parity);
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
    FreeOtherParts(buffer);
    const float* facts = Facts(buffer);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 l = *reinterpret_cast<const float2*>(facts + 8 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float log2_unit = (i & 1) ? l.y : l.x;
        float& x = s[4 * j + i];
        if constexpr (!kBf16) x *= UnitOf<kFormat>(log2_unit);
        x = __fmaf_rn(x, i < 2 ? scale0 : scale1,
                      __fmaf_rn(rope[4 * j + i], args.scale_log2, log2_unit));
      }
    }
  }
  // log2 units from this thread's first row on.
  __device__ __forceinline__ const float* Facts(int buffer) const {
    return &small->log2_unit[buffer * kChunk + 2 * me.quad];
  }

  // The chunk's references of the two heads: its largest exponents. For f16 weights they are
  // rounded up, so that they change rarely; bf16 keeps the largest weight at 1, which it holds
  // exactly.
  __device__ __forceinline__ void References(const float (&s)[32], float* m0, float* m1) const {
    float x0 = -INFINITY, x1 = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x0 = fmaxf(x0, fmaxf(s[4 * j], s[4 * j + 1]));
      x1 = fmaxf(x1, fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
#pragma unroll
    for (int d = 1; d < 4; d <<= 1) {
      x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, d));
      x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, d));
    }
    *m0 = kBf16 ? x0 : ceilf(x0), *m1 = kBf16 ? x1 : ceilf(x1);
  }

  // Weights of the 64 rows as the A operand of four products, and their sums.
  __device__ __forceinline__ void Weights(int buffer, const float (&s)[32], float m0, float m1,
                                          uint32_t (&p)[16], float* sum0, float* sum1) const {
    const float e0 = m0 == -INFINITY ? 0.0f : m0, e1 = m1 == -INFINITY ? 0.0f : m1;
    const float* facts = Facts(buffer);
    float a0 = 0.0f, a1 = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float u0 = Exp2(s[4 * j] - e0), u1 = Exp2(s[4 * j + 1] - e0);
      const float v0 = Exp2(s[4 * j + 2] - e1), v1 = Exp2(s[4 * j + 3] - e1);
      if constexpr (kBf16) {
        a0 += u0 + u1, a1 += v0 + v1;
        p[2 * j] = PackBf16(u0, u1), p[2 * j + 1] = PackBf16(v0, v1);
      } else {
        const float2 l = *reinterpret_cast<const float2*>(facts + 8 * j);
        const float g0 = InverseUnitOf<kFormat>(l.x), g1 = InverseUnitOf<kFormat>(l.y);
        a0 += u0 * g0 + u1 * g1, a1 += v0 * g0 + v1 * g1;
        p[2 * j] = PackF16(u0, u1), p[2 * j + 1] = PackF16(v0, v1);
      }
      if (j & 1) {
        StoreShared(Exchange(buffer) + j / 2 * 2048,
                    make_uint4(p[2 * j - 2], p[2 * j - 1], p[2 * j], p[2 * j + 1]));
      }
    }
    if (me.quad == 0)
      small->reference[buffer][me.head0] = m0, small->reference[buffer][me.head0 + 8] = m1;
    BarrierArrive(&small->weights_full[buffer]);
    FreeFacts(buffer);
#pragma unroll
    for (int d = 1; d < 4; d <<= 1) {
      a0 += __shfl_xor_sync(~0u, a0, d);
      a1 += __shfl_xor_sync(~0u, a1, d);
    }
    *sum0 = a0, *sum1 = a1;
  }
  // What the other warpgroup takes of them.
  __device__ __forceinline__ void TakeWeights(int buffer, int parity, uint32_t (&p)[16], float* m0,
                                              float* m1) const {
    BarrierWait(&small->weights_full[buffer], parity);
    FreeOtherParts(buffer);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 u = LoadShared(Exchange(buffer) + k * 2048);
      p[4 * k] = u.x, p[4 * k + 1] = u.y, p[4 * k + 2] = u.z, p[4 * k + 3] = u.w;
    }
    *m0 = small->reference[buffer][me.head0], *m1 = small->reference[buffer][me.head0 + 8];
    FreeFacts(buffer);
  }

  // take(slice, values) for each slice of 64 (bf16: 32) latents, from zero accumulators; the next
  // one runs meanwhile.
  template <class Take>
  __device__ __forceinline__ void Values(int buffer, const uint32_t (&p)[16], Take&& take) const {
    Slice x[2][16];
    const auto issue = [&](Slice(&y)[16], int slice) {
      const uint32_t at =
          tiles + (buffer * kTiles + SliceTile(slice)) * kTile + (kBf16 ? (slice & 1) * 64 : 0);
      const uint64_t values = TileDescriptor(at);
      MmaFence();
#pragma unroll
      for (int k = 0; k < 4; ++k) MmaValues(y, p + 4 * k, values + k * 128, k > 0);
      MmaCommit();
    };
    issue(x[0], 0);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (slice + 1 < kSlices) {
        issue(x[(slice + 1) & 1], slice + 1);
        MmaWait<1>();
      } else {
        MmaWait<0>();
      }
      if (!kBf16 || (slice & 1)) Free(buffer, SliceTile(slice) & 3);
      take(slice, x[slice & 1]);
    }
  }

  // Chunk `k` of the CTA. facts(m0, sum0, m1, sum1): references and sums of the two heads (sums of
  // the scoring warpgroup alone); then take() as above.
  template <class FactsOf, class Take>
  __device__ __forceinline__ void Chunk(int k, FactsOf&& facts, Take&& take) const {
    const int buffer = k % kBuffers, parity = k / kBuffers & 1;
    float m0, m1, sum0 = 0.0f, sum1 = 0.0f;
    uint32_t p[16];
    if constexpr (kScores) {
      float s[32];
      Scores(buffer, parity, s);
      References(s, &m0, &m1);
      Weights(buffer, s, m0, m1, p, &sum0, &sum1);
    } else {
      TakeWeights(buffer, parity, p, &m0, &m1);
    }
    facts(m0, sum0, m1, sum1);
    Values(buffer, p, take);
  }
};

// What a CTA keeps of the chunks that it walks: 64 heads, and of the latents those of its part and
// of the thread's warpgroup.
template <Format kFormat, int kParts, bool kScores>
struct Result {
  using M = Multiplier<kFormat, kParts, kScores>;
  static constexpr int kPerSlice = M::kBf16 ? 16 : 32;
  static constexpr int kValues = M::kSlices * kPerSlice;

  const M& multiplier;
  float o[kValues];
  State state0, state1;  // of heads head0 and head0 + 8; sums in the scoring warpgroup alone

  // Chunks begin to end of those that the CTA brings.
  __device__ __forceinline__ void Walk(int begin, int end) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) o[i] = 0.0f;
    state0 = state1 = State();
    float beta0 = 0.0f, beta1 = 0.0f;
#pragma unroll 1
    for (int k = begin; k < end; ++k) {
      multiplier.Chunk(
          k,
          [&](float next0, float sum0, float next1, float sum1) {
            const Fold f0 = state0.Join(next0, sum0), f1 = state1.Join(next1, sum1);
            beta0 = f0.beta, beta1 = f1.beta;
            // Factors of one change nothing, and are the rule once the largest score has been seen.
            if (__any_sync(~0u, f0.alpha != 1.0f || f1.alpha != 1.0f)) {
#pragma unroll
              for (int i = 0; i < kValues; ++i) o[i] = __fmul_rn(o[i], i & 2 ? f1.alpha : f0.alpha);
            }
          },
          [&](int slice, typename M::Slice(&y)[16]) {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
              if constexpr (M::kBf16) {
                float& x = o[slice * kPerSlice + i];
                x = __fmaf_rn(y[i], (i & 2) ? beta1 : beta0, x);
              } else {
                float* x = o + slice * kPerSlice + 2 * i;
                const float2 t = __half22float2(Halves(y[i]));
                const float beta = (i & 1) ? beta1 : beta0;
                x[0] = __fmaf_rn(t.x, beta, x[0]), x[1] = __fmaf_rn(t.y, beta, x[1]);
              }
            }
          });
    }
  }
};

// Writes the result; `whole0` and `whole1` are of all chunks.
template <Format kFormat, int kParts, bool kScores>
__device__ __forceinline__ void Finish(const Arguments& args,
                                       Result<kFormat, kParts, kScores>& result,
                                       const State& whole0, const State& whole1, int64_t row,
                                       int group) {
  using R = Result<kFormat, kParts, kScores>;
  using M = typename R::M;
  const M& multiplier = result.multiplier;
  const float n0 = whole0.l > 0.0f ? 1.0f / whole0.l : 0.0f,
              n1 = whole1.l > 0.0f ? 1.0f / whole1.l : 0.0f;
  const int h0 = group * kUnitHeads + multiplier.me.head0, h1 = h0 + 8;
  float* target = args.out + row * args.out_row + h0 * args.out_head + 2 * multiplier.me.quad +
                  multiplier.part * M::kPartTiles * 128 + M::kWarpgroup * 64;
#pragma unroll
  for (int i = 0; i < R::kValues; i += 4) {
    const int slice = i / R::kPerSlice;
    float* at = target + (M::kBf16 ? slice / 2 * 128 + (slice & 1) * 32 : slice * 128) +
                i % R::kPerSlice * 2;
    const float* o = result.o + i;
    if (h0 < args.heads) {
      *reinterpret_cast<float2*>(at) = make_float2(Normalised(o[0], n0), Normalised(o[1], n0));
    }
    if (h1 < args.heads) {
      *reinterpret_cast<float2*>(at + 8 * args.out_head) =
          make_float2(Normalised(o[2], n1), Normalised(o[3], n1));
    }
  }
  if (kScores && args.lse != nullptr && multiplier.part == 0 && multiplier.me.quad == 0) {
    float* lse = args.lse + row * args.lse_row;
    if (h0 < args.heads) lse[h0] = NaturalLse(whole0.m, whole0.l);
    if (h1 < args.heads) lse[h1] = NaturalLse(whole1.m, whole1.l);
  }
}

// One CTA walks all chunks of the unit.
template <Format kFormat, int kParts, bool kScores>
__device__ __forceinline__ void WalkUnit(const Arguments& args,
                                         const Multiplier<kFormat, kParts, kScores>& multiplier,
                                         int64_t row, int group, int chunks) {
  const MathThread& me = multiplier.me;
  Result<kFormat, kParts, kScores> result{multiplier};
  result.Walk(0, chunks);
  State whole0 = result.state0, whole1 = result.state1;
  float(&sum)[64] = multiplier.small->sum;
  __syncwarp();  // a row without ids: the query's units have only just been read from there
  if (kScores && me.quad == 0) sum[me.head0] = whole0.l, sum[me.head0 + 8] = whole1.l;
  NamedSync(kMathBarrier, kMathThreads);
  whole0.l = sum[me.head0], whole1.l = sum[me.head0 + 8];
  Finish(args, result, whole0, whole1, row, group);
}

// Two CTAs of a cluster walk half of the chunks each. Then each of them joins the latents of one of
// its warpgroups with what the other CTA sends to it, over the query.
template <Format kFormat, int kParts, bool kScores>
__device__ __forceinline__ void WalkHalf(const Arguments& args,
                                         const Multiplier<kFormat, kParts, kScores>& multiplier,
                                         char* shared, int rank, int64_t row, int group,
                                         int chunks) {
  using R = Result<kFormat, kParts, kScores>;
  const MathThread& me = multiplier.me;
  R result{multiplier};
  result.Walk(0, chunks);
  constexpr int kStates = kOffsetQuery + R::kValues * 512;
  static_assert(kStates + 2 * kUnitHeads * sizeof(State) <= kOffsetRows);
  const uint32_t values = SharedAddress(shared + kOffsetQuery) + (threadIdx.x & 127) * 16;
  State* states = reinterpret_cast<State*>(shared + kStates);  // [2][64]
  // Nobody reads a query any more.
  ClusterSync();
  if (rank != R::M::kWarpgroup) {
#pragma unroll
    for (int i = 0; i < R::kValues; i += 4) {
      StoreCluster(values + i / 4 * 2048, rank ^ 1,
                   make_float4(result.o[i], result.o[i + 1], result.o[i + 2], result.o[i + 3]));
    }
  }
  if (kScores && me.quad == 0) {
#pragma unroll
    for (int to = 0; to < 2; ++to) {
      const uint32_t at = SharedAddress(states + rank * kUnitHeads + me.head0);
      StoreCluster(at, to, make_float2(result.state0.m, result.state0.l));
      StoreCluster(at + 8 * sizeof(State), to, make_float2(result.state1.m, result.state1.l));
    }
  }
  ClusterSync();
  if (rank != R::M::kWarpgroup) return;
  State whole0 = states[me.head0], whole1 = states[me.head0 + 8];
  const State next0 = states[kUnitHeads + me.head0], next1 = states[kUnitHeads + me.head0 + 8];
  const Fold f0 = whole0.Join(next0.m, next0.l), f1 = whole1.Join(next1.m, next1.l);
#pragma unroll
  for (int i = 0; i < R::kValues; i += 4) {
    const uint4 bits = LoadShared(values + i / 4 * 2048);
    const uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const Fold& f = k < 2 ? f0 : f1;
      float& mine = result.o[i + k];
      const float theirs = __uint_as_float(word[k]);
      mine = R::M::kWarpgroup == 0 ? Folded(mine, theirs, f) : Folded(theirs, mine, f);
    }
  }
  Finish(args, result, whole0, whole1, row, group);
}

// States what a partial result was computed against, and its sums.
template <Format kFormat, int kParts, bool kScores>
__device__ __forceinline__ void LeaveFacts(const Arguments& args,
                                           const Multiplier<kFormat, kParts, kScores>& multiplier,
                                           int64_t partial, const State& state0,
                                           const State& state1) {
  if (!kScores || multiplier.part != 0 || multiplier.me.quad != 0) return;
  float2* facts = args.facts + partial * kUnitHeads + multiplier.me.head0;
  facts[0] = make_float2(state0.m, state0.l), facts[8] = make_float2(state1.m, state1.l);
}

// The CTA's chunk goes to the workspace.
template <Format kFormat, int kParts, bool kScores>
__device__ __forceinline__ void LeaveChunk(const Arguments& args,
                                           const Multiplier<kFormat, kParts, kScores>& multiplier,
                                           int unit, int rank, bool computed) {
  using M = Multiplier<kFormat, kParts, kScores>;
  const int64_t partial = int64_t{unit} * args.partials + rank;
  if (!computed) return LeaveFacts(args, multiplier, partial, State(), State());
  uint4* values = args.values + partial * Partial<M::kBf16>::kPieces * 128 + (threadIdx.x & 127);
  multiplier.Chunk(
      0,
      [&](float m0, float sum0, float m1, float sum1) {
        LeaveFacts(args, multiplier, partial, State{m0, sum0}, State{m1, sum1});
      },
      [&](int slice, typename M::Slice(&y)[16]) {
        const int first =
            M::kBf16 ? multiplier.SliceTile(slice) * 2 + (slice & 1) : multiplier.SliceTile(slice);
        const uint32_t(&bits)[16] = reinterpret_cast<const uint32_t(&)[16]>(y);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[(first * 4 + i) * 128] =
              make_uint4(bits[4 * i], bits[4 * i + 1], bits[4 * i + 2], bits[4 * i + 3]);
        }
      });
}

// The CTA's pairs of chunks go to the workspace, each folded and, where chunks are f16, rounded to
// f16.
template <Format kFormat, int kParts, bool kScores>
__device__ __forceinline__ void LeavePairs(const Arguments& args,
                                           const Multiplier<kFormat, kParts, kScores>& multiplier,
                                           int unit, int rank, int chunks) {
  using R = Result<kFormat, kParts, kScores>;
  using M = typename R::M;
  R result{multiplier};
#pragma unroll 1
  for (int begin = 0; rank + begin / 2 * args.splits < args.partials; begin += 2) {
    const int64_t partial = int64_t{unit} * args.partials + rank + begin / 2 * args.splits;
    result.Walk(begin, min(begin + 2, chunks));
    LeaveFacts(args, multiplier, partial, result.state0, result.state1);
    if (begin >= chunks) continue;
    uint4* values = args.values + partial * Partial<M::kBf16>::kPieces * 128 + (threadIdx.x & 127);
#pragma unroll
    for (int slice = 0; slice < M::kSlices; ++slice) {
      const int first =
          M::kBf16 ? multiplier.SliceTile(slice) * 2 + (slice & 1) : multiplier.SliceTile(slice);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* o = result.o + slice * R::kPerSlice + i * (R::kPerSlice / 4);
        values[(first * 4 + i) * 128] =
            M::kBf16 ? make_uint4(__float_as_uint(o[0]), __float_as_uint(o[1]),
                                  __float_as_uint(o[2]), __float_as_uint(o[3]))
                     : make_uint4(PackF16(o[0], o[1]), PackF16(o[2], o[3]), PackF16(o[4], o[5]),
                                  PackF16(o[6], o[7]));
      }
    }
  }
}

// The multiplying warpgroups bring the query.
template <bool kBf16>
__device__ __forceinline__ void BringQuery(const Arguments& args, char* shared, int unit) {
  Small<kBf16>* small = reinterpret_cast<Small<kBf16>*>(shared + kOffsetSmall<kBf16>);
  LoadQuery<kBf16>(args, small->sum, SharedAddress(shared + kOffsetQuery), unit / args.groups,
                   unit % args.groups);
  FenceAsync();
  NamedSync(kMathBarrier, kMathThreads);
}

// The part of a multiplying warpgroup in the kernel.
template <Format kFormat, int kParts, Spread kSpread, bool kScores>
__device__ __forceinline__ void Multiply(const Arguments& args, char* shared, int unit, int part,
                                         int rank, ChunkRange range) {
  constexpr bool kBf16 = kFormat == Format::kBf16;
  Small<kBf16>* small = reinterpret_cast<Small<kBf16>*>(shared + kOffsetSmall<kBf16>);
  const int group = unit % args.groups;
  const int64_t row = unit / args.groups;
  const uint32_t query = SharedAddress(shared + kOffsetQuery);
  const MathThread me;
  if constexpr (kBf16) BringQuery<kBf16>(args, shared, unit);
  const Multiplier<kFormat, kParts, kScores> multiplier{args,
                                                        me,
                                                        small,
                                                        query,
                                                        SharedAddress(shared + kOffsetRows),
                                                        part,
                                                        small->sum[me.head0] * args.scale_log2,
                                                        small->sum[me.head0 + 8] * args.scale_log2};
  if constexpr (kSpread == Spread::kChunks) {
    LeaveChunk(args, multiplier, unit, rank, range.count > 0);
  } else if constexpr (kSpread == Spread::kPairs) {
    LeavePairs(args, multiplier, unit, rank, range.count);
  } else if constexpr (kSpread == Spread::kHalves) {
    WalkHalf(args, multiplier, shared, rank, row, group, range.count);
  } else {
    WalkUnit(args, multiplier, row, group, range.count);
  }
}

template <Format kFormat, int kParts, Spread kSpread>
__global__ void __launch_bounds__(kThreads, 1)
    SparseMlaKernel(const __grid_constant__ Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr bool kBf16 = kFormat == Format::kBf16;
  extern __shared__ __align__(1024) char shared[];
  Small<kBf16>* small = reinterpret_cast<Small<kBf16>*>(shared + kOffsetSmall<kBf16>);
  // Whether a second kernel folds what this one leaves; and whether the registers hold a result.
  constexpr bool kLeaves = kSpread == Spread::kChunks || kSpread == Spread::kPairs;
  constexpr bool kHolds = kSpread != Spread::kChunks;
  if constexpr (kLeaves) AllowDependents();
  const int splits = kSpread == Spread::kWalk ? 1 : args.splits;
  const int rank = static_cast<int>(blockIdx.x) % splits;
  const int first_chunk = rank * (kSpread == Spread::kHalves  ? args.half
                                  : kSpread == Spread::kPairs ? 2
                                                              : 1);
  const int part = static_cast<int>(blockIdx.x) / splits % kParts;
  const int unit = static_cast<int>(blockIdx.x) / splits / kParts;
  const int64_t row = unit / args.groups;

  const int32_t* ids = args.ids + row * args.ids_stride;
  // What the rows' addresses hang on is asked for at once.
  int length, sequence, first_id = -1;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(length) : "l"(args.lengths + row));
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(sequence) : "l"(args.sequence + row));
  const int first_column = first_chunk * kChunk +
                           static_cast<int>(threadIdx.x >> 5 & 7) * kWarpRows +
                           static_cast<int>(threadIdx.x & 7);
  if (threadIdx.x >= kMathThreads && first_column < args.columns) {
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(first_id) : "l"(ids + first_column));
  }
  if (threadIdx.x == 0) {
    for (int b = 0; b < Small<kBf16>::kBuffers; ++b) {
      for (int i = 0; i < kSteps; ++i) {
        BarrierInit(&small->full[b][i], kWarps);
        BarrierInit(&small->empty[b][i], kWarps);
      }
      BarrierInit(&small->facts_full[b], 32 * kWarps);
      BarrierInit(&small->facts_empty[b], 32 * kWarps);
      BarrierInit(&small->weights_full[b], 32 * kWarps / 2);
    }
    if constexpr (!kBf16) {
      for (int i = 0; i < 2 * kWarps; ++i) BarrierInit(&small->landed[i / 2][i & 1], 1);
    }
    small->last_column = -1;
  }
  __syncthreads();
  length = min(max(length, 0), args.cells);
  int chunks = args.chunks;
  if (length < args.columns) {  // a short row: the columns behind its last valid id are not walked
    int last = -1;
    for (int c = threadIdx.x; c < args.columns; c += kThreads) {
      if (static_cast<unsigned>(__ldg(ids + c)) < static_cast<unsigned>(length)) last = c;
    }
    last = __reduce_max_sync(~0u, last);
    if ((threadIdx.x & 31) == 0) atomicMax(&small->last_column, last);
    __syncthreads();
    chunks = small->last_column / kChunk + (small->last_column >= 0 ? 1 : 0);
  }
  ChunkRange range{first_chunk, 1, max(0, chunks - first_chunk), false};
  if constexpr (kSpread == Spread::kHalves) range.count = min(range.count, args.half);
  if constexpr (kSpread == Spread::kChunks) range.count = min(range.count, 1);
  if constexpr (kSpread == Spread::kPairs) {
    const int pairs = (chunks + 1) / 2, mine = max(0, (pairs - rank + splits - 1) / splits);
    const bool odd = mine > 0 && chunks % 2 != 0 && (pairs - 1) % splits == rank;
    range = {first_chunk, 2 * splits, 2 * mine - (odd ? 1 : 0), true};
  }

  // Registers, of 512 for a thread of each warpgroup.
  if (threadIdx.x >= kMathThreads) {
    if constexpr (!kHolds) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
    }
    const int warp = static_cast<int>(threadIdx.x - kMathThreads) >> 5;
    const RowPlaces places{args,
                           ids,
                           args.block_table + sequence * args.table_stride,
                           length,
                           range,
                           warp,
                           static_cast<int>(threadIdx.x) & 31};
    const uint32_t tiles = SharedAddress(shared + kOffsetRows);
    if constexpr (kBf16) {
      Bf16Loader{places, small, tiles}.Run(first_id);
    } else {
      const uint32_t codes =
          SharedAddress(shared + kOffsetCodes) + warp * 2 * kWarpRows * kMaxCodeRow;
      // The steps that this CTA does not multiply become free first.
      CodeLoader<kFormat, kLeaves>{places, small, tiles, codes, (part + 1) * (4 / kParts)}.Run(
          first_id);
    }
  } else {
    // Both bring the query by the same instructions. Beside bf16 rows that spills registers: there
    // each has its own, in Multiply().
    if constexpr (!kBf16 || !kHolds) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    if constexpr (!kBf16) BringQuery<kBf16>(args, shared, unit);
    if (threadIdx.x < kMathThreads / 2) {
      if constexpr (kHolds) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
      Multiply<kFormat, kParts, kSpread, true>(args, shared, unit, part, rank, range);
    } else {
      if constexpr (kHolds) asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
      Multiply<kFormat, kParts, kSpread, false>(args, shared, unit, part, rank, range);
    }
  }
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#error "sm_90 builds of this file need the architecture-specific target: 90a"
#endif
}

}  // namespace strata::cuda::sm90
