// The engine on real networks: requests, stops, prefix reuse, cancellation, damaged numbers.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/status.h"
#include "models/json.h"
#include "tests/models/model_fixture.h"

namespace strata {
namespace {

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::kError;
  std::string error;
  int64_t cached = -1;
};

class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { loaded_ = new LoadedModel(Golden("glm_moe_dsa")); }
  static void TearDownTestSuite() { delete loaded_; }

  static EngineOptions Options(int64_t context = 512, int64_t sequences = 4, int64_t chunk = 64) {
    EngineOptions options;
    options.max_context = context;
    options.max_sequences = sequences;
    options.chunk = chunk;
    return options;
  }
  static std::vector<int32_t> Prompt(int64_t count, int32_t salt = 0) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<int32_t>(3 + (i * 37 + i * i * 11 + salt * 101) % 247));
    return tokens;
  }
  static Request MakeRequest(std::vector<int32_t> prompt, int64_t max_tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    return request;
  }
  static RequestId Submit(Engine& engine, Request request, Outcome& outcome) {
    return engine.Submit(std::move(request), [&outcome](const TokenEvent& event) {
      outcome.cached = event.cached_tokens;
      if (event.token >= 0 && event.finish != FinishReason::kStop) {
        outcome.tokens.push_back(event.token);
        outcome.logprobs.push_back(event.logprob);
      }
      if (event.finish) outcome.reason = *event.finish;
      outcome.error = event.error;
    });
  }
  static Outcome RunOne(Engine& engine, Request request) {
    Outcome outcome;
    Submit(engine, std::move(request), outcome);
    engine.RunUntilIdle();
    return outcome;
  }
  static Outcome Alone(Request request) {
    Engine engine(*loaded_->model, *loaded_->backend, Options());
    return RunOne(engine, std::move(request));
  }
  static LoadedModel* loaded_;
};
LoadedModel* EngineTest::loaded_ = nullptr;

TEST_F(EngineTest, AnswersHaveTheAskedLengthAndEndAtStopTokens) {
  const Outcome outcome = Alone(MakeRequest(Prompt(40), 12));
  EXPECT_EQ(outcome.tokens.size(), 12u);
  EXPECT_EQ(outcome.reason, FinishReason::kLength);
  for (size_t place = 0; place < 6; ++place) {
    Request request = MakeRequest(Prompt(40), 12);
    request.stop_tokens = {outcome.tokens[place]};
    const size_t first = static_cast<size_t>(
        std::find(outcome.tokens.begin(), outcome.tokens.end(), outcome.tokens[place]) -
        outcome.tokens.begin());
    const Outcome stopped = Alone(request);
    EXPECT_EQ(stopped.reason, FinishReason::kStop);
    EXPECT_EQ(stopped.tokens,
              std::vector<int32_t>(outcome.tokens.begin(),
                                   outcome.tokens.begin() + static_cast<long>(first)));
    request.ignore_eos = true;
    EXPECT_EQ(Alone(request).tokens, outcome.tokens);
  }
}

TEST_F(EngineTest, EveryAnswerOfABatchEqualsItsSoloRun) {
  // Short prompts join a long decode, more requests than slots, lengths around the selection and
  // the page.
  Engine engine(*loaded_->model, *loaded_->backend, Options(512, 3, 32));
  const std::vector<int64_t> lengths = {200, 1, 15, 16, 17, 63, 64, 65, 130};
  std::vector<Outcome> outcomes(lengths.size());
  Submit(engine, MakeRequest(Prompt(lengths[0], 0), 60), outcomes[0]);
  for (size_t i = 1; i < lengths.size(); ++i) {
    for (int step = 0; step < 5; ++step) engine.Step();
    Request request = MakeRequest(Prompt(lengths[i], static_cast<int32_t>(i)), 9);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.seed = i;
    Submit(engine, request, outcomes[i]);
  }
  engine.RunUntilIdle();
  for (size_t i = 0; i < lengths.size(); ++i) {
    Request request = MakeRequest(Prompt(lengths[i], static_cast<int32_t>(i)), i == 0 ? 60 : 9);
    request.sampling.temperature = i == 0 || i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.seed = i;
    const Outcome alone = Alone(request);
    EXPECT_EQ(outcomes[i].tokens, alone.tokens) << i;
    EXPECT_EQ(outcomes[i].logprobs, alone.logprobs) << i;
  }
  EXPECT_EQ(engine.runner().pages().free_pages() + engine.prefixes().cached_pages(),
            engine.runner().pages().pages());
}

TEST_F(EngineTest, TheSamePromptAgainComesFromTheCacheWithTheSameTokens) {
  for (int64_t length : {63, 64, 65, 256, 2}) {
    Engine engine(*loaded_->model, *loaded_->backend, Options());
    const Outcome first = RunOne(engine, MakeRequest(Prompt(length), 8));
    EXPECT_EQ(first.cached, 0) << length;
    for (int again = 0; again < 2; ++again) {
      const int64_t steps = engine.stats().steps;
      const Outcome outcome = RunOne(engine, MakeRequest(Prompt(length), 8));
      EXPECT_EQ(outcome.tokens, first.tokens) << length;
      EXPECT_EQ(outcome.logprobs, first.logprobs) << length;
      EXPECT_EQ(outcome.cached, length - 1) << length;
      EXPECT_EQ(engine.stats().steps - steps, 8)
          << length;  // one row of the prompt is left to read
    }
    Request fresh = MakeRequest(Prompt(length), 8);
    fresh.reuse_prefix = false;
    EXPECT_EQ(RunOne(engine, fresh).cached, 0) << length;
  }
}

TEST_F(EngineTest, AContinuedConversationReusesPromptAndAnswer) {
  Engine engine(*loaded_->model, *loaded_->backend, Options());
  const Outcome first = RunOne(engine, MakeRequest(Prompt(100), 20));
  std::vector<int32_t> second = Prompt(100);
  second.insert(second.end(), first.tokens.begin(), first.tokens.end());
  const std::vector<int32_t> more = Prompt(30, 5);
  second.insert(second.end(), more.begin(), more.end());
  const Outcome outcome = RunOne(engine, MakeRequest(second, 8));
  EXPECT_EQ(outcome.cached, 119);  // the last answer token was never fed
  EXPECT_EQ(outcome.tokens, Alone(MakeRequest(second, 8)).tokens);
}

TEST_F(EngineTest, PagesThatAreCopiedOutAndInGiveTheSameTokens) {
  for (KvFormat format : {KvFormat::kFp32, KvFormat::kBf16, KvFormat::kInt8, KvFormat::kFp8}) {
    EngineOptions options = Options();
    options.kv_format = format;
    Engine first(*loaded_->model, *loaded_->backend, options);
    const std::vector<int32_t> prompt = Prompt(300);
    const Outcome cold = RunOne(first, MakeRequest(prompt, 8));
    const size_t page = first.prefix_pages().page_bytes();
    std::vector<std::byte> bytes(4 * page);
    EXPECT_EQ(first.prefix_pages().Read(prompt, 0, {}), 4);
    // In two pieces, the second asked for more than there is.
    EXPECT_EQ(first.prefix_pages().Read(prompt, 0, std::span(bytes).first(page)), 4);
    EXPECT_EQ(first.prefix_pages().Read(prompt, 1, std::span(bytes).subspan(page)), 4);

    Engine second(*loaded_->model, *loaded_->backend, options);
    const auto write = [&](int64_t from, int64_t count) {
      return second.prefix_pages().Write(
          prompt, from,
          std::span<const std::byte>(bytes).subspan(static_cast<size_t>(from) * page,
                                                    static_cast<size_t>(count) * page));
    };
    EXPECT_FALSE(write(1, 3));  // nothing in front of them
    EXPECT_EQ(second.prefixes().cached_pages(), 0);
    EXPECT_TRUE(write(0, 1));
    EXPECT_TRUE(write(1, 3));
    EXPECT_TRUE(write(0, 4));  // again: nothing is kept twice
    EXPECT_EQ(second.prefixes().cached_pages(), 4);
    const Outcome warm = RunOne(second, MakeRequest(prompt, 8));
    EXPECT_EQ(warm.cached, 256);
    EXPECT_EQ(warm.tokens, cold.tokens);
    EXPECT_EQ(warm.logprobs, cold.logprobs);
    EXPECT_EQ(second.runner().pages().free_pages() + second.prefixes().cached_pages(),
              second.runner().pages().pages());
  }
}

TEST_F(EngineTest, PagesAreNotTakenWhereThereIsNoRoom) {
  EngineOptions options = Options(256, 1);
  options.cache_pages = 4;
  Engine engine(*loaded_->model, *loaded_->backend, options);
  const std::vector<int32_t> prompt = Prompt(320);
  const std::vector<std::byte> bytes(5 * engine.prefix_pages().page_bytes());
  EXPECT_FALSE(engine.prefix_pages().Write(prompt, 0, bytes));
  EXPECT_EQ(engine.runner().pages().free_pages(), 4);
}

TEST_F(EngineTest, PrefixesGiveWayWhenPagesAreNeeded) {
  EngineOptions options = Options(256, 1);
  options.cache_pages = 4;
  Engine engine(*loaded_->model, *loaded_->backend, options);
  for (int32_t salt = 0; salt < 4; ++salt) {
    EXPECT_EQ(RunOne(engine, MakeRequest(Prompt(180, salt), 8)).tokens,
              Alone(MakeRequest(Prompt(180, salt), 8)).tokens);
  }
  EXPECT_EQ(engine.runner().pages().free_pages() + engine.prefixes().cached_pages(), 4);
}

TEST_F(EngineTest, SequencesThatOutgrowTheCacheTakeTurnsAndLoseNothing) {
  // Four answers of 200 cells each in a cache of 512: the younger ones are preempted on the way.
  EngineOptions options = Options(256, 4);
  options.cache_pages = 8;
  for (bool reuse : {true, false}) {
    options.prefix_reuse = reuse;
    Engine engine(*loaded_->model, *loaded_->backend, options);
    std::vector<Outcome> outcomes(4);
    std::vector<Request> requests;
    for (int32_t i = 0; i < 4; ++i) {
      requests.push_back(MakeRequest(Prompt(50 + i, i), 150));
      requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
      requests.back().sampling.seed = static_cast<uint64_t>(i);
      requests.back().sampling.frequency_penalty = 0.3f;
      Submit(engine, requests.back(), outcomes[static_cast<size_t>(i)]);
    }
    engine.RunUntilIdle();
    EXPECT_GT(engine.stats().preemptions, 0);
    for (size_t i = 0; i < 4; ++i) {
      const Outcome alone = Alone(requests[i]);
      EXPECT_EQ(outcomes[i].tokens, alone.tokens) << i;
      EXPECT_EQ(outcomes[i].logprobs, alone.logprobs) << i;
      EXPECT_EQ(outcomes[i].reason, FinishReason::kLength) << i;
      EXPECT_EQ(outcomes[i].cached, 0) << "what was read again is no reuse of an earlier request";
    }
    EXPECT_EQ(engine.runner().pages().free_pages() + engine.prefixes().cached_pages(), 8);
  }
}

TEST_F(EngineTest, ACacheSmallerThanTheContextBoundsPromptsAndAnswers) {
  EngineOptions options = Options(512, 2);
  options.cache_pages = 2;
  Engine engine(*loaded_->model, *loaded_->backend, options);
  EXPECT_EQ(engine.context(), 128);
  EXPECT_EQ(RunOne(engine, MakeRequest(Prompt(100), 0)).tokens.size(), 28u);
  EXPECT_THROW(RunOne(engine, MakeRequest(Prompt(128), 1)), Error);
}

// Even tokens only, and an end after `length` of them.
class EvenTokens : public TokenConstraint {
 public:
  explicit EvenTokens(int64_t length) : left_(length) {}
  void Allowed(std::vector<uint32_t>& mask) const override {
    mask.assign(8, left_ > 0 ? 0x55555550u : 0u);
    if (left_ == 0) mask[0] = 1;
  }
  void Accept(int32_t) override { --left_; }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<EvenTokens>(*this);
  }

 private:
  int64_t left_;
};

TEST_F(EngineTest, AConstraintRulesOutTokensAndEachSequenceFollowsItsOwn) {
  Engine engine(*loaded_->model, *loaded_->backend, Options());
  Request request = MakeRequest(Prompt(40), 0);
  request.constraint = std::make_shared<EvenTokens>(9);
  request.stop_tokens = {0};
  Outcome greedy, warm;
  Submit(engine, request, greedy);
  request.sampling.temperature = 1.5f;
  Submit(engine, request, warm);
  engine.RunUntilIdle();
  for (const Outcome& outcome : {greedy, warm}) {
    EXPECT_EQ(outcome.reason, FinishReason::kStop);
    EXPECT_EQ(outcome.tokens.size(), 9u);
    for (int32_t token : outcome.tokens) EXPECT_EQ(token % 2, 0);
  }
  EXPECT_NE(greedy.tokens, warm.tokens);
}

TEST_F(EngineTest, TopLogprobsAreSortedFiniteAndHoldTheGreedyToken) {
  Engine engine(*loaded_->model, *loaded_->backend, Options());
  Request request = MakeRequest(Prompt(40), 5);
  request.top_logprobs = 20;
  int events = 0;
  engine.Submit(request, [&](const TokenEvent& event) {
    ++events;
    ASSERT_EQ(event.top.size(), 20u);
    EXPECT_EQ(event.top[0].token, event.token);
    EXPECT_NEAR(event.top[0].logprob, event.logprob, 1e-5);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(std::isfinite(event.top[i].logprob));
      EXPECT_LE(event.top[i].logprob, i == 0 ? 1e-6f : event.top[i - 1].logprob);
    }
  });
  engine.RunUntilIdle();
  EXPECT_EQ(events, 5);
  request.top_logprobs = 21;
  EXPECT_THROW(engine.Check(request), Error);
}

TEST_F(EngineTest, APromptIsSharedAsSoonAsItIsRead) {
  Engine engine(*loaded_->model, *loaded_->backend, Options());
  Outcome first, second;
  Submit(engine, MakeRequest(Prompt(200), 30), first);
  for (int step = 0; step < 6; ++step) engine.Step();
  Submit(engine, MakeRequest(Prompt(200), 30), second);
  engine.RunUntilIdle();
  EXPECT_EQ(second.cached, 192);
  EXPECT_EQ(second.tokens, first.tokens);
}

TEST_F(EngineTest, CancelledRequestsFreeTheirPagesBeforeTheNextStep) {
  Engine engine(*loaded_->model, *loaded_->backend, Options(512, 2));
  Outcome running, waiting, third;
  const RequestId first = Submit(engine, MakeRequest(Prompt(200), 100), running);
  Submit(engine, MakeRequest(Prompt(50, 1), 100), third);
  const RequestId queued = Submit(engine, MakeRequest(Prompt(10, 2), 5), waiting);
  for (int i = 0; i < 6; ++i) engine.Step();
  engine.Cancel(first);
  engine.Cancel(queued);
  engine.Step();
  EXPECT_EQ(running.reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting.reason, FinishReason::kCancelled);
  EXPECT_EQ(engine.running(), 1u);
  engine.RunUntilIdle();
  EXPECT_EQ(third.tokens, Alone(MakeRequest(Prompt(50, 1), 100)).tokens);
}

TEST_F(EngineTest, AFailureOfTheStepEndsEveryRequestAndKeepsNothingOfIt) {
  Engine engine(*loaded_->model, *loaded_->backend, Options(512, 1));
  Outcome running, waiting;
  Submit(engine, MakeRequest(Prompt(30), 20), running);
  Submit(engine, MakeRequest(Prompt(30, 1), 20), waiting);
  for (int i = 0; i < 3; ++i) engine.Step();
  engine.FailAll("the device is gone");
  for (const Outcome& outcome : {running, waiting}) {
    EXPECT_EQ(outcome.reason, FinishReason::kError);
    EXPECT_EQ(outcome.error, "the device is gone");
  }
  EXPECT_FALSE(engine.Step());
  EXPECT_EQ(engine.runner().pages().free_pages() + engine.prefixes().cached_pages(),
            engine.runner().pages().pages());
  EXPECT_EQ(RunOne(engine, MakeRequest(Prompt(30), 5)).tokens,
            Alone(MakeRequest(Prompt(30), 5)).tokens);
}

TEST_F(EngineTest, PromptsAtTheContextLimitAreAnsweredOrRefusedWithBothNumbers) {
  Engine engine(*loaded_->model, *loaded_->backend, Options(128));
  EXPECT_EQ(RunOne(engine, MakeRequest(Prompt(127), 0)).tokens.size(), 1u);
  EXPECT_EQ(RunOne(engine, MakeRequest(Prompt(120), 50)).tokens.size(), 8u);
  Outcome outcome;
  try {
    Submit(engine, MakeRequest(Prompt(128), 1), outcome);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCapacity);
    EXPECT_NE(std::string(error.what()).find("128 tokens"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("127"), std::string::npos);
  }
  EXPECT_THROW(Submit(engine, MakeRequest({}, 1), outcome), Error);
  EXPECT_THROW(Submit(engine, MakeRequest({5, 256}, 1), outcome), Error);
  EXPECT_THROW(Submit(engine, MakeRequest({5, -1}, 1), outcome), Error);
}

TEST_F(EngineTest, NumbersThatAreNoneEndTheRequestWithAnError) {
  // A latent row of NaN in the cache, as damaged memory or weights would leave it.
  Engine engine(*loaded_->model, *loaded_->backend, Options(512, 1));
  Outcome outcome;
  Submit(engine, MakeRequest(Prompt(10), 50), outcome);
  engine.Step();
  const LatentPages pages = engine.runner().kv().Pages(0, {});
  const int64_t values = pages.layout.PageBytes() / 2;
  for (int64_t i = 0; i < values * engine.runner().pages().pages(); ++i)
    reinterpret_cast<uint16_t*>(pages.base)[i] = 0x7fc0;
  engine.RunUntilIdle();
  EXPECT_EQ(outcome.reason, FinishReason::kError);
  EXPECT_NE(outcome.error.find("not numbers"), std::string::npos);
  EXPECT_EQ(engine.prefixes().cached_pages(), 0);  // a damaged prefix is not kept
  EXPECT_EQ(engine.runner().pages().free_pages(), engine.runner().pages().pages());
}

TEST(ShippedEngine, PlantedFactsAreAnsweredAsTransformersAnswersThem) {
  // Needs the index keys to find the sentence 2,558 tokens back, in every cache format.
  const LoadedModel loaded(ShippedModel());
  const auto golden =
      ParseJson(ReadTextFile(Golden("tiny-glm-dsa") / "golden.json"), "golden.json");
  for (const auto& prompt : golden["prompts"]) {
    const std::string name = prompt["name"];
    if (name.find("retrieval") == std::string::npos) continue;
    for (KvFormat format : {KvFormat::kBf16, KvFormat::kInt8, KvFormat::kFp8}) {
      EngineOptions options;
      options.max_context = 4096;
      options.kv_format = format;
      Engine engine(*loaded.model, *loaded.backend, options);
      Request request;
      request.prompt = prompt["input_ids"].get<std::vector<int32_t>>();
      request.stop_tokens = {0, 3};
      std::vector<int32_t> tokens;
      engine.Submit(request, [&](const TokenEvent& event) {
        if (event.finish != FinishReason::kStop) tokens.push_back(event.token);
      });
      engine.RunUntilIdle();
      const auto greedy = prompt["greedy_ids"].get<std::vector<int32_t>>();
      const std::vector<int32_t> expected(
          greedy.begin(),
          std::find_if(greedy.begin(), greedy.end(), [](int32_t t) { return t == 0 || t == 3; }));
      EXPECT_EQ(tokens, expected) << name << " " << KvFormatName(format);
    }
  }
}

}  // namespace
}  // namespace strata
