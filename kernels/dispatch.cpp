// The one place that checks the indexer path's ops and picks their implementation.
#include <fmt/format.h>

#include "kernels/cache_write.h"
#include "kernels/index_scan.h"
#include "kernels/sparse_mla.h"
#include "kernels/status.h"
#include "kernels/topk_select.h"

namespace strata {

namespace {

constexpr int64_t kMaxCpuIndexHeads = 128;
constexpr int64_t kMaxCpuIndexDim = 512;

[[noreturn, maybe_unused]] void NoCuda(const char* op) {
  Fail(ErrorCode::kDevice,
       fmt::format("{}: this build has no CUDA kernels; configure with STRATA_CUDA=ON", op));
}

void MatchRows(const char* op, const RowMap& map, Dim* rows) {
  Match(op, "rows.sequence", map.sequence, {rows});
  if (map.first_row.dim(0) < 1)
    Fail(ErrorCode::kShape,
         fmt::format("{}: rows.first_row is empty, it holds groups + 1 bounds", op));
}

void CheckKeys(const char* op, const KeyPages& pages) {
  const KeyLayout& layout = pages.layout;
  if (layout.kpool < 1 || kPageCells % layout.kpool != 0) {
    Fail(ErrorCode::kShape, fmt::format("{}: kpool {} does not divide a page of {} cells", op,
                                        layout.kpool, kPageCells));
  }
  if (layout.dtype != DType::kF32 && layout.dtype != DType::kBf16 &&
      layout.dtype != DType::kFp8E4M3) {
    Fail(ErrorCode::kShape, fmt::format("{}: index keys of {}, fp32, bf16 and fp8 are served", op,
                                        DTypeName(layout.dtype)));
  }
  if (pages.page_stride < layout.PageBytes()) {
    Fail(ErrorCode::kShape, fmt::format("{}: page_stride {} is less than a page of {} bytes", op,
                                        pages.page_stride, layout.PageBytes()));
  }
}

void CheckLatent(const char* op, const LatentPages& pages) {
  const LatentLayout& layout = pages.layout;
  if (layout.dtype == DType::kI32 || layout.latent < 1 || layout.rope < 0) {
    Fail(ErrorCode::kShape,
         fmt::format("{}: latent rows of {} + {} values of {}; fp32, bf16, fp8 and int8 are served",
                     op, layout.latent, layout.rope, DTypeName(layout.dtype)));
  }
  if (pages.page_stride < layout.PageBytes()) {
    Fail(ErrorCode::kShape, fmt::format("{}: page_stride {} is less than a page of {} bytes", op,
                                        pages.page_stride, layout.PageBytes()));
  }
}

#if defined(STRATA_HAVE_CUDA)
// Scales lie at multiples of their 4 bytes, which is how a device can load them.
void CheckCudaScales(const char* op, const LatentPages& pages) {
  const LatentLayout& layout = pages.layout;
  if (layout.ScaleBytes() == 0) return;
  if (layout.latent % 4 != 0 || layout.RowBytes() % 4 != 0 || pages.page_stride % 4 != 0) {
    Fail(ErrorCode::kShape,
         fmt::format("{}: {} rows of {} + {} values, {} bytes a page; on CUDA `latent` and "
                     "page_stride are multiples of 4 and `rope` is even",
                     op, DTypeName(layout.dtype), layout.latent, layout.rope, pages.page_stride));
  }
}
void CheckCudaScales(const char* op, const KeyPages& pages) {
  if (pages.layout.dtype != DType::kFp8E4M3) return;
  if (pages.layout.ScaleOffset() % 4 != 0 || pages.page_stride % 4 != 0) {
    Fail(ErrorCode::kShape,
         fmt::format("{}: {} fp8 keys of {} values and {} bytes a page; on CUDA the bytes of a "
                     "page's keys and page_stride are multiples of 4",
                     op, pages.layout.KeysPerPage(), pages.layout.dim, pages.page_stride));
  }
}
#endif

void CheckWorkspace(const char* op, const View<std::byte, 1>& workspace, size_t needed) {
  if (static_cast<size_t>(workspace.dim(0)) < needed) {
    Fail(ErrorCode::kShape,
         fmt::format("{}: workspace of {} bytes, {} are needed", op, workspace.dim(0), needed));
  }
  if (needed > 0 && reinterpret_cast<uintptr_t>(workspace.data) % 16 != 0) {
    Fail(ErrorCode::kShape, fmt::format("{}: the workspace does not start at 16 bytes", op));
  }
}

}  // namespace

void Run(const WriteLatent& op, Stream stream) {
  Dim rows{"rows"}, width{"latent + rope", op.pages.layout.latent + op.pages.layout.rope};
  Match("WriteLatent", "values", op.values, {&rows, &width});
  Match("WriteLatent", "positions", op.positions, {&rows});
  MatchRows("WriteLatent", op.rows, &rows);
  CheckLatent("WriteLatent", op.pages);
  if (stream.device.kind == DeviceKind::kCpu) return cpu::Run(op, stream);
#if defined(STRATA_HAVE_CUDA)
  CheckCudaScales("WriteLatent", op.pages);
  return cuda::Run(op, stream);
#else
  NoCuda("WriteLatent");
#endif
}

void Run(const WriteIndexKeys& op, Stream stream) {
  Dim rows{"rows"}, dim{"dim", op.pages.layout.dim};
  Match("WriteIndexKeys", "keys", op.keys, {&rows, &dim});
  Match("WriteIndexKeys", "positions", op.positions, {&rows});
  MatchRows("WriteIndexKeys", op.rows, &rows);
  CheckKeys("WriteIndexKeys", op.pages);
  if (op.pages.layout.kpool != 1) {
    Fail(ErrorCode::kShape,
         fmt::format("WriteIndexKeys: kpool is {}, pooled keys are written by WritePooledKeys",
                     op.pages.layout.kpool));
  }
  if (stream.device.kind == DeviceKind::kCpu) return cpu::Run(op, stream);
#if defined(STRATA_HAVE_CUDA)
  CheckCudaScales("WriteIndexKeys", op.pages);
  return cuda::Run(op, stream);
#else
  NoCuda("WriteIndexKeys");
#endif
}

void Run(const WritePooledKeys& op, Stream stream) {
  Dim rows{"rows"}, dim{"dim", op.pages.layout.dim}, kpool{"kpool", op.pages.layout.kpool};
  Dim sequences{"sequences"}, cells{"ring cells"}, pair{"2 * dim", 2 * op.pages.layout.dim};
  Match("WritePooledKeys", "keys", op.keys, {&rows, &dim});
  Match("WritePooledKeys", "gate", op.gate, {&rows, &dim});
  Match("WritePooledKeys", "ape", op.ape, {&kpool, &dim});
  Match("WritePooledKeys", "positions", op.positions, {&rows});
  Match("WritePooledKeys", "ring", op.ring, {&sequences, &cells, &pair});
  MatchRows("WritePooledKeys", op.rows, &rows);
  CheckKeys("WritePooledKeys", op.pages);
  if (kpool.value < 2 || cells.value < kpool.value || dim.value > kMaxPooledDim) {
    Fail(ErrorCode::kShape,
         fmt::format(
             "WritePooledKeys: kpool {}, ring of {} cells, dim {}: kpool is 2 or more, the ring "
             "holds a pool, dim is at most {}",
             kpool.value, cells.value, dim.value, kMaxPooledDim));
  }
  if (stream.device.kind == DeviceKind::kCpu) return cpu::Run(op, stream);
#if defined(STRATA_HAVE_CUDA)
  CheckCudaScales("WritePooledKeys", op.pages);
  return cuda::Run(op, stream);
#else
  NoCuda("WritePooledKeys");
#endif
}

void Run(const IndexScan& op, Stream stream) {
  Dim rows{"rows"}, heads{"heads"}, dim{"dim", op.keys.layout.dim}, capacity{"capacity"};
  Match("IndexScan", "query", op.query, {&rows, &heads, &dim});
  Match("IndexScan", "weights", op.weights, {&rows, &heads});
  Match("IndexScan", "lengths", op.lengths, {&rows});
  Match("IndexScan", "scores", op.scores, {&rows, &capacity});
  MatchRows("IndexScan", op.rows, &rows);
  CheckKeys("IndexScan", op.keys);
  if (op.histogram.data != nullptr) {
    Dim bins{"bins", kScanHistogramBins};
    Match("IndexScan", "histogram", op.histogram, {&rows, &bins});
  }
  const int64_t covered = op.keys.block_table.dim(1) * op.keys.layout.KeysPerPage();
  if (capacity.value > covered) {
    Fail(ErrorCode::kShape,
         fmt::format("IndexScan: scores hold {} candidates, the block table of {} pages covers {}",
                     capacity.value, op.keys.block_table.dim(1), covered));
  }
  if (rows.value == 0) return;
  if (heads.value == 0) Fail(ErrorCode::kShape, "IndexScan: query has no heads");
  if (stream.device.kind == DeviceKind::kCpu) {
    if (op.query.dtype != DType::kF32) {
      Fail(ErrorCode::kShape,
           fmt::format("IndexScan: the CPU takes fp32 queries, not {}", DTypeName(op.query.dtype)));
    }
    if (heads.value > kMaxCpuIndexHeads || dim.value > kMaxCpuIndexDim) {
      Fail(ErrorCode::kShape,
           fmt::format("IndexScan: {} heads of {}; the CPU serves up to {} heads of {}",
                       heads.value, dim.value, kMaxCpuIndexHeads, kMaxCpuIndexDim));
    }
    return cpu::Run(op, stream);
  }
#if defined(STRATA_HAVE_CUDA)
  CheckCudaScales("IndexScan", op.keys);
  return cuda::Run(op, stream);
#else
  NoCuda("IndexScan");
#endif
}

size_t TopkSelect::WorkspaceBytes(int64_t rows, int64_t capacity, int64_t k, Stream stream) {
  if (stream.device.kind == DeviceKind::kCpu)
    return cpu::TopkWorkspaceBytes(capacity, k, stream.pool->threads());
#if defined(STRATA_HAVE_CUDA)
  return cuda::TopkWorkspaceBytes(rows, capacity, k);
#else
  (void)rows;
  NoCuda("TopkSelect");
#endif
}

void Run(const TopkSelect& op, Stream stream) {
  if (op.kpool < 1 || op.k < 1 || op.k % op.kpool != 0) {
    Fail(ErrorCode::kShape,
         fmt::format("TopkSelect: k {} is not a positive multiple of kpool {}", op.k, op.kpool));
  }
  Dim rows{"rows"}, capacity{"capacity"},
      columns{"columns", TopkSelect::IdColumns(op.k, op.kpool, op.tail)};
  Match("TopkSelect", "scores", op.scores, {&rows, &capacity});
  Match("TopkSelect", "lengths", op.lengths, {&rows});
  Match("TopkSelect", "ids", op.ids, {&rows, &columns});
  Match("TopkSelect", "counts", op.counts, {&rows});
  if (op.kpool > 1) Match("TopkSelect", "cells", op.cells, {&rows});
  if (rows.value == 0) return;
  CheckWorkspace("TopkSelect", op.workspace,
                 TopkSelect::WorkspaceBytes(rows.value, capacity.value, op.k, stream));
  if (stream.device.kind == DeviceKind::kCpu) return cpu::Run(op, stream);
#if defined(STRATA_HAVE_CUDA)
  return cuda::Run(op, stream);
#else
  NoCuda("TopkSelect");
#endif
}

size_t SparseMla::WorkspaceBytes(int64_t rows, int64_t heads, int64_t columns,
                                 const LatentLayout& layout, Stream stream) {
  if (stream.device.kind == DeviceKind::kCpu) {
    return cpu::SparseMlaWorkspaceBytes(heads, columns, layout, stream.pool->threads());
  }
#if defined(STRATA_HAVE_CUDA)
  return cuda::SparseMlaWorkspaceBytes(rows, heads, columns, layout, stream.device.ordinal);
#else
  (void)rows;
  NoCuda("SparseMla");
#endif
}

void Run(const SparseMla& op, Stream stream) {
  Dim rows{"rows"}, heads{"heads"}, latent{"latent", op.pages.layout.latent}, columns{"columns"};
  Dim width{"latent + rope", op.pages.layout.latent + op.pages.layout.rope};
  Match("SparseMla", "query", op.query, {&rows, &heads, &width});
  Match("SparseMla", "ids", op.ids, {&rows, &columns});
  Match("SparseMla", "lengths", op.lengths, {&rows});
  Match("SparseMla", "out", op.out, {&rows, &heads, &latent});
  if (op.lse.data != nullptr) Match("SparseMla", "lse", op.lse, {&rows, &heads});
  MatchRows("SparseMla", op.rows, &rows);
  CheckLatent("SparseMla", op.pages);
  if (rows.value == 0) return;
  if (heads.value == 0) Fail(ErrorCode::kShape, "SparseMla: query has no heads");
  CheckWorkspace(
      "SparseMla", op.workspace,
      SparseMla::WorkspaceBytes(rows.value, heads.value, columns.value, op.pages.layout, stream));
  if (stream.device.kind == DeviceKind::kCpu) {
    if (op.query.dtype != DType::kF32) {
      Fail(ErrorCode::kShape,
           fmt::format("SparseMla: the CPU takes fp32 queries, not {}", DTypeName(op.query.dtype)));
    }
    return cpu::Run(op, stream);
  }
#if defined(STRATA_HAVE_CUDA)
  CheckCudaScales("SparseMla", op.pages);
  return cuda::Run(op, stream);
#else
  NoCuda("SparseMla");
#endif
}

}  // namespace strata
