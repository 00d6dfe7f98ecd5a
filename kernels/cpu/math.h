// Scalar functions of the CPU ops that must not depend on the machine's math library.
#pragma once

namespace strata::cpu {

// Sine and cosine of an fp32 angle, |angle| < 2^31: absolute error below 1e-15, so that rounding to
// fp32 is the only error that counts even where a result is close to zero. Cody-Waite reduction by
// pi/2 in three parts, then Taylor polynomials in double.
struct SineCosine {
  double sine;
  double cosine;
};
SineCosine SinCos(float angle);

// Natural logarithm of a positive finite value, relative error below 1e-14.
double Log(double x);

}  // namespace strata::cpu
