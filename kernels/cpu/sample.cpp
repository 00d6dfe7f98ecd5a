#include "kernels/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/math.h"
#include "kernels/order.h"

namespace strata::cpu {

namespace {

// One row's scratch: tokens as SelectionKey words (largest logit first, ties lowest id), and
// probabilities.
struct Scratch {
  uint64_t* words;       // [vocabulary]
  float* probabilities;  // [vocabulary]
};

int32_t TokenOf(uint64_t word) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(word));
}

// log(sum(exp(logits - best))) + best over the row as it came in; -infinity logits add nothing.
float LogSumExp(const float* logits, int64_t vocabulary, float best, float* scratch) {
  for (int64_t i = 0; i < vocabulary; ++i) scratch[i] = logits[i] - best;
  ChosenDenseLoops().exp(scratch, scratch, vocabulary);
  double sum = 0.0;
  for (int64_t i = 0; i < vocabulary; ++i) {
    if (scratch[i] == scratch[i]) sum += scratch[i];
  }
  return static_cast<float>(Log(sum)) + best;
}

// Probabilities of words[0, count), best first, at the row's temperature; they sum to 1 before
// anything is dropped.
void Softmax(const View<const float, 1>& logits, const Scratch& scratch, int64_t count, float best,
             float temperature) {
  for (int64_t i = 0; i < count; ++i) {
    scratch.probabilities[i] = (logits(TokenOf(scratch.words[i])) - best) / temperature;
  }
  ChosenDenseLoops().exp(scratch.probabilities, scratch.probabilities, count);
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += scratch.probabilities[i];
  for (int64_t i = 0; i < count; ++i) {
    scratch.probabilities[i] = static_cast<float>(scratch.probabilities[i] / sum);
  }
}

void SampleRow(const SampleTokens& op, int64_t row, const Scratch& scratch) {
  const int64_t vocabulary = op.logits.dim(1);
  const View<const float, 1> logits = MakeView(op.logits.row(row), {vocabulary});
  uint64_t best_word = 0;
  for (int64_t i = 0; i < vocabulary; ++i) {
    best_word = std::max(best_word, SelectionKey(FloatToBits(logits(i)), static_cast<uint32_t>(i)));
  }
  const int32_t best_token = TokenOf(best_word);
  const float best = logits(best_token);
  if (!(best > -std::numeric_limits<float>::infinity())) {  // NaN or -infinity is the best there is
    op.tokens(row) = -1;
    op.logprobs(row) = -std::numeric_limits<float>::infinity();
    return;
  }
  const float temperature = op.temperature(row);
  int32_t token = best_token;
  if (temperature > 0.0f && std::isfinite(best)) {
    int64_t count = 0;
    for (int64_t i = 0; i < vocabulary; ++i) {
      if (logits(i) > -std::numeric_limits<float>::infinity()) {
        scratch.words[count++] = SelectionKey(FloatToBits(logits(i)), static_cast<uint32_t>(i));
      }
    }
    const int64_t top_k = op.top_k(row);
    if (top_k > 0 && top_k < count) {
      std::nth_element(scratch.words, scratch.words + top_k - 1, scratch.words + count,
                       std::greater<>());
      count = top_k;
    }
    std::sort(scratch.words, scratch.words + count, std::greater<>());
    Softmax(logits, scratch, count, best, temperature);
    // The best token always stays; a later one stays while what stands before it is short of top_p.
    int64_t kept = count;
    double mass = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      if (mass >= op.top_p(row)) {
        kept = i;
        break;
      }
      mass += scratch.probabilities[i];
    }
    const float floor = op.min_p(row) * scratch.probabilities[0];
    while (kept > 1 && scratch.probabilities[kept - 1] < floor) --kept;
    mass = 0.0;
    for (int64_t i = 0; i < kept; ++i) mass += scratch.probabilities[i];
    const double target = op.uniform(row) * mass;
    double running = 0.0;
    token = TokenOf(scratch.words[kept - 1]);
    for (int64_t i = 0; i < kept; ++i) {
      running += scratch.probabilities[i];
      if (running > target) {
        token = TokenOf(scratch.words[i]);
        break;
      }
    }
  }
  op.tokens(row) = token;
  op.logprobs(row) = std::isfinite(best) ? logits(token) - LogSumExp(logits.data, vocabulary, best,
                                                                     scratch.probabilities)
                                         : 0.0f;
}

}  // namespace

void Run(const SampleTokens& op, Stream) {
  const size_t words = static_cast<size_t>(op.logits.dim(1)) * sizeof(uint64_t);
  const Scratch scratch{reinterpret_cast<uint64_t*>(op.workspace.data),
                        reinterpret_cast<float*>(op.workspace.data + words)};
  for (int64_t row = 0; row < op.logits.dim(0); ++row) SampleRow(op, row, scratch);
}

}  // namespace strata::cpu

namespace strata {

size_t SampleTokens::WorkspaceBytes(int64_t, int64_t vocabulary) {
  return static_cast<size_t>(vocabulary) * (sizeof(uint64_t) + sizeof(float));
}

}  // namespace strata
