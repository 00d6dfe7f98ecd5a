#include "kernels/cpu/math.h"

#include <cmath>
#include <cstdint>

namespace strata::cpu {

namespace {

// pi/2 as a sum of three doubles. The first two hold 22 bits each, so their products with a
// quotient of up to 31 bits are exact, and so is what remains of the angle after subtracting them:
// only the last step rounds.
constexpr double kHalfPi1 = 0x1.921fb00000000p+0;
constexpr double kHalfPi2 = 0x1.5110b00000000p-22;
constexpr double kHalfPi3 = 0x1.18469898cc517p-44;
constexpr double kTwoOverPi = 0.636619772367581343076;

// Taylor series on [-pi/4, pi/4]; the first term left out is below 1e-17.
double SinPolynomial(double x) {
  const double s = x * x;
  double p = 1.0 / 355687428096000.0;
  p = p * s - 1.0 / 1307674368000.0;
  p = p * s + 1.0 / 6227020800.0;
  p = p * s - 1.0 / 39916800.0;
  p = p * s + 1.0 / 362880.0;
  p = p * s - 1.0 / 5040.0;
  p = p * s + 1.0 / 120.0;
  p = p * s - 1.0 / 6.0;
  return x + x * (s * p);
}

double CosPolynomial(double x) {
  const double s = x * x;
  double p = -1.0 / 6402373705728000.0;
  p = p * s + 1.0 / 20922789888000.0;
  p = p * s - 1.0 / 87178291200.0;
  p = p * s + 1.0 / 479001600.0;
  p = p * s - 1.0 / 3628800.0;
  p = p * s + 1.0 / 40320.0;
  p = p * s - 1.0 / 720.0;
  p = p * s + 1.0 / 24.0;
  return 1.0 - 0.5 * s + s * s * p;
}

}  // namespace

SineCosine SinCos(float angle) {
  const double x = angle;
  const double quotient = std::nearbyint(x * kTwoOverPi);
  const double reduced = ((x - quotient * kHalfPi1) - quotient * kHalfPi2) - quotient * kHalfPi3;
  const double sine = SinPolynomial(reduced);
  const double cosine = CosPolynomial(reduced);
  switch (static_cast<int64_t>(quotient) & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

double Log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // [0.5, 1)
  if (mantissa < 0.70710678118654752440) {
    mantissa *= 2.0;
    --exponent;
  }
  // log m = 2 atanh(t), t = (m - 1) / (m + 1), |t| < 0.172
  const double t = (mantissa - 1.0) / (mantissa + 1.0);
  const double s = t * t;
  double p = 1.0 / 21.0;
  for (int k = 19; k >= 3; k -= 2) p = p * s + 1.0 / k;
  return exponent * 0.69314718055994530942 + 2.0 * (t + t * (s * p));
}

}  // namespace strata::cpu
