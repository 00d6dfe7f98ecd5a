#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/options.h"
#include "engine/stage_clock.h"
#include "kernels/status.h"

namespace strata {
namespace {

class SamplerTest : public ::testing::Test {
 protected:
  Sampled Take(Sampler& sampler, const std::vector<float>& logits) {
    return sampler.Sample(MakeView(logits.data(), {static_cast<int64_t>(logits.size())}), nullptr,
                          backend_->DefaultStream());
  }
  std::unique_ptr<Backend> backend_ = MakeCpuBackend(1);
};

TEST_F(SamplerTest, GreedyTakesTheLargestLogitAndTheLowestIdOnATie) {
  Sampler sampler({}, {0});
  const Sampled sampled = Take(sampler, {1.0f, 3.0f, 3.0f, -1.0f});
  EXPECT_EQ(sampled.token, 1);
  const double expected = 3.0 - std::log(std::exp(1.0) + 2.0 * std::exp(3.0) + std::exp(-1.0));
  EXPECT_NEAR(sampled.logprob, expected, 1e-5);
}

TEST_F(SamplerTest, NothingButNanIsNoToken) {
  Sampler sampler({}, {0});
  EXPECT_EQ(Take(sampler, {NAN, NAN}).token, -1);
  EXPECT_EQ(Take(sampler, {NAN, 1.0f}).token, 1);
}

TEST_F(SamplerTest, PenaltiesAndBiasesShiftTheChoice) {
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  Sampler repetition(params, {1});
  EXPECT_EQ(Take(repetition, {1.0f, 1.9f, -5.0f}).token, 0);  // 1.9 / 2 < 1
  params = {};
  params.presence_penalty = 1.5f;
  Sampler presence(params, {1});
  EXPECT_EQ(Take(presence, {1.0f, 1.9f}).token, 1);  // the prompt does not count
  presence.Accept(1);
  EXPECT_EQ(Take(presence, {1.0f, 1.9f}).token, 0);
  params = {};
  params.frequency_penalty = 0.5f;
  Sampler frequency(params, {0});
  frequency.Accept(1);
  EXPECT_EQ(Take(frequency, {1.0f, 1.9f}).token, 1);
  frequency.Accept(1);
  EXPECT_EQ(Take(frequency, {1.0f, 1.9f}).token, 0);
  params = {};
  params.logit_bias = {{0, 2.0f}};
  Sampler bias(params, {0});
  const Sampled biased = Take(bias, {0.0f, 1.0f});
  EXPECT_EQ(biased.token, 0);
  EXPECT_NEAR(biased.logprob, -std::log(1.0 + std::exp(1.0)),
              1e-5);  // of the model's own distribution
}

TEST_F(SamplerTest, TheSameSeedGivesTheSameTokensWhateverRanBetween) {
  SamplingParams params;
  params.temperature = 1.0f;
  params.seed = 42;
  const std::vector<float> logits(50, 0.0f);
  Sampler a(params, {0}), b(params, {0}), other(params, {0});
  std::vector<int32_t> first, second;
  for (int i = 0; i < 20; ++i) {
    first.push_back(Take(a, logits).token);
    a.Accept(first.back());
  }
  for (int i = 0; i < 20; ++i) {
    Take(other, logits);
    second.push_back(Take(b, logits).token);
    b.Accept(second.back());
  }
  EXPECT_EQ(first, second);
  EXPECT_GT(std::set<int32_t>(first.begin(), first.end()).size(), 5u);
}

TEST(Sampler, UniformNumbersAreInsideTheUnitIntervalAndEven) {
  double sum = 0.0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const float u = Sampler::Uniform(7, i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000.0, 0.5, 0.02);
}

TEST(Sampling, RefusesValuesByName) {
  const auto refused = [](const SamplingParams& params) -> std::string {
    try {
      ValidateSampling(params, 100);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  SamplingParams params;
  EXPECT_EQ(refused(params), "");
  params.top_p = 0.0f;
  EXPECT_NE(refused(params).find("top_p is 0"), std::string::npos);
  params = {};
  params.temperature = -1.0f;
  EXPECT_NE(refused(params).find("temperature"), std::string::npos);
  params = {};
  params.temperature = NAN;
  EXPECT_NE(refused(params).find("temperature"), std::string::npos);
  params = {};
  params.logit_bias = {{100, 1.0f}};
  EXPECT_NE(refused(params).find("logit_bias"), std::string::npos);
}

TEST(Options, FormatsAreKnownByName) {
  for (const char* name : {"fp32", "bf16", "int8", "fp8"})
    EXPECT_STREQ(KvFormatName(*ParseKvFormat(name)), name);
  EXPECT_FALSE(ParseKvFormat("fp16").has_value());
}

TEST(StageClock, StagesSumToTheWholeTime) {
  StageClock clock;
  clock.Start();
  { StageClock::Scope scope(&clock, Stage::kScan); }
  { StageClock::Scope scope(nullptr, Stage::kSelect); }
  clock.Stop();
  EXPECT_GE(clock.seconds(Stage::kScan), 0.0);
  EXPECT_EQ(clock.seconds(Stage::kSelect), 0.0);
  EXPECT_DOUBLE_EQ(clock.total_seconds(),
                   clock.seconds(Stage::kScan) + clock.seconds(Stage::kRest));
}

}  // namespace
}  // namespace strata
