#include "kernels/sparse_mla.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/isa/attend.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/partition.h"
#include "kernels/status.h"

namespace strata::cpu {

namespace {

int64_t PaddedLanes(int64_t n) { return (n + 15) / 16 * 16; }
size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

// One worker's scratch.
struct Scratch {
  const std::byte** cells;  // [columns]
  float* probabilities;     // [heads, PaddedLanes(columns)]
  float* sums;              // [heads]
  float* maxima;            // [heads]
  float* cells_fp32;        // [2, AttendCellFloats]
};

struct ScratchBytes {
  size_t cells, probabilities, head, cells_fp32;

  ScratchBytes(int64_t heads, int64_t columns, const LatentLayout& layout)
      : cells(RoundUp(static_cast<size_t>(columns) * sizeof(void*))),
        probabilities(RoundUp(static_cast<size_t>(heads * PaddedLanes(columns)) * sizeof(float))),
        head(RoundUp(static_cast<size_t>(heads) * sizeof(float))),
        cells_fp32(RoundUp(static_cast<size_t>(2 * AttendCellFloats(layout.latent, layout.rope)) *
                           sizeof(float))) {}
  size_t total() const { return cells + probabilities + 2 * head + cells_fp32; }
};

Scratch TakeScratch(std::byte* base, const ScratchBytes& bytes) {
  Scratch scratch;
  scratch.cells = reinterpret_cast<const std::byte**>(base);
  base += bytes.cells;
  scratch.probabilities = reinterpret_cast<float*>(base);
  base += bytes.probabilities;
  scratch.sums = reinterpret_cast<float*>(base);
  base += bytes.head;
  scratch.maxima = reinterpret_cast<float*>(base);
  base += bytes.head;
  scratch.cells_fp32 = reinterpret_cast<float*>(base);
  return scratch;
}

// The addresses of the row's valid ids, in column order; returns how many.
int64_t GatherCells(const SparseMla& op, int64_t row, const std::byte** cells) {
  const int64_t sequence = op.rows.sequence(row), length = op.lengths(row);
  const View<const int32_t, 2>& table = op.pages.block_table;
  if (length > 0 &&
      (sequence < 0 || sequence >= table.dim(0) || length > table.dim(1) * kPageCells)) {
    Fail(ErrorCode::kShape,
         fmt::format(
             "SparseMla: row {} sees {} cells of sequence {}, the block table has {} x {} pages",
             row, length, sequence, table.dim(0), table.dim(1)));
  }
  const int64_t row_bytes = op.pages.layout.RowBytes();
  int64_t count = 0;
  for (int64_t i = 0; i < op.ids.dim(1); ++i) {
    const int64_t id = op.ids(row, i);
    if (id < 0 || id >= length) continue;
    cells[count++] = op.pages.base + table(sequence, id / kPageCells) * op.pages.page_stride +
                     id % kPageCells * row_bytes;
  }
  return count;
}

AttendArgs MakeArgs(const SparseMla& op, int64_t row, const Scratch& scratch) {
  const LatentLayout& layout = op.pages.layout;
  const bool quantised = layout.dtype == DType::kFp8E4M3 || layout.dtype == DType::kInt8;
  return AttendArgs{.cells = scratch.cells,
                    .count = GatherCells(op, row, scratch.cells),
                    .dtype = layout.dtype,
                    .latent = layout.latent,
                    .rope = layout.rope,
                    .rope_offset = quantised ? layout.latent + layout.ScaleBytes()
                                             : layout.latent * DTypeBytes(layout.dtype),
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
                    .cells_fp32 = scratch.cells_fp32};
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
    op.lse(row, head) =
        sum == 0.0f ? args.maxima[head] : args.maxima[head] + static_cast<float>(Log(sum));
  }
}

void AttendRow(const SparseMla& op, int64_t row, const Scratch& scratch) {
  const AttendArgs args = MakeArgs(op, row, scratch);
  if (args.count == 0) return WriteEmpty(op, row);
  const AttendLoops& loops = ChosenAttendLoops();
  loops.scores(args, 0, args.count);
  loops.softmax(args);
  loops.values(args, 0, args.latent);
  WriteLse(op, row, args);
}

// One row with all threads: cells are shared for the scores, latent dimensions for the values.
void AttendRowShared(const SparseMla& op, int64_t row, std::byte* workspace,
                     const ScratchBytes& bytes, ThreadPool& pool) {
  const AttendArgs shared = MakeArgs(op, row, TakeScratch(workspace, bytes));
  if (shared.count == 0) return WriteEmpty(op, row);
  const AttendLoops& loops = ChosenAttendLoops();
  pool.For(
      shared.count, Grain(shared.heads * (shared.latent + shared.rope), 2),
      [&](int64_t begin, int64_t end, int worker) {
        AttendArgs args = shared;
        args.cells_fp32 =
            TakeScratch(workspace + static_cast<size_t>(worker) * bytes.total(), bytes).cells_fp32;
        loops.scores(args, begin, end);
      });
  loops.softmax(shared);
  pool.For(shared.latent, Grain(shared.heads * shared.count, 32),
           [&](int64_t begin, int64_t end, int) { loops.values(shared, begin, end); });
  WriteLse(op, row, shared);
}

}  // namespace

size_t SparseMlaWorkspaceBytes(int64_t heads, int64_t columns, const LatentLayout& layout,
                               int threads) {
  return static_cast<size_t>(threads) * ScratchBytes(heads, columns, layout).total();
}

void Run(const SparseMla& op, Stream stream) {
  ThreadPool& pool = *stream.pool;
  const int64_t rows = op.query.dim(0);
  const ScratchBytes bytes(op.query.dim(1), op.ids.dim(1), op.pages.layout);
  if (rows < 2 * pool.threads()) {
    for (int64_t row = 0; row < rows; ++row)
      AttendRowShared(op, row, op.workspace.data, bytes, pool);
    return;
  }
  pool.For(rows, 1, [&](int64_t begin, int64_t end, int worker) {
    const Scratch scratch =
        TakeScratch(op.workspace.data + static_cast<size_t>(worker) * bytes.total(), bytes);
    for (int64_t row = begin; row < end; ++row) AttendRow(op, row, scratch);
  });
}

}  // namespace strata::cpu
