// Steps that throw: every request ends once, and the engine serves on as if they had not been.
#include <gtest/gtest.h>

#include <stdexcept>

#include "engine/engine.h"
#include "tests/engine/toy_models.h"

namespace strata {
namespace {

// Throws behind the work of a step while told to.
class FailingModel : public PooledToyModel {
 public:
  using PooledToyModel::PooledToyModel;
  StepOutput Run(const StepInput& step, StepContext& context) const override {
    const StepOutput output = PooledToyModel::Run(step, context);
    if (fails) throw std::runtime_error("the step is lost");
    return output;
  }
  bool fails = false;
};

class ThrowingConstraint : public TokenConstraint {
 public:
  void Allowed(std::vector<uint32_t>&) const override {
    throw std::runtime_error("the constraint is lost");
  }
  void Accept(int32_t) override {}
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<ThrowingConstraint>();
  }
};

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<FinishReason> ends;
  std::string error;
  std::vector<TokenSelection> selections;
};

class StepFailure : public ::testing::Test {
 protected:
  StepFailure() : backend_(MakeCpuBackend(1)), model_(*backend_), engine_(Start()) {}

  std::unique_ptr<Engine> Start() {
    EngineOptions options;
    options.max_context = 256;
    options.max_sequences = 2;
    options.chunk = 8;
    options.kv_format = KvFormat::kFp32;
    options.score_scratch_mib = 1;
    return std::make_unique<Engine>(model_, *backend_, options);
  }
  static Request MakeRequest(int64_t answer_tokens) {
    Request request;
    for (int32_t i = 0; i < 8; ++i) request.prompt.push_back(i * 5 % 48);
    request.max_tokens = answer_tokens;
    request.reuse_prefix = false;
    return request;
  }
  static void Submit(Engine& engine, Request request, Outcome& outcome) {
    engine.Submit(std::move(request), [&outcome](const TokenEvent& event) {
      if (event.token >= 0) outcome.tokens.push_back(event.token);
      if (event.selection) outcome.selections.push_back(*event.selection);
      if (event.finish) outcome.ends.push_back(*event.finish);
      outcome.error = event.error;
    });
  }
  static Outcome RunOne(Engine& engine, Request request) {
    Outcome outcome;
    Submit(engine, std::move(request), outcome);
    engine.RunUntilIdle();
    return outcome;
  }
  // As the engine's thread treats it.
  void FailStep() {
    try {
      engine_->Step();
      FAIL() << "the step did not fail";
    } catch (const std::exception& error) {
      engine_->FailAll(error.what());
    }
  }

  std::unique_ptr<Backend> backend_;
  FailingModel model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(StepFailure, ARequestThatEndedInTheFailedStepEndsOnce) {
  Outcome ended, lost;
  Request constrained = MakeRequest(5);
  constrained.prompt.resize(2);
  constrained.constraint = std::make_shared<ThrowingConstraint>();
  Submit(*engine_, MakeRequest(2), ended);
  engine_->Step();
  // The next step gives the last token of one and the first of the other.
  Submit(*engine_, constrained, lost);
  FailStep();
  EXPECT_EQ(ended.ends, std::vector<FinishReason>{FinishReason::kLength});
  EXPECT_EQ(ended.tokens.size(), 2u);
  EXPECT_EQ(lost.ends, std::vector<FinishReason>{FinishReason::kError});
  EXPECT_EQ(lost.error, "the constraint is lost");
  EXPECT_EQ(engine_->stats().finished[static_cast<size_t>(FinishReason::kError)], 1);
}

TEST_F(StepFailure, AnyNumberOfThemLeavesRoomForTheNext) {
  const Outcome expected = RunOne(*Start(), MakeRequest(5));
  model_.fails = true;
  for (int i = 0; i < 200; ++i) {
    Outcome lost;
    Submit(*engine_, MakeRequest(5), lost);
    FailStep();
    ASSERT_EQ(lost.error, "the step is lost") << "failure " << i;
  }
  model_.fails = false;
  EXPECT_EQ(RunOne(*engine_, MakeRequest(5)).tokens, expected.tokens);
  EXPECT_EQ(engine_->runner().pages().free_pages() + engine_->prefixes().cached_pages(),
            engine_->runner().pages().pages());
}

TEST_F(StepFailure, WhatAFailedStepLookedAtIsForgotten) {
  Request watched = MakeRequest(1);
  watched.watch_selection = true;
  Outcome lost;
  model_.fails = true;
  Submit(*engine_, watched, lost);
  FailStep();
  model_.fails = false;
  const Outcome outcome = RunOne(*engine_, watched);
  ASSERT_EQ(outcome.selections.size(), 1u);
  EXPECT_EQ(outcome.selections[0].layers.size(), 1u);
}

}  // namespace
}  // namespace strata
