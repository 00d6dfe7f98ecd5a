// Folds the partial results that the sm_90a sparse attention kernel leaves when the chunks of a
// unit are taken apart, in the order and with the operations of the CTA that walks them.
#pragma once

#include "kernels/cuda/sparse_mla_sm90_types.cuh"

namespace strata::cuda::sm90 {

constexpr int kMergeThreads = 128;

// Dynamic shared memory: a piece of each chunk's values, each chunk's facts, and those of the
// halves.
inline int MergeSharedBytes(int chunks) {
  return chunks * kMergeThreads * 16 + (chunks + 2) * kUnitHeads * static_cast<int>(sizeof(Fold));
}

// Grid: pieces of a partial result, units. A thread has the place that one of wgmma's threads had.
// Loops are short: the code is read from memory for the first time by nearly every launch.
template <bool kBf16>
__global__ void __launch_bounds__(kMergeThreads)
    MergeChunksKernel(const __grid_constant__ Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kPieces = Partial<kBf16>::kPieces, kRuns = Partial<kBf16>::kRuns;
  extern __shared__ __align__(1024) char shared[];
  __shared__ float inverse[kUnitHeads];
  const int unit = blockIdx.y, group = unit % args.groups, piece = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = unit / args.groups, first_chunk = int64_t{unit} * args.chunks;
  const uint4* partial = args.partials + (first_chunk * kPieces + piece) * 128 + thread;
  const float2* facts = args.facts + first_chunk * kUnitHeads;
  const uint32_t values = SharedAddress(shared) + thread * 16;
  Fold* folds =
      reinterpret_cast<Fold*>(shared + args.chunks * kMergeThreads * 16);  // [chunks][64 heads]
  Fold* joins = folds + args.chunks * kUnitHeads;                          // [halves][64 heads]
  DependencyWait();

#pragma unroll 4
  for (int i = thread; i < args.chunks * kUnitHeads / 2; i += kMergeThreads) {
    CopyAsync16(SharedAddress(folds + 2 * i), facts + 2 * i, 16);
  }
  CopyCommit();
#pragma unroll 4
  for (int c = 0; c < args.chunks; ++c) {
    CopyAsync16(values + c * kMergeThreads * 16, partial + int64_t{c} * kPieces * 128, 16);
  }
  CopyCommit();
  CopyWait<1>();
  __syncthreads();
  if (thread < kUnitHeads) {  // from each chunk's reference and sum to what folds it
    State whole;
#pragma unroll 1
    for (int half = 0, c = 0; half < 2; ++half) {
      State state;
#pragma unroll 4
      for (const int end = half == 0 ? args.half : args.chunks; c < end; ++c) {
        Fold& fold = folds[c * kUnitHeads + thread];
        const float2 fact = make_float2(fold.alpha, fold.beta);
        fold = state.Join(fact.x, fact.y);
        // Nothing has been computed for a chunk behind the last valid id.
        if (fact.x == -INFINITY && fact.y == 0.0f) fold = {1.0f, -1.0f};
      }
      joins[half * kUnitHeads + thread] = whole.Join(state.m, state.l);
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
  float whole[kRuns][4] = {};
#pragma unroll 1
  for (int half = 0, c = 0; half < 2; ++half) {
    float o[kRuns][4] = {};
#pragma unroll 4
    for (const int end = half == 0 ? args.half : args.chunks; c < end; ++c) {
      const Fold fold[2] = {folds[c * kUnitHeads + h], folds[c * kUnitHeads + h + 8]};
      const uint4 v = LoadShared(values + c * kMergeThreads * 16);
      const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // pairs of columns (f16), or columns (fp32)
        const Fold& f = fold[kBf16 ? k >> 1 : k & 1];
        const uint32_t bits = f.beta < 0.0f ? 0u : word[k];
        if constexpr (kBf16) {
          o[0][k] = Folded(o[0][k], __uint_as_float(bits), f);
        } else {
          const float2 t = __half22float2(Halves(bits));
          float* x = &o[k >> 1][2 * (k & 1)];
          x[0] = Folded(x[0], t.x, f), x[1] = Folded(x[1], t.y, f);
        }
      }
    }
    const Fold* join = joins + half * kUnitHeads + h;
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) whole[k][i] = Folded(whole[k][i], o[k][i], join[i >> 1 << 3]);
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
            make_float2(Normalised(whole[k][2 * i], n), Normalised(whole[k][2 * i + 1], n));
      }
    }
  }
#endif
}

}  // namespace strata::cuda::sm90
