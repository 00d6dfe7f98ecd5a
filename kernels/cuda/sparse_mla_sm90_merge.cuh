// Folds the partial results that the sm_90a sparse attention kernel leaves when the chunks of a
// unit are taken apart, in the order and with the operations of the CTA that walks them.
#pragma once

#include "kernels/cuda/sparse_mla_sm90_types.cuh"

namespace strata::cuda::sm90 {

constexpr int kMergeThreads = 256;
constexpr int kMergePieces = kMergeThreads / 128;  // of a partial result, per CTA

// Grid: pieces / kMergePieces, units. A thread has the place that one of wgmma's threads had.
template <bool kBf16>
__global__ void __launch_bounds__(kMergeThreads)
    MergeChunksKernel(const __grid_constant__ Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kPieces = Partial<kBf16>::kPieces, kRuns = Partial<kBf16>::kRuns;
  constexpr int kFlight = 16;  // chunks asked for at a time
  __shared__ Fold folds[kMaxSplitChunks][64];
  __shared__ float inverse[64];
  const int unit = blockIdx.y, group = unit % args.groups;
  const int64_t row = unit / args.groups, first_chunk = int64_t{unit} * args.chunks;
  const int piece = blockIdx.x * kMergePieces + (threadIdx.x >> 7), thread = threadIdx.x & 127;
  const uint4* partial = args.partials + (first_chunk * kPieces + piece) * 128 + thread;
  DependencyWait();

  uint4 v[kFlight];
  const auto ask = [&](int first) {
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      if (first + i < args.chunks) v[i] = __ldcg(partial + int64_t{first + i} * kPieces * 128);
    }
  };
  ask(0);
  const float2* facts = args.facts + first_chunk * kUnitHeads;
  for (int i = threadIdx.x; i < args.chunks * kUnitHeads; i += kMergeThreads) {
    const float2 fact = __ldcg(facts + i);
    folds[i / kUnitHeads][i % kUnitHeads] = {fact.x, fact.y};
  }
  __syncthreads();
  if (threadIdx.x < kUnitHeads) {  // from each chunk's reference and sum to what folds it
    float m = -INFINITY, l = 0.0f;
#pragma unroll 8
    for (int c = 0; c < args.chunks; ++c) {
      const Fold fact = folds[c][threadIdx.x];
      Fold f = FoldReference(m, fact.alpha);
      l = Folded(l, fact.beta, f);
      // Nothing has been computed for a chunk behind the last valid id.
      if (fact.alpha == -INFINITY && fact.beta == 0.0f) f = {1.0f, -1.0f};
      folds[c][threadIdx.x] = f;
    }
    const int head = group * kUnitHeads + static_cast<int>(threadIdx.x);
    inverse[threadIdx.x] = l > 0.0f ? 1.0f / l : 0.0f;
    if (args.lse != nullptr && blockIdx.x == 0 && head < args.heads) {
      args.lse[row * args.lse_row + head] = NaturalLse(m, l);
    }
  }
  __syncthreads();

  const int lane = thread & 31, h = (thread >> 5) * 16 + (lane >> 2);
  float o[kRuns][4] = {};
  for (int first = 0; first < args.chunks; first += kFlight) {
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      if (first + i >= args.chunks) break;
      const Fold fold[2] = {folds[first + i][h], folds[first + i][h + 8]};
      const uint32_t word[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // pairs of columns (f16), or columns (fp32)
        const Fold& f = fold[kBf16 ? k >> 1 : k & 1];
        const bool none = f.beta < 0.0f;
        if constexpr (kBf16) {
          o[0][k] = Folded(o[0][k], none ? 0.0f : __uint_as_float(word[k]), f);
        } else {
          const float2 t = __half22float2(Halves(none ? 0u : word[k]));
          float* x = &o[k >> 1][2 * (k & 1)];
          x[0] = Folded(x[0], t.x, f), x[1] = Folded(x[1], t.y, f);
        }
      }
    }
    ask(first + kFlight);
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
