// Rotary tables and rotations against double.
#include "kernels/rope.h"

#include "tests/kernels/dense_fixture.h"

namespace strata {
namespace {

TEST(RopeTableTest, CosineOfTheFp32AngleRoundedOnce) {
  const std::vector<int32_t> positions = {0, 1, 63, 64, 4095, 131071, 1000000, 2147483647};
  const std::vector<float> frequencies = {1.0f, 0.31622776f, 0.1f, 1e-4f, 1.0000001e-6f};
  const int64_t rows = static_cast<int64_t>(positions.size()), half = 5;
  for (float scale : {1.0f, 1.2079442f}) {
    for (int threads : {1, 2, 3}) {
      std::vector<float> cosines = Poisoned(rows * half), sines = Poisoned(rows * half);
      CpuStream(threads).Execute(RopeTable{.positions = List(positions),
                                           .frequencies = List(frequencies),
                                           .scale = scale,
                                           .cosines = Rows(cosines, rows, half),
                                           .sines = Rows(sines, rows, half)});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < half; ++j) {
          const double angle = static_cast<float>(positions[r]) * frequencies[j];
          EXPECT_EQ(cosines[r * half + j], static_cast<float>(std::cos(angle)) * scale)
              << positions[r] << " " << j;
          EXPECT_EQ(sines[r * half + j], static_cast<float>(std::sin(angle)) * scale)
              << positions[r] << " " << j;
        }
      }
    }
  }
}

class RopeTest : public ::testing::TestWithParam<std::tuple<RopePairing, int>> {};

TEST_P(RopeTest, RotatesThePairsOfStridedRowsOnly) {
  const auto [pairing, half] = GetParam();
  const int64_t rows = 7, heads = 3, width = 2 * half, gap = 5;
  Random random(static_cast<uint64_t>(half));
  const std::vector<float> cosines = random.Normals(rows * half),
                           sines = random.Normals(rows * half);
  const std::vector<float> values = random.Normals(rows * heads * width);
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    // The rotary part stands behind `gap` other values of each head, as in a query.
    std::vector<float> buffer = Poisoned(rows * heads * (gap + width));
    View<float, 3> x =
        MakeView(buffer.data(), {rows, heads, gap + width}).Columns(gap, gap + width);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t h = 0; h < heads; ++h)
        std::copy_n(values.data() + (r * heads + h) * width, width, &x(r, h, 0));
    CpuStream(threads).Execute(Rope{.x = x,
                                    .cosines = Rows(cosines, rows, half),
                                    .sines = Rows(sines, rows, half),
                                    .pairing = pairing});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < gap; ++i)
          EXPECT_EQ(FloatToBits(*(&x(r, h, 0) - 1 - i)), kPoisonBits);
        const float* before = values.data() + (r * heads + h) * width;
        for (int64_t j = 0; j < half; ++j) {
          const bool interleaved = pairing == RopePairing::kInterleaved;
          const int64_t one = interleaved ? 2 * j : j, two = interleaved ? 2 * j + 1 : j + half;
          const double c = cosines[r * half + j], s = sines[r * half + j], a = before[one],
                       b = before[two];
          const double tolerance =
              2e-7 * (std::fabs(a) + std::fabs(b)) * (std::fabs(c) + std::fabs(s));
          EXPECT_NEAR(x(r, h, one), a * c - b * s, tolerance) << r << " " << h << " " << j;
          EXPECT_NEAR(x(r, h, two), b * c + a * s, tolerance) << r << " " << h << " " << j;
        }
      }
    }
    if (first.empty()) first = buffer;
    EXPECT_TRUE(SameBits(first, buffer)) << threads;
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         ::testing::Combine(::testing::Values(RopePairing::kInterleaved,
                                                              RopePairing::kHalfSplit),
                                            ::testing::Values(1, 8, 15, 32, 65)));

TEST(RopeRefusals, ShapeErrorsNameOpViewAndNumbers) {
  std::vector<float> x(48), table(12);
  CpuStream stream(1);
  const Rope op{
      .x = MakeView(x.data(), {3, 2, 8}), .cosines = Rows(table, 3, 3), .sines = Rows(table, 3, 3)};
  const std::string message = MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  for (const char* part : {"Rope", "x", "8", "6"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace
}  // namespace strata
