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
  int64_t drafts = 0;     // guesses that could be verified behind a decoding sequence's token
};

struct StepShare {
  size_t sequence = 0;  // index into the input
  int64_t tokens = 0;
};

// A pure function of its inputs: every decoding sequence gets its row, oldest first; what is left
// of `budget` rows goes to drafts, then to prompts, and prompts get at least a quarter of the
// budget when one waits, so that none starves. Prompts share evenly, and what a short one leaves
// goes to the others: a short request does not wait until a long prompt is read.
std::vector<StepShare> PlanStep(std::span<const ScheduledSequence> sequences, int64_t budget);

}  // namespace strata
