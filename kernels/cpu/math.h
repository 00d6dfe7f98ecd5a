// Scalar functions of the CPU ops that must not depend on the machine's math library.
#pragma once

namespace strata::cpu {

// Sine and cosine of an fp32 angle of any size met in rotary embeddings (|angle| < 2^31), to well below half an fp32
// ulp: Cody-Waite reduction by pi/2 in three parts, then Taylor polynomials in double.
struct SineCosine {
  double sine;
  double cosine;
};
SineCosine SinCos(float angle);

// Natural logarithm of a positive finite value, relative error below 1e-14.
double Log(double x);

}  // namespace strata::cpu
