#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/sample.h"
#include "kernels/status.h"

namespace strata {

namespace {

void CheckRange(const char* name, double value, double low, double high, bool low_open,
                bool high_open) {
  const bool inside =
      (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
  if (inside) return;
  Fail(ErrorCode::kUsage, fmt::format("{} is {}, accepted is {}{}, {}{}", name, value,
                                      low_open ? "(" : "[", low, high, high_open ? ")" : "]"));
}

uint64_t Mix(uint64_t z) {  // splitmix64's finaliser
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

double LogSumExp(const View<const float, 1>& logits) {
  double largest = -HUGE_VAL, sum = 0.0;
  for (int64_t i = 0; i < logits.dim(0); ++i) largest = std::fmax(largest, logits(i));
  for (int64_t i = 0; i < logits.dim(0); ++i) {
    if (logits(i) == logits(i)) sum += std::exp(logits(i) - largest);
  }
  return largest + std::log(sum);
}

}  // namespace

std::vector<TokenLogprob> MostLikely(const View<const float, 1>& logits, int32_t count) {
  std::vector<int32_t> order;
  for (int64_t i = 0; i < logits.dim(0); ++i) {
    if (logits(i) > -HUGE_VALF) order.push_back(static_cast<int32_t>(i));
  }
  const auto kept = static_cast<std::ptrdiff_t>(
      std::min<size_t>(static_cast<size_t>(std::max(count, 0)), order.size()));
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), [&](int32_t a, int32_t b) {
    return logits(a) != logits(b) ? logits(a) > logits(b) : a < b;
  });
  const double total = kept > 0 ? LogSumExp(logits) : 0.0;
  std::vector<TokenLogprob> tokens;
  for (std::ptrdiff_t i = 0; i < kept; ++i) {
    const int32_t token = order[static_cast<size_t>(i)];
    tokens.push_back({token, static_cast<float>(logits(token) - total)});
  }
  return tokens;
}

void ValidateSampling(const SamplingParams& params, int64_t vocabulary) {
  CheckRange("temperature", params.temperature, 0.0, 100.0, false, false);
  CheckRange("top_k", params.top_k, 0, 1 << 30, false, false);
  CheckRange("top_p", params.top_p, 0.0, 1.0, true, false);
  CheckRange("min_p", params.min_p, 0.0, 1.0, false, true);
  CheckRange("repetition_penalty", params.repetition_penalty, 0.0, 100.0, true, false);
  CheckRange("presence_penalty", params.presence_penalty, -2.0, 2.0, false, false);
  CheckRange("frequency_penalty", params.frequency_penalty, -2.0, 2.0, false, false);
  for (const auto& [token, bias] : params.logit_bias) {
    CheckRange("logit_bias token", token, 0, static_cast<double>(vocabulary - 1), false, false);
    CheckRange("logit_bias", bias, -100.0, 100.0, false, false);
  }
}

Sampler::Sampler(const SamplingParams& params, const std::vector<int32_t>& prompt)
    : params_(params) {
  if (params_.repetition_penalty != 1.0f) {
    for (int32_t token : prompt) ++prompt_counts_[token];
  }
}

float Sampler::Uniform(uint64_t seed, uint64_t index) {
  const uint64_t bits =
      Mix(Mix(seed + 0x9e3779b97f4a7c15ull) + (index + 1) * 0x9e3779b97f4a7c15ull);
  return static_cast<float>(bits >> 40) * 0x1p-24f;
}

bool Sampler::Unadjusted() const {
  return params_.repetition_penalty == 1.0f && params_.presence_penalty == 0.0f &&
         params_.frequency_penalty == 0.0f && params_.logit_bias.empty();
}

void Sampler::Penalise(std::vector<float>& logits) const {
  if (params_.repetition_penalty != 1.0f) {
    const auto penalise = [&](int32_t token) {
      float& logit = logits[static_cast<size_t>(token)];
      logit =
          logit > 0.0f ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    };
    for (const auto& [token, count] : prompt_counts_) penalise(token);
    for (const auto& [token, count] : answer_counts_) {
      if (!prompt_counts_.contains(token)) penalise(token);
    }
  }
  for (const auto& [token, count] : answer_counts_) {
    logits[static_cast<size_t>(token)] -=
        params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
  for (const auto& [token, bias] : params_.logit_bias) logits[static_cast<size_t>(token)] += bias;
}

Sampled Sampler::Sample(const View<const float, 1>& logits, const std::vector<uint32_t>* allowed,
                        Stream stream) {
  const int64_t vocabulary = logits.dim(0);
  workspace_.resize(SampleTokens::WorkspaceBytes(1, vocabulary));
  Sampled sampled;
  const float uniform = Uniform(params_.seed, accepted_);
  const auto run = [&](const float* row, float temperature, int32_t top_k, float top_p,
                       float min_p) {
    Run(SampleTokens{.logits = MakeView(row, {1, vocabulary}),
                     .temperature = MakeView(static_cast<const float*>(&temperature), {1}),
                     .top_k = MakeView(static_cast<const int32_t*>(&top_k), {1}),
                     .top_p = MakeView(static_cast<const float*>(&top_p), {1}),
                     .min_p = MakeView(static_cast<const float*>(&min_p), {1}),
                     .uniform = MakeView(&uniform, {1}),
                     .tokens = MakeView(&sampled.token, {1}),
                     .logprobs = MakeView(&sampled.logprob, {1}),
                     .workspace =
                         MakeView(workspace_.data(), {static_cast<int64_t>(workspace_.size())})},
        stream);
  };
  if (Unadjusted() && allowed == nullptr) {
    run(logits.data, params_.temperature, params_.top_k, params_.top_p, params_.min_p);
    return sampled;
  }
  adjusted_.assign(logits.data, logits.data + vocabulary);
  Penalise(adjusted_);
  if (allowed != nullptr) {
    for (int64_t i = 0; i < vocabulary; ++i) {
      if (((*allowed)[static_cast<size_t>(i / 32)] >> (i % 32) & 1) == 0)
        adjusted_[static_cast<size_t>(i)] = -HUGE_VALF;
    }
  }
  run(adjusted_.data(), params_.temperature, params_.top_k, params_.top_p, params_.min_p);
  if (sampled.token < 0) return sampled;
  // The reported probability is the model's own: that of the chosen token before any adjustment.
  sampled.logprob = static_cast<float>(logits(sampled.token) - LogSumExp(logits));
  return sampled;
}

}  // namespace strata
