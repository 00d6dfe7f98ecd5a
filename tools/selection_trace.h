// Readable notes on what the indexer selected.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/selection_observer.h"
#include "models/tokenizer.h"

namespace strata {

// Watches the decode steps of one sequence: rows whose token stands count, each as a step, whether
// it was a step of its own or a row of a verify window.
class SelectionTrace : public SelectionObserver {
 public:
  void Observe(const ObservedSelection& selection) override;
  void Keep(int64_t row) override;

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
  // What one layer selected for one row.
  struct Seen {
    std::vector<int32_t> ids;
    std::vector<float> scores;  // of the candidates; empty when nothing was scored
    int64_t kpool = 1;
    int64_t cells = 0;  // visible
  };

  static void Add(Layer& layer, const Seen& seen);

  std::map<int64_t, std::map<int64_t, Seen>> rows_;  // by step row, then layer; not kept yet
  std::map<int64_t, Layer> layers_;
};

}  // namespace strata
