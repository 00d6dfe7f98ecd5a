#include "engine/scheduler.h"

#include <algorithm>

namespace strata {

namespace {

// Splits `rows` over prompts with the given pending tokens, ordered by index. Fewest pending first,
// each takes at most an even part of what is left; the remainder of a division goes to the later
// ones, which have more to read.
void ShareEvenly(std::span<const ScheduledSequence> sequences, int64_t rows,
                 std::vector<StepShare>& shares) {
  std::vector<StepShare> prompts;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!sequences[i].decoding && sequences[i].pending > 0)
      prompts.push_back({i, sequences[i].pending});
  }
  std::stable_sort(prompts.begin(), prompts.end(),
                   [](const StepShare& a, const StepShare& b) { return a.tokens < b.tokens; });
  // More prompts than rows: the oldest get one each.
  if (static_cast<int64_t>(prompts.size()) > rows) {
    std::sort(prompts.begin(), prompts.end(),
              [](const StepShare& a, const StepShare& b) { return a.sequence < b.sequence; });
    prompts.resize(static_cast<size_t>(std::max<int64_t>(rows, 0)));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t part = rows / static_cast<int64_t>(prompts.size() - i);
    prompts[i].tokens = std::min(prompts[i].tokens, part);
    rows -= prompts[i].tokens;
  }
  std::sort(prompts.begin(), prompts.end(),
            [](const StepShare& a, const StepShare& b) { return a.sequence < b.sequence; });
  shares.insert(shares.end(), prompts.begin(), prompts.end());
}

}  // namespace

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
  for (StepShare& share : shares) {
    const int64_t drafts = std::min(sequences[share.sequence].drafts, left - reserved);
    if (drafts <= 0) continue;
    share.tokens += drafts;
    left -= drafts;
  }
  ShareEvenly(sequences, left, shares);
  return shares;
}

}  // namespace strata
