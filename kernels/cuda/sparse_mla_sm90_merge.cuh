// Folds the partial results that the sm_90a sparse attention kernel leaves: pairs of chunks left to
// right, and before it the two chunks of a pair where each chunk has been left.
#pragma once

#include "kernels/cuda/sparse_mla_sm90_types.cuh"

namespace strata::cuda::sm90 {

constexpr int kMergeThreads = 128;

// Dynamic shared memory: a piece of each partial result's values (an even number of them), what
// folds each, and what folds each pair.
inline int MergeSharedBytes(int partials) {
  const int even = (partials + 1) / 2 * 2;
  return even * kMergeThreads * 16 + even * 3 / 2 * kUnitHeads * static_cast<int>(sizeof(Fold));
}

// Grid: pieces of a partial result, units. A thread has the place that one of wgmma's threads had.
// Loops are short: the code is read from memory for the first time by nearly every launch.
template <bool kBf16, bool kPairs>
__global__ void __launch_bounds__(kMergeThreads)
    MergeKernel(const __grid_constant__ Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kPieces = Partial<kBf16>::kPieces, kRuns = Partial<kBf16>::kRuns;
  extern __shared__ __align__(1024) char shared[];
  __shared__ float inverse[kUnitHeads];
  const int unit = blockIdx.y, group = unit % args.groups, piece = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), even = (args.partials + 1) / 2 * 2;
  const int64_t row = unit / args.groups, first = int64_t{unit} * args.partials;
  const uint4* partial = args.values + (first * kPieces + piece) * 128 + thread;
  const float2* facts = args.facts + first * kUnitHeads;
  const uint32_t values = SharedAddress(shared) + thread * 16;
  Fold* folds =
      reinterpret_cast<Fold*>(shared + even * kMergeThreads * 16);  // [partials][64 heads]
  Fold* joins = folds + even * kUnitHeads;                          // [pairs][64 heads]
  DependencyWait();

#pragma unroll 4
  for (int i = thread; i < args.partials * kUnitHeads / 2; i += kMergeThreads) {
    CopyAsync16(SharedAddress(folds + 2 * i), facts + 2 * i, 16);
  }
  CopyCommit();
#pragma unroll 4
  for (int p = 0; p < args.partials; ++p) {
    CopyAsync16(values + p * kMergeThreads * 16, partial + int64_t{p} * kPieces * 128, 16);
  }
  CopyCommit();
  CopyWait<1>();
  __syncthreads();
  // From references and sums to what folds the values. Nothing has been computed behind the last
  // valid id: beta is negative there.
  const auto join = [&](State& state, int p, int h) {
    const Fold fact = p < args.partials ? folds[p * kUnitHeads + h] : Fold{-INFINITY, 0.0f};
    const Fold fold = state.Join(fact.alpha, fact.beta);
    const bool none = fact.alpha == -INFINITY && fact.beta == 0.0f;
    folds[p * kUnitHeads + h] = none ? Fold{1.0f, -1.0f} : fold;
  };
  if constexpr (!kPairs) {
#pragma unroll 2
    for (int p = thread / kUnitHeads * 2; p < args.partials; p += kMergeThreads / kUnitHeads * 2) {
      const int h = thread % kUnitHeads;
      State pair;
      join(pair, p, h), join(pair, p + 1, h);
      joins[p / 2 * kUnitHeads + h] = {pair.m, pair.l};
    }
    __syncthreads();
  }
  if (thread < kUnitHeads) {
    State whole;
#pragma unroll 4
    for (int p = 0; p < (kPairs ? args.partials : even / 2); ++p) {
      if constexpr (kPairs) {
        join(whole, p, thread);
      } else {
        Fold& fold = joins[p * kUnitHeads + thread];
        fold = whole.Join(fold.alpha, fold.beta);
      }
    }
    const int head = group * kUnitHeads + thread;
    inverse[thread] = whole.l > 0.0f ? 1.0f / whole.l : 0.0f;
    if (args.lse != nullptr && piece == 0 && head < args.heads) {
      args.lse[row * args.lse_row + head] = NaturalLse(whole.m, whole.l);
    }
  }
  CopyWait<0>();
  __syncthreads();

  const int lane = thread & 31, h = (thread >> 5) * 16 + (lane >> 2);
  float o[kRuns][4] = {};
  // Partial result p joins x.
  const auto take = [&](float(&x)[kRuns][4], int p) {
    const Fold fold[2] = {folds[p * kUnitHeads + h], folds[p * kUnitHeads + h + 8]};
    const uint4 v = LoadShared(values + p * kMergeThreads * 16);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // pairs of columns (f16), or columns (fp32)
      const Fold& f = fold[kBf16 ? k >> 1 : k & 1];
      const uint32_t bits = f.beta < 0.0f ? 0u : word[k];
      if constexpr (kBf16) {
        x[0][k] = Folded(x[0][k], __uint_as_float(bits), f);
      } else {
        const float2 t = __half22float2(Halves(bits));
        float* y = &x[k >> 1][2 * (k & 1)];
        y[0] = Folded(y[0], t.x, f), y[1] = Folded(y[1], t.y, f);
      }
    }
  };
#pragma unroll 2
  for (int p = 0; p < args.partials; p += kPairs ? 1 : 2) {
    if constexpr (kPairs) {
      take(o, p);
    } else {
      float x[kRuns][4] = {};
      take(x, p), take(x, p + 1);
      const Fold* join = joins + p / 2 * kUnitHeads + h;
      const Fold f0 = join[0], f1 = join[8];
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          float2 t = make_float2(x[k][i], x[k][i + 1]);
          if constexpr (!kBf16) t = __half22float2(Halves(PackF16(t.x, t.y)));  // as a pair is left
          const Fold& f = i == 0 ? f0 : f1;
          o[k][i] = Folded(o[k][i], t.x, f), o[k][i + 1] = Folded(o[k][i + 1], t.y, f);
        }
      }
    }
  }
  // A tile is 8 runs of latents.
  const int run = piece * kRuns, tile = run >> 3, head = group * kUnitHeads + h;
  float* target = args.out + row * args.out_row + head * args.out_head + (tile & 3) * 128 +
                  (tile >> 2) * 64 + (run & 7) * 8 + 2 * (lane & 3);
#pragma unroll
  for (int k = 0; k < kRuns; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (head + 8 * i < args.heads) {
        const float n = inverse[h + 8 * i];
        *reinterpret_cast<float2*>(target + k * 8 + 8 * i * args.out_head) =
            make_float2(Normalised(o[k][2 * i], n), Normalised(o[k][2 * i + 1], n));
      }
    }
  }
#endif
}

}  // namespace strata::cuda::sm90
