#include "kernels/moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/partition.h"
#include "kernels/status.h"

namespace strata::cpu {

namespace {

// Outputs are computed sixteen at a time; a share starts at such a run.
constexpr int64_t kOutputRun = 16;

// The `count` largest of values[0, n) as a mask, ties to the lower index. Small n: repeated maximum
// search.
void MarkLargest(const float* values, int64_t n, int64_t count, bool* chosen) {
  std::fill(chosen, chosen + n, false);
  for (int64_t pick = 0; pick < count; ++pick) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i) {
      if (!chosen[i] && (best < 0 || values[i] > values[best])) best = i;
    }
    chosen[best] = true;
  }
}

void RouteRow(const RouteExperts& op, int64_t row) {
  const int64_t experts = op.logits.dim(1);
  const int64_t top_k = op.experts.dim(1);
  float scores[kMaxRoutedExperts], choice[kMaxRoutedExperts] = {}, group_scores[kMaxRoutedExperts];
  bool chosen[kMaxRoutedExperts];
  ChosenDenseLoops().sigmoid(op.logits.row(row), scores, experts);
  for (int64_t e = 0; e < experts; ++e)
    choice[e] = scores[e] + (op.bias.data != nullptr ? op.bias(e) : 0.0f);
  if (op.groups > 1) {
    const int64_t size = experts / op.groups;
    for (int64_t g = 0; g < op.groups; ++g) {
      float first = -std::numeric_limits<float>::infinity(), second = first;
      for (int64_t e = g * size; e < (g + 1) * size; ++e) {
        if (choice[e] > first) {
          second = first;
          first = choice[e];
        } else if (choice[e] > second) {
          second = choice[e];
        }
      }
      group_scores[g] = size > 1 ? first + second : first;
    }
    MarkLargest(group_scores, op.groups, op.kept_groups, chosen);
    for (int64_t g = 0; g < op.groups; ++g) {
      if (chosen[g]) continue;
      std::fill(choice + g * size, choice + (g + 1) * size,
                -std::numeric_limits<float>::infinity());
    }
  }
  MarkLargest(choice, experts, top_k, chosen);
  float sum = 0.0f;
  int64_t slot = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (!chosen[e]) continue;
    op.experts(row, slot) = static_cast<int32_t>(e);
    op.weights(row, slot) = scores[e];
    sum += scores[e];
    ++slot;
  }
  // A NaN score is never chosen by comparison, but it must not pass unseen either.
  const bool spoiled = std::any_of(scores, scores + experts, [](float s) { return s != s; });
  for (slot = 0; slot < top_k; ++slot) {
    float& weight = op.weights(row, slot);
    if (op.normalise) weight /= sum + 1e-20f;
    weight *= op.scaling;
    if (spoiled) weight = std::numeric_limits<float>::quiet_NaN();
  }
}

// How the rows of a step are spread over experts: assignment a (row a / top_k, slot a % top_k) is
// at place[a] of a list sorted by expert; the list's rows of expert e are [first[e], first[e + 1]).
struct Plan {
  int32_t* first;  // [experts + 1]
  int32_t* place;  // [rows * top_k]
  float* inputs;   // [rows * top_k, hidden] gathered
  float* gates;    // [rows * top_k, inner]
  float* ups;      // [rows * top_k, inner]
  float* outputs;  // [rows * top_k, hidden]
};

size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

Plan MakePlan(const MoeExperts& op) {
  const int64_t assignments = op.experts.dim(0) * op.experts.dim(1);
  const int64_t hidden = op.x.dim(1), inner = op.gate(0).rows;
  std::byte* base = op.workspace.data;
  const auto take = [&base](size_t bytes) {
    std::byte* taken = base;
    base += RoundUp(bytes);
    return taken;
  };
  Plan plan;
  plan.first =
      reinterpret_cast<int32_t*>(take(static_cast<size_t>(op.gate.dim(0) + 1) * sizeof(int32_t)));
  plan.place = reinterpret_cast<int32_t*>(take(static_cast<size_t>(assignments) * sizeof(int32_t)));
  plan.inputs =
      reinterpret_cast<float*>(take(static_cast<size_t>(assignments * hidden) * sizeof(float)));
  plan.gates =
      reinterpret_cast<float*>(take(static_cast<size_t>(assignments * inner) * sizeof(float)));
  plan.ups =
      reinterpret_cast<float*>(take(static_cast<size_t>(assignments * inner) * sizeof(float)));
  plan.outputs =
      reinterpret_cast<float*>(take(static_cast<size_t>(assignments * hidden) * sizeof(float)));
  return plan;
}

void SortByExpert(const MoeExperts& op, const Plan& plan) {
  const int64_t rows = op.experts.dim(0), top_k = op.experts.dim(1), experts = op.gate.dim(0);
  int32_t next[kMaxRoutedExperts] = {};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t expert = op.experts(row, k);
      if (expert < 0 || expert >= experts) {
        Fail(ErrorCode::kInternal,
             fmt::format("row {} is routed to expert {} of {}", row, expert, experts));
      }
      ++next[expert];
    }
  }
  plan.first[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    plan.first[e + 1] = plan.first[e] + next[e];
    next[e] = plan.first[e];
  }
  const size_t bytes = static_cast<size_t>(op.x.dim(1)) * sizeof(float);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t at = next[op.experts(row, k)]++;
      plan.place[row * top_k + k] = at;
      std::memcpy(plan.inputs + at * op.x.dim(1), op.x.row(row), bytes);
    }
  }
}

LinearArgs Product(const Matrix& w, const float* x, float* y) {
  return LinearArgs{.x = x,
                    .x_stride = w.cols,
                    .w = w.data,
                    .w_dtype = w.dtype,
                    .w_stride = w.row_stride,
                    .scales = w.scales,
                    .scale_stride = w.scale_stride,
                    .y = y,
                    .y_stride = w.rows,
                    .in = w.cols,
                    .accumulate = false};
}

}  // namespace

void Run(const RouteExperts& op, Stream stream) {
  stream.pool->For(op.logits.dim(0), Grain(16 * op.logits.dim(1)),
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t row = begin; row < end; ++row) RouteRow(op, row);
                   });
}

void Run(const MoeExperts& op, Stream stream) {
  const DenseLoops& loops = ChosenDenseLoops();
  ThreadPool& pool = *stream.pool;
  const int64_t rows = op.x.dim(0), hidden = op.x.dim(1), top_k = op.experts.dim(1);
  const int64_t experts = op.gate.dim(0), inner = op.gate(0).rows, assignments = rows * top_k;
  const Plan plan = MakePlan(op);
  SortByExpert(op, plan);
  // Threads share the outputs, each for all experts, so that they are done at the same time however
  // the rows are spread.
  const int64_t inner_grain =
      EvenGrain(pool.threads(), inner, 2 * hidden * assignments, kOutputRun);
  pool.For(inner, inner_grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t first = plan.first[e], last = plan.first[e + 1];
      if (first == last) continue;
      loops.linear(Product(op.gate(e), plan.inputs, plan.gates), first, last, begin, end);
      loops.linear(Product(op.up(e), plan.inputs, plan.ups), first, last, begin, end);
      for (int64_t at = first; at < last; ++at) {
        float* gate = plan.gates + at * inner + begin;
        loops.silu_mul(gate, plan.ups + at * inner + begin, op.limit, gate, end - begin);
      }
    }
  });
  const int64_t hidden_grain = EvenGrain(pool.threads(), hidden, inner * assignments, kOutputRun);
  pool.For(hidden, hidden_grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t first = plan.first[e], last = plan.first[e + 1];
      if (first == last) continue;
      loops.linear(Product(op.down(e), plan.gates, plan.outputs), first, last, begin, end);
    }
    for (int64_t row = 0; row < rows; ++row) {
      float* y = op.y.row(row) + begin;
      std::fill(y, y + (end - begin), 0.0f);
      for (int64_t k = 0; k < top_k; ++k) {
        const float* output = plan.outputs + plan.place[row * top_k + k] * hidden + begin;
        loops.add_scaled(output, op.weights(row, k), y, end - begin);
      }
    }
  });
}

}  // namespace strata::cpu

namespace strata {

size_t MoeExperts::WorkspaceBytes(int64_t rows, int64_t top_k, int64_t experts, int64_t hidden,
                                  int64_t inner) {
  const size_t assignments = static_cast<size_t>(rows * top_k);
  const size_t floats = assignments * static_cast<size_t>(2 * hidden + 2 * inner);
  return floats * sizeof(float) +
         (assignments + static_cast<size_t>(experts) + 1) * sizeof(int32_t) + 6 * 64;
}

}  // namespace strata
