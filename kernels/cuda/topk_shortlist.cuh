// A short list that holds a row's winners, by a cut that a sample of the row's scores suggests.
//
// Whether the list serves is known when it is made: it did not overflow and holds at least as many
// entries as there are places. A wrong cut costs time only. Where one score is so frequent that the
// cut falls on it, those above it are listed and those at it counted: when they hold the last place
// between them, that score is the edge.
#pragma once

#include "kernels/cuda/topk_row.cuh"

namespace strata::cuda {

constexpr int kMostListed = 8192;
constexpr int64_t kMostListedCandidates = 1048576;  // of a row, so that its bits fit
constexpr int kMostListedPlaces = 4096;
constexpr int kBoundary = 512;  // entries ranked by pairwise comparison

// Shared memory of the list behind what all selections share: its words, and a bit per candidate.
inline int64_t ShortlistBytes(int64_t capacity) {
  return kMostListed * 8 + (capacity + 127) / 128 * 16;
}

// Scores at or above `bound` are listed. `tie` is NaN, or a single score that so many of the sample
// have that those at it are counted and not listed.
struct Cut {
  float bound, tie;
  uint32_t tie_key;
  bool all;  // every candidate is listed, NaN too
};

// A score of this order key; of keys between NaN's and -infinity's, -infinity.
__device__ __forceinline__ float ScoreOf(uint32_t key) {
  if (key < 0x007fffffu) key = 0x007fffffu;
  return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// Four scores from `at` on; NaN behind `count`.
__device__ __forceinline__ float4 LoadScores(const float* scores, int at, int count, bool aligned) {
  if (aligned && at + 3 < count) return __ldcg(reinterpret_cast<const float4*>(scores + at));
  float4 four;
  four.x = four.y = four.z = four.w = __uint_as_float(0x7fffffffu);
  if (at < count) four.x = __ldcg(scores + at);
  if (at + 1 < count) four.y = __ldcg(scores + at + 1);
  if (at + 2 < count) four.z = __ldcg(scores + at + 2);
  if (at + 3 < count) four.w = __ldcg(scores + at + 3);
  return four;
}

// What all threads use together.
struct ShortlistScratch {
  uint32_t* bins;   // [kTopkBins]
  uint32_t* sums;   // [2 * kTopkWarps]
  uint32_t* found;  // [3]
};
__device__ __forceinline__ void ClearBins(uint32_t* bins) {
  static_assert(kTopkBins == 2 * kTopkThreads);
  reinterpret_cast<uint2*>(bins)[threadIdx.x] = make_uint2(0, 0);
}
// Where the bins, walked from the highest, reach `need`: found = {bin, entries above it, entries in
// it}. The bins are read behind one barrier and `found` is there behind another.
__device__ __forceinline__ void FindListBin(const ShortlistScratch& s, uint32_t need) {
  const int mine = kTopkThreads - 1 - static_cast<int>(threadIdx.x);
  __syncthreads();
  const uint2 two = reinterpret_cast<const uint2*>(s.bins)[mine];
  const uint32_t counts[2] = {two.y, two.x};
  FindBin(counts, 2 * mine + 1, need, s.sums, s.found);
  __syncthreads();
}

// The cut of a row for `places` winners among `candidates`. All threads call; every CTA of a row
// finds the same one. The sample: 1024 groups of four neighbours, one anywhere in each 1024th
// of the row.
__device__ __forceinline__ Cut FindCut(const float* scores, int candidates, int places,
                                       bool aligned, const ShortlistScratch& s) {
  const float nan = __uint_as_float(0x7fffffffu);
  if (candidates <= kMostListed) return {0.0f, nan, 0, true};
  constexpr uint32_t kGroups = kTopkThreads, kSample = 4 * kGroups;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const uint32_t groups = static_cast<uint32_t>(candidates) / 4;
  const uint32_t part = static_cast<uint32_t>(thread), begin = part * groups / kGroups,
                 width_here = (part + 1) * groups / kGroups - begin;
  const uint32_t chance = (part + 1) * 0x9e3779b9u;
  const uint32_t group = begin + __umulhi(chance ^ chance << 13, width_here);
  const float* sampled = scores + static_cast<int>(group) * 4;
  float4 four;
  if (aligned) {
    four = __ldcg(reinterpret_cast<const float4*>(sampled));
  } else {
    four =
        make_float4(__ldcg(sampled), __ldcg(sampled + 1), __ldcg(sampled + 2), __ldcg(sampled + 3));
  }
  ClearBins(s.bins);
  const uint32_t keys[4] = {OrderKey(__float_as_uint(four.x)), OrderKey(__float_as_uint(four.y)),
                            OrderKey(__float_as_uint(four.z)), OrderKey(__float_as_uint(four.w))};
  uint32_t high = max(max(keys[0], keys[1]), max(keys[2], keys[3]));
  uint32_t low = min(min(keys[0], keys[1]), min(keys[2], keys[3]));
  high = WarpMax(high), low = WarpMin(low);
  if (lane == 0) s.sums[warp] = high, s.sums[kTopkWarps + warp] = low;
  __syncthreads();
  high = WarpMax(s.sums[lane]);
  low = WarpMin(s.sums[kTopkWarps + lane]);
  // As many of the sample as hold the places, and four times the spread of that number more.
  const float expected = __fdividef(static_cast<float>(kSample) * static_cast<float>(places),
                                    static_cast<float>(candidates)),
              most = __fdividef(static_cast<float>(kSample) * 0.875f * kMostListed,
                                static_cast<float>(candidates)),
              spread = expected * rsqrtf(expected);
  const uint32_t rank = static_cast<uint32_t>(fminf(expected + 4.0f * spread + 4.0f, most));
  uint32_t need = rank;
#pragma unroll 1
  while (true) {
    const uint32_t width = high - low;
    const int shift = width >= kTopkBins ? 21 - __clz(width) : 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (keys[e] - low <= width) atomicAdd(&s.bins[(keys[e] - low) >> shift], 1u);
    }
    FindListBin(s, need);
    const uint32_t inside = s.found[2];
    need -= s.found[1];
    low += s.found[0] << shift;
    high = min(high, low + ((1u << shift) - 1u));
    if (rank - need + inside <= rank + rank / 4) return {ScoreOf(low), nan, 0, false};
    if (shift == 0) return {ScoreOf(low + 1), ScoreOf(low), low, false};
    ClearBins(s.bins);
    __syncthreads();
  }
}

// A CTA's part of a list. Words are SelectionKey's.
struct Shortlist {
  static constexpr int kGroups = 2, kGroupStep = 4 * kTopkThreads, kStep = kGroups * kGroupStep;
  uint64_t* words;  // [kMostListed]
  uint32_t* count;  // entries that there are, also those that found no place
  uint32_t* equal;  // scores at the cut's tie
  uint32_t* high;   // the largest listed key

  __device__ __forceinline__ void Load(const float* piece, int base, int piece_count, bool aligned,
                                       float4 (&scores)[kGroups]) const {
    const int at = base + static_cast<int>(threadIdx.x) * 4;
    if (aligned && base + kStep <= piece_count) {
#pragma unroll
      for (int u = 0; u < kGroups; ++u)
        scores[u] = __ldcg(reinterpret_cast<const float4*>(piece + at + u * kGroupStep));
      return;
    }
#pragma unroll
    for (int u = 0; u < kGroups; ++u)
      scores[u] = LoadScores(piece, at + u * kGroupStep, piece_count, aligned);
  }
  // Lists what of the `piece_count` scores from `first` of the row on passes; `next` has been
  // loaded from the first. All threads call; the three sums start at zero and are there
  // behind a barrier.
  __device__ __forceinline__ void Fill(const float* piece, int piece_count, int first,
                                       const Cut& cut, bool aligned,
                                       float4 (&next)[kGroups]) const {
    const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
    const bool ties = cut.tie == cut.tie;
    uint32_t equals = 0, largest = 0;
#pragma unroll 1
    for (int base = 0; base < piece_count; base += kStep) {
      float4 now[kGroups];
#pragma unroll
      for (int u = 0; u < kGroups; ++u) now[u] = next[u];
      if (base + kStep < piece_count) Load(piece, base + kStep, piece_count, aligned, next);
      unsigned passes = 0;  // four bits a group
#pragma unroll
      for (int u = 0; u < kGroups; ++u) {
        if (base + u * kGroupStep >= piece_count) break;
        const float score[4] = {now[u].x, now[u].y, now[u].z, now[u].w};
#pragma unroll
        for (int e = 0; e < 4; ++e)
          passes |= static_cast<unsigned>(score[e] >= cut.bound) << (4 * u + e);
        if (ties) {
#pragma unroll
          for (int e = 0; e < 4; ++e) equals += score[e] == cut.tie;
        }
      }
      if (cut.all) {
        passes = 0;
#pragma unroll
        for (int u = 0; u < kGroups; ++u) {
          const int left = piece_count - (base + u * kGroupStep + thread * 4);
          passes |= (0xfu >> (4 - min(max(left, 0), 4))) << (4 * u);
        }
      }
      if (passes == 0) continue;
      uint32_t place = atomicAdd(count, static_cast<uint32_t>(__popc(passes)));
#pragma unroll 1
      for (; passes != 0; passes &= passes - 1) {
        const int bit = __ffs(static_cast<int>(passes)) - 1;
        const float4 four = bit < 4 ? now[0] : now[1];
        const float score = (bit & 2) == 0 ? ((bit & 1) == 0 ? four.x : four.y)
                                           : ((bit & 1) == 0 ? four.z : four.w);
        const int at = base + (bit >> 2) * kGroupStep + thread * 4 + (bit & 3);
        const uint32_t key = OrderKey(__float_as_uint(score));
        largest = max(largest, key);
        if (place < kMostListed)
          words[place] = uint64_t{key} << 32 | (0xffffffffu - static_cast<uint32_t>(first + at));
        ++place;
      }
    }
    __syncwarp();
    if (ties) {
      equals = WarpSum(equals);
      if (lane == 0 && equals != 0) atomicAdd(equal, equals);
    }
    largest = WarpMax(largest);
    if (lane == 0) atomicMax(high, largest);
  }
};

// Sets the bits, zeros before, of the `places` largest of `count` listed words, whose keys lie
// between `low_key` and `high_key`. All threads call; the bits are there behind a barrier.
__device__ __forceinline__ void MarkWinners(const uint64_t* words, uint32_t count, uint32_t places,
                                            uint32_t low_key, uint32_t high_key, uint64_t* boundary,
                                            uint32_t* boundary_count, uint32_t* bits,
                                            const ShortlistScratch& s) {
  const uint32_t thread = threadIdx.x;
  const auto mark = [&](uint64_t word) {
    const uint32_t candidate = 0xffffffffu - static_cast<uint32_t>(word);
    atomicOr(&bits[candidate >> 5], 1u << (candidate & 31));
  };
  uint64_t low = uint64_t{low_key} << 32, high = uint64_t{high_key} << 32 | 0xffffffffu;
  uint32_t need = places, inside = 0;
  do {
    const uint64_t width = high - low;
    const int shift = max(53 - __clzll(static_cast<long long>(width)), 0);
    ClearBins(s.bins);
    if (thread == 0) *boundary_count = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = thread; i < count; i += kTopkThreads) {
      const uint64_t off = words[i] - low;
      if (off <= width) atomicAdd(&s.bins[static_cast<uint32_t>(off >> shift)], 1u);
    }
    FindListBin(s, need);
    inside = s.found[2];
    need -= s.found[1];
    low += uint64_t{s.found[0]} << shift;
    high = min(high, low + ((uint64_t{1} << shift) - 1));
  } while (inside != need && inside > kBoundary);
  // Above the bin all win, and of the bin all or, words being distinct, the `need` largest.
  const uint64_t sure = inside == need ? low : high + 1;
#pragma unroll 1
  for (uint32_t i = thread; i < count; i += kTopkThreads) {
    const uint64_t word = words[i];
    if (word >= sure) {
      mark(word);
    } else if (word >= low) {
      boundary[atomicAdd(boundary_count, 1u)] = word;
    }
  }
  if (inside == need) return;
  __syncthreads();
  const uint32_t lane = thread & 31;
#pragma unroll 1
  for (uint32_t entry = thread >> 5; entry < inside; entry += kTopkWarps) {
    const uint64_t mine = boundary[entry];
    uint32_t better = 0;
#pragma unroll 1
    for (uint32_t i = lane; i < inside; i += 32) better += boundary[i] > mine;
    better = WarpSum(better);
    if (lane == 0 && better < need) mark(mine);
  }
}

// Writes the candidates of the listed words whose bits are set, ascending. `before` is scratch: a
// number per 128 candidates. All threads call, behind a barrier.
__device__ __forceinline__ void WriteMarked(const TopkSelect& op, int64_t row,
                                            const uint64_t* words, uint32_t count,
                                            const uint32_t* bits, int candidates, uint16_t* before,
                                            uint32_t* sums) {
  const uint4* pieces = reinterpret_cast<const uint4*>(bits);  // of 128 candidates
  const auto count_bits = [](const uint4& v) {
    return static_cast<uint32_t>(__popc(v.x) + __popc(v.y) + __popc(v.z) + __popc(v.w));
  };
  const int piece_count = (candidates + 127) / 128,
            each = (piece_count + kTopkThreads - 1) / kTopkThreads,
            first = static_cast<int>(threadIdx.x) * each, end = min(first + each, piece_count);
  uint32_t mine = 0;
#pragma unroll 1
  for (int i = first; i < end; ++i) mine += count_bits(pieces[i]);
  uint32_t place = ExclusiveScan(mine, sums);
#pragma unroll 1
  for (int i = first; i < end; ++i) {
    before[i] = static_cast<uint16_t>(place);
    if (each > 1) place += count_bits(pieces[i]);
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count; i += kTopkThreads) {
    const uint32_t candidate = 0xffffffffu - static_cast<uint32_t>(words[i]);
    const uint4 v = pieces[candidate >> 7];
    const uint32_t part = candidate >> 5 & 3u, bit = 1u << (candidate & 31u);
    const uint32_t its = part < 2 ? (part == 0 ? v.x : v.y) : (part == 2 ? v.z : v.w);
    if ((its & bit) == 0) continue;
    uint32_t place_here = before[candidate >> 7] + static_cast<uint32_t>(__popc(its & (bit - 1u)));
    if (part > 0) place_here += static_cast<uint32_t>(__popc(v.x));
    if (part > 1) place_here += static_cast<uint32_t>(__popc(v.y));
    if (part > 2) place_here += static_cast<uint32_t>(__popc(v.z));
    WriteWinner(op, row, static_cast<int>(place_here), static_cast<int>(candidate));
  }
}

}  // namespace strata::cuda
