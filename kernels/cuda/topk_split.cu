// Exact selection with a row's chunks spread over many CTAs: one short launch per digit of the
// order key, one that counts winners per chunk, one that writes them. Any architecture. Launches
// communicate through the workspace.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/topk_row.cuh"
#include "kernels/cuda/topk_variants.h"

namespace strata::cuda {

namespace {

constexpr int kDigits = 3;       // 11, 11 and 10 bits, the highest first
constexpr int kMinChunk = 4096;  // scores
constexpr int kMaxChunks = 256;  // of a row

struct RowState {
  uint32_t bins[kDigits][kTopkBins];
  uint2 winners[kMaxChunks];  // of each chunk: keys above the edge, keys at it
};

struct Launch {
  TopkSelect op;
  RowState* states;
  int chunk;  // scores, a multiple of 128 * warps
};

__device__ __forceinline__ int DigitShift(int digit) {
  return digit == 0 ? 21 : digit == 1 ? 10 : 0;
}
__device__ __forceinline__ uint32_t Digit(uint32_t key, int digit) {
  return key >> DigitShift(digit) & (digit == 2 ? 0x3ffu : 0x7ffu);
}

// What the digits before `digits` say: the leading bits of the last winner's key, and how many keys
// with those bits win. All threads of the CTA call.
struct Edge {
  uint32_t prefix, need;
};
__device__ __forceinline__ Edge Narrow(const RowState& state, int digits, uint32_t places,
                                       uint32_t* sums, uint32_t* found) {
  Edge edge{0, places};
  for (int digit = 0; digit < digits; ++digit) {
    const int at = kTopkBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const uint32_t counts[2] = {__ldcg(&state.bins[digit][at]), __ldcg(&state.bins[digit][at - 1])};
    FindBin(counts, at, edge.need, sums, found);
    __syncthreads();
    edge.prefix |= found[0] << DigitShift(digit);
    edge.need -= found[1];
    __syncthreads();
  }
  return edge;
}

// This CTA's scores; f(key, index) for each, in steps of 32 consecutive ones per warp, every lane
// in every call.
template <class F>
__device__ __forceinline__ void Visit(const Launch& launch, int64_t row, const RowPlan& plan,
                                      const F& f) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int part = launch.chunk / kTopkWarps,
            begin = static_cast<int>(blockIdx.x) * launch.chunk + warp * part;
  const int end = min(begin + part, plan.candidates);
  const float* scores = launch.op.scores.row(row);
  constexpr int kUnroll = 4;
  for (int step = begin; step < end; step += 32 * kUnroll) {
    float score[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = step + u * 32 + lane;
      score[u] = at < end ? __ldcg(scores + at) : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = step + u * 32 + lane;
      f(OrderKey(__float_as_uint(score[u])), at, at < end);
    }
  }
}

__global__ void __launch_bounds__(kTopkThreads, 1)
    CountDigitKernel(const __grid_constant__ Launch launch, int digit) {
  __shared__ uint32_t bins[kTopkBins], sums[kTopkWarps], found[3];
  const int64_t row = blockIdx.y;
  const RowPlan plan = PlanRow(launch.op, row);
  if (plan.all() || plan.places <= 0 ||
      static_cast<int>(blockIdx.x) * launch.chunk >= plan.candidates)
    return;
  RowState& state = launch.states[row];
  bins[threadIdx.x] = bins[threadIdx.x + kTopkThreads] = 0;
  const Edge edge = Narrow(state, digit, static_cast<uint32_t>(plan.places), sums, found);
  __syncthreads();
  const uint32_t care = digit == 0 ? 0u : ~0u << DigitShift(digit - 1);
  const int lane = threadIdx.x & 31;
  Visit(launch, row, plan, [&](uint32_t key, int, bool there) {
    const bool in = there && (key & care) == edge.prefix;
    const unsigned any = __ballot_sync(~0u, in);
    if (any == 0) return;
    // Keys crowd in few bins: the first lane's bin is added once for the warp.
    const int leader = __ffs(any) - 1;
    const uint32_t bin = Digit(key, digit), hot = __shfl_sync(~0u, bin, leader);
    const unsigned same = __ballot_sync(~0u, in && bin == hot);
    if (lane == leader) atomicAdd(&bins[hot], static_cast<uint32_t>(__popc(same)));
    if (in && bin != hot) atomicAdd(&bins[bin], 1u);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < kTopkBins; i += kTopkThreads) {
    if (bins[i] != 0) atomicAdd(&state.bins[digit][i], bins[i]);
  }
}

// Winners per chunk, or, with kWrite, the winners themselves.
template <bool kWrite>
__global__ void __launch_bounds__(kTopkThreads, 1)
    WinnersKernel(const __grid_constant__ Launch launch) {
  __shared__ uint32_t sums[kTopkWarps], found[3], warp_above[kTopkWarps], warp_equal[kTopkWarps];
  const int64_t row = blockIdx.y;
  const RowPlan plan = PlanRow(launch.op, row);
  if (kWrite && blockIdx.x == 0) FinishRow(launch.op, row, plan, threadIdx.x, kTopkThreads);
  if (plan.all() || plan.places <= 0 ||
      static_cast<int>(blockIdx.x) * launch.chunk >= plan.candidates)
    return;
  RowState& state = launch.states[row];
  const Edge edge = Narrow(state, kDigits, static_cast<uint32_t>(plan.places), sums, found);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t above = 0, equal = 0;
  Visit(launch, row, plan, [&](uint32_t key, int, bool there) {
    above += there && key > edge.prefix;
    equal += there && key == edge.prefix;
  });
  above = WarpSum(above);
  equal = WarpSum(equal);
  if (lane == 0) warp_above[warp] = above, warp_equal[warp] = equal;
  __syncthreads();
  if constexpr (!kWrite) {
    above = WarpSum(warp_above[lane]);
    equal = WarpSum(warp_equal[lane]);
    if (threadIdx.x == 0) state.winners[blockIdx.x] = make_uint2(above, equal);
  } else {
    uint32_t taken = lane < warp ? warp_above[lane] : 0u,
             ties = lane < warp ? warp_equal[lane] : 0u;
    for (int c = lane; c < static_cast<int>(blockIdx.x); c += 32) {
      const uint2 before = __ldcg(&state.winners[c]);
      taken += before.x;
      ties += before.y;
    }
    taken = WarpSum(taken);
    ties = WarpSum(ties);
    const unsigned lanes_before = (1u << lane) - 1u;
    Visit(launch, row, plan, [&](uint32_t key, int at, bool there) {
      const bool wins = there && key > edge.prefix, tie = there && key == edge.prefix;
      const unsigned greater = __ballot_sync(~0u, wins), same = __ballot_sync(~0u, tie);
      const uint32_t ties_before = ties + __popc(same & lanes_before);
      if (wins || (tie && ties_before < edge.need)) {
        WriteWinner(
            launch.op, row,
            static_cast<int>(taken + __popc(greater & lanes_before) + min(ties_before, edge.need)),
            at);
      }
      taken += __popc(greater);
      ties += __popc(same);
    });
  }
}

}  // namespace

size_t TopkSplitWorkspaceBytes(int64_t rows, int64_t) {
  return static_cast<size_t>(rows) * sizeof(RowState) + 64;
}

void RunTopkSplit(const TopkSelect& op, const DeviceLimits& limits, cudaStream_t stream) {
  const int64_t rows = op.ids.dim(0), capacity = op.scores.dim(1);
  CheckGrid(rows, "TopkSelect split", "rows");
  const uintptr_t base = (reinterpret_cast<uintptr_t>(op.workspace.data) + 63) / 64 * 64;
  // Two CTAs per multiprocessor over all rows, chunks neither tiny nor too many for a row's state.
  const int64_t wanted =
      std::clamp<int64_t>(2 * limits.multiprocessors / std::max<int64_t>(rows, 1), 1, kMaxChunks);
  const int64_t chunk = std::max<int64_t>(kMinChunk, (capacity + wanted - 1) / wanted);
  Launch launch{.op = op,
                .states = reinterpret_cast<RowState*>(base),
                .chunk = static_cast<int>((chunk + 4095) / 4096 * 4096)};
  const dim3 grid(
      static_cast<unsigned>(std::max<int64_t>(1, (capacity + launch.chunk - 1) / launch.chunk)),
      static_cast<unsigned>(rows));
  CheckCuda(cudaMemsetAsync(launch.states, 0, static_cast<size_t>(rows) * sizeof(RowState), stream),
            "TopkSelect split: clear");
  for (int digit = 0; digit < kDigits; ++digit)
    CountDigitKernel<<<grid, kTopkThreads, 0, stream>>>(launch, digit);
  WinnersKernel<false><<<grid, kTopkThreads, 0, stream>>>(launch);
  WinnersKernel<true><<<grid, kTopkThreads, 0, stream>>>(launch);
  CheckCuda(cudaGetLastError(), "TopkSelect split");
}

}  // namespace strata::cuda
