#include "kernels/cpu/math.h"

#include "tests/kernels/dense_fixture.h"

namespace strata {
namespace {

std::vector<float> ExpOf(const Level& level, const std::vector<float>& x) {
  std::vector<float> y = Poisoned(static_cast<int64_t>(x.size()));
  level.loops->exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  return y;
}

std::vector<float> ExpArguments() {
  std::vector<float> x;
  for (float v = -110.0f; v < 92.0f; v += 0.00731f) x.push_back(v);
  Random random(1);
  for (int i = 0; i < 20'000; ++i) x.push_back(std::ldexp(random.Normal(), -i % 40));
  for (float v : {0.0f, -0.0f, 88.72f, 88.73f, -87.33f, -87.34f, -103.9f, -104.0f, 1e30f, -1e30f})
    x.push_back(v);
  return x;
}

TEST(ExpTest, StaysWithinTwoUlpOfDouble) {
  const std::vector<float> x = ExpArguments();
  for (const Level& level : SupportedLevels()) {
    const std::vector<float> y = ExpOf(level, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(double{x[i]});
      if (exact > std::numeric_limits<float>::max()) {
        ASSERT_GE(y[i], std::numeric_limits<float>::max()) << level.name << " e^" << x[i];
        continue;
      }
      // An ulp of the result; below the normal range all values are 2^-149 apart.
      const double ulp =
          std::ldexp(1.0, std::max(exact > 0.0 ? std::ilogb(exact) - 23 : -149, -149));
      ASSERT_LE(std::fabs(y[i] - exact), 2.0 * ulp) << level.name << " e^" << x[i];
    }
  }
}

TEST(ExpTest, SpecialValues) {
  for (const Level& level : SupportedLevels()) {
    const std::vector<float> y =
        ExpOf(level, {kInfinity, -kInfinity, 0.0f, -0.0f, 89.0f, -105.0f, kNaN, -kNaN});
    EXPECT_EQ(y[0], kInfinity) << level.name;
    EXPECT_EQ(FloatToBits(y[1]), 0u) << level.name;
    EXPECT_EQ(y[2], 1.0f) << level.name;
    EXPECT_EQ(y[3], 1.0f) << level.name;
    EXPECT_EQ(y[4], kInfinity) << level.name;
    EXPECT_EQ(FloatToBits(y[5]), 0u) << level.name;
    EXPECT_TRUE(std::isnan(y[6]) && std::isnan(y[7])) << level.name;
  }
}

TEST(ExpTest, EveryVectorWidthComputesTheSameBits) {
  const std::vector<float> x = ExpArguments();
  const std::vector<float> first = ExpOf(SupportedLevels()[0], x);
  for (const Level& level : SupportedLevels())
    EXPECT_TRUE(SameBits(ExpOf(level, x), first)) << level.name;
}

TEST(ExpTest, AValueDoesNotDependOnItsPlace) {
  const std::vector<float> x = Random(3).Normals(50);
  for (const Level& level : SupportedLevels()) {
    const std::vector<float> all = ExpOf(level, x);
    for (size_t n = 1; n <= x.size(); ++n) {
      const std::vector<float> tail(x.end() - static_cast<int64_t>(n), x.end());
      ASSERT_TRUE(SameBits(ExpOf(level, tail),
                           std::vector<float>(all.end() - static_cast<int64_t>(n), all.end())))
          << level.name << ", " << n << " values";
    }
  }
}

TEST(LogTest, RelativeErrorBelow1e14) {
  std::vector<double> values = {1.0, 2.0, 0.5, 1e-300, 1e300, 5e-324, 0x1.fffffffffffffp+1023};
  Random random(4);
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(std::ldexp(1.0 + random.Uniform(0.0f, 1.0f), i % 400 - 200));
    values.push_back(1.0 + std::ldexp(double{random.Normal()}, -1 - i % 50));
  }
  for (double x : values) {
    if (!(x > 0.0)) continue;
    const long double exact = std::log(static_cast<long double>(x));
    ASSERT_LE(std::fabs(cpu::Log(x) - exact), 1e-14L * std::fabs(exact)) << x;
  }
  EXPECT_EQ(cpu::Log(1.0), 0.0);
}

// Angles of every size below the bound, among them those nearest to multiples of pi/2.
std::vector<float> Angles() {
  std::vector<float> angles = {0.0f,       -0.0f,     0x1p-149f, 1.0f, 3.14159274f,
                               6.2831855f, 262143.0f, 1e6f,      1e7f, 2147483520.0f};
  Random random(5);
  for (int i = 0; i < 40'000; ++i) {
    angles.push_back(std::ldexp(random.Uniform(0.5f, 1.0f), 31 - i % 50));
    // Multiples of pi/2 rounded to fp32, up to 2^31.
    const double quotient = std::floor(std::ldexp(1.0 + random.Uniform(0.0f, 1.0f), i % 30));
    angles.push_back(static_cast<float>(quotient * 1.57079632679489661923));
  }
  const size_t count = angles.size();
  for (size_t i = 0; i < count; ++i) angles.push_back(-angles[i]);
  return angles;
}

TEST(SinCosTest, ErrorIsFarBelowAnUlpOfFp32) {
  for (float angle : Angles()) {
    const cpu::SineCosine value = cpu::SinCos(angle);
    const long double sine = std::sin(static_cast<long double>(angle));
    const long double cosine = std::cos(static_cast<long double>(angle));
    ASSERT_LE(std::fabs(value.sine - sine), 1e-15L) << angle;
    ASSERT_LE(std::fabs(value.cosine - cosine), 1e-15L) << angle;
    // Also where the result is close to zero.
    ASSERT_LE(std::fabs(value.sine - sine), 1e-10L * std::fabs(sine)) << angle;
    ASSERT_LE(std::fabs(value.cosine - cosine), 1e-10L * std::fabs(cosine)) << angle;
  }
}

}  // namespace
}  // namespace strata
