#include "models/moe_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/moe.h"

namespace strata {

GatedMlp GatedMlp::Load(const Checkpoint& checkpoint, const std::string& prefix, int64_t hidden,
                        int64_t inner) {
  return GatedMlp{.gate = checkpoint.NeedMatrix(prefix + "gate_proj.weight", inner, hidden),
                  .up = checkpoint.NeedMatrix(prefix + "up_proj.weight", inner, hidden),
                  .down = checkpoint.NeedMatrix(prefix + "down_proj.weight", hidden, inner)};
}

void GatedMlp::Forward(const View<const float, 2>& x, const View<float, 2>& y,
                       StepContext& context) const {
  const size_t mark = context.scratch.used();
  View<float, 2> gated = context.scratch.Take<float>({x.dim(0), gate.rows});
  View<float, 2> upper = context.scratch.Take<float>({x.dim(0), gate.rows});
  Run(Linear{.x = x, .w = gate, .y = gated}, context.stream);
  Run(Linear{.x = x, .w = up, .y = upper}, context.stream);
  Run(SiluMul{.gate = gated, .up = upper, .y = gated}, context.stream);
  Run(Linear{.x = gated, .w = down, .y = y, .accumulate = true}, context.stream);
  context.scratch.Release(mark);
}

MoeLayer::MoeLayer(const Checkpoint& checkpoint, const ModelConfig& config, int64_t index)
    : config_(&config), sparse_(config.layer_is_sparse[static_cast<size_t>(index)]) {
  const std::string prefix = fmt::format("model.layers.{}.mlp.", index);
  if (!sparse_) {
    mlp_ = GatedMlp::Load(checkpoint, prefix, config.hidden, config.intermediate);
    return;
  }
  router_ = checkpoint.NeedMatrix(prefix + "gate.weight", config.experts, config.hidden);
  correction_bias_ =
      checkpoint.NeedFloats(prefix + "gate.e_score_correction_bias", {{config.experts}});
  for (int64_t expert = 0; expert < config.experts; ++expert) {
    const GatedMlp weights =
        GatedMlp::Load(checkpoint, fmt::format("{}experts.{}.", prefix, expert), config.hidden,
                       config.moe_intermediate);
    gate_.push_back(weights.gate);
    up_.push_back(weights.up);
    down_.push_back(weights.down);
  }
  if (config.shared_experts > 0) {
    mlp_ = GatedMlp::Load(checkpoint, prefix + "shared_experts.", config.hidden,
                          config.moe_intermediate * config.shared_experts);
  }
}

void MoeLayer::Forward(const View<const float, 2>& x, const View<float, 2>& y,
                       StepContext& context) const {
  const size_t mark = context.scratch.used();
  const int64_t rows = x.dim(0);
  if (sparse_) {
    View<float, 2> logits = context.scratch.Take<float>({rows, config_->experts});
    View<int32_t, 2> experts = context.scratch.Take<int32_t>({rows, config_->experts_per_token});
    View<float, 2> weights = context.scratch.Take<float>({rows, config_->experts_per_token});
    View<float, 2> routed = context.scratch.Take<float>({rows, config_->hidden});
    View<std::byte, 1> workspace =
        context.scratch.Take<std::byte>({static_cast<int64_t>(WorkspaceBytes(*config_, rows))});
    Run(Linear{.x = x, .w = router_, .y = logits}, context.stream);
    Run(RouteExperts{.logits = logits,
                     .bias = MakeView(correction_bias_.data(), {config_->experts}),
                     .groups = config_->expert_groups,
                     .kept_groups = config_->kept_groups,
                     .normalise = config_->normalise_experts,
                     .scaling = static_cast<float>(config_->routed_scaling),
                     .experts = experts,
                     .weights = weights},
        context.stream);
    Run(MoeExperts{.x = x,
                   .experts = experts,
                   .weights = weights,
                   .gate = MakeView(gate_.data(), {config_->experts}),
                   .up = MakeView(up_.data(), {config_->experts}),
                   .down = MakeView(down_.data(), {config_->experts}),
                   .y = routed,
                   .workspace = workspace},
        context.stream);
    Run(AddRows{.x = routed, .y = y}, context.stream);
  }
  if (mlp_) mlp_->Forward(x, y, context);
  context.scratch.Release(mark);
}

int64_t MoeLayer::ScratchFloats(const ModelConfig& config) {
  const int64_t widest = std::max(
      config.intermediate, config.moe_intermediate * std::max<int64_t>(1, config.shared_experts));
  return config.experts + 2 * config.experts_per_token + config.hidden + 2 * widest;
}

size_t MoeLayer::WorkspaceBytes(const ModelConfig& config, int64_t rows) {
  return MoeExperts::WorkspaceBytes(rows, config.experts_per_token, config.experts, config.hidden,
                                    config.moe_intermediate);
}

}  // namespace strata
