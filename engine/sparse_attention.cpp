#include "engine/sparse_attention.h"

#include "kernels/cache_write.h"
#include "kernels/sparse_mla.h"

namespace strata {

void SparseAttention::Append(const StepInput& step, const View<const float, 2>& latent_rows,
                             StepContext& context) const {
  Run(WriteLatent{.values = latent_rows,
                  .rows = step.row_map,
                  .positions = step.positions,
                  .pages = context.kv.Pages(layer_, step.block_table)},
      context.stream);
}

void SparseAttention::Attend(const StepInput& step, const View<const float, 3>& query,
                             const Selection& selection, const View<float, 3>& out,
                             StepContext& context) const {
  StageClock::Scope scope(context.clock, Stage::kAttend);
  const size_t mark = context.scratch.used();
  const size_t bytes = SparseMla::WorkspaceBytes(query.dim(0), query.dim(1), selection.ids.dim(1),
                                                 context.kv.layout(), context.stream);
  View<std::byte, 1> workspace = context.scratch.Take<std::byte>({static_cast<int64_t>(bytes)});
  Run(SparseMla{.query = query,
                .pages = context.kv.Pages(layer_, step.block_table),
                .rows = step.row_map,
                .ids = selection.ids,
                .lengths = step.lengths,
                .scale = scale_,
                .out = out,
                .workspace = workspace},
      context.stream);
  context.scratch.Release(mark);
}

}  // namespace strata
