#include "kernels/index_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/isa/scan.h"
#include "kernels/cpu/partition.h"
#include "kernels/order.h"
#include "kernels/status.h"

namespace strata::cpu {

namespace {

constexpr int64_t kMaxDim = 512;      // dispatch.cpp refuses wider keys
constexpr int64_t kRowsPerItem = 64;  // rows of a group that one item scores against one tile

// Lengths are data of the step: checked where they are read, before a key or a score is touched.
void CheckLengths(const IndexScan& op) {
  const int64_t sequences = op.keys.block_table.dim(0);
  for (int64_t row = 0; row < op.lengths.dim(0); ++row) {
    if (op.lengths(row) > op.scores.dim(1)) {
      Fail(ErrorCode::kShape,
           fmt::format("IndexScan: row {} has {} candidates, the score row holds {}", row,
                       op.lengths(row), op.scores.dim(1)));
    }
    if (op.lengths(row) > 0 && (op.rows.sequence(row) < 0 || op.rows.sequence(row) >= sequences)) {
      Fail(ErrorCode::kShape,
           fmt::format("IndexScan: row {} is of sequence {}, the block table has {}", row,
                       op.rows.sequence(row), sequences));
    }
  }
}

// The work of one group, cut into items: tiles of its candidates times runs of its rows, the rows
// of a tile in turn.
struct GroupItems {
  int64_t first_row;
  int64_t rows;
  int64_t longest;  // the widest row decides how many tiles there are
  int64_t tiles;
  int64_t row_runs;

  GroupItems(const IndexScan& op, int64_t group)
      : first_row(op.rows.first_row(group)),
        rows(op.rows.first_row(group + 1) - first_row),
        longest(0) {
    for (int64_t row = first_row; row < first_row + rows; ++row)
      longest = std::max<int64_t>(longest, op.lengths(row));
    tiles = (longest + kScanTile - 1) / kScanTile;
    row_runs = (rows + kRowsPerItem - 1) / kRowsPerItem;
  }
  int64_t items() const { return tiles * row_runs; }
};

// The keys of one tile, converted once for all rows that the thread scores against them.
class Panel {
 public:
  void Fill(const IndexScan& op, const GroupItems& group, int64_t tile) {
    const KeyLayout& layout = op.keys.layout;
    const int64_t sequence = op.rows.sequence(group.first_row);
    const int64_t first = tile * kScanTile, count = std::min(kScanTile, group.longest - first);
    // A tile is whole pages: both are powers of two, and a page holds at most a tile.
    const int64_t per_page = layout.KeysPerPage(), key_bytes = layout.KeyBytes();
    const std::byte* keys[kScanTile];
    int64_t page_index = first / per_page;
    for (int64_t begin = 0; begin < count; begin += per_page, ++page_index) {
      const std::byte* page =
          op.keys.base + op.keys.block_table(sequence, page_index) * op.keys.page_stride;
      const int64_t slots = std::min(per_page, count - begin);
      for (int64_t slot = 0; slot < slots; ++slot) keys[begin + slot] = page + slot * key_bytes;
      if (layout.dtype == DType::kFp8E4M3) {
        std::memcpy(&scales_[begin], page + layout.ScaleOffset(),
                    static_cast<size_t>(slots) * sizeof(float));
      }
    }
    ChosenScanLoops().fill_panel(keys, count, layout.dtype, layout.dim, values_);
  }

  void ScoreRow(const IndexScan& op, int64_t row, int64_t tile) const {
    const KeyLayout& layout = op.keys.layout;
    const int64_t first = tile * kScanTile;
    const int64_t visible = std::min(kScanTile, op.lengths(row) - first);
    if (visible <= 0) return;
    ChosenScanLoops().score_row(
        ScanRowArgs{.query = static_cast<const float*>(op.query.data) + row * op.query.stride[0],
                    .head_stride = op.query.stride[1],
                    .weights = op.weights.row(row),
                    .heads = op.query.dim(1),
                    .dim = layout.dim,
                    .panel = values_,
                    .panel_values = PanelValues(layout.dtype, layout.dim),
                    .key_scales = layout.dtype == DType::kFp8E4M3 ? scales_ : nullptr,
                    .visible = visible,
                    .scores = op.scores.row(row) + first});
  }

 private:
  alignas(64) float values_[kScanTile * kMaxDim];
  alignas(64) float scales_[kScanTile] = {};
};

// Items [begin, end) of a group.
void ScanItems(const IndexScan& op, const GroupItems& group, int64_t begin, int64_t end,
               Panel& panel) {
  int64_t filled = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t tile = item / group.row_runs, run = item % group.row_runs;
    if (tile != filled) panel.Fill(op, group, tile);
    filled = tile;
    const int64_t last = std::min(group.rows, (run + 1) * kRowsPerItem);
    for (int64_t row = run * kRowsPerItem; row < last; ++row)
      panel.ScoreRow(op, group.first_row + row, tile);
  }
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
  // The items of all groups, one after another; a thread takes a contiguous run of them.
  const int64_t groups = op.rows.first_row.dim(0) - 1;
  int64_t items = 0, work = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const GroupItems group(op, g);
    items += group.items();
    work += group.tiles * group.rows;
  }
  if (items == 0) return;
  const int64_t item_work = work * kScanTile / items * op.query.dim(1) * op.query.dim(2);
  stream.pool->For(items, Grain(item_work), [&](int64_t begin, int64_t end, int) {
    Panel panel;
    int64_t base = 0;
    for (int64_t g = 0; g < groups && base < end; ++g) {
      const GroupItems group(op, g);
      ScanItems(op, group, std::max<int64_t>(0, begin - base), std::min(group.items(), end - base),
                panel);
      base += group.items();
    }
  });
  if (op.histogram.data == nullptr) return;
  stream.pool->For(op.lengths.dim(0), Grain(op.scores.dim(1)),
                   [&](int64_t begin, int64_t end, int) { CountHistogram(op, begin, end); });
}

}  // namespace strata::cpu
