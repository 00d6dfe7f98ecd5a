// Multi-token prediction: one decoder layer that drafts the token after next.
#pragma once

#include <memory>
#include <vector>

#include "engine/model.h"
#include "engine/selection_graph.h"
#include "kernels/linear.h"
#include "models/checkpoint.h"
#include "models/config.h"

namespace strata {

class DsaLayer;
struct MlaStepState;

// x = eh_proj([enorm(embedding of token i + 1), hnorm(hidden state i)]), then the layer at rotary
// position i, then shared_head.norm; embedding and output matrix are the main model's. The hidden
// state is the one after the final norm (the shipped model's MODEL.md; what DeepSeek-V3's own
// modelling code hands on), and a later pass of a draft takes the normed output of the pass before:
// how GLM's layer was trained, and measured to agree more often for DeepSeek's too.
class MtpHead {
 public:
  MtpHead(const Checkpoint& checkpoint, const ModelConfig& config, const ModelGeometry& geometry,
          float softmax_scale);
  ~MtpHead();
  // Whether config promises a prediction layer and the checkpoint holds it: quantised repacks drop
  // it.
  static bool Present(const Checkpoint& checkpoint, const ModelConfig& config);

  // embedded, hidden [rows, hidden] -> normed [rows, hidden], ready for the output matrix.
  void Forward(const StepInput& step, const View<const float, 2>& embedded,
               const View<const float, 2>& hidden, const View<float, 2>& normed,
               MlaStepState& state, SelectionGraph& graph, StepContext& context) const;
  size_t owned_bytes() const;

 private:
  float epsilon_;
  std::vector<float> embedding_norm_, hidden_norm_, output_norm_;
  Matrix projection_;
  std::unique_ptr<DsaLayer> layer_;
};

}  // namespace strata
