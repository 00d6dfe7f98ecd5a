#include "kernels/topk_select.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/isa/select.h"
#include "kernels/cpu/partition.h"
#include "kernels/order.h"
#include "kernels/status.h"

namespace strata::cpu {

namespace {

constexpr int64_t kDirectLength = 4096;  // rows up to this long are selected from as they are
constexpr int64_t kSamples = 2048;
constexpr int64_t kBins = 512;
constexpr int64_t kSharedLength =
    32 * 1024;  // a single row from this length on is collected by all threads

// Longer rows are first cut down by a guessed threshold to what stands above it: four times what is
// wanted, so that the guess may be low.
int64_t CollectCapacity(int64_t capacity, int64_t k) {
  return std::min(capacity, std::max(kDirectLength, 4 * k));
}

int64_t RoundUp(int64_t values) { return (values + 15) / 16 * 16; }

// One worker's scratch.
struct Scratch {
  uint32_t* keys;      // the row's, or those above the threshold
  int32_t* positions;  // of the keys above the threshold
  uint32_t* members;   // keys that still compete for the k-th place
  int32_t* equal;      // positions at the threshold
  int32_t* picked;     // the selection

  static int64_t Values(int64_t capacity, int64_t k) {
    const int64_t run = RoundUp(
        std::max(CollectCapacity(capacity, k), std::min(capacity, kSamples)) + kAppendSlack);
    return 3 * run + 2 * RoundUp(k + kAppendSlack);
  }
  static size_t Bytes(int64_t capacity, int64_t k) {
    return static_cast<size_t>(Values(capacity, k)) * sizeof(uint32_t);
  }

  Scratch(std::byte* base, int64_t capacity, int64_t k) {
    const int64_t run = RoundUp(
        std::max(CollectCapacity(capacity, k), std::min(capacity, kSamples)) + kAppendSlack);
    keys = reinterpret_cast<uint32_t*>(base);
    positions = reinterpret_cast<int32_t*>(keys + run);
    members = keys + 2 * run;
    equal = reinterpret_cast<int32_t*>(keys + 3 * run);
    picked = equal + RoundUp(k + kAppendSlack);
  }
};

// Where a selection ends: every key above `key` is in, and the first `ties` keys equal to it.
struct Boundary {
  uint32_t key;
  int64_t ties;
};

// The k-th largest of n keys in `range`: bins over the range, then only the keys of the bin that
// holds the k-th place, until they are all equal. k is in [1, n].
Boundary FindBoundary(const uint32_t* keys, int64_t n, int64_t k, KeyRange range,
                      uint32_t* members) {
  while (range.lowest < range.highest) {
    const int shift =
        std::max(0, static_cast<int>(std::bit_width(range.highest - range.lowest)) - 9);
    // Four counters a bin, taken in turn: equal keys in a row do not wait for each other.
    uint32_t counts[4][kBins];
    const int64_t bins = ((range.highest - range.lowest) >> shift) + 1;
    for (auto& part : counts) std::fill(part, part + bins, 0u);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
      ++counts[0][(keys[i] - range.lowest) >> shift];
      ++counts[1][(keys[i + 1] - range.lowest) >> shift];
      ++counts[2][(keys[i + 2] - range.lowest) >> shift];
      ++counts[3][(keys[i + 3] - range.lowest) >> shift];
    }
    for (; i < n; ++i) ++counts[0][(keys[i] - range.lowest) >> shift];
    int64_t bin = bins - 1;
    for (;; --bin) {
      const int64_t count =
          int64_t{counts[0][bin]} + counts[1][bin] + counts[2][bin] + counts[3][bin];
      if (k <= count) break;
      k -= count;
    }
    range.lowest += static_cast<uint32_t>(bin) << shift;
    range.highest = std::min(range.highest, range.lowest + ((1u << shift) - 1u));
    n = ChosenSelectLoops().keep_range(keys, n, &range, members);
    keys = members;
  }
  return {range.lowest, k};
}

// A score that somewhat more than k of the row's scores should reach, from a sample with one score
// of every stretch; any value is allowed, it can cost time but never an answer.
float GuessThreshold(const float* scores, int64_t n, int64_t k, const Scratch& scratch) {
  float* samples = reinterpret_cast<float*>(scratch.positions);
  const int64_t step = n / kSamples;
  uint32_t random = 1;  // a place in each stretch that no period of the row's can follow
  for (int64_t i = 0; i < kSamples; ++i) {
    random = random * 1664525u + 1013904223u;
    samples[i] = scores[i * step +
                        static_cast<int64_t>(uint64_t{random} * static_cast<uint64_t>(step) >> 32)];
  }
  // Expected rank of the k-th score in the sample, plus three standard deviations and a little.
  const double rank = static_cast<double>(k) * kSamples / static_cast<double>(n);
  const int64_t wanted =
      std::min(kSamples, static_cast<int64_t>(rank + 3.0 * std::sqrt(rank) + 4.0));
  const KeyRange range = ChosenSelectLoops().order_keys(samples, kSamples, scratch.keys);
  const uint32_t key = FindBoundary(scratch.keys, kSamples, wanted, range, scratch.members).key;
  return BitsToFloat((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// The boundary of a whole row by digits of 11 bits, for rows that the guess does not serve.
Boundary FindBoundaryByDigits(const float* scores, int64_t n, int64_t k) {
  constexpr int64_t kDigitBins = 2048;
  uint32_t prefix = 0, care = 0;
  for (int shift : {21, 10, 0}) {
    const int bits = shift == 0 ? 10 : 11;
    uint32_t bins[kDigitBins] = {};
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = OrderKey(FloatToBits(scores[i]));
      if ((key & care) == prefix) ++bins[key >> shift & ((1u << bits) - 1u)];
    }
    int64_t bin = (int64_t{1} << bits) - 1;
    for (; k > bins[bin]; --bin) k -= bins[bin];
    prefix |= static_cast<uint32_t>(bin) << shift;
    care |= ((1u << bits) - 1u) << shift;
  }
  return {prefix, k};
}

int64_t EmitByBoundary(const float* scores, int64_t n, Boundary boundary, int32_t* out) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = OrderKey(FloatToBits(scores[i]));
    if (key < boundary.key || (key == boundary.key && boundary.ties-- <= 0)) continue;
    out[count++] = static_cast<int32_t>(i);
  }
  return count;
}

// Two ascending lists into one.
int64_t Merge(const int32_t* a, int64_t a_count, const int32_t* b, int64_t b_count, int32_t* out) {
  return std::merge(a, a + a_count, b, b + b_count, out) - out;
}

// The k best of a longer row, ascending, into scratch.picked of the first worker; `pool` null: on
// the calling thread. Parts of the row are collected apart and follow each other, so the cut
// changes nothing.
int64_t SelectLong(const float* scores, int64_t n, int64_t k, int64_t capacity, int64_t k_max,
                   std::byte* workspace, ThreadPool* pool) {
  const SelectLoops& loops = ChosenSelectLoops();
  const Scratch scratch(workspace, capacity, k_max);
  const float threshold = GuessThreshold(scores, n, k, scratch);
  constexpr int kMaxParts = 64;
  const int parts = pool == nullptr ? 1 : std::min(kMaxParts, pool->threads());
  Collected collected[kMaxParts];
  const auto collect = [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t part = begin; part < end; ++part) {
      const Scratch own(workspace + static_cast<size_t>(part) * Scratch::Bytes(capacity, k_max),
                        capacity, k_max);
      collected[part] = {.keys = own.keys,
                         .positions = own.positions,
                         .count = 0,
                         .capacity = CollectCapacity(capacity, k_max),
                         .equal_positions = own.equal,
                         .equal_count = 0,
                         .equal_capacity = k};
      loops.collect(scores, n * part / parts, n * (part + 1) / parts, threshold, &collected[part]);
    }
  };
  if (parts == 1) {
    collect(0, 1, 0);
  } else {
    pool->For(parts, 1, collect);
  }
  // Append the later parts to the first.
  Collected& all = collected[0];
  bool room = all.count <= all.capacity;
  for (int part = 1; part < parts && room; ++part) {
    const Collected& more = collected[part];
    room = more.count <= more.capacity && all.count + more.count <= all.capacity;
    if (!room) break;
    std::copy(more.keys, more.keys + more.count, all.keys + all.count);
    std::copy(more.positions, more.positions + more.count, all.positions + all.count);
    all.count += more.count;
    const int64_t equal = std::min(more.equal_count, all.equal_capacity - all.equal_count);
    std::copy(more.equal_positions, more.equal_positions + equal,
              all.equal_positions + all.equal_count);
    all.equal_count += equal;
  }
  if (room && all.count >= k) {
    const KeyRange whole = {0u, 0xffffffffu};
    const Boundary boundary = FindBoundary(all.keys, all.count, k, whole, scratch.members);
    return loops.emit(all.keys, all.positions, all.count, boundary.key, boundary.ties,
                      scratch.picked);
  }
  if (room && all.count + all.equal_count >= k) {
    return Merge(all.positions, all.count, all.equal_positions, k - all.count, scratch.picked);
  }
  return EmitByBoundary(scores, n, FindBoundaryByDigits(scores, n, k), scratch.picked);
}

int64_t SelectDirect(const float* scores, int64_t n, int64_t k, const Scratch& scratch) {
  const SelectLoops& loops = ChosenSelectLoops();
  const KeyRange range = loops.order_keys(scores, n, scratch.keys);
  const Boundary boundary = FindBoundary(scratch.keys, n, k, range, scratch.members);
  return loops.emit(scratch.keys, nullptr, n, boundary.key, boundary.ties, scratch.picked);
}

void SelectRow(const TopkSelect& op, int64_t row, std::byte* workspace, ThreadPool* pool) {
  int32_t* ids = op.ids.row(row);
  const int64_t candidates = std::max<int64_t>(0, op.lengths(row)), capacity = op.scores.dim(1);
  int64_t count = 0;
  // The incomplete pool's cells, and the places left for whole pools.
  const int64_t tail_begin = candidates * op.kpool;
  int64_t tail_end = tail_begin;
  if (op.kpool > 1 && op.tail != PoolTail::kNone) {
    tail_end = std::clamp<int64_t>(op.cells(row), tail_begin, tail_begin + op.kpool - 1);
  }
  int64_t places = op.k / op.kpool;
  if (op.tail == PoolTail::kForce && tail_end > tail_begin) --places;
  const auto write = [&](int64_t candidate) {
    for (int64_t c = 0; c < op.kpool; ++c)
      ids[count++] = static_cast<int32_t>(candidate * op.kpool + c);
  };
  if (candidates <= places) {
    for (int64_t candidate = 0; candidate < candidates; ++candidate) write(candidate);
  } else if (places > 0) {
    if (candidates > capacity) {
      Fail(ErrorCode::kShape,
           fmt::format("TopkSelect: row {} has {} candidates, the score row holds {}", row,
                       candidates, capacity));
    }
    const Scratch scratch(workspace, capacity, op.k);
    const float* scores = op.scores.row(row);
    const int64_t selected =
        candidates <= CollectCapacity(capacity, op.k)
            ? SelectDirect(scores, candidates, places, scratch)
            : SelectLong(scores, candidates, places, capacity, op.k, workspace, pool);
    if (op.kpool == 1) {
      std::copy(scratch.picked, scratch.picked + selected, ids);
      count = selected;
    } else {
      for (int64_t i = 0; i < selected; ++i) write(scratch.picked[i]);
    }
  }
  for (int64_t cell = tail_begin; cell < tail_end; ++cell)
    ids[count++] = static_cast<int32_t>(cell);
  op.counts(row) = static_cast<int32_t>(count);
  std::fill(ids + count, ids + op.ids.dim(1), -1);
}

}  // namespace

size_t TopkWorkspaceBytes(int64_t capacity, int64_t k, int threads) {
  return static_cast<size_t>(threads) * Scratch::Bytes(capacity, k);
}

void Run(const TopkSelect& op, Stream stream) {
  const int64_t rows = op.ids.dim(0), capacity = op.scores.dim(1);
  ThreadPool& pool = *stream.pool;
  if (rows < pool.threads() && capacity >= kSharedLength) {
    for (int64_t row = 0; row < rows; ++row) SelectRow(op, row, op.workspace.data, &pool);
    return;
  }
  // A selected row costs a few operations per score.
  const int64_t grain = Grain(4 * std::max(capacity, op.k));
  pool.For(rows, grain, [&](int64_t begin, int64_t end, int worker) {
    std::byte* workspace =
        op.workspace.data + static_cast<size_t>(worker) * Scratch::Bytes(capacity, op.k);
    for (int64_t row = begin; row < end; ++row) SelectRow(op, row, workspace, nullptr);
  });
}

}  // namespace strata::cpu
