// Multi-head latent attention with its lightning indexer: one layer's attention half.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/indexer_stage.h"
#include "engine/model.h"
#include "engine/sparse_attention.h"
#include "kernels/linear.h"
#include "models/checkpoint.h"
#include "models/config.h"

namespace strata {

// What all layers of a step share: rotary tables, and the selection that full layers replace and
// shared layers reuse.
struct MlaStepState {
  View<float, 2> cosines;  // [rows, rope / 2]
  View<float, 2> sines;    // [rows, rope / 2]
  Selection selection;
  // Full layers write their index keys but do not select: `selection` was made by an earlier pass.
  bool selection_given = false;
};

// Weights stay where the checkpoint maps them; what is derived (the transposed key half of
// kv_b_proj, fp32 norms, the scaled weights_proj) is owned. Thread-safe: Forward changes nothing
// but its arguments.
class MlaLayer {
 public:
  // Loads "model.layers.<index>.self_attn.*"; `has_indexer` false makes a shared layer, which owns
  // no indexer tensors.
  MlaLayer(const Checkpoint& checkpoint, const ModelConfig& config, const ModelGeometry& geometry,
           int64_t index, float softmax_scale);

  // x [rows, hidden] (already normalised) -> y [rows, hidden] += attention(x). Writes the step's
  // cells into both caches, then scans, selects and attends.
  void Forward(const StepInput& step, const View<const float, 2>& x, const View<float, 2>& y,
               MlaStepState& state, SelectionGraph& graph, StepContext& context) const;

  size_t owned_bytes() const;  // derived copies
  // Scratch floats per row that Forward takes.
  static int64_t ScratchFloats(const ModelConfig& config);

 private:
  struct Indexer {
    Matrix query;  // wq_b [heads * dim, q_lora]
    Matrix key;    // wk [dim, hidden]
    std::vector<float> norm_weight, norm_bias;
    std::vector<float> weights;  // weights_proj [heads, hidden] times heads^-1/2 * dim^-1/2
  };

  void LoadAbsorbed(const Checkpoint& checkpoint, const std::string& name);
  void LoadIndexer(const Checkpoint& checkpoint, const std::string& prefix);
  void RunIndexer(const StepInput& step, const View<const float, 2>& x,
                  const View<const float, 2>& query_latent, MlaStepState& state,
                  SelectionGraph& graph, StepContext& context) const;

  const ModelConfig* config_;
  IndexerStage stage_;
  SparseAttention attention_;
  Matrix query_down_, query_up_, kv_down_, output_;
  std::vector<float> query_norm_, kv_norm_;
  std::vector<std::byte>
      absorbed_keys_;  // [heads][latent][nope]: W_UK transposed, in the type of kv_b_proj
  std::vector<std::byte> absorbed_values_;  // W_UV dequantised, only when kv_b_proj is fp8
  Matrix key_matrix_, value_matrix_;        // of head 0; further heads at the strides below
  int64_t key_stride_ = 0, value_stride_ = 0;
  Indexer indexer_;
};

}  // namespace strata
