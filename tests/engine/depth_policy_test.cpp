#include "engine/depth_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata {
namespace {

// One sequence in a world where a step costs `first + row * (rows - 1)`, a draft pass `draft`, and
// drafts at each place are right with `right`.
struct World {
  double row = 0.1;
  double draft = 0.0;
  double right = 0.8;
  double noise = 0.0;  // steps take up to this part longer, and the first three times as long
};

class Simulation {
 public:
  // Seconds per token over `steps` steps, in units of a plain step.
  double Run(const World& world, int64_t steps, int64_t limit) {
    double seconds = 0.0;
    int64_t tokens = 0;
    for (int64_t step = 0; step < steps; ++step) {
      DepthPolicy::Candidate candidate{
          .limit = limit, .layer = world.draft > 0.0, .acceptance = &acceptance_, .depth = 0};
      policy_.Choose({&candidate, 1});
      last_depth_ = candidate.depth;
      const double cost = 1.0 + world.row * static_cast<double>(candidate.depth);
      seconds += cost + world.draft * static_cast<double>(candidate.depth);
      policy_.ObserveStep(
          1 + candidate.depth, 1,
          cost * (1.0 + world.noise * Uniform()) * (world.noise > 0.0 && step == 0 ? 3.0 : 1.0));
      if (world.draft > 0.0 && candidate.depth > 0) policy_.ObserveFirstDraft(world.draft);
      if (world.draft > 0.0 && candidate.depth > 1) policy_.ObserveNextDraft(world.draft);
      int64_t kept = 0;
      while (kept < candidate.depth && Uniform() < world.right) ++kept;
      if (candidate.depth > 0) acceptance_.Observe(candidate.depth, kept);
      tokens += 1 + kept;
    }
    return seconds / static_cast<double>(tokens);
  }
  int64_t last_depth() const { return last_depth_; }

 private:
  double Uniform() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 40) * 0x1p-24;
  }
  uint64_t state_ = 1;
  DepthPolicy policy_;
  Acceptance acceptance_;
  int64_t last_depth_ = 0;
};

TEST(DepthPolicy, RowsThatCostLittleAreUsed) {
  Simulation simulation;
  EXPECT_LT(simulation.Run({.row = 0.02, .right = 0.9}, 1000, 7), 0.3);
  EXPECT_LT(Simulation().Run({.row = 0.1, .draft = 0.1, .right = 0.8}, 1000, 7), 0.62);
}

TEST(DepthPolicy, DepthFollowsTheAgreement) {
  Simulation good, poor;
  good.Run({.row = 0.2, .draft = 0.05, .right = 0.95}, 400, 7);
  poor.Run({.row = 0.2, .draft = 0.05, .right = 0.5}, 400, 7);
  EXPECT_GE(good.last_depth(), 4);
  EXPECT_LE(poor.last_depth(), 2);
}

TEST(DepthPolicy, DraftsThatDoNotPayCostNextToNothing) {
  for (double right : {0.0, 0.3, 0.6}) {
    for (double row : {0.7, 1.0}) {
      // A long answer, the first steps that find it out included.
      EXPECT_LT(Simulation().Run({.row = row, .draft = 0.25, .right = right}, 2000, 7), 1.03)
          << right << " " << row;
    }
  }
}

TEST(DepthPolicy, ShortAnswersOnABusyMachineLoseLittleAndGainMost) {
  for (double right : {0.0, 0.4, 0.8}) {
    EXPECT_LT(Simulation().Run({.row = 0.7, .draft = 0.25, .right = right, .noise = 0.3}, 200, 7),
              1.03)
        << right;
  }
  EXPECT_LT(Simulation().Run({.row = 0.4, .draft = 0.05, .right = 0.95, .noise = 0.3}, 200, 7),
            0.65);
}

TEST(DepthPolicy, TextThatBecomesPredictableIsFoundAgain) {
  Simulation simulation;
  simulation.Run({.row = 0.4, .draft = 0.1, .right = 0.0}, 1500, 7);
  EXPECT_EQ(simulation.last_depth(), 0);
  simulation.Run({.row = 0.4, .draft = 0.1, .right = 1.0}, 2500, 7);
  EXPECT_LT(simulation.Run({.row = 0.4, .draft = 0.1, .right = 1.0}, 300, 7), 0.65);
}

TEST(DepthPolicy, AStalledStepDoesNotBendTheCost) {
  StepCost cost;
  for (int i = 0; i < 20; ++i) cost.Observe(1 + i % 3, 1, 1.0 + 0.5 * (i % 3));
  EXPECT_NEAR(cost.PerRow(), 0.5, 1e-6);
  cost.Observe(3, 1, 500.0);
  EXPECT_LT(cost.PerRow(), 1.5);
  EXPECT_LT(cost.Seconds(1), 1.6);
}

}  // namespace
}  // namespace strata
