#include "kernels/topk_select.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/isa/indexer.h"
#include "kernels/cpu/partition.h"
#include "kernels/order.h"
#include "kernels/status.h"

namespace strata::cpu {

namespace {

// Rows up to this long are selected from directly; longer ones are first cut down by a guessed threshold.
constexpr int64_t kDirectLength = 4096;
constexpr int64_t kSamples = 2048;
constexpr int64_t kDigitBins = 2048;

// Words a row's workspace holds, twice: three times what is wanted, so that the guess may be low.
int64_t WordCapacity(int64_t capacity, int64_t k) { return std::min(capacity, std::max(kDirectLength, 3 * k)); }

size_t RowBytes(int64_t capacity, int64_t k) {
  return static_cast<size_t>(2 * WordCapacity(capacity, k)) * sizeof(uint64_t) + kDigitBins * sizeof(uint32_t);
}

// A score that somewhat more than k of the row's scores should reach, from an even sample; any value is allowed, it can
// cost time but never an answer.
float GuessThreshold(const float* scores, int64_t n, int64_t k, uint64_t* words) {
  const int64_t step = n / kSamples;
  for (int64_t i = 0; i < kSamples; ++i) words[i] = OrderKey(FloatToBits(scores[i * step]));
  // Expected rank of the k-th score in the sample, plus three standard deviations and a little.
  const double rank = static_cast<double>(k) * kSamples / static_cast<double>(n);
  const int64_t wanted = static_cast<int64_t>(rank + 3.0 * std::sqrt(rank) + 4.0);
  if (wanted >= kSamples) return -std::numeric_limits<float>::infinity();
  std::nth_element(words, words + wanted, words + kSamples, std::greater<>());
  const uint32_t key = static_cast<uint32_t>(words[wanted]);
  if (key == 0) return -std::numeric_limits<float>::infinity();  // NaN: compares with nothing
  return BitsToFloat((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// The k-th largest SelectionKey of the whole row by digits of 11 bits, for rows the guess does not serve (many equal
// scores). Exact for any distribution.
uint64_t KthByDigits(const float* scores, int64_t n, int64_t k, uint32_t* bins) {
  uint64_t prefix = 0;
  int shift = 64;
  int64_t wanted = k;
  const int64_t index_bits = std::bit_width(static_cast<uint64_t>(n - 1));
  while (shift > 0) {
    // Position bits above those that n needs are the same in every word: 0xffffffff - position has them set.
    if (shift == 32 && index_bits < 32) {
      const uint64_t fixed = (uint64_t{1} << (32 - index_bits)) - 1;
      prefix |= fixed << index_bits;
      shift = static_cast<int>(index_bits);
      if (shift == 0) break;
    }
    const int stop = shift > 32 ? 32 : 0;
    const int bits = std::min(11, shift - stop);
    shift -= bits;
    std::fill(bins, bins + (int64_t{1} << bits), 0u);
    const uint64_t mask = ~uint64_t{0} << (shift + bits) % 64;
    const uint64_t care = shift + bits == 64 ? 0 : mask;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t word = SelectionKey(FloatToBits(scores[i]), static_cast<uint32_t>(i));
      if ((word & care) == (prefix & care)) ++bins[word >> shift & ((uint64_t{1} << bits) - 1)];
    }
    int64_t bin = (int64_t{1} << bits) - 1;
    while (wanted > bins[bin]) wanted -= bins[bin--];
    prefix |= static_cast<uint64_t>(bin) << shift;
    // A bin of one word, or a bin taken whole, needs no further digit: its smallest word is the threshold.
    if (static_cast<int64_t>(bins[bin]) == wanted) return prefix;
  }
  return prefix;
}

// Writes the `k` best candidates of the row, ascending, through emit(candidate).
template <class Emit>
void SelectRow(const float* scores, int64_t n, int64_t k, int64_t capacity, std::byte* workspace, const Emit& emit) {
  if (k <= 0) return;
  uint64_t* words = reinterpret_cast<uint64_t*>(workspace);
  uint32_t* bins = reinterpret_cast<uint32_t*>(words + 2 * WordCapacity(capacity, k));
  const IndexerLoops& loops = ChosenIndexerLoops();
  int64_t count = 0;
  if (n <= kDirectLength) {
    for (int64_t i = 0; i < n; ++i) words[i] = SelectionKey(FloatToBits(scores[i]), static_cast<uint32_t>(i));
    count = n;
  } else {
    const float threshold = GuessThreshold(scores, n, k, words);
    count = loops.collect_at_least(scores, 0, n, threshold, words, 0, WordCapacity(capacity, k));
  }
  if (count < k || count > WordCapacity(capacity, k)) {
    const uint64_t kth = KthByDigits(scores, n, k, bins);
    for (int64_t i = 0; i < n; ++i) {
      if (SelectionKey(FloatToBits(scores[i]), static_cast<uint32_t>(i)) >= kth) emit(i);
    }
    return;
  }
  // The words stand in ascending position: find the k-th in a copy, then emit in order.
  uint64_t* copy = words + WordCapacity(capacity, k);
  std::copy(words, words + count, copy);
  std::nth_element(copy, copy + k - 1, copy + count, std::greater<>());
  const uint64_t kth = copy[k - 1];
  for (int64_t i = 0; i < count; ++i) {
    if (words[i] >= kth) emit(static_cast<int64_t>(0xffffffffu - static_cast<uint32_t>(words[i])));
  }
}

void SelectOne(const TopkSelect& op, int64_t row, std::byte* workspace) {
  int32_t* ids = op.ids.row(row);
  const int64_t candidates = std::max<int64_t>(0, op.lengths(row));
  int64_t count = 0;
  // The incomplete pool's cells, and the places left for whole pools.
  const int64_t tail_begin = candidates * op.kpool;
  int64_t tail_end = tail_begin;
  if (op.kpool > 1 && op.tail != PoolTail::kNone) {
    tail_end = std::clamp<int64_t>(op.cells(row), tail_begin, tail_begin + op.kpool - 1);
  }
  int64_t places = op.k / op.kpool;
  if (op.tail == PoolTail::kForce && tail_end > tail_begin) --places;
  const auto emit = [&](int64_t candidate) {
    for (int64_t c = 0; c < op.kpool; ++c) ids[count++] = static_cast<int32_t>(candidate * op.kpool + c);
  };
  if (candidates <= places) {
    for (int64_t candidate = 0; candidate < candidates; ++candidate) emit(candidate);
  } else {
    if (candidates > op.scores.dim(1)) {
      Fail(ErrorCode::kShape, fmt::format("TopkSelect: row {} has {} candidates, the score row holds {}", row, candidates,
                                          op.scores.dim(1)));
    }
    SelectRow(op.scores.row(row), candidates, places, op.scores.dim(1), workspace, emit);
  }
  for (int64_t cell = tail_begin; cell < tail_end; ++cell) ids[count++] = static_cast<int32_t>(cell);
  op.counts(row) = static_cast<int32_t>(count);
  std::fill(ids + count, ids + op.ids.dim(1), -1);
}

}  // namespace

size_t TopkWorkspaceBytes(int64_t capacity, int64_t k, int threads) {
  return static_cast<size_t>(threads) * RowBytes(capacity, k);
}

void Run(const TopkSelect& op, Stream stream) {
  const int64_t rows = op.ids.dim(0);
  const size_t row_bytes = RowBytes(op.scores.dim(1), op.k);
  // A selected row costs a few operations per score.
  const int64_t grain = Grain(4 * std::max<int64_t>(op.scores.dim(1), op.k));
  stream.pool->For(rows, grain, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t row = begin; row < end; ++row) {
      SelectOne(op, row, op.workspace.data + static_cast<size_t>(worker) * row_bytes);
    }
  });
}

}  // namespace strata::cpu
