#include "kernels/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/math.h"
#include "kernels/order.h"

namespace strata::cpu {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int32_t TokenOf(uint64_t word) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(word));
}

// SelectionKey words from the largest down, sorted no further than they are asked for: a draw
// rarely looks past the first tokens of a large vocabulary.
class Ranking {
 public:
  Ranking(uint64_t* words, int64_t count) : words_(words), count_(count) {}
  int64_t count() const { return count_; }
  // Drops all but the `count` largest.
  void Keep(int64_t count) {
    SortTo(count);
    count_ = count;
  }
  int32_t Token(int64_t rank) {
    if (rank >= sorted_) SortTo(std::min(count_, std::max<int64_t>(64, 2 * sorted_)));
    return TokenOf(words_[rank]);
  }

 private:
  void SortTo(int64_t end) {
    const auto larger = std::greater<uint64_t>();
    if (end < count_) std::nth_element(words_ + sorted_, words_ + end - 1, words_ + count_, larger);
    std::sort(words_ + sorted_, words_ + end, larger);
    sorted_ = end;
  }

  uint64_t* words_;
  int64_t count_;
  int64_t sorted_ = 0;
};

// out[i] = exp((logits[i] - best) / temperature), 0 where the logit is NaN or -infinity; returns
// their sum.
double Weights(const float* logits, int64_t vocabulary, float best, float temperature, float* out) {
  for (int64_t i = 0; i < vocabulary; ++i) {
    const float logit = logits[i] == logits[i] ? logits[i] : kMinusInfinity;
    out[i] = (logit - best) / temperature;
  }
  ChosenDenseLoops().exp(out, out, vocabulary);
  // Four sums, so that one addition need not wait for the last.
  double sums[4] = {};
  for (int64_t i = 0; i < vocabulary; ++i) sums[i % 4] += out[i];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// The token that `uniform` picks among those that top_k, top_p and min_p leave. `weights` holds
// every token's share relative to the best one's, whose share is 1, and `total` is their sum.
int32_t Draw(const SampleTokens& op, int64_t row, Ranking& ranking, const float* weights,
             double total) {
  const int64_t top_k = op.top_k(row);
  if (top_k > 0 && top_k < ranking.count()) {
    ranking.Keep(top_k);
    total = 0.0;
    for (int64_t i = 0; i < top_k; ++i) total += weights[ranking.Token(i)];
  }
  int64_t kept = ranking.count();
  if (op.top_p(row) < 1.0f || op.min_p(row) > 0.0f) {
    // The best token always stays; a later one stays while those before it are short of top_p.
    const double enough = op.top_p(row) < 1.0f ? op.top_p(row) * total : HUGE_VAL;
    double mass = weights[ranking.Token(0)];
    int64_t i = 1;
    while (i < kept && mass < enough && weights[ranking.Token(i)] >= op.min_p(row)) {
      mass += weights[ranking.Token(i++)];
    }
    kept = i;
    total = mass;
  }
  const double target = op.uniform(row) * total;
  double running = 0.0;
  for (int64_t i = 0; i < kept; ++i) {
    running += weights[ranking.Token(i)];
    if (running > target) return ranking.Token(i);
  }
  return ranking.Token(kept - 1);
}

void SampleRow(const SampleTokens& op, int64_t row, uint64_t* words, float* weights) {
  const int64_t vocabulary = op.logits.dim(1);
  const float* logits = op.logits.row(row);
  uint64_t best_word = 0;
  for (int64_t i = 0; i < vocabulary; ++i) {
    best_word = std::max(best_word, SelectionKey(FloatToBits(logits[i]), static_cast<uint32_t>(i)));
  }
  int32_t token = TokenOf(best_word);
  const float best = logits[token];
  op.tokens(row) = -1;
  op.logprobs(row) = kMinusInfinity;
  if (!(best > kMinusInfinity)) return;  // every logit is NaN or -infinity
  op.tokens(row) = token;
  op.logprobs(row) = 0.0f;
  if (std::isinf(best)) return;  // one certain token
  const float temperature = op.temperature(row);
  if (temperature > 0.0f) {
    int64_t count = 0;
    for (int64_t i = 0; i < vocabulary; ++i) {
      if (logits[i] > kMinusInfinity)
        words[count++] = SelectionKey(FloatToBits(logits[i]), static_cast<uint32_t>(i));
    }
    const double total = Weights(logits, vocabulary, best, temperature, weights);
    Ranking ranking(words, count);
    token = Draw(op, row, ranking, weights, total);
  }
  op.tokens(row) = token;
  const double sum = Weights(logits, vocabulary, best, 1.0f, weights);
  op.logprobs(row) = static_cast<float>(double{logits[token]} - best - Log(sum));
}

}  // namespace

void Run(const SampleTokens& op, Stream) {
  const size_t words = static_cast<size_t>(op.logits.dim(1)) * sizeof(uint64_t);
  for (int64_t row = 0; row < op.logits.dim(0); ++row) {
    SampleRow(op, row, reinterpret_cast<uint64_t*>(op.workspace.data),
              reinterpret_cast<float*>(op.workspace.data + words));
  }
}

}  // namespace strata::cpu

namespace strata {

size_t SampleTokens::WorkspaceBytes(int64_t, int64_t vocabulary) {
  return static_cast<size_t>(vocabulary) * (sizeof(uint64_t) + sizeof(float));
}

}  // namespace strata
