// What a sequence carries for its drafts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/depth_policy.h"
#include "engine/ngram_index.h"

namespace strata {

// What a guess rests on. Each has an acceptance of its own: chance repeats do not speak against a
// passage that is being copied.
enum class DraftOrigin : uint8_t { kLayer, kRepeat, kLongRepeat };

struct DraftState {
  std::vector<int32_t> tokens;  // guesses behind the last known token, for the next step's window
  DraftOrigin origin = DraftOrigin::kRepeat;  // of these
  DraftCounts counts;
  std::array<Acceptance, 3> acceptances;  // by DraftOrigin
  Acceptance& acceptance() { return acceptances[static_cast<size_t>(origin)]; }

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
