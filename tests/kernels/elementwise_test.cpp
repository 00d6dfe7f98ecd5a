// Look-ups, gating, sums and the exponential against double; the same bits from every vector width.
#include "kernels/elementwise.h"

#include "tests/kernels/dense_fixture.h"

namespace strata {
namespace {

constexpr int64_t kWidths[] = {1, 15, 16, 17, 48, 130};

TEST(EmbedRowsTest, TakesRowsOfStridedTables) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int64_t width : kWidths) {
      const Weights table(dtype, 9, width, 1);
      const std::vector<int32_t> ids = {8, 0, 3, 3};
      std::vector<float> y = Poisoned(4 * width);
      CpuStream(2).Execute(
          EmbedRows{.table = table.View(), .ids = List(ids), .y = Rows(y, 4, width)});
      for (int64_t r = 0; r < 4; ++r)
        for (int64_t i = 0; i < width; ++i) EXPECT_EQ(y[r * width + i], table.At(ids[r], i));
    }
  }
}

TEST(EmbedRowsTest, IdsOutsideTheTableAreNamed) {
  const Weights table(DType::kF32, 9, 4, 1);
  std::vector<float> y(4);
  for (int32_t id : {-1, 9, 2147483647}) {
    const std::vector<int32_t> ids = {id};
    const std::string message = MessageOf(ErrorCode::kInternal, [&] {
      CpuStream(1).Execute(EmbedRows{.table = table.View(), .ids = List(ids), .y = Rows(y, 1, 4)});
    });
    EXPECT_NE(message.find(std::to_string(id)), std::string::npos) << message;
    EXPECT_NE(message.find("9"), std::string::npos) << message;
  }
}

TEST(SiluMulTest, AgreesWithDoubleAndClamps) {
  for (const float limit : {0.0f, 1.5f}) {
    for (const int64_t width : kWidths) {
      const int64_t rows = 40;
      Random random(static_cast<uint64_t>(width));
      std::vector<float> gate = random.Normals(rows * width), up = random.Normals(rows * width);
      for (float& value : gate) value *= 4.0f;
      std::vector<float> first;
      for (int threads : {1, 2, 3}) {
        std::vector<float> y = Poisoned(rows * width);
        CpuStream(threads).Execute(SiluMul{.gate = Rows(std::as_const(gate), rows, width),
                                           .up = Rows(std::as_const(up), rows, width),
                                           .limit = limit,
                                           .y = Rows(y, rows, width)});
        for (size_t i = 0; i < y.size(); ++i) {
          double g = gate[i], u = up[i];
          if (limit > 0.0f)
            g = std::min<double>(g, limit), u = std::clamp<double>(u, -limit, limit);
          const double expected = g / (1.0 + std::exp(-g)) * u;
          ASSERT_NEAR(y[i], expected, 1e-6 * std::fabs(expected) + 1e-30) << width << " " << i;
        }
        if (first.empty()) first = y;
        EXPECT_TRUE(SameBits(first, y)) << threads;
      }
      for (const Level& level : SupportedLevels()) {
        std::vector<float> y = Poisoned(rows * width);
        for (int64_t r = 0; r < rows; ++r)
          level.loops->silu_mul(gate.data() + r * width, up.data() + r * width, limit,
                                y.data() + r * width, width);
        EXPECT_TRUE(SameBits(first, y)) << level.name << " " << width;
      }
      // In place.
      CpuStream(1).Execute(SiluMul{.gate = Rows(gate, rows, width),
                                   .up = Rows(up, rows, width),
                                   .limit = limit,
                                   .y = Rows(gate, rows, width)});
      EXPECT_TRUE(SameBits(first, gate));
    }
  }
}

TEST(SiluMulTest, LargeGatesSaturate) {
  const std::vector<float> gate = {-1000.0f, 1000.0f, -kInfinity, 0.0f}, up(4, 2.0f);
  std::vector<float> y = Poisoned(4);
  CpuStream(1).Execute(SiluMul{.gate = Rows(gate, 1, 4), .up = Rows(up, 1, 4), .y = Rows(y, 1, 4)});
  EXPECT_NEAR(y[0], 0.0f, 1e-30);
  EXPECT_EQ(y[1], 2000.0f);
  EXPECT_EQ(y[3], 0.0f);
}

TEST(SiluMulTest, NaNIsNeverClampedAway) {
  for (float limit : {0.0f, 5.0f}) {
    for (int64_t place : {2, 18}) {
      for (bool in_gate : {true, false}) {
        std::vector<float> gate = Random(5).Normals(19), up = Random(6).Normals(19);
        (in_gate ? gate : up)[place] = kNaN;
        std::vector<float> y = Poisoned(19);
        CpuStream(1).Execute(SiluMul{.gate = Rows(std::as_const(gate), 1, 19),
                                     .up = Rows(std::as_const(up), 1, 19),
                                     .limit = limit,
                                     .y = Rows(y, 1, 19)});
        for (int64_t i = 0; i < 19; ++i) ASSERT_EQ(std::isnan(y[i]), i == place) << i;
      }
    }
  }
}

TEST(AddRowsTest, AddsInsideStridedRows) {
  for (const int64_t width : kWidths) {
    Random random(7);
    const std::vector<float> x = random.Normals(3 * width), old = random.Normals(3 * width);
    std::vector<float> buffer = Poisoned(3 * (width + 2));
    const View<float, 2> y = Rows(buffer, 3, width + 2).Columns(0, width);
    for (int64_t r = 0; r < 3; ++r) std::copy_n(old.data() + r * width, width, y.row(r));
    CpuStream(2).Execute(AddRows{.x = Rows(x, 3, width), .y = y});
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t i = 0; i < width; ++i) EXPECT_EQ(y(r, i), old[r * width + i] + x[r * width + i]);
      EXPECT_EQ(FloatToBits(y.row(r)[width]), kPoisonBits);
    }
  }
}

TEST(LaneMathTest, ExpAndSigmoidAtEveryWidthOfVector) {
  std::vector<float> x = {0.0f,    -0.0f,    1.0f,       -1.0f,  88.72f, 88.73f,
                          89.0f,   1000.0f,  kInfinity,  -87.3f, -95.0f, -103.9f,
                          -105.0f, -1000.0f, -kInfinity, kNaN,   1e-30f};
  Random random(9);
  for (int i = 0; i < 5000; ++i) x.push_back(random.Uniform(-104.0f, 88.7f));
  const int64_t count = static_cast<int64_t>(x.size());
  std::vector<float> first_exp, first_sigmoid;
  for (const Level& level : SupportedLevels()) {
    std::vector<float> exp = Poisoned(count), sigmoid = Poisoned(count);
    level.loops->exp(x.data(), exp.data(), count);
    level.loops->sigmoid(x.data(), sigmoid.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      const double expected = std::exp(double{x[i]});
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(exp[i]) && std::isnan(sigmoid[i]));
        continue;
      }
      EXPECT_NEAR(sigmoid[i], 1.0 / (1.0 + 1.0 / expected), 2e-7) << x[i];
      if (expected > std::numeric_limits<float>::max()) {
        EXPECT_EQ(exp[i], kInfinity) << x[i];
      } else {
        // Two units in the last place, or one step of the smallest values.
        EXPECT_NEAR(exp[i], expected, 2.4e-7 * expected + 1.5e-45) << x[i];
      }
    }
    if (first_exp.empty()) first_exp = exp, first_sigmoid = sigmoid;
    EXPECT_TRUE(SameBits(first_exp, exp)) << level.name;
    EXPECT_TRUE(SameBits(first_sigmoid, sigmoid)) << level.name;
  }
}

TEST(ElementwiseRefusals, ShapeErrorsNameOpViewAndNumbers) {
  std::vector<float> values(12);
  CpuStream stream(1);
  const std::string silu = MessageOf(ErrorCode::kShape, [&] {
    stream.Execute(
        SiluMul{.gate = Rows(values, 2, 6), .up = Rows(values, 2, 5), .y = Rows(values, 2, 6)});
  });
  for (const char* part : {"SiluMul", "up", "5", "6"})
    EXPECT_NE(silu.find(part), std::string::npos) << silu;
  const std::string add = MessageOf(ErrorCode::kShape, [&] {
    stream.Execute(AddRows{.x = Rows(values, 2, 6), .y = Rows(values, 1, 6)});
  });
  for (const char* part : {"AddRows", "y", "1", "2"})
    EXPECT_NE(add.find(part), std::string::npos) << add;
}

}  // namespace
}  // namespace strata
