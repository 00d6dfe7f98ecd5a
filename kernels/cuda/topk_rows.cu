// Exact selection with one CTA per row (any architecture), or with a cluster of CTAs per row that
// exchange what they count through shared memory (sm_90a).
//
// A cluster first lists what lies above a cut that a sample suggests (topk_shortlist.cuh); each CTA
// takes its piece's winners from the list. When the list does not serve, and for a single CTA:
//
// Each CTA takes a contiguous piece of the row, so that ascending ids and "lowest index first" are
// prefix sums:
//
// 1. Read the scores once, keep their order keys in shared memory when they fit. The threads form
//    as many groups as there are places; the least of the groups' largest keys is a bound that at
//    least as many scores reach as there are places. Each warp lists where in its part such keys
//    are; a list that would overflow is not used, the keys are then visited.
// 2. Count the listed keys into 2048 equal bins up to the largest, find the bin of the last place,
//    narrow to it.
// 3. When few keys share that bin, collect them and rank them pairwise; else narrow again, down to
//    a single key value.
// 4. Count winners per warp, and write them behind those of the warps and CTAs before.
#include <algorithm>
#include <bit>

#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/topk_row.cuh"
#include "kernels/cuda/topk_shortlist.cuh"
#include "kernels/cuda/topk_variants.h"

namespace strata::cuda {

namespace {

constexpr int kMaxCluster = 16;
constexpr int kMerged = 512;  // entries of all CTAs ranked by pairwise comparison
constexpr int kListed = 512;  // keys a warp lists
constexpr int64_t kMaxCachedKeys = 36864;

struct Launch {
  TopkSelect op;
  int cluster_bits;
  int cached_keys;  // order keys that fit the launch's shared memory
  bool aligned;     // score rows start at multiples of 16 bytes
  bool shortlist;   // there is room for one
};

struct alignas(16) Shared {
  uint32_t bins[kTopkBins];
  uint32_t sums[kTopkBins];  // of a slice of all CTAs' bins; before that, the groups' largest keys
  uint64_t boundary[kMerged];  // this CTA's entries of the boundary bin, or all CTAs' keys of it
  uint64_t merged[kMerged];    // all CTAs'
  uint32_t warp_sums[kTopkWarps];
  uint32_t found[3];
  uint32_t boundary_count;
  // One word from each CTA of the cluster.
  uint32_t low[kMaxCluster], high[kMaxCluster], slice[kMaxCluster], entries[kMaxCluster],
      above[kMaxCluster], equal[kMaxCluster];
  uint4 lists[kMaxCluster];  // of each CTA: entries, scores at the tie, the largest key
  uint32_t list_count, list_equal, list_high;  // this CTA's
  uint32_t list_before, list_tied;
  uint64_t last;  // the word of the last place
};
static_assert(kMerged == kBoundary);
// Behind it: a short list, or places of the keys that can win and the keys.
constexpr int kListedBytes = kTopkWarps * kListed * 2;

// The CTAs that work on a row.
template <bool kCluster>
struct Team {
  int rank, size, bits;  // size is 1 << bits
  __device__ __forceinline__ void Sync() const {
#if STRATA_SM90A
    if constexpr (kCluster) return ClusterSync();
#endif
    __syncthreads();
  }
  template <class T>
  __device__ __forceinline__ T* At(T* shared, int rank_there) const {
#if STRATA_SM90A
    if constexpr (kCluster) return InCta(shared, rank_there);
#endif
    return shared;
  }
  // Begin() early, Begun() before the first At() or Tell(): shared memory of a CTA that has not
  // begun must not be touched.
  __device__ __forceinline__ void Begin() const {
#if STRATA_SM90A
    if constexpr (kCluster) ClusterArrive();
#endif
  }
  __device__ __forceinline__ void Begun() const {
#if STRATA_SM90A
    if constexpr (kCluster) ClusterWait();
#endif
  }
  // Writes `value` as this CTA's word into `words` of every CTA; visible behind Sync().
  __device__ __forceinline__ void Tell(uint32_t* words, uint32_t value, int thread) const {
    if (thread < size) At(words, thread)[rank] = value;
  }
};

// A CTA's piece of a row. Warps take consecutive parts of it, 128 keys a step, so that order inside
// the piece is the order of (warp, step, lane, element).
struct Piece {
  const float* scores;
  uint32_t* keys;
  int first, count;  // of the row
  bool cached = false, aligned;
  int begin, end;   // of this warp
  int listed = -1;  // keys of this warp that can win, -1: no list

  __device__ __forceinline__ uint32_t LoadKey(int at) const {
    return OrderKey(__float_as_uint(__ldcg(scores + at)));
  }
  __device__ __forceinline__ uint4 LoadKeys(int at) const {
    const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(scores + at));
    return make_uint4(OrderKey(bits.x), OrderKey(bits.y), OrderKey(bits.z), OrderKey(bits.w));
  }
  // Lists this warp's keys of at least `low`, in order.
  __device__ __forceinline__ void List(uint16_t* list, uint32_t low, int lane) {
    int count_listed = 0;
    const unsigned lanes_before = (1u << lane) - 1u;
#pragma unroll 1
    for (int step = begin; step < end; step += 128) {
      const int at = step + lane * 4;
      const uint4 key = *reinterpret_cast<const uint4*>(keys + at);
      const bool in[4] = {at < count && key.x >= low, at + 1 < count && key.y >= low,
                          at + 2 < count && key.z >= low, at + 3 < count && key.w >= low};
      int place = count_listed;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const unsigned all = __ballot_sync(~0u, in[e]);
        place += __popc(all & lanes_before);
        count_listed += __popc(all);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (in[e] && place < kListed) list[place] = static_cast<uint16_t>(at + e);
        place += in[e];
      }
    }
    __syncwarp();
    listed = count_listed <= kListed ? count_listed : -1;
  }
  // f(key, place in the piece, whether it is there) for all keys that can win, ascending in (call,
  // lane); every lane of the warp is in every call.
  template <class F>
  __device__ __forceinline__ void Visit(const uint16_t* list, int lane, const F& f) const {
    const int limit = listed >= 0 ? listed : end - begin;
#pragma unroll 1
    for (int i = lane; i - lane < limit; i += 32) {
      const bool there = i < limit;
      const int at = listed < 0 ? begin + i : there ? list[i] : 0;
      uint32_t key = 0;
      if (there) key = cached ? keys[at] : LoadKey(at);
      f(key, at, there);
    }
  }
};

__device__ __forceinline__ void CountKey(uint32_t* bins, uint32_t bin, bool in, int lane) {
  const unsigned any = __ballot_sync(~0u, in);
  // Many keys of a warp in one bin (exact zeros, say) must not be added one by one.
  if (__popc(any) > 8) {
    const int leader = __ffs(any) - 1;
    const uint32_t hot = __shfl_sync(~0u, bin, leader);
    const unsigned same = __ballot_sync(~0u, in && bin == hot);
    if (lane == leader) atomicAdd(&bins[hot], static_cast<uint32_t>(__popc(same)));
    in = in && bin != hot;
  }
  if (in) atomicAdd(&bins[bin], 1u);
}

// Keys above `key` win, and of those equal to it the first `need` of the row.
struct Edge {
  uint32_t key, need;
};

// The edge of a row whose piece this CTA has; all CTAs of the team call.
template <bool kCluster>
__device__ __forceinline__ Edge FindEdge(const Team<kCluster>& team, Piece& piece, int places,
                                         uint16_t* list, Shared& s) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  // The bound. A thread's four columns give two group members, so that up to 2048 groups have one
  // each.
  const int groups = (places + team.size - 1) / team.size;
  s.sums[thread] = s.sums[thread + kTopkThreads] = 0;
  uint32_t most[2] = {0, 0};
  // Full steps of four 16-byte loads; what is left, and rows that are not aligned, key by key.
  int step = piece.begin;
#pragma unroll 1
  for (; piece.aligned && step + 512 <= piece.end; step += 512) {
    uint4 key[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) key[u] = piece.LoadKeys(step + u * 128 + lane * 4);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      if (piece.cached) *reinterpret_cast<uint4*>(piece.keys + step + u * 128 + lane * 4) = key[u];
      most[0] = max(most[0], max(key[u].x, key[u].y));
      most[1] = max(most[1], max(key[u].z, key[u].w));
    }
  }
#pragma unroll 1
  for (; piece.aligned && step + 128 <= piece.end; step += 128) {
    const uint4 key = piece.LoadKeys(step + lane * 4);
    if (piece.cached) *reinterpret_cast<uint4*>(piece.keys + step + lane * 4) = key;
    most[0] = max(most[0], max(key.x, key.y));
    most[1] = max(most[1], max(key.z, key.w));
  }
#pragma unroll 1
  for (step += lane; step < piece.end; step += 32) {
    const uint32_t key = piece.LoadKey(step);
    if (piece.cached) piece.keys[step] = key;
    if ((step & 32) == 0) {
      most[0] = max(most[0], key);
    } else {
      most[1] = max(most[1], key);
    }
  }
  const uint32_t top = WarpMax(max(most[0], most[1]));
  if (lane == 0) s.warp_sums[warp] = top;
  __syncthreads();
  if (groups <= 2 * kTopkThreads) {
    atomicMax(&s.sums[thread % groups], most[0]);
    atomicMax(&s.sums[(thread + kTopkThreads) % groups], most[1]);
  }
  __syncthreads();
  uint32_t least = ~0u;
  if (groups <= 2 * kTopkThreads) {
#pragma unroll 1
    for (int g = thread; g < groups; g += kTopkThreads) least = min(least, s.sums[g]);
  } else {
    least = 0;
  }
  least = WarpMin(least);
  const uint32_t cta_top = WarpMax(s.warp_sums[lane]);
  __syncthreads();
  if (lane == 0) s.warp_sums[warp] = least;
  __syncthreads();
  least = WarpMin(s.warp_sums[lane]);
  team.Tell(s.low, least, thread);
  team.Tell(s.high, cta_top, thread);
  team.Sync();
  uint32_t low = WarpMin(s.low[lane % team.size]), high = WarpMax(s.high[lane % team.size]);
  if (piece.cached) piece.List(list, low, lane);

  // Narrow [low, high] around the key of the last place; `need` of the keys inside win.
  uint32_t need = static_cast<uint32_t>(places);
  const int slice_bits = __ffs(kTopkBins) - __ffs(team.size), slice = 1 << slice_bits;
#pragma unroll 1
  while (true) {
    const uint32_t width = high - low;
    const int shift = width >= kTopkBins ? 21 - __clz(width) : 0;
    s.bins[thread] = s.bins[thread + kTopkThreads] = 0;
    if (thread == 0) s.boundary_count = 0;
    __syncthreads();
    piece.Visit(list, lane, [&](uint32_t key, int, bool there) {
      CountKey(s.bins, (key - low) >> shift, there && key - low <= width, lane);
    });
    const uint32_t* sums = s.bins;
    int from = 0;
    uint32_t above = 0;
    if constexpr (kCluster) {
      // A CTA adds up its slice of all CTAs' bins; all CTAs then look into the slice that holds the
      // last place.
      team.Sync();
      if (thread < slice) s.sums[thread] = 0;
      if (thread + kTopkThreads < slice) s.sums[thread + kTopkThreads] = 0;
      __syncthreads();
      uint32_t mine = 0;
#pragma unroll 1
      for (int i = thread; i < kTopkBins; i += kTopkThreads) {
        const uint32_t value =
            team.At(s.bins, i >> slice_bits)[team.rank * slice + (i & (slice - 1))];
        if (value != 0) atomicAdd(&s.sums[i & (slice - 1)], value);
        mine += value;
      }
      mine = WarpSum(mine);
      if (lane == 0) s.warp_sums[warp] = mine;
      __syncthreads();
      team.Tell(s.slice, WarpSum(s.warp_sums[lane]), thread);
      team.Sync();
      from = team.size - 1;
#pragma unroll 1
      while (from > 0 && above + s.slice[from] < need) above += s.slice[from--];
      sums = team.At(s.sums, from);
    } else {
      __syncthreads();
    }
    const int at = slice - 1 - 2 * thread;
    const uint32_t counts[2] = {at > 0 ? sums[at] : 0u, at > 0 ? sums[at - 1] : 0u};
    FindBin(counts, from * slice + at, need - above, s.warp_sums, s.found);
    __syncthreads();
    const uint32_t bin = s.found[0], count = s.found[2];
    need -= above + s.found[1];
    low += bin << shift;
    high = min(high, low + ((1u << shift) - 1u));
    if (count == need) {  // the bin wins whole (low is above 0: not every key wins)
      return {low - 1, 0};
    }
    if (shift == 0) {  // one key value, of which the lowest indices win
      return {low, need};
    }
    if (count > static_cast<uint32_t>(kMerged)) continue;
    // Collect and rank. Words are distinct, so one of them is the last to win.
    piece.Visit(list, lane, [&](uint32_t key, int at, bool there) {
      if (there && key - low <= high - low) {
        s.boundary[atomicAdd(&s.boundary_count, 1u)] =
            uint64_t{key} << 32 | (0xffffffffu - static_cast<uint32_t>(piece.first + at));
      }
    });
    __syncthreads();
    team.Tell(s.entries, s.boundary_count, thread);
    team.Sync();
    if (thread < static_cast<int>(count)) {
      int cta = 0, at = thread;
#pragma unroll 1
      while (at >= static_cast<int>(s.entries[cta])) at -= static_cast<int>(s.entries[cta++]);
      s.merged[thread] = team.At(s.boundary, cta)[at];
    }
    __syncthreads();
    if (thread < static_cast<int>(count)) {
      const uint64_t mine = s.merged[thread];
      uint32_t better = 0;
#pragma unroll 2
      for (uint32_t i = 0; i < count; ++i) better += s.merged[i] > mine;
      if (better == need - 1) s.last = mine;
    }
    __syncthreads();
    const uint32_t edge = static_cast<uint32_t>(s.last >> 32);
    if (warp == 0) {
      uint32_t ties = 0;
#pragma unroll 1
      for (uint32_t i = lane; i < count; i += 32)
        ties += s.merged[i] >> 32 == edge && s.merged[i] >= s.last;
      ties = WarpSum(ties);
      if (lane == 0) s.found[0] = ties;
    }
    __syncthreads();
    return {edge, s.found[0]};
  }
}

// Writes the winners of this CTA's piece; all CTAs of the team call.
template <bool kCluster>
__device__ __forceinline__ void WriteWinners(const TopkSelect& op, int64_t row,
                                             const Team<kCluster>& team, const Piece& piece,
                                             const Edge& edge, const uint16_t* list, Shared& s) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5,
            thread = static_cast<int>(threadIdx.x);
  // Keys above the edge win, and of those at the edge the first edge.need of the row.
  uint32_t above_edge = 0, at_edge = 0;
  piece.Visit(list, lane, [&](uint32_t key, int, bool there) {
    above_edge += there && key > edge.key;
    at_edge += there && key == edge.key;
  });
  above_edge = WarpSum(above_edge);
  at_edge = WarpSum(at_edge);
  __syncthreads();
  if (lane == 0) s.bins[warp] = above_edge, s.bins[kTopkWarps + warp] = at_edge;
  __syncthreads();
  const uint32_t warp_above = s.bins[lane], warp_equal = s.bins[kTopkWarps + lane];
  team.Tell(s.above, WarpSum(warp_above), thread);
  team.Tell(s.equal, WarpSum(warp_equal), thread);
  team.Sync();
  const bool cta_before = lane < team.rank, warp_before = lane < warp;
  uint32_t taken = WarpSum((cta_before ? s.above[lane] : 0u) + (warp_before ? warp_above : 0u));
  uint32_t ties = WarpSum((cta_before ? s.equal[lane] : 0u) + (warp_before ? warp_equal : 0u));
  const unsigned lanes_before = (1u << lane) - 1u;
  piece.Visit(list, lane, [&](uint32_t key, int at, bool there) {
    const bool wins = there && key > edge.key, tie = there && key == edge.key;
    const unsigned greater = __ballot_sync(~0u, wins), equal = __ballot_sync(~0u, tie);
    const uint32_t tie_place = ties + __popc(equal & lanes_before);
    if (wins || (tie && tie_place < edge.need)) {
      const uint32_t place = taken + __popc(greater & lanes_before) + min(tie_place, edge.need);
      WriteWinner(op, row, static_cast<int>(place), piece.first + at);
    }
    taken += __popc(greater);
    ties += __popc(equal);
  });
}

enum class Listed : uint8_t {
  kServed,   // the winners are written
  kEdge,     // the edge is known
  kNothing,  // the list did not serve
};

// Tries the short list; all CTAs of the cluster call.
__device__ __forceinline__ Listed TryShortlist(const Launch& launch, int64_t row,
                                               const RowPlan& plan, const Team<true>& team,
                                               const Piece& piece, std::byte* tail, Shared& s,
                                               Edge* edge) {
  const TopkSelect& op = launch.op;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  uint32_t* words = reinterpret_cast<uint32_t*>(tail);
  const Shortlist list{words, words + kMostListed, &s.list_count, &s.list_equal, &s.list_high};
  uint32_t* all_keys = team.size == 1 ? words : words + 2 * kMostListed;
  uint32_t* bits = reinterpret_cast<uint32_t*>(tail + ShortlistBitsAt(team.size == 1));
  const ShortlistScratch scratch{s.bins, s.sums, s.found};
  float4 scores[Shortlist::kGroups];
  list.Load(piece.scores, 0, piece.count, piece.aligned, scores);
  const Cut cut = FindCut(op.scores.row(row), plan.candidates, plan.places, piece.aligned, scratch);
  list.Fill(piece.scores, piece.count, cut, piece.aligned, scores);
  __syncthreads();
  ClearBins(s.bins);
  team.Begun();
  if (thread < team.size) {
    *team.At(&s.lists[team.rank], thread) = make_uint4(s.list_count, s.list_equal, s.list_high, 0);
  }
  team.Sync();
  uint4 its = make_uint4(0, 0, 0, 0);
  if (lane < team.size) its = s.lists[lane];
  const uint32_t count = WarpSum(its.x), places = static_cast<uint32_t>(plan.places);
  if (count < places) {
    if (count + WarpSum(its.y) < places) return Listed::kNothing;
    *edge = {cut.tie_key, places - count};
    return Listed::kEdge;
  }
  if (count > kMostListed) return Listed::kNothing;
  // Every CTA takes all CTAs' keys, some warps per CTA, and finds the last place among them; what
  // is left to do is then the same for each one's piece.
  const int warp = thread >> 5, cta = warp & (team.size - 1);
  const uint32_t step = static_cast<uint32_t>(kTopkWarps >> team.bits) * 128,
                 first = static_cast<uint32_t>((warp >> team.bits) * 32 + lane) * 4,
                 there = s.lists[cta].x, begin = WarpSum(lane < cta ? its.x : 0u);
  const uint32_t* keys = team.At(list.keys, cta);
  const uint32_t low = cut.all ? 0u : OrderKey(__float_as_uint(cut.bound)), high = WarpMax(its.z);
  const Narrowed last = Narrow({low, high, places, 0}, kBoundary, scratch, [&](const auto& f) {
    uint4 next = make_uint4(0, 0, 0, 0);
    if (first < there) next = *reinterpret_cast<const uint4*>(keys + first);
#pragma unroll 1
    for (uint32_t i = first; i < there; i += step) {
      const uint32_t four[4] = {next.x, next.y, next.z, next.w};
      if (i + step < there) next = *reinterpret_cast<const uint4*>(keys + i + step);
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        if (i + e >= there) break;
        all_keys[begin + i + e] = four[e];
        f(four[e]);
      }
    }
  });
#if STRATA_SM90A
  ClusterArrive();
#endif
  const Winners winners = FindWinners(
      all_keys, count, last, reinterpret_cast<uint32_t*>(s.boundary), &s.boundary_count, s.found);
  const uint32_t own = s.list_count, before = WarpSum(lane < team.rank ? its.x : 0u);
  const uint32_t wins_before = MarkWinners(list, all_keys, before, own, piece.count, winners, bits,
                                           &s.list_before, &s.list_tied, scratch);
  static_assert(kMostListedCandidates / 128 * sizeof(uint16_t) <= sizeof(s.bins) + sizeof(s.sums));
  WriteMarked(op, row, list.places, own, bits, piece.first, piece.count, wins_before,
              reinterpret_cast<uint16_t*>(s.bins), s.warp_sums);
#if STRATA_SM90A
  ClusterWait();  // the others have this CTA's keys
#endif
  return Listed::kServed;
}

template <bool kCluster>
__global__ void __launch_bounds__(kTopkThreads, 1)
    SelectRowsKernel(const __grid_constant__ Launch launch) {
#if !STRATA_SM90A
  if constexpr (kCluster) return;
#endif
  extern __shared__ uint4 dynamic[];
  Shared& s = *reinterpret_cast<Shared*>(dynamic);
  std::byte* tail = reinterpret_cast<std::byte*>(dynamic) + sizeof(Shared);
  const TopkSelect& op = launch.op;
  const int thread = static_cast<int>(threadIdx.x), warp = thread >> 5;
  Team<kCluster> team{0, 1, 0};
  if constexpr (kCluster) {
    team.bits = launch.cluster_bits;
    team.size = 1 << team.bits;
    team.rank = static_cast<int>(blockIdx.x) & (team.size - 1);
  }
  const int64_t row = blockIdx.x >> team.bits;
  const RowPlan plan = PlanRow(op, row);
  FinishRow(op, row, plan, team.rank * kTopkThreads + thread, team.size * kTopkThreads);
  const int share = (plan.candidates + team.size * 4 - 1) >> (team.bits + 2) << 2;
  Piece piece;
  piece.first = team.rank * share;
  piece.count = min(max(plan.candidates - piece.first, 0), share);
  const bool shortlist = kCluster && launch.shortlist && plan.places <= kMostListedPlaces;
  if (shortlist && !plan.all()) {
    if (thread == 0) {
      s.list_count = s.list_equal = s.list_high = 0;
      s.list_before = s.list_tied = s.boundary_count = 0;
    }
    uint4* bits = reinterpret_cast<uint4*>(tail + ShortlistBitsAt(team.size == 1));
    for (int i = thread; i < (piece.count + 127) / 128; i += kTopkThreads)
      bits[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
  }
#if STRATA_SM90A
  WaitForLaunches();  // lengths and cells were there before the scan began
#endif
  if (plan.all() || plan.places <= 0) return;  // the whole cluster

  team.Begin();
  piece.scores = op.scores.row(row) + piece.first;
  piece.keys = reinterpret_cast<uint32_t*>(tail + kListedBytes);
  const int part = (piece.count + 128 * kTopkWarps - 1) / (128 * kTopkWarps) * 128;
  piece.aligned = launch.aligned;
  piece.begin = warp * part;
  piece.end = min(piece.begin + part, piece.count);
  Edge edge;
  Listed listed = Listed::kNothing;
  if constexpr (kCluster) {
    if (shortlist) {
      listed = TryShortlist(launch, row, plan, team, piece, tail, s, &edge);
    } else {
      team.Begun();
    }
    if (listed == Listed::kServed) return;
  }
  uint16_t* list = reinterpret_cast<uint16_t*>(tail) + warp * kListed;
  if (listed == Listed::kNothing) {
    piece.cached = part * kTopkWarps <= launch.cached_keys;
    edge = FindEdge(team, piece, plan.places, list, s);
  }
  WriteWinners(op, row, team, piece, edge, list, s);
}

}  // namespace

TopkRowsPlan ChooseTopkRows(const TopkSelect& op, const DeviceLimits& limits) {
  const int64_t rows = op.ids.dim(0), capacity = op.scores.dim(1);
  // A cluster of 16 needs most of a processing cluster of the chip to itself: many rows would wait
  // for one another.
  const int most = std::min(limits.max_cluster, rows <= 4 ? 16 : 8);
  int cluster = 1;
  // As many CTAs as the device holds at once, unless pieces get short.
  while (cluster < most && rows * cluster * 2 <= limits.multiprocessors &&
         capacity / cluster >= 4096) {
    cluster *= 2;
  }
  const bool listable = capacity <= kMostListedCandidates && op.k / op.kpool <= kMostListedPlaces;
  if (listable) {
    // Clusters of 4 and more do not find room on every multiprocessor.
    while (cluster > 2 && rows * cluster * 4 > limits.multiprocessors * 3) cluster /= 2;
    return {cluster, true};
  }
  while (cluster < most && capacity / cluster > kMaxCachedKeys) cluster *= 2;
  return {cluster, false};
}

void RunTopkRows(const TopkSelect& op, const TopkRowsPlan& plan, bool behind,
                 const DeviceLimits& limits, cudaStream_t stream) {
  const auto [cluster, shortlist] = plan;
  const int64_t rows = op.ids.dim(0), capacity = op.scores.dim(1);
  const auto kernel = cluster > 1 || shortlist ? SelectRowsKernel<true> : SelectRowsKernel<false>;
  constexpr int64_t kStep = 128 * kTopkWarps;
  const int64_t piece = ((capacity + cluster - 1) / cluster + 4 + kStep - 1) / kStep * kStep;
  const int64_t room = limits.shared_bytes - static_cast<int64_t>(sizeof(Shared)) - 1024;
  const int64_t cached = piece * 4 + kListedBytes <= room ? piece : 0;
  const int64_t share = (capacity + cluster * 4 - 1) / (cluster * 4) * 4;
  const int64_t list = shortlist ? ShortlistBytes(share, cluster == 1) : 0;
  Launch launch{.op = op,
                .cluster_bits = std::countr_zero(static_cast<unsigned>(cluster)),
                .cached_keys = static_cast<int>(cached),
                .aligned = reinterpret_cast<uintptr_t>(op.scores.data) % 16 == 0 &&
                           op.scores.stride[0] % 4 == 0,
                .shortlist = shortlist && list <= room && capacity <= kMostListedCandidates};
  const int bytes = static_cast<int>(
      sizeof(Shared) + std::max(launch.shortlist ? list : 0, kListedBytes + cached * 4));
  AllowSharedBytes(kernel, bytes, "TopkSelect: shared memory size");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * cluster));
  config.blockDim = dim3(kTopkThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  if (cluster > 1 || shortlist) {
    if (cluster > 8) {
      CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                "TopkSelect: cluster of 16");
    }
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[config.numAttrs].val.clusterDim.y = attributes[config.numAttrs].val.clusterDim.z = 1;
    ++config.numAttrs;
  }
  if (behind) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  config.attrs = attributes;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, launch), "TopkSelect rows");
}

}  // namespace strata::cuda
