// Attention of each row over exactly its selected cells, in MLA's absorbed form.
#pragma once

#include "kernels/device.h"
#include "kernels/paged.h"

namespace strata {

// s(h, i) = scale * (query(r, h, :) . [latent, rope] of cell ids(r, i)); p = softmax over the row's
// valid ids; out(r, h, :) = sum_i p(h, i) * latent(i). An id is valid when 0 <= id < lengths(r);
// others are ignored wherever they stand and never read. A row without valid ids, or with scores of
// -infinity alone, gives zeros and lse = -infinity (what a merge of partial results adds nothing
// for).
struct SparseMla {
  AnyView<3> query;  // [rows, heads, latent + rope]; CPU: fp32
  LatentPages pages;
  RowMap rows;
  View<const int32_t, 2> ids;      // [rows, columns]
  View<const int32_t, 1> lengths;  // [rows] visible cells
  float scale = 1.0f;
  View<float, 3> out;       // [rows, heads, latent]
  View<float, 2> lse = {};  // optional [rows, heads]: natural log of the sum of exp(s)
  // CUDA folds a row's partial results in one of three orders, by the rows of the call. Calls that
  // state the same number here, at least their rows, use one order: then a row's bits do not depend
  // on the other rows. 0: the order that is fastest for this call. The CPU has one order.
  int64_t order_rows = 0;
  View<std::byte, 1> workspace = {};
  static size_t WorkspaceBytes(int64_t rows, int64_t heads, int64_t columns,
                               const LatentLayout& layout, Stream stream);
};
void Run(const SparseMla& op, Stream stream);

namespace cpu {
void Run(const SparseMla& op, Stream stream);
size_t SparseMlaWorkspaceBytes(int64_t heads, int64_t columns, const LatentLayout& layout,
                               int threads);
}  // namespace cpu
namespace cuda {
void Run(const SparseMla& op, Stream stream);
size_t SparseMlaWorkspaceBytes(int64_t rows, int64_t heads, int64_t columns,
                               const LatentLayout& layout, int ordinal);
}  // namespace cuda
}  // namespace strata
