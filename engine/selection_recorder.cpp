#include "engine/selection_recorder.h"

#include <utility>

namespace strata {

TokenSelection SelectionRecorder::Take(int64_t row) {
  TokenSelection taken = std::move(rows_[row]);
  rows_.erase(row);
  return taken;
}

void SelectionRecorder::Observe(const ObservedSelection& selection) {
  const int64_t end = selection.first_row + selection.ids.dim(0);
  for (auto at = rows_.lower_bound(selection.first_row); at != rows_.end() && at->first < end;
       ++at) {
    const int64_t row = at->first - selection.first_row;
    const int32_t* ids = selection.ids.row(row);
    at->second.layers.push_back({selection.layer, {ids, ids + selection.counts(row)}});
  }
}

}  // namespace strata
