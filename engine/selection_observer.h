// A look at what the indexer selected, for traces, dumps and tests. Absent in normal running.
#pragma once

#include <cstdint>

#include "kernels/view.h"

namespace strata {

struct ObservedSelection {
  int64_t layer = 0;
  int64_t first_row = 0;  // step row of the first row below
  int64_t kpool = 1;      // cells per candidate
  View<int32_t, 2>
      ids;  // [rows, columns] cells, ascending, -1 padded. What the observer leaves here is
            // attended to: a comparison with another engine may impose its choice among ties.
  View<const int32_t, 1> counts;      // [rows]
  View<const int32_t, 1> candidates;  // [rows]
  View<const int32_t, 1> lengths;     // [rows] visible cells
  View<const float, 2>
      scores;  // [rows, capacity]; empty when nothing was scored (every candidate was selected)
};

class SelectionObserver {
 public:
  virtual ~SelectionObserver() = default;
  // Called once per full-indexer layer and row block, in layer order. The views end with the call.
  virtual void Observe(const ObservedSelection& selection) = 0;
  // After the step, for each row whose logits gave a token of the answer, in row order. Rows of
  // drafts that were wrong are not kept.
  virtual void Keep(int64_t row) { static_cast<void>(row); }
};

}  // namespace strata
