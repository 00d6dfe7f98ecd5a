// From a row of logits to a token: penalties and biases on the host, then kernels/sample.h.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "kernels/view.h"

namespace strata {

struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: all
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1)
  float repetition_penalty =
      1.0f;  // over prompt and answer: positive logits are divided, negative ones multiplied
  float presence_penalty = 0.0f;   // subtracted once from every token of the answer
  float frequency_penalty = 0.0f;  // subtracted per occurrence in the answer
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the named tokens
  uint64_t seed = 0;
};

// Fail(kUsage) names the field, its value and the accepted range.
void ValidateSampling(const SamplingParams& params, int64_t vocabulary);

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;  // in the model's own distribution (temperature 1, no penalty)
};
// The `count` most likely tokens of a row of logits [vocabulary], most likely first, equal ones
// lowest id first. Tokens without probability (NaN, -infinity) are left out.
std::vector<TokenLogprob> MostLikely(const View<const float, 1>& logits, int32_t count);

struct Sampled {
  int32_t token = -1;    // -1: every logit was NaN or -infinity
  float logprob = 0.0f;  // of the token in the model's own distribution (temperature 1, no penalty)
};

// The sampling state of one sequence. The n-th token of an answer draws its random number from
// (seed, n) alone, so a sequence's tokens do not depend on what else ran.
class Sampler {
 public:
  Sampler(const SamplingParams& params, const std::vector<int32_t>& prompt);

  // logits [vocabulary] of the next token; `allowed` (TokenConstraint::Allowed), when given, rules
  // out all other tokens. Does not record the token: Accept does.
  Sampled Sample(const View<const float, 1>& logits, const std::vector<uint32_t>* allowed,
                 Stream stream);
  void Accept(int32_t token) {
    ++answer_counts_[token];
    ++accepted_;
  }
  // Takes back the last Accept, which was of `token`.
  void Undo(int32_t token) {
    if (--answer_counts_[token] == 0) answer_counts_.erase(token);
    --accepted_;
  }
  // A number in [0, 1) that is a pure function of its arguments.
  static float Uniform(uint64_t seed, uint64_t index);

 private:
  bool Unadjusted() const;
  void Penalise(std::vector<float>& logits) const;

  SamplingParams params_;
  std::map<int32_t, int64_t> prompt_counts_;  // filled only when the repetition penalty needs it
  std::map<int32_t, int64_t> answer_counts_;
  uint64_t accepted_ = 0;
  std::vector<float> adjusted_;
  std::vector<std::byte> workspace_;
};

}  // namespace strata
