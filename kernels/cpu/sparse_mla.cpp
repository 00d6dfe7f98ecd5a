#include "kernels/sparse_mla.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/isa/indexer.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/partition.h"
#include "kernels/status.h"

namespace strata::cpu {

namespace {

int64_t PaddedLanes(int64_t n) { return (n + 15) / 16 * 16; }
size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

// One worker's scratch for one row.
struct RowScratch {
  const std::byte** cells;  // [columns]
  float* probabilities;     // [heads, PaddedLanes(columns)]
  float* sums;              // [heads]
  float* maxima;            // [heads]
};
size_t RowScratchBytes(int64_t heads, int64_t columns) {
  return RoundUp(static_cast<size_t>(columns) * sizeof(void*)) +
         RoundUp(static_cast<size_t>(heads * PaddedLanes(columns)) * sizeof(float)) +
         2 * RoundUp(static_cast<size_t>(heads) * sizeof(float));
}
RowScratch TakeRowScratch(std::byte* base, int64_t heads, int64_t columns) {
  RowScratch scratch;
  scratch.cells = reinterpret_cast<const std::byte**>(base);
  base += RoundUp(static_cast<size_t>(columns) * sizeof(void*));
  scratch.probabilities = reinterpret_cast<float*>(base);
  base += RoundUp(static_cast<size_t>(heads * PaddedLanes(columns)) * sizeof(float));
  scratch.sums = reinterpret_cast<float*>(base);
  base += RoundUp(static_cast<size_t>(heads) * sizeof(float));
  scratch.maxima = reinterpret_cast<float*>(base);
  return scratch;
}

// A tile of cells as fp32: each with a run of lanes to spare behind it.
size_t PanelBytes(const LatentLayout& layout) {
  return RoundUp(static_cast<size_t>(kAttendTile * (PaddedLanes(layout.latent + layout.rope) + 16)) * sizeof(float));
}

AttendArgs MakeArgs(const SparseMla& op, int64_t row, const RowScratch& scratch) {
  const LatentLayout& layout = op.pages.layout;
  const int64_t sequence = op.rows.sequence(row);
  const View<const int32_t, 2>& table = op.pages.block_table;
  if (op.lengths(row) > 0 &&
      (sequence < 0 || sequence >= table.dim(0) || op.lengths(row) > table.dim(1) * kPageCells)) {
    Fail(ErrorCode::kShape, fmt::format("SparseMla: row {} sees {} cells of sequence {}, the block table has {} x {} pages",
                                        row, op.lengths(row), sequence, table.dim(0), table.dim(1)));
  }
  int64_t count = 0;
  for (int64_t i = 0; i < op.ids.dim(1); ++i) {
    const int64_t id = op.ids(row, i);
    if (id < 0 || id >= op.lengths(row)) continue;
    const int64_t page = table(sequence, id / kPageCells);
    scratch.cells[count++] =
        op.pages.base + page * op.pages.page_stride + id % kPageCells * layout.RowBytes();
  }
  return AttendArgs{.cells = scratch.cells,
                    .count = count,
                    .dtype = layout.dtype,
                    .latent = layout.latent,
                    .rope = layout.rope,
                    .rope_offset = layout.latent + layout.ScaleBytes(),
                    .scale_offset = layout.latent,
                    .query = static_cast<const float*>(op.query.data) + row * op.query.stride[0],
                    .query_stride = op.query.stride[1],
                    .heads = op.query.dim(1),
                    .scale = op.scale,
                    .probabilities = scratch.probabilities,
                    .probability_stride = PaddedLanes(op.ids.dim(1)),
                    .sums = scratch.sums,
                    .maxima = scratch.maxima,
                    .out = op.out.row(row),
                    .out_stride = op.out.stride[1],
                    .panel = nullptr};
}

void WriteEmpty(const SparseMla& op, int64_t row) {
  for (int64_t head = 0; head < op.out.dim(1); ++head) {
    for (int64_t d = 0; d < op.out.dim(2); ++d) op.out(row, head, d) = 0.0f;
    if (op.lse.data != nullptr) op.lse(row, head) = -std::numeric_limits<float>::infinity();
  }
}

void WriteLse(const SparseMla& op, int64_t row, const AttendArgs& args) {
  if (op.lse.data == nullptr) return;
  for (int64_t head = 0; head < args.heads; ++head) {
    // A sum of zero: all scores are -infinity.
    const float sum = args.sums[head];
    op.lse(row, head) = sum == 0.0f ? args.maxima[head] : args.maxima[head] + static_cast<float>(Log(sum));
  }
}

void AttendRow(const SparseMla& op, int64_t row, const RowScratch& scratch, float* panel) {
  AttendArgs args = MakeArgs(op, row, scratch);
  if (args.count == 0) return WriteEmpty(op, row);
  const IndexerLoops& loops = ChosenIndexerLoops();
  args.panel = panel;
  loops.attend_scores(args, 0, args.count);
  loops.attend_softmax(args, 0, args.heads);
  loops.attend_values(args, 0, args.latent);
  WriteLse(op, row, args);
}

// One row with all threads: cells are shared for the scores, heads for the softmax, latent dimensions for the values.
void AttendRowShared(const SparseMla& op, int64_t row, const RowScratch& scratch, std::byte* panels,
                     ThreadPool& pool) {
  AttendArgs shared = MakeArgs(op, row, scratch);
  if (shared.count == 0) return WriteEmpty(op, row);
  const IndexerLoops& loops = ChosenIndexerLoops();
  const size_t panel_bytes = PanelBytes(op.pages.layout);
  const auto with_panel = [&](int worker) {
    AttendArgs args = shared;
    args.panel = reinterpret_cast<float*>(panels + static_cast<size_t>(worker) * panel_bytes);
    return args;
  };
  pool.For(shared.count, Grain(shared.heads * (shared.latent + shared.rope), kAttendTile),
           [&](int64_t begin, int64_t end, int worker) { loops.attend_scores(with_panel(worker), begin, end); });
  pool.For(shared.heads, Grain(16 * shared.count),
           [&](int64_t begin, int64_t end, int) { loops.attend_softmax(shared, begin, end); });
  pool.For(shared.latent, Grain(shared.heads * shared.count, 64),
           [&](int64_t begin, int64_t end, int worker) { loops.attend_values(with_panel(worker), begin, end); });
  WriteLse(op, row, shared);
}

}  // namespace

size_t SparseMlaWorkspaceBytes(int64_t heads, int64_t columns, const LatentLayout& layout, int threads) {
  return static_cast<size_t>(threads) * (PanelBytes(layout) + RowScratchBytes(heads, columns));
}

void Run(const SparseMla& op, Stream stream) {
  ThreadPool& pool = *stream.pool;
  const int64_t rows = op.query.dim(0), heads = op.query.dim(1), columns = op.ids.dim(1);
  const size_t panel_bytes = PanelBytes(op.pages.layout);
  std::byte* panels = op.workspace.data;
  std::byte* scratch = panels + static_cast<size_t>(pool.threads()) * panel_bytes;
  if (rows < 2 * pool.threads()) {
    for (int64_t row = 0; row < rows; ++row) {
      AttendRowShared(op, row, TakeRowScratch(scratch, heads, columns), panels, pool);
    }
    return;
  }
  pool.For(rows, 1, [&](int64_t begin, int64_t end, int worker) {
    const size_t index = static_cast<size_t>(worker);
    const RowScratch own = TakeRowScratch(scratch + index * RowScratchBytes(heads, columns), heads, columns);
    float* panel = reinterpret_cast<float*>(panels + index * panel_bytes);
    for (int64_t row = begin; row < end; ++row) AttendRow(op, row, own, panel);
  });
}

}  // namespace strata::cpu
