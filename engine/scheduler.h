// Who takes part in the next step, and with how many tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace strata {

// What the scheduler sees of a running sequence.
struct ScheduledSequence {
  int64_t pending = 0;    // tokens that are known but not in the cache yet: the rest of the prompt,
                          // or 1 when decoding
  bool decoding = false;  // the prompt is done
};

struct StepShare {
  size_t sequence = 0;  // index into the input
  int64_t tokens = 0;
};

// A pure function of its inputs: every decoding sequence gets its row, oldest first; what is left
// of `budget` rows goes to prompts, oldest first, and a prompt gets at least a quarter of the
// budget when one waits, so that neither starves.
std::vector<StepShare> PlanStep(std::span<const ScheduledSequence> sequences, int64_t budget);

}  // namespace strata
