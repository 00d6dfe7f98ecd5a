#include "engine/scheduler.h"

#include <algorithm>

namespace strata {

std::vector<StepShare> PlanStep(std::span<const ScheduledSequence> sequences, int64_t budget) {
  const bool prompt_waits =
      std::any_of(sequences.begin(), sequences.end(),
                  [](const ScheduledSequence& s) { return !s.decoding && s.pending > 0; });
  const int64_t reserved = prompt_waits ? std::max<int64_t>(1, budget / 4) : 0;
  std::vector<StepShare> shares;
  int64_t left = budget;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!sequences[i].decoding || left <= reserved) continue;
    shares.push_back({i, sequences[i].pending});
    left -= sequences[i].pending;
  }
  for (size_t i = 0; i < sequences.size() && left > 0; ++i) {
    if (sequences[i].decoding || sequences[i].pending == 0) continue;
    const int64_t tokens = std::min(left, sequences[i].pending);
    shares.push_back({i, tokens});
    left -= tokens;
  }
  return shares;
}

}  // namespace strata
