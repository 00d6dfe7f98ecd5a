// The engine on its own thread: many threads submit, read, cancel and leave.
#include "engine/engine_thread.h"

#include <gtest/gtest.h>

#include "kernels/status.h"
#include "tests/models/model_fixture.h"

namespace strata {
namespace {

using std::chrono::milliseconds;

class EngineThreadTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { loaded_ = new LoadedModel(Golden("glm_moe_dsa")); }
  static void TearDownTestSuite() { delete loaded_; }

  static std::unique_ptr<EngineThread> Start(int64_t sequences, int64_t waiting) {
    EngineOptions options;
    options.max_context = 512;
    options.max_sequences = sequences;
    options.chunk = 64;
    return std::make_unique<EngineThread>(
        std::make_unique<Engine>(*loaded_->model, *loaded_->backend, options), waiting);
  }
  static Request MakeRequest(int32_t salt, int64_t length, int64_t max_tokens) {
    Request request;
    for (int64_t i = 0; i < length; ++i)
      request.prompt.push_back(static_cast<int32_t>((7 * i + 13 * salt) % 250 + 1));
    request.max_tokens = max_tokens;
    return request;
  }
  struct Answer {
    std::vector<int32_t> tokens;
    FinishReason reason = FinishReason::kError;
  };
  static Answer Read(TokenStream& stream) {
    Answer answer;
    while (true) {
      for (const TokenEvent& event : stream.Take(milliseconds(60'000))) {
        if (event.token >= 0) answer.tokens.push_back(event.token);
        if (!event.finish) continue;
        answer.reason = *event.finish;
        return answer;
      }
    }
  }
  static LoadedModel* loaded_;
};
LoadedModel* EngineThreadTest::loaded_ = nullptr;

TEST_F(EngineThreadTest, ManyThreadsGetTheAnswersOfASoloRun) {
  const auto engine = Start(3, 100);
  std::vector<Answer> solo;
  for (int32_t i = 0; i < 8; ++i) solo.push_back(Read(*engine->Submit(MakeRequest(i, 20 + i, 12))));
  std::vector<Answer> together(8);
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      together[static_cast<size_t>(i)] = Read(*engine->Submit(MakeRequest(i, 20 + i, 12)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(together[i].tokens, solo[i].tokens) << i;
    EXPECT_EQ(together[i].reason, FinishReason::kLength);
  }
  EXPECT_EQ(engine->open_requests(), 0);
  EXPECT_EQ(engine->Status().stats.finished[static_cast<size_t>(FinishReason::kLength)], 16);
}

TEST_F(EngineThreadTest, TheQueueIsBoundedAndCancellingMakesRoom) {
  const auto engine = Start(1, 2);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int32_t i = 0; i < 3; ++i) streams.push_back(engine->Submit(MakeRequest(i, 10, 480)));
  EXPECT_EQ(engine->Submit(MakeRequest(3, 10, 5)), nullptr);
  EXPECT_EQ(engine->open_requests(), 3);
  for (const auto& stream : streams) stream->Cancel();
  for (const auto& stream : streams) EXPECT_EQ(Read(*stream).reason, FinishReason::kCancelled);
  EXPECT_EQ(Read(*engine->Submit(MakeRequest(4, 10, 5))).tokens.size(), 5u);
  const EngineStatus status = engine->Status();
  EXPECT_EQ(status.free_pages + status.cached_pages, status.pages);
}

TEST_F(EngineThreadTest, WhatIsRefusedTakesNoPlace) {
  const auto engine = Start(1, 0);
  EXPECT_THROW(engine->Submit(MakeRequest(0, 600, 5)), Error);
  EXPECT_EQ(engine->open_requests(), 0);
  EXPECT_EQ(Read(*engine->Submit(MakeRequest(0, 10, 5))).tokens.size(), 5u);
}

TEST_F(EngineThreadTest, StopTakesNothingNewAndEndsNothing) {
  const auto engine = Start(1, 4);
  const auto running = engine->Submit(MakeRequest(0, 10, 100));
  engine->Stop();
  EXPECT_EQ(engine->Submit(MakeRequest(1, 10, 5)), nullptr);
  EXPECT_EQ(Read(*running).tokens.size(), 100u);
}

TEST_F(EngineThreadTest, ErrandsRunBetweenStepsAndTheirFailuresComeBack) {
  const auto engine = Start(2, 4);
  const auto running = engine->Submit(MakeRequest(0, 10, 200));
  std::thread::id owner;
  for (int i = 0; i < 20; ++i) engine->Do([&](Engine&) { owner = std::this_thread::get_id(); });
  EXPECT_NE(owner, std::this_thread::get_id());
  try {
    engine->Do([](Engine&) { throw std::runtime_error("no such page"); });
    FAIL() << "a failure is lost";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no such page"), std::string::npos);
  }
  EXPECT_EQ(Read(*running).tokens.size(), 200u);
  int64_t waiting = -1;  // also while nothing runs
  engine->Do([&](Engine& idle) { waiting = static_cast<int64_t>(idle.waiting()); });
  EXPECT_EQ(waiting, 0);
}

TEST_F(EngineThreadTest, EndingTheThreadCancelsWhatIsOpen) {
  auto engine = Start(1, 4);
  const auto running = engine->Submit(MakeRequest(0, 10, 480));
  const auto waiting = engine->Submit(MakeRequest(1, 10, 480));
  engine.reset();
  EXPECT_EQ(Read(*running).reason, FinishReason::kCancelled);
  EXPECT_EQ(Read(*waiting).reason, FinishReason::kCancelled);
}

}  // namespace
}  // namespace strata
