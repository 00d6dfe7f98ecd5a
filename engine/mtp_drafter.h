// Drafts of the network's own prediction layer, several sequences in one pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "engine/step_runner.h"

namespace strata {

// One sequence's turn: up to `depth` tokens are drafted into sequence->draft.tokens.
struct DraftTask {
  Sequence* sequence = nullptr;
  int64_t depth = 0;
  bool prompt = false;  // the step read prompt rows: the layer reads them whatever the depth is
  float min_probability = 0.0f;
};

// Seconds that the passes of one Propose took.
struct DraftTimes {
  double first = 0.0;  // reading the step's rows and the first token; 0: it had older rows to read
  double next = 0.0;   // the passes behind it, together
  int64_t next_passes = 0;
};

class MtpDrafter {
 public:
  explicit MtpDrafter(StepRunner& runner) : runner_(&runner) {}

  // The network's outputs `hidden` [rows, hidden] at the sequence's cells from `first_cell` on; to
  // be called for every row whose token stands, in order. Rows are copied.
  void Keep(Sequence& sequence, int64_t first_cell, const View<const float, 2>& hidden) const;

  // The layer's row of cell i reads the token of cell i + 1, which the sequence knows. A draft is
  // drawn as the sampler would draw the token (same random number), so that it agrees as often as
  // the two distributions let it. The sampler is left as it was. Cells of drafts lie behind the
  // sequence's own and are written again when their real tokens are known; pages for them must be
  // there.
  DraftTimes Propose(std::span<DraftTask> tasks);

 private:
  // Outputs kept while the layer is not run. Older ones are given up: a gap in the layer's cache
  // costs agreement, never a token.
  static constexpr int64_t kMostKept = 16;

  struct Chain {  // a task while it drafts
    DraftTask* task;
    int64_t cell;                     // of the row that gives the next draft
    int32_t token;                    // that this row reads
    std::vector<float> hidden;        // that this row reads
    std::vector<int32_t> shared_ids;  // of the first pass, where the network shares its selection
  };

  void CatchUp(std::span<DraftTask> tasks, std::vector<Chain>& chains);
  void Advance(std::vector<Chain>& chains);
  bool Take(Chain& chain, const StepOutput& output, int64_t row, int64_t logit_row);

  StepRunner* runner_;
  std::vector<float> input_;  // scratch: hidden rows of a pass
};

}  // namespace strata
