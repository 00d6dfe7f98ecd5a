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

// The reference works in fp32: powers and quotients are rounded to fp32 where it rounds them.
float PlainFrequency(const RopeConfig& rope, int64_t j, int64_t dim) {
  const float exponent = static_cast<float>(2 * j) / static_cast<float>(dim);
  return 1.0f / static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
}

void BlendYarn(const RopeConfig& rope, int64_t dim, std::vector<float>& inverse) {
  double low = CorrectionDim(rope.beta_fast, dim, rope);
  double high = CorrectionDim(rope.beta_slow, dim, rope);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  for (size_t j = 0; j < inverse.size(); ++j) {
    const float ramp =
        std::clamp(static_cast<float>((static_cast<double>(j) - low) / (high - low)), 0.0f, 1.0f);
    const float extrapolated = inverse[j];
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * (1.0f / inverse[j]));
    const float keep = 1.0f - ramp;
    inverse[j] = interpolated * (1.0f - keep) + extrapolated * keep;
  }
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const int64_t dim = config.rope_dim;
  RopeFrequencies result;
  for (int64_t j = 0; j < dim / 2; ++j) result.inverse.push_back(PlainFrequency(rope, j, dim));
  if (rope.type == "linear") {
    for (float& frequency : result.inverse) frequency /= static_cast<float>(rope.factor);
  }
  if (rope.type == "yarn") {
    BlendYarn(rope, dim, result.inverse);
    double factor = Mscale(rope.factor, 1.0);
    // Zero counts as absent, as in the reference.
    if (rope.mscale.value_or(0.0) != 0.0 && rope.mscale_all_dim.value_or(0.0) != 0.0) {
      factor = Mscale(rope.factor, *rope.mscale) / Mscale(rope.factor, *rope.mscale_all_dim);
    }
    result.table_scale = static_cast<float>(rope.attention_factor.value_or(factor));
    const double all_dim = rope.mscale_all_dim.value_or(0.0);
    if (all_dim != 0.0) result.softmax_mscale = static_cast<float>(Mscale(rope.factor, all_dim));
  }
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
  config.max_position = static_cast<int64_t>(static_cast<double>(config.max_position) * factor);
}

}  // namespace strata
