// The feed-forward half of a layer: a dense gated MLP, or routed experts beside a shared one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model.h"
#include "kernels/linear.h"
#include "models/checkpoint.h"
#include "models/config.h"

namespace strata {

// down(silu(gate(x)) * up(x))
struct GatedMlp {
  Matrix gate, up, down;

  // `prefix` ends in a dot: "model.layers.0.mlp."
  static GatedMlp Load(const Checkpoint& checkpoint, const std::string& prefix, int64_t hidden,
                       int64_t inner);
  // y [rows, hidden] += mlp(x)
  void Forward(const View<const float, 2>& x, const View<float, 2>& y, StepContext& context) const;
};

class MoeLayer {
 public:
  // Loads "model.layers.<index>.mlp.*", dense or sparse as the config says.
  MoeLayer(const Checkpoint& checkpoint, const ModelConfig& config, int64_t index);

  // x [rows, hidden] (already normalised); y [rows, hidden] += mlp(x).
  void Forward(const View<const float, 2>& x, const View<float, 2>& y, StepContext& context) const;

  static int64_t ScratchFloats(const ModelConfig& config);  // per row
  static size_t WorkspaceBytes(const ModelConfig& config, int64_t rows);

 private:
  const ModelConfig* config_;
  std::optional<GatedMlp> mlp_;  // the dense MLP, or the shared experts
  bool sparse_;
  Matrix router_;
  std::vector<float> correction_bias_;
  std::vector<Matrix> gate_, up_, down_;  // [experts]
};

}  // namespace strata
