// Rotary frequencies of a config: plain, linear, and YaRN (arXiv:2309.00071) as transformers
// computes it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/status.h"
#include "models/config.h"

namespace strata {

namespace {

double Mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The dimension whose wave turns `rotations` times over the trained length.
double CorrectionDim(double rotations, int64_t dim, const RopeConfig& rope) {
  return static_cast<double>(dim) *
         std::log(static_cast<double>(rope.original_max_position) /
                  (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

// theta ^ (2j / dim) for each pair j. The reference works in fp32: base, exponent and power are
// rounded to fp32 where it rounds them (its power may differ in the last bit).
std::vector<float> ThetaPowers(const RopeConfig& rope, int64_t dim) {
  const double base = static_cast<double>(static_cast<float>(rope.theta));
  std::vector<float> powers;
  for (int64_t j = 0; j < dim / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dim);
    powers.push_back(static_cast<float>(std::pow(base, static_cast<double>(exponent))));
  }
  return powers;
}

// Fast pairs keep their frequency, slow ones are divided by the factor, a ramp lies between.
std::vector<float> BlendYarn(const RopeConfig& rope, int64_t dim,
                             const std::vector<float>& powers) {
  double low = CorrectionDim(rope.beta_fast, dim, rope);
  double high = CorrectionDim(rope.beta_slow, dim, rope);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  std::vector<float> inverse;
  for (size_t j = 0; j < powers.size(); ++j) {
    const double position = (static_cast<double>(j) - low) / (high - low);
    const float keep = 1.0f - std::clamp(static_cast<float>(position), 0.0f, 1.0f);
    const float extrapolated = 1.0f / powers[j];
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * powers[j]);
    inverse.push_back(interpolated * (1.0f - keep) + extrapolated * keep);
  }
  return inverse;
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const std::vector<float> powers = ThetaPowers(rope, config.rope_dim);
  RopeFrequencies result;
  if (rope.type == "yarn") {
    result.inverse = BlendYarn(rope, config.rope_dim, powers);
  } else {
    for (float power : powers) result.inverse.push_back(1.0f / power);
  }
  if (rope.type == "linear") {
    for (float& frequency : result.inverse) frequency /= static_cast<float>(rope.factor);
  }
  // Zero counts as absent, as in the reference.
  const double mscale = rope.mscale.value_or(0.0);
  const double all_dim = rope.mscale_all_dim.value_or(0.0);
  if (rope.type == "yarn") {
    const double factor = mscale != 0.0 && all_dim != 0.0
                              ? Mscale(rope.factor, mscale) / Mscale(rope.factor, all_dim)
                              : Mscale(rope.factor, 1.0);
    result.table_scale = static_cast<float>(rope.attention_factor.value_or(factor));
  }
  if (rope.type != "default" && all_dim != 0.0)
    result.softmax_mscale = static_cast<float>(Mscale(rope.factor, all_dim));
  return result;
}

void ApplyRopeScaling(ModelConfig& config, const std::string& type, double factor) {
  if (type != "yarn" && type != "none") {
    Fail(ErrorCode::kUsage, fmt::format("--rope-scaling {} is not known; yarn and none are", type));
  }
  if (type == "none") return;
  if (!(factor >= 1.0) || factor > 1024.0) {
    Fail(ErrorCode::kUsage, fmt::format("--rope-scale {} is outside 1 to 1024", factor));
  }
  if (config.rope.type != "default") {
    Fail(ErrorCode::kUsage,
         fmt::format("the model already uses {} scaling by {}; leave --rope-scaling out",
                     config.rope.type, config.rope.factor));
  }
  config.rope.type = "yarn";
  config.rope.factor = factor;
  config.rope.original_max_position = config.max_position;
  config.max_position = static_cast<int64_t>(
      std::min(static_cast<double>(config.max_position) * factor, static_cast<double>(INT32_MAX)));
}

}  // namespace strata
