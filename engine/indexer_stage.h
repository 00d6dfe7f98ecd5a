// The indexer of one MLA layer: scores every visible candidate of every row, or reuses an earlier
// layer's selection.
#pragma once

#include <cstdint>

#include "engine/model.h"
#include "engine/selection_graph.h"
#include "engine/step.h"

namespace strata {

// The ids a layer attends to; in the step's scratch, kept until the next full layer replaces them.
struct Selection {
  View<int32_t, 2> ids;     // [rows, columns] ascending cells, -1 padded
  View<int32_t, 1> counts;  // [rows]
};

class IndexerStage {
 public:
  enum class Mode : uint8_t {
    kCompute,  // full layer: scans its own keys and selects
    kReuse,    // shared layer: the ids of the last full layer stand
  };

  IndexerStage(Mode mode, int64_t layer, const ModelGeometry& geometry)
      : mode_(mode), layer_(layer), geometry_(&geometry) {}

  Mode mode() const { return mode_; }

  // Appends the step's keys [rows, dim] (for pooled keys also their pooling logits `gate` and the
  // places' `ape`).
  void Append(const StepInput& step, const View<const float, 2>& keys,
              const View<const float, 2>& gate, const View<const float, 2>& ape,
              StepContext& context) const;

  // Scores and selects block by block, so that the score matrix stays inside its budget. Rows that
  // see no more candidates than they may select take all of them unscored.
  //   query [rows, index heads, dim], weights [rows, index heads] with every scale folded in
  void Select(const StepInput& step, const View<const float, 3>& query,
              const View<const float, 2>& weights, SelectionGraph& graph,
              const Selection& selection, StepContext& context) const;

 private:
  Mode mode_;
  int64_t layer_;
  const ModelGeometry* geometry_;
};

}  // namespace strata
