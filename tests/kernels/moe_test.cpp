// Routing by the declared rules written out, and experts against double.
#include "kernels/moe.h"

#include "tests/kernels/dense_fixture.h"

namespace strata {
namespace {

struct Routing {
  int64_t experts, top_k, groups, kept;
  bool normalise = true;
  float scaling = 1.0f;
};
struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};
Routed Route(const std::vector<float>& logits, const std::vector<float>& bias,
             const Routing& routing, int threads = 1) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / routing.experts;
  Routed routed{std::vector<int32_t>(static_cast<size_t>(rows * routing.top_k), -7),
                Poisoned(rows * routing.top_k)};
  RouteExperts op{.logits = Rows(logits, rows, routing.experts),
                  .bias = {},
                  .groups = routing.groups,
                  .kept_groups = routing.kept,
                  .normalise = routing.normalise,
                  .scaling = routing.scaling,
                  .experts = MakeView(routed.experts.data(), {rows, routing.top_k}),
                  .weights = Rows(routed.weights, rows, routing.top_k)};
  if (!bias.empty()) op.bias = List(bias);
  CpuStream(threads).Execute(op);
  return routed;
}

// The chosen experts of one row, ascending, by stable sorts in double.
std::vector<int32_t> Chosen(const float* logits, const std::vector<float>& bias,
                            const Routing& routing) {
  std::vector<double> choice;
  for (int64_t e = 0; e < routing.experts; ++e)
    choice.push_back(1.0 / (1.0 + std::exp(-double{logits[e]})) + (bias.empty() ? 0.0 : bias[e]));
  const int64_t size = routing.experts / routing.groups;
  std::vector<double> group_scores;
  for (int64_t g = 0; g < routing.groups; ++g) {
    std::vector<double> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(group.begin(), group.end(), std::greater<>());
    group_scores.push_back(group[0] + (size > 1 ? group[1] : 0.0));
  }
  const auto best = [](const std::vector<double>& scores, std::vector<int32_t> from,
                       int64_t count) {
    std::stable_sort(from.begin(), from.end(),
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    from.resize(static_cast<size_t>(count));
    std::sort(from.begin(), from.end());
    return from;
  };
  std::vector<int32_t> groups(static_cast<size_t>(routing.groups)), candidates;
  std::iota(groups.begin(), groups.end(), 0);
  for (int32_t g : best(group_scores, groups, routing.kept))
    for (int64_t e = g * size; e < (g + 1) * size; ++e)
      candidates.push_back(static_cast<int32_t>(e));
  return best(choice, candidates, routing.top_k);
}

TEST(RouteExpertsTest, FollowsTheRules) {
  for (const Routing& routing :
       {Routing{1, 1, 1, 1}, Routing{8, 2, 1, 1}, Routing{17, 5, 1, 1, false, 2.5f},
        Routing{8, 3, 4, 2}, Routing{256, 8, 8, 4, true, 2.5f}, Routing{6, 2, 6, 3},
        Routing{16, 16, 1, 1}}) {
    const int64_t rows = 130;
    Random random(static_cast<uint64_t>(routing.experts));
    const std::vector<float> logits = random.Normals(rows * routing.experts);
    std::vector<float> bias = random.Normals(routing.experts);
    for (float& value : bias) value *= 0.2f;
    for (const std::vector<float>& used : {bias, std::vector<float>()}) {
      const Routed routed = Route(logits, used, routing);
      for (int64_t r = 0; r < rows; ++r) {
        const float* row = logits.data() + r * routing.experts;
        const std::vector<int32_t> expected = Chosen(row, used, routing);
        const auto first = routed.experts.begin() + r * routing.top_k;
        ASSERT_EQ(std::vector<int32_t>(first, first + routing.top_k), expected)
            << routing.experts << " row " << r;
        // The weight is the sigmoid itself, without the bias.
        double sum = 0.0;
        for (int32_t e : expected) sum += 1.0 / (1.0 + std::exp(-double{row[e]}));
        for (size_t k = 0; k < expected.size(); ++k) {
          const double score = 1.0 / (1.0 + std::exp(-double{row[expected[k]]}));
          const double weight =
              (routing.normalise ? score / (sum + 1e-20) : score) * routing.scaling;
          ASSERT_NEAR(routed.weights[r * routing.top_k + k], weight, 1e-6 * weight);
        }
      }
      for (int threads : {2, 3}) {
        const Routed other = Route(logits, used, routing, threads);
        EXPECT_EQ(routed.experts, other.experts);
        EXPECT_TRUE(SameBits(routed.weights, other.weights));
      }
    }
  }
}

TEST(RouteExpertsTest, TiesGoToTheLowerIndex) {
  const std::vector<float> zeros(12, 0.0f);
  EXPECT_EQ(Route(zeros, {}, {12, 3, 1, 1}).experts, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(Route(zeros, {}, {12, 4, 4, 2}).experts, (std::vector<int32_t>{0, 1, 2, 3}));
  // Groups 1 and 3 tie for the second place behind group 2.
  const std::vector<float> logits = {0, 0, 0, 1, 1, 0, 2, 2, 0, 1, 0, 1};
  EXPECT_EQ(Route(logits, {}, {12, 4, 4, 2}).experts, (std::vector<int32_t>{3, 4, 6, 7}));
  // A negative bias everywhere: dropped groups still count as -infinity, not as zero.
  const std::vector<float> bias(12, -5.0f);
  EXPECT_EQ(Route(logits, bias, {12, 6, 4, 2}).experts, (std::vector<int32_t>{3, 4, 5, 6, 7, 8}));
}

TEST(RouteExpertsTest, ADroppedGroupLosesEvenAgainstNegativeChoices) {
  // All choices are below zero; a dropped group that counted as zero would win.
  const std::vector<float> logits(8, 0.0f);
  const std::vector<float> bias = {-3.0f, -3.0f, -4.0f, -4.0f, -9.0f, -2.6f, -8.0f, -8.0f};
  EXPECT_EQ(Route(logits, bias, {8, 4, 4, 2}).experts, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(RouteExpertsTest, NaNIsSeenInTheWeightsOfItsRow) {
  for (int64_t place : {0, 5, 7}) {
    std::vector<float> logits = Random(4).Normals(3 * 8);
    logits[8 + place] = kNaN;
    for (int64_t groups : {1, 4}) {
      const Routed routed = Route(logits, {}, {8, 2, groups, groups});
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t k = 0; k < 2; ++k) {
          EXPECT_EQ(std::isnan(routed.weights[r * 2 + k]), r == 1) << "NaN at " << place;
          EXPECT_GE(routed.experts[r * 2 + k], 0);
          EXPECT_LT(routed.experts[r * 2 + k], 8);
        }
        EXPECT_LT(routed.experts[r * 2], routed.experts[r * 2 + 1]);
      }
    }
  }
}

TEST(RouteExpertsTest, ImpossibleCountsAreRefused) {
  const std::vector<float> logits(12);
  for (const Routing& bad : {Routing{12, 13, 1, 1}, Routing{12, 2, 5, 1}, Routing{12, 4, 4, 1},
                             Routing{12, 2, 0, 1}, Routing{12, 2, 4, 5}, Routing{12, 2, 4, 0}}) {
    const std::string message = MessageOf(ErrorCode::kShape, [&] { Route(logits, {}, bad); });
    EXPECT_NE(message.find("12 experts"), std::string::npos) << message;
  }
}

// Expert weights, and a call over the given rows.
struct Experts {
  std::vector<Weights> gate, up, down;
  std::vector<Matrix> gates, ups, downs;
  int64_t hidden, inner;
  Experts(DType dtype, int64_t count, int64_t hidden_width, int64_t inner_width)
      : hidden(hidden_width), inner(inner_width) {
    for (int64_t e = 0; e < count; ++e) {
      gate.emplace_back(dtype, inner, hidden, 100 + e);
      up.emplace_back(dtype, inner, hidden, 200 + e);
      down.emplace_back(dtype, hidden, inner, 300 + e);
    }
    for (int64_t e = 0; e < count; ++e)
      gates.push_back(gate[e].View()), ups.push_back(up[e].View()), downs.push_back(down[e].View());
  }
  std::vector<float> Mix(const std::vector<float>& x, const Routed& routed, int64_t rows,
                         int threads, float limit = 0.0f) const {
    const int64_t top_k = static_cast<int64_t>(routed.experts.size()) / rows;
    std::vector<float> y = Poisoned(rows * hidden);
    std::vector<std::byte> workspace(
        MoeExperts::WorkspaceBytes(rows, top_k, static_cast<int64_t>(gates.size()), hidden, inner) +
            64,
        std::byte{0xff});
    CpuStream(threads).Execute(MoeExperts{.x = Rows(x, rows, hidden),
                                          .experts = MakeView(routed.experts.data(), {rows, top_k}),
                                          .weights = Rows(routed.weights, rows, top_k),
                                          .gate = List(gates),
                                          .up = List(ups),
                                          .down = List(downs),
                                          .limit = limit,
                                          .y = Rows(y, rows, hidden),
                                          .workspace = List(workspace)});
    return y;
  }
};

TEST(MoeExpertsTest, AgreesWithDoubleAndARowDoesNotSeeItsNeighbours) {
  for (DType dtype : kWeightTypes) {
    for (const auto& [hidden, inner] : {std::pair<int64_t, int64_t>{48, 17}, {130, 15}, {1, 1}}) {
      const int64_t rows = 9, experts = 5, top_k = 2;
      const Experts weights(dtype, experts, hidden, inner);
      Random random(8);
      const std::vector<float> x = random.Normals(rows * hidden);
      Routed routed = Route(random.Normals(rows * experts), {}, {experts, top_k, 1, 1});
      for (const float limit : {0.0f, 1.0f}) {
        const std::vector<float> y = weights.Mix(x, routed, rows, 1, limit);
        for (int threads : {2, 3})
          EXPECT_TRUE(SameBits(y, weights.Mix(x, routed, rows, threads, limit)));
        std::vector<double> expected(y.size());
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t k = 0; k < top_k; ++k) {
            const int32_t e = routed.experts[r * top_k + k];
            for (int64_t n = 0; n < inner; ++n) {
              double g = 0.0, u = 0.0;
              for (int64_t i = 0; i < hidden; ++i) {
                g += double{x[r * hidden + i]} * weights.gate[e].At(n, i);
                u += double{x[r * hidden + i]} * weights.up[e].At(n, i);
              }
              if (limit > 0.0f)
                g = std::min<double>(g, limit), u = std::clamp<double>(u, -limit, limit);
              const double value = g / (1.0 + std::exp(-g)) * u * routed.weights[r * top_k + k];
              for (int64_t i = 0; i < hidden; ++i)
                expected[r * hidden + i] += value * weights.down[e].At(i, n);
            }
          }
          const Routed alone{
              {routed.experts.begin() + r * top_k, routed.experts.begin() + (r + 1) * top_k},
              {routed.weights.begin() + r * top_k, routed.weights.begin() + (r + 1) * top_k}};
          EXPECT_TRUE(SameBits({y.begin() + r * hidden, y.begin() + (r + 1) * hidden},
                               weights.Mix({x.begin() + r * hidden, x.begin() + (r + 1) * hidden},
                                           alone, 1, 1, limit)));
        }
        EXPECT_LT(RelativeError(y, expected), 1e-6) << DTypeName(dtype) << " " << hidden;
      }
    }
  }
}

TEST(MoeExpertsTest, ShapeErrorsNameOpViewAndNumbers) {
  Experts weights(DType::kF32, 3, 16, 8);
  const std::vector<float> x(16);
  const Routed routed{{0, 1}, {0.5f, 0.5f}};
  weights.ups[1].cols = 15;
  const std::string message = MessageOf(ErrorCode::kShape, [&] { weights.Mix(x, routed, 1, 1); });
  for (const char* part : {"MoeExperts", "up", "15", "16"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace
}  // namespace strata
