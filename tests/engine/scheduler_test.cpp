#include "engine/scheduler.h"

#include <gtest/gtest.h>

namespace strata {
namespace {

std::vector<std::pair<size_t, int64_t>> Plan(const std::vector<ScheduledSequence>& sequences,
                                             int64_t budget) {
  std::vector<std::pair<size_t, int64_t>> plan;
  for (const StepShare& share : PlanStep(sequences, budget))
    plan.emplace_back(share.sequence, share.tokens);
  return plan;
}
using Shares = std::vector<std::pair<size_t, int64_t>>;

TEST(Scheduler, DecodingSequencesComeFirstAndPromptsFillTheRest) {
  EXPECT_EQ(Plan({{100, false}, {1, true}, {1, true}}, 32), (Shares{{1, 1}, {2, 1}, {0, 30}}));
  EXPECT_EQ(Plan({{10, false}, {100, false}}, 32), (Shares{{0, 10}, {1, 22}}));
}

TEST(Scheduler, PromptsShareEvenlyAndAShortOneIsReadAtOnce) {
  EXPECT_EQ(Plan({{8000, false}, {10, false}}, 512), (Shares{{0, 502}, {1, 10}}));
  EXPECT_EQ(Plan({{8000, false}, {300, false}, {5000, false}}, 512),
            (Shares{{0, 171}, {1, 170}, {2, 171}}));
  EXPECT_EQ(Plan({{9, false}, {9, false}, {9, false}}, 2), (Shares{{0, 1}, {1, 1}}));
}

TEST(Scheduler, AWaitingPromptIsNeverStarvedByDecoding) {
  const std::vector<ScheduledSequence> many(20, {1, true});
  std::vector<ScheduledSequence> mixed = many;
  mixed.push_back({50, false});
  const Shares plan = Plan(mixed, 8);
  EXPECT_EQ(plan.back(), (std::pair<size_t, int64_t>{20, 2}));
  int64_t rows = 0;
  for (const auto& [sequence, tokens] : plan) rows += tokens;
  EXPECT_EQ(rows, 8);
}

TEST(Scheduler, NothingToDoGivesAnEmptyPlan) {
  EXPECT_TRUE(Plan({}, 8).empty());
  EXPECT_EQ(Plan({{1, true}}, 1), (Shares{{0, 1}}));
}

}  // namespace
}  // namespace strata
