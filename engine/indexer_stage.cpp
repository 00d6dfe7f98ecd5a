#include "engine/indexer_stage.h"

#include "kernels/cache_write.h"
#include "kernels/index_scan.h"

namespace strata {

namespace {

template <class T>
View<T, 1> Range(const View<T, 1>& view, const RowBlock& block) {
  return view.Rows(block.begin, block.end);
}

}  // namespace

void IndexerStage::Append(const StepInput& step, const View<const float, 2>& keys,
                          const View<const float, 2>& gate, const View<const float, 2>& ape,
                          StepContext& context) const {
  const KeyPages pages = context.keys.Pages(layer_, step.block_table);
  if (geometry_->index_kpool == 1) {
    Run(
        WriteIndexKeys{
            .keys = keys, .rows = step.row_map, .positions = step.positions, .pages = pages},
        context.stream);
  } else {
    Run(WritePooledKeys{.keys = keys,
                        .gate = gate,
                        .ape = ape,
                        .rows = step.row_map,
                        .positions = step.positions,
                        .pages = pages,
                        .ring = context.keys.Ring(layer_)},
        context.stream);
  }
}

void IndexerStage::Select(const StepInput& step, const View<const float, 3>& query,
                          const View<const float, 2>& weights, SelectionGraph& graph,
                          const Selection& selection, StepContext& context) const {
  for (const RowBlock& block : step.blocks) {
    const size_t mark = context.scratch.used();
    const int64_t rows = block.end - block.begin;
    View<float, 2> scores = context.scratch.Take<float>({rows, block.candidates});
    if (block.candidates > 0) {
      StageClock::Scope scope(context.clock, Stage::kScan);
      Run(IndexScan{.query = query.Rows(block.begin, block.end),
                    .weights = weights.Rows(block.begin, block.end),
                    .rows = block.rows,
                    .lengths = Range(step.scan_candidates, block),
                    .keys = context.keys.Pages(layer_, step.block_table),
                    .scores = scores,
                    .variant = SwitchedScanVariant(context.switches.scores_halve)},
          context.stream);
    }
    const size_t workspace_bytes =
        TopkSelect::WorkspaceBytes(rows, block.candidates, geometry_->index_topk, context.stream);
    View<std::byte, 1> workspace =
        context.scratch.Take<std::byte>({static_cast<int64_t>(workspace_bytes)});
    const View<int32_t, 2> ids = selection.ids.Rows(block.begin, block.end);
    const View<int32_t, 1> counts = Range(selection.counts, block);
    {
      StageClock::Scope scope(context.clock, Stage::kSelect);
      graph.Run(TopkSelect{.scores = scores,
                           .lengths = Range(step.candidates, block),
                           .k = geometry_->index_topk,
                           .kpool = geometry_->index_kpool,
                           .tail = geometry_->pool_tail,
                           .cells = Range(step.lengths, block),
                           .ids = ids,
                           .counts = counts,
                           .workspace = workspace,
                           .variant = SwitchedTopkVariant(context.switches.topk_split)},
                context.stream);
    }
    if (context.observer != nullptr) {
      context.observer->Observe(ObservedSelection{.layer = layer_,
                                                  .first_row = block.begin,
                                                  .kpool = geometry_->index_kpool,
                                                  .ids = ids,
                                                  .counts = counts,
                                                  .candidates = Range(step.candidates, block),
                                                  .lengths = Range(step.lengths, block),
                                                  .scores = scores});
    }
    context.scratch.Release(mark);
  }
}

}  // namespace strata
