// A short list that holds a row's winners, by a cut that a sample of the row's scores suggests.
//
// Whether the list serves is known when it is made: it did not overflow and holds at least as many
// entries as there are places. A wrong cut costs time only. Where one score is so frequent that the
// cut falls on it, those above it are listed and those at it counted: when they hold the last place
// between them, that score is the edge.
//
// The CTAs of a row list what they find in their pieces, which follow one another. Each then reads
// the keys of all, so that each knows the last place's key and how many win before its own piece,
// and writes its own winners: one exchange of counts, and nothing that one CTA does for all.
#pragma once

#include "kernels/cuda/topk_row.cuh"

namespace strata::cuda {

constexpr int kMostListed = 8192;
constexpr int64_t kMostListedCandidates = 1048576;  // of a row, so that its bits fit
constexpr int kMostListedPlaces = 4096;
constexpr int kBoundary = 512;  // entries ranked by pairwise comparison

// Shared memory of the list behind what all selections share: a CTA's keys and places, the keys of
// all CTAs of the row (which are its own when it is `alone`), and a bit per candidate of its piece.
STRATA_HD constexpr int64_t ShortlistBitsAt(bool alone) { return kMostListed * (alone ? 8 : 12); }
inline int64_t ShortlistBytes(int64_t piece, bool alone) {
  return ShortlistBitsAt(alone) + (piece + 127) / 128 * 16;
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
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int mine = kTopkThreads - 1 - thread;
  __syncthreads();
  const uint2 two = reinterpret_cast<const uint2*>(s.bins)[mine];
  const uint32_t own = two.x + two.y, of_warp = WarpSum(own);
  if (lane == 0) s.sums[warp] = of_warp;
  __syncthreads();
  uint32_t above = WarpSum(lane < warp ? s.sums[lane] : 0u);
  if (above < need && above + of_warp >= need) {  // one warp
    above += WarpScan(own) - own;
    if (above < need && above + own >= need) {
      const bool upper = above + two.y >= need;
      s.found[0] = static_cast<uint32_t>(2 * mine) + (upper ? 1u : 0u);
      s.found[1] = upper ? above : above + two.y;
      s.found[2] = upper ? two.y : two.x;
    }
  }
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

// A CTA's part of a list.
struct Shortlist {
  static constexpr int kGroups = 2, kGroupStep = 4 * kTopkThreads, kStep = kGroups * kGroupStep;
  uint32_t* keys;    // [kMostListed] order keys
  uint32_t* places;  // [kMostListed] of theirs in the piece
  uint32_t* count;   // entries that there are, also those that found no place
  uint32_t* equal;   // scores at the cut's tie
  uint32_t* high;    // the largest listed key

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
  // Lists what of the `piece_count` scores passes; `next` has been loaded from the first. All
  // threads call; the three sums start at zero and are there behind a barrier.
  __device__ __forceinline__ void Fill(const float* piece, int piece_count, const Cut& cut,
                                       bool aligned, float4 (&next)[kGroups]) const {
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
        if (place < kMostListed) keys[place] = key, places[place] = static_cast<uint32_t>(at);
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

// Where the search for a last place stands: between `low` and `high`, where `inside` values are, of
// which the `need` largest win.
struct Narrowed {
  uint32_t low, high, need, inside;
};

// Narrows until all that are left win, at most `enough` are left, or they are equal. `visit(f)`
// hands all values to f. The bins are zeros. All threads call.
template <class Visit>
__device__ __forceinline__ Narrowed Narrow(Narrowed last, uint32_t enough,
                                           const ShortlistScratch& s, const Visit& visit) {
#pragma unroll 1
  while (true) {
    const uint32_t width = last.high - last.low;
    const int shift = width >= kTopkBins ? 21 - __clz(width) : 0;
    visit([&](uint32_t value) {
      if (value - last.low <= width) atomicAdd(&s.bins[(value - last.low) >> shift], 1u);
    });
    FindListBin(s, last.need);
    last.inside = s.found[2];
    last.need -= s.found[1];
    last.low += s.found[0] << shift;
    last.high = min(last.high, last.low + ((1u << shift) - 1u));
    if (last.inside == last.need || last.inside <= enough || last.low == last.high) return last;
    ClearBins(s.bins);
    __syncthreads();
  }
}

// The winners of a row: keys from `sure` on, and the first `ties` of those one below it.
struct Winners {
  uint32_t sure, ties;
};

// The winners by all CTAs' `count` keys and what these have been narrowed to. `boundary` has room
// for kBoundary, its count is zero; `found` is scratch. All threads call.
__device__ __forceinline__ Winners FindWinners(const uint32_t* keys, uint32_t count,
                                               const Narrowed& last, uint32_t* boundary,
                                               uint32_t* boundary_count, uint32_t* found) {
  if (last.inside == last.need) return {last.low, 0};
  if (last.low == last.high) return {last.low + 1, last.need};
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count; i += kTopkThreads) {
    const uint32_t key = keys[i];
    if (key - last.low <= last.high - last.low) boundary[atomicAdd(boundary_count, 1u)] = key;
  }
  __syncthreads();
  // A warp ranks an entry; equal ones find the same.
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll 1
  for (uint32_t entry = threadIdx.x >> 5; entry < last.inside; entry += kTopkWarps) {
    const uint32_t mine = boundary[entry];
    uint32_t better = 0;  // from bit 16 on: not worse
#pragma unroll 1
    for (uint32_t i = lane; i < last.inside; i += 32) {
      const uint32_t other = boundary[i];
      better += other > mine ? 0x10001u : other == mine ? 0x10000u : 0u;
    }
    better = WarpSum(better);
    const uint32_t above = better & 0xffffu;
    if (lane == 0 && above < last.need && better >> 16 >= last.need) {
      found[0] = mine + 1;
      found[1] = last.need - above;
    }
  }
  __syncthreads();
  return {found[0], found[1]};
}

// Sets the bits, zeros before, of the winners among the `count` that this CTA lists of its
// `candidates`, and returns how many win in the pieces before. `keys` are the `before` of those
// pieces and then its own; the two sums start at zero. All threads call; the bits are there behind.
__device__ __forceinline__ uint32_t MarkWinners(const Shortlist& list, const uint32_t* keys,
                                                uint32_t before, uint32_t count, int candidates,
                                                const Winners& winners, uint32_t* bits,
                                                uint32_t* wins_before, uint32_t* tied,
                                                const ShortlistScratch& s) {
  static_assert(kMostListed < 1 << 16);
  const uint32_t thread = threadIdx.x, least = winners.sure - (winners.ties != 0 ? 1u : 0u);
  uint32_t wins = 0;  // ties from bit 16 on
#pragma unroll 1
  for (uint32_t i = thread; i < before + count; i += kTopkThreads) {
    const uint32_t key = keys[i];
    if (key < least) continue;
    if (i < before) {
      wins += key < winners.sure ? 1u << 16 : 1u;
    } else {
      const uint32_t place = list.places[i - before];
      atomicOr(&bits[place >> 5], 1u << (place & 31));
      if (key < winners.sure) atomicAdd(tied, 1u);
    }
  }
  wins = WarpSum(wins);
  if ((thread & 31) == 0 && wins != 0) atomicAdd(wins_before, wins);
  __syncthreads();
  wins = *wins_before;
  const uint32_t ties_before = min(wins >> 16, winners.ties), ties = winners.ties - ties_before;
  if (*tied > ties) {
    // The last of the tied do not win.
    const uint32_t end = static_cast<uint32_t>(candidates) - 1;
    uint32_t first = ~0u;
    if (ties != 0) {
      ClearBins(s.bins);
      __syncthreads();
      first = Narrow({0, end, ties, 0}, 0, s, [&](const auto& f) {
#pragma unroll 1
                for (uint32_t i = thread; i < count; i += kTopkThreads)
                  if (list.keys[i] == least) f(end - list.places[i]);
              }).low;
    }
#pragma unroll 1
    for (uint32_t i = thread; i < count; i += kTopkThreads) {
      const uint32_t place = list.places[i];
      if (list.keys[i] == least && end - place < first)
        atomicAnd(&bits[place >> 5], ~(1u << (place & 31)));
    }
    __syncthreads();
  }
  return (wins & 0xffffu) + ties_before;
}

// Writes the listed of a piece whose bits are set, ascending from the row's place `begin` on. The
// piece is `candidates` of the row from `first_candidate` on. `before` is scratch: a number per 128
// candidates. All threads call.
__device__ __forceinline__ void WriteMarked(const TopkSelect& op, int64_t row,
                                            const uint32_t* places, uint32_t count,
                                            const uint32_t* bits, int first_candidate,
                                            int candidates, uint32_t begin, uint16_t* before,
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
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const uint32_t of_warp = WarpSum(mine);
  if (lane == 0) sums[warp] = of_warp;
  __syncthreads();
  if (of_warp != 0) {
    uint32_t place = begin + WarpSum(lane < warp ? sums[lane] : 0u) + WarpScan(mine) - mine;
#pragma unroll 1
    for (int i = first; i < end; ++i) {
      before[i] = static_cast<uint16_t>(place);
      if (each > 1) place += count_bits(pieces[i]);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count; i += kTopkThreads) {
    const uint32_t candidate = places[i];
    const uint4 v = pieces[candidate >> 7];
    const uint32_t part = candidate >> 5 & 3u, bit = 1u << (candidate & 31u);
    const uint32_t its = part < 2 ? (part == 0 ? v.x : v.y) : (part == 2 ? v.z : v.w);
    if ((its & bit) == 0) continue;
    uint32_t place_here = before[candidate >> 7] + static_cast<uint32_t>(__popc(its & (bit - 1u)));
    if (part > 0) place_here += static_cast<uint32_t>(__popc(v.x));
    if (part > 1) place_here += static_cast<uint32_t>(__popc(v.y));
    if (part > 2) place_here += static_cast<uint32_t>(__popc(v.z));
    WriteWinner(op, row, static_cast<int>(place_here),
                first_candidate + static_cast<int>(candidate));
  }
}

}  // namespace strata::cuda
