// What a sequence carries for its drafts.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/depth_policy.h"
#include "engine/ngram_index.h"

namespace strata {

struct DraftState {
  std::vector<int32_t> tokens;  // guesses behind the last known token, for the next step's window
  bool from_layer = false;      // the prediction layer made them
  DraftCounts counts;
  Acceptance layer_acceptance, ngram_acceptance;

  NgramIndex ngram;

  // The prediction layer's cache: rows of cells before `layer_cells` are written or were given up;
  // `hidden` [.., hidden] are the network's outputs at the cells from there on.
  int64_t layer_cells = 0;
  std::vector<float> hidden;

  // The cells were given up: what belongs to them goes.
  void Reset() {
    tokens.clear();
    layer_cells = 0;
    hidden.clear();
  }
};

}  // namespace strata
