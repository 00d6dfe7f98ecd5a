// Which cells an answer's steps attended to, for requests that ask for it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/selection_observer.h"

namespace strata {

// The selection behind one token: of the row that gave its logits.
struct TokenSelection {
  struct Layer {
    int64_t layer = 0;         // a full-indexer layer
    std::vector<int32_t> ids;  // selected cells, ascending
  };
  int64_t position = 0;  // cell of the row
  std::vector<Layer> layers;
};

// Copies the selections of watched rows of a step.
class SelectionRecorder : public SelectionObserver {
 public:
  void Watch(int64_t row, int64_t position) { rows_[row].position = position; }
  void Clear() { rows_.clear(); }
  bool watches() const { return !rows_.empty(); }
  // What was seen of a watched row; the row is forgotten.
  TokenSelection Take(int64_t row);

  void Observe(const ObservedSelection& selection) override;

 private:
  std::map<int64_t, TokenSelection> rows_;  // by step row
};

}  // namespace strata
