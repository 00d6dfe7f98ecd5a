// Readable notes on what the indexer selected.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/selection_observer.h"
#include "models/tokenizer.h"

namespace strata {

// Watches decode steps of one sequence: the last row of every step counts.
class SelectionTrace : public SelectionObserver {
 public:
  void Observe(const ObservedSelection& selection) override;

  // Per full layer: a strip of the context with the share of selected cells, the margin at the
  // boundary, ties there, the overlap with the step before, and the best-scored places with their
  // words. `tokens` is the sequence.
  std::string Text(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) const;

 private:
  struct Layer {
    int64_t steps = 0;
    int64_t scored_steps = 0;     // steps in which something was left out
    int64_t cells = 0;            // visible in the last step
    std::vector<double> density;  // [kBuckets] selected share of each stretch, summed over steps
    double margin_sum =
        0.0;  // relative distance between the last chosen and the first left out score
    double smallest_margin = 0.0;
    int64_t ties = 0;          // candidates left out although they equal the last chosen one
    double overlap_sum = 0.0;  // share of ids that the step before had too
    int64_t overlap_steps = 0;
    std::vector<int32_t> previous;
    std::vector<double> best_scores;  // [cells] score summed over steps, scored steps only
  };
  std::map<int64_t, Layer> layers_;
};

}  // namespace strata
