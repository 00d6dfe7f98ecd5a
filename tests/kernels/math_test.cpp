// The scalar functions that replace the math library's, against its long double ones.
#include "kernels/cpu/math.h"

#include "tests/kernels/paged_fixture.h"

namespace strata {
namespace {

TEST(MathTest, SineAndCosineOfAnyAngleBelowTwoToThe31) {
  Random random(5);
  std::vector<float> angles = {0.0f,        -0.0f,       1e-30f,        0.78539816f,
                               0.78539819f, 1.5707964f,  3.1415927f,    131072.0f,
                               1e6f,        16777216.0f, 2147483520.0f, -2147483520.0f};
  // Multiples of pi/2, where one of the two is close to zero.
  for (int64_t quotient : {1, 2, 3, 1001, 99999, 83443, 5000000, 1000000000}) {
    angles.push_back(static_cast<float>(static_cast<double>(quotient) * 1.57079632679489661923));
  }
  for (int i = 0; i < 20000; ++i)
    angles.push_back(std::ldexp(random.Uniform(-1.0f, 1.0f), static_cast<int>(random.Below(32))));
  for (float angle : angles) {
    const cpu::SineCosine value = cpu::SinCos(angle);
    const long double x = angle;
    ASSERT_NEAR(value.sine, static_cast<double>(std::sin(x)), 1e-15) << angle;
    ASSERT_NEAR(value.cosine, static_cast<double>(std::cos(x)), 1e-15) << angle;
  }
}

TEST(MathTest, LogarithmIsWithinItsRelativeError) {
  Random random(6);
  std::vector<double> values = {1.0,
                                0.5,
                                2.0,
                                0.70710678118654752,
                                5e-324,
                                1e-310,
                                2.2250738585072014e-308,
                                1.7976931348623157e308,
                                std::nextafter(1.0, 0.0),
                                std::nextafter(1.0, 2.0)};
  for (int i = 0; i < 20000; ++i)
    values.push_back(
        std::ldexp(double{random.Uniform(0.5f, 1.0f)}, static_cast<int>(random.Below(600)) - 300));
  for (double value : values) {
    const double expected = static_cast<double>(std::log(static_cast<long double>(value)));
    ASSERT_NEAR(cpu::Log(value), expected, 1e-14 * std::fabs(expected)) << value;
  }
}

}  // namespace
}  // namespace strata
