#include "models/mtp_head.h"

#include <fmt/format.h>

#include "kernels/norm.h"
#include "kernels/status.h"
#include "models/dsa_model.h"

namespace strata {

namespace {

std::string Prefix(const ModelConfig& config) {
  return fmt::format("model.layers.{}.", config.layers);
}

}  // namespace

bool MtpHead::Present(const Checkpoint& checkpoint, const ModelConfig& config) {
  return config.mtp_layers > 0 && checkpoint.Find(Prefix(config) + "eh_proj.weight") != nullptr;
}

MtpHead::MtpHead(const Checkpoint& checkpoint, const ModelConfig& config,
                 const ModelGeometry& geometry, float softmax_scale)
    : epsilon_(static_cast<float>(config.rms_norm_epsilon)) {
  const std::string prefix = Prefix(config);
  if (!Present(checkpoint, config)) {
    Fail(ErrorCode::kModelFile, fmt::format("config.json promises {} prediction layer(s), but "
                                            "{}eh_proj.weight is not in the checkpoint; use "
                                            "--drafter ngram, or leave --spec out",
                                            config.mtp_layers, prefix));
  }
  embedding_norm_ = checkpoint.NeedFloats(prefix + "enorm.weight", {{config.hidden}});
  hidden_norm_ = checkpoint.NeedFloats(prefix + "hnorm.weight", {{config.hidden}});
  output_norm_ = checkpoint.NeedFloats(prefix + "shared_head.norm.weight", {{config.hidden}});
  projection_ = checkpoint.NeedMatrix(prefix + "eh_proj.weight", config.hidden, 2 * config.hidden);
  layer_ = std::make_unique<DsaLayer>(checkpoint, config, geometry, config.layers, softmax_scale);
}

MtpHead::~MtpHead() = default;

void MtpHead::Forward(const StepInput& step, const View<const float, 2>& embedded,
                      const View<const float, 2>& hidden, const View<float, 2>& normed,
                      MlaStepState& state, SelectionGraph& graph, StepContext& context) const {
  const int64_t width = embedded.dim(1);
  const View<const float, 1> embedding_norm = MakeView(embedding_norm_.data(), {width});
  const View<const float, 1> hidden_norm = MakeView(hidden_norm_.data(), {width});
  View<float, 2> pair = context.scratch.Take<float>({step.rows, 2 * width});
  Run(RmsNorm{.x = embedded,
              .weight = embedding_norm,
              .epsilon = epsilon_,
              .y = pair.Columns(0, width)},
      context.stream);
  Run(RmsNorm{.x = hidden,
              .weight = hidden_norm,
              .epsilon = epsilon_,
              .y = pair.Columns(width, 2 * width)},
      context.stream);
  View<float, 2> x = context.scratch.Take<float>({step.rows, width});
  Run(Linear{.x = pair, .w = projection_, .y = x}, context.stream);
  layer_->Forward(step, x, state, graph, context);
  Run(RmsNorm{.x = x,
              .weight = MakeView(output_norm_.data(), {width}),
              .epsilon = epsilon_,
              .y = normed},
      context.stream);
}

size_t MtpHead::owned_bytes() const {
  return layer_->owned_bytes() +
         (embedding_norm_.size() + hidden_norm_.size() + output_norm_.size()) * sizeof(float);
}

}  // namespace strata
