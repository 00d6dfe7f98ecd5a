#include "kernels/index_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/isa/indexer.h"
#include "kernels/cpu/partition.h"
#include "kernels/order.h"
#include "kernels/status.h"

namespace strata::cpu {

namespace {

constexpr int64_t kMaxHeads = 128;
constexpr int64_t kMaxPaddedDim = 512;

// Lengths are data of the step: checked where they are read, before a key or a score is touched.
void CheckLengths(const IndexScan& op) {
  const int64_t sequences = op.keys.block_table.dim(0);
  for (int64_t row = 0; row < op.lengths.dim(0); ++row) {
    if (op.lengths(row) > op.scores.dim(1)) {
      Fail(ErrorCode::kShape, fmt::format("IndexScan: row {} has {} candidates, the score row holds {}", row,
                                          op.lengths(row), op.scores.dim(1)));
    }
    if (op.lengths(row) > 0 && (op.rows.sequence(row) < 0 || op.rows.sequence(row) >= sequences)) {
      Fail(ErrorCode::kShape, fmt::format("IndexScan: row {} is of sequence {}, the block table has {}", row,
                                          op.rows.sequence(row), sequences));
    }
  }
}

// The widest row of a group decides how many tiles its keys are cut into.
int64_t LongestRow(const IndexScan& op, int64_t group) {
  int64_t longest = 0;
  for (int64_t row = op.rows.first_row(group); row < op.rows.first_row(group + 1); ++row) {
    longest = std::max<int64_t>(longest, op.lengths(row));
  }
  return longest;
}

void ScanGroupTile(const IndexScan& op, int64_t group, int64_t first_candidate, int64_t longest) {
  const KeyLayout& layout = op.keys.layout;
  const int64_t first_row = op.rows.first_row(group);
  const int64_t sequence = op.rows.sequence(first_row);
  const int64_t per_page = layout.KeysPerPage();
  const std::byte* keys[kScanTile];
  float scales[kScanTile];
  const int64_t count = std::min(kScanTile, longest - first_candidate);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t candidate = first_candidate + j;
    const int64_t page_id = op.keys.block_table(sequence, candidate / per_page);
    const std::byte* page = op.keys.base + page_id * op.keys.page_stride;
    const int64_t slot = candidate % per_page;
    keys[j] = page + slot * layout.KeyBytes();
    if (layout.dtype == DType::kFp8E4M3) {
      std::memcpy(&scales[j], page + layout.ScaleOffset() + slot * 4, sizeof(float));
    }
  }
  alignas(64) float panel[kScanTile * kMaxPaddedDim];
  alignas(64) float dots[kMaxHeads * kScanTile];
  const ScanArgs args{.keys = keys,
                      .key_scales = scales,
                      .count = count,
                      .key_dtype = layout.dtype,
                      .dim = layout.dim,
                      .first_candidate = first_candidate,
                      .query = static_cast<const float*>(op.query.data) + first_row * op.query.stride[0],
                      .query_row_stride = op.query.stride[0],
                      .query_head_stride = op.query.stride[1],
                      .weights = op.weights.row(first_row),
                      .weights_stride = op.weights.stride[0],
                      .lengths = &op.lengths(first_row),
                      .lengths_stride = op.lengths.stride[0],
                      .scores = op.scores.row(first_row),
                      .scores_stride = op.scores.stride[0],
                      .rows = op.rows.first_row(group + 1) - first_row,
                      .heads = op.query.dim(1),
                      .panel = panel,
                      .dots = dots};
  ChosenIndexerLoops().scan_tile(args);
}

void CountHistogram(const IndexScan& op, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* scores = op.scores.row(row);
    uint32_t* bins = op.histogram.row(row);
    for (int64_t j = 0; j < op.lengths(row); ++j) ++bins[OrderKey(FloatToBits(scores[j])) >> 21];
  }
}

}  // namespace

void Run(const IndexScan& op, Stream stream) {
  CheckLengths(op);
  // Items are tiles of all groups, one after another; a thread takes a contiguous run of them.
  const int64_t groups = op.rows.first_row.dim(0) - 1;
  int64_t tiles = 0, work = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t group_tiles = (LongestRow(op, group) + kScanTile - 1) / kScanTile;
    tiles += group_tiles;
    work += group_tiles * (op.rows.first_row(group + 1) - op.rows.first_row(group));
  }
  if (tiles == 0) return;
  const int64_t tile_work = work / tiles * kScanTile * op.query.dim(1) * op.query.dim(2);
  stream.pool->For(tiles, Grain(tile_work), [&](int64_t begin, int64_t end, int) {
    int64_t base = 0;
    for (int64_t group = 0; group < groups && base < end; ++group) {
      const int64_t longest = LongestRow(op, group);
      const int64_t group_tiles = (longest + kScanTile - 1) / kScanTile;
      for (int64_t tile = std::max(begin, base); tile < std::min(end, base + group_tiles); ++tile) {
        ScanGroupTile(op, group, (tile - base) * kScanTile, longest);
      }
      base += group_tiles;
    }
  });
  if (op.histogram.data == nullptr) return;
  stream.pool->For(op.lengths.dim(0), Grain(op.scores.dim(1)),
                   [&](int64_t begin, int64_t end, int) { CountHistogram(op, begin, end); });
}

}  // namespace strata::cpu
