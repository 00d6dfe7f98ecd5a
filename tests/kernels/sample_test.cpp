// Sampling against the rules written out in double, and as a distribution: 50,000 draws against
// exact probabilities.
#include "kernels/sample.h"

#include <map>

#include "tests/kernels/dense_fixture.h"

namespace strata {
namespace {

struct Params {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
};
struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
};

// One row of logits against every number of `uniform`; rows lie apart, and what lies between is
// infinite.
Drawn Draw(const std::vector<float>& logits, const Params& params,
           const std::vector<float>& uniform) {
  const int64_t rows = static_cast<int64_t>(uniform.size()),
                width = static_cast<int64_t>(logits.size());
  std::vector<float> spread(static_cast<size_t>(rows * (width + 2)), kInfinity);
  for (int64_t r = 0; r < rows; ++r)
    std::copy(logits.begin(), logits.end(), spread.begin() + r * (width + 2));
  const std::vector<float> temperature(uniform.size(), params.temperature),
      top_p(uniform.size(), params.top_p), min_p(uniform.size(), params.min_p);
  const std::vector<int32_t> top_k(uniform.size(), params.top_k);
  Drawn drawn{std::vector<int32_t>(uniform.size(), 0x5eed), Poisoned(rows)};
  std::vector<std::byte> workspace(SampleTokens::WorkspaceBytes(rows, width), std::byte{0xab});
  const View<float, 2> all = MakeView(spread.data(), {rows, width + 2});
  CpuStream(1).Execute(SampleTokens{.logits = all.Columns(0, width),
                                    .temperature = List(temperature),
                                    .top_k = List(top_k),
                                    .top_p = List(top_p),
                                    .min_p = List(min_p),
                                    .uniform = List(uniform),
                                    .tokens = List(drawn.tokens),
                                    .logprobs = List(drawn.logprobs),
                                    .workspace = List(workspace)});
  return drawn;
}
int32_t One(const std::vector<float>& logits, const Params& params, float uniform) {
  return Draw(logits, params, {uniform}).tokens[0];
}

// The probability of each token by the rules, in double. NaN and -infinity have none.
struct Choice {
  int32_t token;
  double probability;
};
std::vector<Choice> Distribution(const std::vector<float>& logits, const Params& params) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -kInfinity) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && order.size() > static_cast<size_t>(params.top_k))
    order.resize(params.top_k);
  std::vector<Choice> all;
  double sum = 0.0;
  for (int32_t token : order) {
    all.push_back(
        {token, std::exp((double{logits[token]} - logits[order[0]]) / params.temperature)});
    sum += all.back().probability;
  }
  std::vector<Choice> kept;
  double before = 0.0, mass = 0.0;
  for (const Choice& choice : all) {
    const bool inside = params.top_p >= 1.0f || kept.empty() || before / sum < params.top_p;
    before += choice.probability;
    if (!inside || (!kept.empty() && choice.probability < params.min_p * all[0].probability))
      continue;
    kept.push_back(choice);
    mass += choice.probability;
  }
  for (Choice& choice : kept) choice.probability /= mass;
  return kept;
}

TEST(SampleTest, FirstTokenWhoseRunningSumExceedsTheNumber) {
  // Probabilities 0.5, 0.25, 0.125, 0.125, best first; tokens 2, 0, 1, 3.
  const float log2 = std::log(2.0f);
  const std::vector<float> logits = {log2, 0.0f, 2 * log2, 0.0f};
  const std::pair<float, int32_t> cases[] = {{0.0f, 2},  {0.49f, 2}, {0.51f, 0}, {0.74f, 0},
                                             {0.76f, 1}, {0.87f, 1}, {0.88f, 3}, {0.99999994f, 3}};
  for (const auto& [uniform, token] : cases) EXPECT_EQ(One(logits, {}, uniform), token) << uniform;
  // The first two hold 0.75.
  EXPECT_EQ(One(logits, {.top_p = 0.74f}, 0.999f), 0);
  EXPECT_EQ(One(logits, {.top_p = 0.76f}, 0.999f), 1);
  EXPECT_EQ(One(logits, {.top_p = 1e-6f}, 0.999f), 2);
  EXPECT_EQ(One(logits, {.min_p = 0.3f}, 0.999f), 0);
  EXPECT_EQ(One(logits, {.min_p = 0.2f}, 0.999f), 3);
  EXPECT_EQ(One(logits, {.min_p = 0.9f}, 0.999f), 2);
  EXPECT_EQ(One(logits, {.top_k = 3}, 0.999f), 1);  // of equal logits the lower id
  EXPECT_EQ(One(logits, {.top_k = 1}, 0.999f), 2);
  EXPECT_EQ(One(logits, {.top_k = 100}, 0.999f), 3);
}

TEST(SampleTest, GreedyTakesTheLargestAndTheLowestOfEqualOnes) {
  EXPECT_EQ(One({1.0f, 3.0f, 3.0f, 2.0f}, {.temperature = 0.0f}, 0.999f), 1);
  EXPECT_EQ(One({-0.0f, 0.0f}, {.temperature = 0.0f}, 0.999f), 0);
  EXPECT_EQ(One({5.0f}, {.temperature = 0.0f}, 0.5f), 0);
  EXPECT_EQ(One({-3e38f, -2e38f}, {.temperature = 1e-30f}, 0.999f), 1);
}

TEST(SampleTest, NaNNeverWins) {
  for (const float temperature : {0.0f, 0.7f, 1.0f}) {
    for (const float uniform : {0.0f, 0.3f, 0.6f, 0.99999994f}) {
      const Params params{.temperature = temperature};
      const Drawn mixed = Draw({kNaN, -1.0f, -kInfinity, 0.0f, -kNaN}, params, {uniform});
      EXPECT_TRUE(mixed.tokens[0] == 1 || mixed.tokens[0] == 3) << mixed.tokens[0];
      EXPECT_NEAR(mixed.logprobs[0], mixed.tokens[0] == 3 ? -0.31326169 : -1.31326169, 1e-6);
      EXPECT_EQ(One({kNaN, kInfinity, 5.0f}, params, uniform), 1);
      for (const std::vector<float>& nothing : {std::vector<float>{kNaN, kNaN},
                                                {-kInfinity, -kInfinity, -kInfinity},
                                                {kNaN, -kInfinity}}) {
        EXPECT_EQ(One(nothing, params, uniform), -1);
      }
    }
  }
}

TEST(SampleTest, LogprobIsOfTheWholeRowAtTemperatureOne) {
  Random random(3);
  for (const int64_t width : {1, 15, 17, 130, 5000}) {
    std::vector<float> logits = random.Normals(width);
    for (float& logit : logits) logit *= 8.0f;
    double sum = 0.0;
    for (float logit : logits) sum += std::exp(double{logit});
    const Drawn drawn =
        Draw(logits, {.temperature = 0.5f, .top_k = 3, .top_p = 0.9f}, {0.1f, 0.9f});
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_NEAR(drawn.logprobs[r], logits[drawn.tokens[r]] - std::log(sum), 2e-5) << width;
    }
  }
}

TEST(SampleTest, EveryNumberGivesTheTokenOfTheRules) {
  Random random(4);
  for (int round = 0; round < 60; ++round) {
    std::vector<float> logits = random.Normals(1 + random.Below(300));
    for (float& logit : logits) logit = std::round(logit * 8.0f) / 4.0f;  // ties
    const Params params{.temperature = random.Uniform(0.3f, 2.0f),
                        .top_k = static_cast<int32_t>(random.Below(2) * random.Below(40)),
                        .top_p = random.Below(2) == 0 ? 1.0f : random.Uniform(0.1f, 1.0f),
                        .min_p = random.Below(2) == 0 ? 0.0f : random.Uniform(0.0f, 0.5f)};
    const std::vector<Choice> expected = Distribution(logits, params);
    std::vector<float> uniform;
    for (int i = 0; i < 20; ++i) uniform.push_back(random.Uniform(0.0f, 1.0f));
    const Drawn drawn = Draw(logits, params, uniform);
    for (size_t i = 0; i < uniform.size(); ++i) {
      // The rule's token, or a neighbour when the number lies on the border between them.
      double low = 0.0;
      bool fits = false;
      for (const Choice& choice : expected) {
        const double high = low + choice.probability;
        if (choice.token == drawn.tokens[i])
          fits = uniform[i] > low - 1e-6 && uniform[i] < high + 1e-6;
        low = high;
      }
      EXPECT_TRUE(fits) << "round " << round << " number " << uniform[i] << " token "
                        << drawn.tokens[i];
    }
  }
}

class SampleDistribution : public ::testing::TestWithParam<Params> {};

// Chi-square of 50,000 draws; the bound is about six standard deviations, and the seed is fixed.
TEST_P(SampleDistribution, MatchesExactProbabilities) {
  Random random(11);
  std::vector<float> logits = random.Normals(40);
  for (float& logit : logits) logit *= 1.5f;
  const std::vector<Choice> expected = Distribution(logits, GetParam());
  std::map<int32_t, int> counts;
  constexpr int kDraws = 50000;
  std::vector<float> uniform(kDraws);
  for (float& number : uniform) number = static_cast<float>(random.Below(1 << 24)) / (1 << 24);
  for (int32_t token : Draw(logits, GetParam(), uniform).tokens) ++counts[token];
  double chi_square = 0.0;
  int seen = 0;
  for (const Choice& choice : expected) {
    const double mean = choice.probability * kDraws;
    const double difference = counts[choice.token] - mean;
    chi_square += difference * difference / mean;
    seen += counts[choice.token];
  }
  EXPECT_EQ(seen, kDraws) << "a token that the rules drop was drawn";
  const double freedom = static_cast<double>(expected.size()) - 1.0;
  EXPECT_LT(chi_square, freedom + 6.0 * std::sqrt(2.0 * freedom) + 6.0);
}
INSTANTIATE_TEST_SUITE_P(
    Rules, SampleDistribution,
    ::testing::Values(Params{}, Params{.temperature = 0.7f}, Params{.top_p = 0.9f},
                      Params{.min_p = 0.1f}, Params{.top_k = 5},
                      Params{.temperature = 0.7f, .top_k = 20, .top_p = 0.9f, .min_p = 0.05f}));

TEST(SampleTest, DrawsDeepIntoALargeFlatVocabulary) {
  // Nearly equal tokens: a draw looks past thousands of them.
  std::vector<float> logits = Random(2).Normals(20'000);
  for (float& logit : logits) logit *= 0.01f;
  double running = 0.0;
  std::vector<float> uniform;
  std::vector<int32_t> expected;
  int64_t rank = 0;
  for (const Choice& choice : Distribution(logits, {})) {
    if (rank++ % 1999 == 7) {
      uniform.push_back(static_cast<float>(running + choice.probability / 2));
      expected.push_back(choice.token);
    }
    running += choice.probability;
  }
  EXPECT_EQ(Draw(logits, {}, uniform).tokens, expected);
}

TEST(SampleTest, TopPOfOneDropsNothingAndAnExactSumIsEnough) {
  const float last = std::nextafter(1.0f, 0.0f);
  std::vector<float> tail(1000, -12.0f);
  tail[0] = 0.0f;
  EXPECT_EQ(One(tail, {}, last), 999);
  EXPECT_EQ(One({1.0f, 1.0f}, {.top_p = 0.5f}, last), 0);
  EXPECT_EQ(One({1.0f, 1.0f}, {.top_p = 0.51f}, last), 1);
  // What has no probability left in fp32 is not drawn.
  EXPECT_EQ(One({0.0f, -1000.0f}, {}, last), 0);
}

TEST(SampleTest, ColdTemperaturesChooseTheBest) {
  const std::vector<float> logits = Random(5).Normals(50);
  const int32_t best = One(logits, {.temperature = 0.0f}, 0.5f);
  for (float temperature : {1e-3f, 1e-30f, 1e-40f})
    EXPECT_EQ(One(logits, {.temperature = temperature}, 0.999f), best) << temperature;
}

TEST(SampleTest, InfinityIsCertainAndALaterOneComesSecond) {
  for (float temperature : {0.0f, 1.0f}) {
    const Drawn drawn =
        Draw({0.0f, kInfinity, kNaN, kInfinity}, {.temperature = temperature}, {0.99f});
    EXPECT_EQ(drawn.tokens[0], 1);
    EXPECT_EQ(drawn.logprobs[0], 0.0f);
  }
}

TEST(SampleTest, RefusesWhatDoesNotFit) {
  std::vector<float> logits(6), one(1), two(2);
  std::vector<int32_t> tokens(2), top_k(2);
  std::vector<std::byte> workspace(SampleTokens::WorkspaceBytes(2, 3));
  const SampleTokens good{.logits = Rows(logits, 2, 3),
                          .temperature = List(two),
                          .top_k = List(top_k),
                          .top_p = List(two),
                          .min_p = List(two),
                          .uniform = List(two),
                          .tokens = List(tokens),
                          .logprobs = List(two),
                          .workspace = List(workspace)};
  CpuStream stream(1);
  SampleTokens bad = good;
  bad.uniform = List(one);
  std::string message = MessageOf(ErrorCode::kShape, [&] { stream.Execute(bad); });
  EXPECT_NE(message.find("SampleTokens: uniform has 1 rows"), std::string::npos) << message;
  EXPECT_NE(message.find("2"), std::string::npos) << message;
  bad = good;
  bad.workspace.shape[0] -= 1;
  message = MessageOf(ErrorCode::kShape, [&] { stream.Execute(bad); });
  EXPECT_NE(message.find(std::to_string(workspace.size())), std::string::npos) << message;
}

}  // namespace
}  // namespace strata
