// Verify windows: drafts change the number of steps and nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "engine/engine.h"
#include "kernels/status.h"
#include "tests/engine/toy_models.h"

namespace strata {
namespace {

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<std::pair<int32_t, float>>> top;
  FinishReason reason = FinishReason::kError;
  DraftCounts drafts;
};

EngineOptions Options(int64_t sequences = 1) {
  EngineOptions options;
  options.max_context = 512;
  options.max_sequences = sequences;
  options.chunk = 64;
  options.kv_format = KvFormat::kFp32;
  options.score_scratch_mib = 1;
  options.speculation = {.drafts = kMaxDrafts, .drafter = DrafterKind::kAuto, .adaptive = false};
  return options;
}

Request MakeRequest(int64_t prompt_tokens, int64_t answer_tokens, int32_t salt = 0) {
  Request request;
  for (int64_t i = 0; i < prompt_tokens; ++i)
    request.prompt.push_back(static_cast<int32_t>((i * 29 + i * i * 7 + salt * 13) % 48));
  request.max_tokens = answer_tokens;
  return request;
}

void Submit(Engine& engine, const Request& request, Outcome& outcome) {
  engine.Submit(request, [&outcome](const TokenEvent& event) {
    if (event.token >= 0 && event.finish != FinishReason::kStop) {
      outcome.tokens.push_back(event.token);
      outcome.logprobs.push_back(event.logprob);
      outcome.top.emplace_back();
      for (const TokenLogprob& top : event.top)
        outcome.top.back().push_back({top.token, top.logprob});
    }
    outcome.drafts = event.drafts;
    if (event.finish) outcome.reason = *event.finish;
  });
}

Outcome RunOne(Engine& engine, const Request& request) {
  Outcome outcome;
  Submit(engine, request, outcome);
  engine.RunUntilIdle();
  return outcome;
}

// Drafts that continue `answer` (of the sequence with this prompt length), the first `right` of
// them truly, `count` in all; on the answer's steps from `first` on, `steps` times.
Speculator::Source Script(std::vector<int32_t> answer, int64_t count, int64_t right,
                          int64_t steps = 1 << 30) {
  return [answer = std::move(answer), count, right, steps](const Sequence& sequence,
                                                           int64_t limit) mutable {
    std::vector<int32_t> drafts;
    if (steps-- <= 0) return drafts;
    for (int64_t i = 0; i < std::min(count, limit); ++i) {
      const size_t place = static_cast<size_t>(sequence.answer_tokens() + i);
      const int32_t truth = place < answer.size() ? answer[place] : 0;
      drafts.push_back(i < right ? truth : (truth + 1) % 8);
    }
    return drafts;
  };
}

class PooledWindows : public ::testing::Test {
 protected:
  PooledWindows() : backend_(MakeCpuBackend(1)), model_(*backend_) {}

  Outcome Plain(Request request) {
    request.speculation = SpeculationOptions{};
    Engine engine(model_, *backend_, Options());
    return RunOne(engine, request);
  }
  std::unique_ptr<Backend> backend_;
  PooledToyModel model_;
};

// The bytes that a sequence's length makes valid: latent rows, whole pools, the raw rows of the
// unfinished pool.
struct CacheBytes {
  std::string latents, pools, tail;
  int64_t cells = 0;
  bool operator==(const CacheBytes&) const = default;
};
CacheBytes Look(Engine& engine) {
  const Sequence& sequence = *engine.sequences().at(0);
  const View<const int32_t, 2> table =
      MakeView(sequence.pages.data(), {1, static_cast<int64_t>(sequence.pages.size())});
  const LatentPages latents = engine.runner().kv().Pages(0, table);
  const KeyPages keys = engine.runner().keys().Pages(0, table);
  const View<float, 3> ring = engine.runner().keys().Ring(0);
  const auto bytes = [](const void* data, int64_t size) {
    return std::string(static_cast<const char*>(data), static_cast<size_t>(size));
  };
  CacheBytes found;
  found.cells = sequence.cells;
  for (int64_t cell = 0; cell < sequence.cells; ++cell) {
    const std::byte* page = latents.base + table(0, cell / kPageCells) * latents.page_stride;
    found.latents +=
        bytes(page + cell % kPageCells * latents.layout.RowBytes(), latents.layout.RowBytes());
  }
  const int64_t pools = sequence.cells / PooledToyModel::kPool;
  for (int64_t pool = 0; pool < pools; ++pool) {
    const int64_t per_page = keys.layout.KeysPerPage();
    const std::byte* page = keys.base + table(0, pool / per_page) * keys.page_stride;
    found.pools += bytes(page + pool % per_page * keys.layout.KeyBytes(), keys.layout.KeyBytes());
  }
  for (int64_t cell = pools * PooledToyModel::kPool; cell < sequence.cells; ++cell) {
    const float* raw = ring.row(sequence.slot) + cell % ring.dim(1) * ring.dim(2);
    found.tail += bytes(raw, ring.dim(2) * static_cast<int64_t>(sizeof(float)));
  }
  return found;
}

TEST_F(PooledWindows, ARejectedDraftLeavesNoTraceInLatentsPoolsAndTail) {
  constexpr int64_t kLater = 20;
  for (int64_t start : {12, 13, 14, 15, 60, 61, 62, 63}) {
    const Request request = MakeRequest(start, kMaxDrafts + 2 + kLater);
    const Outcome truth = Plain(request);
    for (int64_t drafts : {3, 4, 7}) {
      for (int64_t right = 0; right <= drafts; ++right) {
        Engine engine(model_, *backend_, Options());
        engine.speculator().set_source(Script(truth.tokens, drafts, right, 1));
        Engine plain(model_, *backend_, Options());
        plain.speculator().set_source(Script({}, 0, 0, 0));
        Outcome found, expected;
        Submit(engine, request, found);
        Submit(plain, request, expected);
        engine.Step();  // the prompt, and the drafts behind its first token
        engine.Step();  // the window
        ASSERT_EQ(found.tokens.size(), static_cast<size_t>(right + 2));
        while (expected.tokens.size() < found.tokens.size()) plain.Step();
        EXPECT_TRUE(Look(engine) == Look(plain)) << start << " " << drafts << " " << right;
        for (int64_t step = 0; step < kLater - 1; ++step) {
          engine.Step();
          plain.Step();
        }
        EXPECT_TRUE(Look(engine) == Look(plain)) << start << " " << drafts << " " << right;
        engine.RunUntilIdle();
        EXPECT_EQ(found.tokens, truth.tokens);
        EXPECT_EQ(found.logprobs, truth.logprobs);
        EXPECT_EQ(engine.stats().drafts.drafted_tokens(), drafts);
        EXPECT_EQ(engine.stats().drafts.accepted_tokens(), right);
      }
    }
  }
}

TEST_F(PooledWindows, ASlotCancelledBehindAWindowServesTheNextRequestUnchanged) {
  for (int64_t start : {12, 13, 14, 15}) {
    const Request request = MakeRequest(start, 20);
    const Request next = MakeRequest(start + 1, 20, 3);
    const Outcome truth = Plain(request), next_truth = Plain(next);
    for (int64_t right = 0; right <= 4; ++right) {
      Engine engine(model_, *backend_, Options());
      engine.speculator().set_source(Script(truth.tokens, 4, right));
      Outcome cancelled, served;
      const RequestId id = engine.Submit(request, [](const TokenEvent&) {});
      engine.Step();
      engine.Step();
      engine.Cancel(id);
      engine.speculator().set_source(Script({}, 0, 0, 0));
      Submit(engine, next, served);
      engine.RunUntilIdle();
      EXPECT_EQ(served.tokens, next_truth.tokens) << start << " " << right;
      EXPECT_EQ(served.logprobs, next_truth.logprobs) << start << " " << right;
      EXPECT_EQ(engine.runner().pages().free_pages() + engine.prefixes().cached_pages(),
                engine.runner().pages().pages());
    }
  }
}

TEST_F(PooledWindows, ABatchOfWindowsOfDifferentLengthsEqualsSoloRuns) {
  std::vector<Request> requests;
  std::vector<Outcome> truths;
  std::map<std::vector<int32_t>, std::vector<int32_t>> answers;
  for (int32_t i = 0; i < 8; ++i) {
    Request request = MakeRequest(5 + 9 * i, 70, i);
    request.top_logprobs = 3;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.seed = static_cast<uint64_t>(i);
    requests.push_back(request);
    truths.push_back(Plain(request));
    answers[request.prompt] = truths.back().tokens;
  }
  Engine engine(model_, *backend_, Options(8));
  engine.speculator().set_source([&](const Sequence& sequence, int64_t limit) {
    // Drafts of 0 to 7 tokens, right in 0 to all places, differently at each step.
    const int64_t mix = sequence.id * 5 + sequence.answer_tokens() * 3;
    return Script(answers[sequence.request.prompt], mix % 8, mix / 8 % 8)(sequence, limit);
  });
  std::vector<Outcome> outcomes(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) Submit(engine, requests[i], outcomes[i]);
  engine.RunUntilIdle();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(outcomes[i].tokens, truths[i].tokens) << i;
    EXPECT_EQ(outcomes[i].logprobs, truths[i].logprobs) << i;
    EXPECT_EQ(outcomes[i].top, truths[i].top) << i;
    EXPECT_GT(outcomes[i].drafts.accepted_tokens(), 0) << i;
    EXPECT_LT(outcomes[i].drafts.accepted_tokens(), outcomes[i].drafts.drafted_tokens()) << i;
  }
}

TEST_F(PooledWindows, AStopTokenInsideAWindowEndsTheAnswerThere) {
  const Request request = MakeRequest(30, 16);
  const Outcome truth = Plain(request);
  for (size_t place = 0; place < truth.tokens.size(); ++place) {
    Request stopping = request;
    stopping.stop_tokens = {truth.tokens[place]};
    const Outcome expected = Plain(stopping);
    for (int64_t drafts = 1; drafts <= kMaxDrafts; ++drafts) {
      Engine engine(model_, *backend_, Options());
      engine.speculator().set_source(Script(truth.tokens, drafts, drafts));
      const Outcome outcome = RunOne(engine, stopping);
      EXPECT_EQ(outcome.tokens, expected.tokens) << place << " " << drafts;
      EXPECT_EQ(outcome.reason, FinishReason::kStop);
    }
  }
}

TEST_F(PooledWindows, TokenLimitsAndTheContextHoldInsideAWindow) {
  const Outcome truth = Plain(MakeRequest(30, 24));
  for (int64_t limit = 1; limit <= 20; ++limit) {
    Engine engine(model_, *backend_, Options());
    engine.speculator().set_source(Script(truth.tokens, kMaxDrafts, kMaxDrafts));
    const Outcome outcome = RunOne(engine, MakeRequest(30, limit));
    EXPECT_EQ(outcome.tokens,
              std::vector<int32_t>(truth.tokens.begin(), truth.tokens.begin() + limit));
    EXPECT_EQ(outcome.reason, FinishReason::kLength);
  }
  EngineOptions small = Options();
  small.max_context = 40;
  Engine engine(model_, *backend_, small);
  engine.speculator().set_source(Script(truth.tokens, kMaxDrafts, kMaxDrafts));
  const Outcome outcome = RunOne(engine, MakeRequest(30, 0));
  EXPECT_EQ(outcome.tokens.size(), 10u);
  EXPECT_EQ(outcome.reason, FinishReason::kLength);
}

TEST_F(PooledWindows, DraftsNeverTakePagesThatOthersNeed) {
  // Two sequences in a cache that holds both answers exactly: windows must not preempt.
  EngineOptions options = Options(2);
  options.cache_pages = 4;
  const Request first = MakeRequest(50, 70), second = MakeRequest(55, 60, 1);
  const Outcome truth = Plain(first), second_truth = Plain(second);
  Engine engine(model_, *backend_, options);
  engine.speculator().set_source([&](const Sequence& sequence, int64_t limit) {
    return Script(sequence.id == 1 ? truth.tokens : second_truth.tokens, 7, 7)(sequence, limit);
  });
  Outcome outcome, second_outcome;
  Submit(engine, first, outcome);
  Submit(engine, second, second_outcome);
  engine.RunUntilIdle();
  EXPECT_EQ(engine.stats().preemptions, 0);
  EXPECT_EQ(outcome.tokens, truth.tokens);
  EXPECT_EQ(second_outcome.tokens, second_truth.tokens);
}

TEST_F(PooledWindows, RepeatedTextIsDraftedFromTheSequenceItself) {
  // The answer is steered to repeat the prompt: every token but the next one is ruled out.
  class Repeat : public TokenConstraint {
   public:
    explicit Repeat(std::vector<int32_t> text) : text_(std::move(text)) {}
    std::unique_ptr<TokenConstraint> Clone() const override {
      return std::make_unique<Repeat>(*this);
    }
    void Allowed(std::vector<uint32_t>& mask) const override {
      mask.assign(2, 0);
      const int32_t token = text_[next_ % text_.size()];
      mask[static_cast<size_t>(token / 32)] = 1u << (token % 32);
    }
    void Accept(int32_t) override { ++next_; }

   private:
    std::vector<int32_t> text_;
    size_t next_ = 0;
  };
  Request request = MakeRequest(40, 80);
  request.constraint = std::make_shared<Repeat>(request.prompt);
  request.speculation =
      SpeculationOptions{.drafts = 4, .drafter = DrafterKind::kNgram, .adaptive = false};
  Engine engine(model_, *backend_, Options());
  const Outcome outcome = RunOne(engine, request);
  EXPECT_EQ(outcome.tokens, Plain(request).tokens);
  EXPECT_GT(outcome.drafts.accepted_tokens(), 50);
  EXPECT_LT(engine.stats().steps, 35);
}

TEST_F(PooledWindows, SpeculationOutOfRangeOrWithoutItsLayerIsRefused) {
  Engine engine(model_, *backend_, Options());
  const auto refusal = [&](const SpeculationOptions& speculation) {
    Request request = MakeRequest(3, 1);
    request.speculation = speculation;
    try {
      engine.Check(request);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal({.drafts = 8}).find("8"), std::string::npos);
  EXPECT_NE(refusal({.drafts = -1}).find("-1"), std::string::npos);
  EXPECT_NE(refusal({.drafts = 1, .min_probability = 1.5f}).find("1.5"), std::string::npos);
  EXPECT_NE(refusal({.drafts = 1, .drafter = DrafterKind::kMtp}).find("mtp"), std::string::npos);
  EXPECT_EQ(refusal({.drafts = 7, .drafter = DrafterKind::kNgram}), "");
}

// The distribution that the sampler draws from, behind a token of the table.
std::vector<double> Exact(int64_t token, double temperature, double top_p) {
  std::vector<std::pair<double, int64_t>> order;
  double total = 0.0;
  for (int64_t v = 0; v < MarkovModel::kVocabulary; ++v) {
    const double weight = std::exp(static_cast<double>(MarkovModel::Logit(token, v)) / temperature);
    order.push_back({-weight, v});
    total += weight;
  }
  std::sort(order.begin(), order.end());
  std::vector<double> probability(MarkovModel::kVocabulary, 0.0);
  double mass = 0.0;
  for (const auto& [negative, v] : order) {
    if (mass >= top_p * total) break;
    probability[static_cast<size_t>(v)] = -negative;
    mass -= negative;
  }
  for (double& value : probability) value /= mass;
  return probability;
}

struct SamplingCase {
  float temperature;
  float top_p;
};
class WindowSampling : public ::testing::TestWithParam<SamplingCase> {};

TEST_P(WindowSampling, EveryPlaceOfAWindowFollowsTheModelsDistribution) {
  constexpr int64_t kDraws = 50000, kPlaces = 4, kSlots = 50;
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  const MarkovModel model;
  EngineOptions options = Options(kSlots);
  options.max_context = 64;
  options.chunk = 512;
  options.prefix_reuse = false;
  Engine engine(model, *backend, options);
  // A drafter with a distribution of its own: the likeliest token, or any.
  engine.speculator().set_source([](const Sequence& sequence, int64_t limit) {
    std::vector<int32_t> drafts;
    int64_t token = sequence.tokens.back();
    for (int64_t i = 0; i < limit; ++i) {
      int64_t best = 0;
      for (int64_t v = 1; v < MarkovModel::kVocabulary; ++v)
        if (MarkovModel::Logit(token, v) > MarkovModel::Logit(token, best)) best = v;
      token = (sequence.id + i) % 3 == 0 ? (sequence.id / 3) % MarkovModel::kVocabulary : best;
      drafts.push_back(static_cast<int32_t>(token));
    }
    return drafts;
  });
  std::vector<std::vector<int64_t>> counts(kPlaces + 1,
                                           std::vector<int64_t>(MarkovModel::kVocabulary, 0));
  for (int64_t draw = 0; draw < kDraws; ++draw) {
    Request request;
    request.prompt = {3};
    request.max_tokens = kPlaces + 1;
    request.sampling.temperature = GetParam().temperature;
    request.sampling.top_p = GetParam().top_p;
    request.sampling.seed = static_cast<uint64_t>(draw);
    engine.Submit(std::move(request),
                  [&counts, place = size_t{0}](const TokenEvent& event) mutable {
                    ++counts[place++][static_cast<size_t>(event.token)];
                  });
    if (draw % kSlots == kSlots - 1) engine.RunUntilIdle();
  }
  EXPECT_GT(engine.stats().drafts.accepted[kPlaces - 2], 0);
  EXPECT_LT(engine.stats().drafts.accepted[0], engine.stats().drafts.drafted[0]);
  std::vector<double> marginal(MarkovModel::kVocabulary, 0.0);
  marginal[3] = 1.0;
  for (size_t place = 0; place < counts.size(); ++place) {
    std::vector<double> next(MarkovModel::kVocabulary, 0.0);
    for (int64_t token = 0; token < MarkovModel::kVocabulary; ++token) {
      const std::vector<double> row = Exact(token, GetParam().temperature, GetParam().top_p);
      for (size_t v = 0; v < row.size(); ++v)
        next[v] += marginal[static_cast<size_t>(token)] * row[v];
    }
    marginal = next;
    double chi_square = 0.0;
    for (size_t v = 0; v < marginal.size(); ++v) {
      const double expected = marginal[v] * static_cast<double>(kDraws);
      if (expected == 0.0) {
        EXPECT_EQ(counts[place][v], 0);
        continue;
      }
      const double difference = static_cast<double>(counts[place][v]) - expected;
      chi_square += difference * difference / expected;
    }
    // 7 degrees of freedom at most: 40.5 is passed by chance once in a million.
    EXPECT_LT(chi_square, 40.5) << "place " << place;
  }
}
INSTANTIATE_TEST_SUITE_P(Settings, WindowSampling,
                         ::testing::Values(SamplingCase{1.0f, 1.0f}, SamplingCase{0.7f, 1.0f},
                                           SamplingCase{1.0f, 0.9f}, SamplingCase{0.7f, 0.9f}));

TEST_F(PooledWindows, ASeedGivesTheSameAnswerWithAndWithoutDraftsUnderEverySetting) {
  std::vector<SamplingParams> settings(6);
  for (size_t i = 0; i < settings.size(); ++i) {
    settings[i].temperature = 0.9f;
    settings[i].seed = 40 + i;
  }
  settings[1].top_k = 5;
  settings[2].min_p = 0.1f;
  settings[3].repetition_penalty = 1.3f;
  settings[4].presence_penalty = 0.5f;
  settings[4].frequency_penalty = 0.4f;
  settings[5].logit_bias = {{3, 4.0f}, {7, -100.0f}};
  for (const SamplingParams& sampling : settings) {
    Request request = MakeRequest(21, 40);
    request.sampling = sampling;
    const Outcome truth = Plain(request);
    for (int64_t drafts : {1, 3, 7}) {
      Engine engine(model_, *backend_, Options());
      engine.speculator().set_source([&](const Sequence& sequence, int64_t limit) {
        return Script(truth.tokens, drafts, sequence.answer_tokens() % (drafts + 1))(sequence,
                                                                                     limit);
      });
      const Outcome outcome = RunOne(engine, request);
      EXPECT_EQ(outcome.tokens, truth.tokens) << sampling.seed;
      EXPECT_EQ(outcome.logprobs, truth.logprobs) << sampling.seed;
      EXPECT_GT(outcome.drafts.accepted_tokens(), 0);
    }
  }
}

}  // namespace
}  // namespace strata
