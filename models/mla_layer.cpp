#include "models/mla_layer.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "kernels/copy.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace strata {

namespace {

constexpr float kIndexNormEpsilon = 1e-6f;

// Element (row, col) of a weight as fp32.
float WeightAt(const Matrix& w, int64_t row, int64_t col) {
  const int64_t index = row * w.row_stride + col;
  switch (w.dtype) {
    case DType::kF32:
      return static_cast<const float*>(w.data)[index];
    case DType::kBf16:
      return Bf16ToFloat(static_cast<const uint16_t*>(w.data)[index]);
    default:
      return Fp8ToFloat(static_cast<const uint8_t*>(w.data)[index]) *
             w.scales[row / kWeightScaleBlock * w.scale_stride + col / kWeightScaleBlock];
  }
}

// Copies element (row, col) of `source` to element `index` of `target`, which has the type of the
// source, or fp32 for an fp8 source.
void CopyElement(const Matrix& source, int64_t row, int64_t col, std::byte* target, int64_t index) {
  if (source.dtype == DType::kBf16) {
    std::memcpy(target + 2 * index,
                static_cast<const uint16_t*>(source.data) + row * source.row_stride + col,
                sizeof(uint16_t));
  } else {
    const float value = WeightAt(source, row, col);
    std::memcpy(target + 4 * index, &value, sizeof(value));
  }
}

View<const float, 1> AsView(const std::vector<float>& values) {
  return MakeView(values.data(), {static_cast<int64_t>(values.size())});
}

// [rows, heads * width] as [rows, heads, width].
View<float, 3> SplitHeads(const View<float, 2>& x, int64_t heads) {
  View<float, 3> view;
  const int64_t width = x.dim(1) / heads;
  view.data = x.data;
  view.shape[0] = x.dim(0), view.shape[1] = heads, view.shape[2] = width;
  view.stride[0] = x.stride[0], view.stride[1] = width, view.stride[2] = 1;
  return view;
}

// [rows, heads, width] seen as [heads, rows, width].
template <class T>
View<T, 3> HeadsFirst(View<T, 3> view) {
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.stride[0], view.stride[1]);
  return view;
}

}  // namespace

MlaLayer::MlaLayer(const Checkpoint& checkpoint, const ModelConfig& config,
                   const ModelGeometry& geometry, int64_t index, float softmax_scale)
    : config_(&config),
      stage_(config.layer_has_indexer[static_cast<size_t>(index)] ? IndexerStage::Mode::kCompute
                                                                  : IndexerStage::Mode::kReuse,
             index, geometry),
      attention_(index, softmax_scale) {
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", index);
  query_down_ =
      checkpoint.NeedMatrix(prefix + "q_a_proj.weight", config.q_lora_rank, config.hidden);
  query_norm_ = checkpoint.NeedFloats(prefix + "q_a_layernorm.weight", {{config.q_lora_rank}});
  query_up_ = checkpoint.NeedMatrix(prefix + "q_b_proj.weight", config.heads * config.query_dim(),
                                    config.q_lora_rank);
  kv_down_ = checkpoint.NeedMatrix(prefix + "kv_a_proj_with_mqa.weight",
                                   config.kv_lora_rank + config.rope_dim, config.hidden);
  kv_norm_ = checkpoint.NeedFloats(prefix + "kv_a_layernorm.weight", {{config.kv_lora_rank}});
  output_ = checkpoint.NeedMatrix(prefix + "o_proj.weight", config.hidden,
                                  config.heads * config.value_dim);
  LoadAbsorbed(checkpoint, prefix + "kv_b_proj.weight");
  if (stage_.mode() == IndexerStage::Mode::kCompute) LoadIndexer(checkpoint, prefix + "indexer.");
}

void MlaLayer::LoadAbsorbed(const Checkpoint& checkpoint, const std::string& name) {
  const int64_t heads = config_->heads, latent = config_->kv_lora_rank;
  const int64_t nope = config_->nope_dim, value = config_->value_dim;
  const Matrix kv_up = checkpoint.NeedMatrix(name, heads * (nope + value), latent);
  const DType type = kv_up.dtype == DType::kBf16 ? DType::kBf16 : DType::kF32;
  absorbed_keys_.resize(static_cast<size_t>(heads * latent * nope * DTypeBytes(type)));
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t l = 0; l < latent; ++l)
      for (int64_t d = 0; d < nope; ++d)
        CopyElement(kv_up, head * (nope + value) + d, l, absorbed_keys_.data(),
                    (head * latent + l) * nope + d);
  key_matrix_ = Matrix{.data = absorbed_keys_.data(),
                       .dtype = type,
                       .rows = latent,
                       .cols = nope,
                       .row_stride = nope};
  key_stride_ = latent * nope;

  value_matrix_ = Matrix{.dtype = type, .rows = value, .cols = latent, .row_stride = latent};
  if (kv_up.dtype == DType::kFp8E4M3) {
    absorbed_values_.resize(static_cast<size_t>(heads * value * latent) * sizeof(float));
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t v = 0; v < value; ++v)
        for (int64_t l = 0; l < latent; ++l)
          CopyElement(kv_up, head * (nope + value) + nope + v, l, absorbed_values_.data(),
                      (head * value + v) * latent + l);
    value_matrix_.data = absorbed_values_.data();
    value_stride_ = value * latent;
  } else {
    value_matrix_.data =
        static_cast<const std::byte*>(kv_up.data) + nope * latent * DTypeBytes(type);
    value_stride_ = (nope + value) * latent;
  }
}

void MlaLayer::LoadIndexer(const Checkpoint& checkpoint, const std::string& prefix) {
  const int64_t heads = config_->index_heads, dim = config_->index_dim;
  indexer_.query = checkpoint.NeedMatrix(prefix + "wq_b.weight", heads * dim, config_->q_lora_rank);
  indexer_.key = checkpoint.NeedMatrix(prefix + "wk.weight", dim, config_->hidden);
  indexer_.norm_weight = checkpoint.NeedFloats(prefix + "k_norm.weight", {{dim}});
  indexer_.norm_bias = checkpoint.NeedFloats(prefix + "k_norm.bias", {{dim}});
  indexer_.weights =
      checkpoint.NeedFloats(prefix + "weights_proj.weight", {{heads, config_->hidden}});
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads * dim)));
  for (float& weight : indexer_.weights) weight *= scale;
}

void MlaLayer::RunIndexer(const StepInput& step, const View<const float, 2>& x,
                          const View<const float, 2>& query_latent, MlaStepState& state,
                          SelectionGraph& graph, StepContext& context) const {
  const int64_t heads = config_->index_heads, dim = config_->index_dim, rope = config_->rope_dim;
  const RopePairing pairing =
      config_->index_rope_interleaved ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  View<float, 2> keys = context.scratch.Take<float>({step.rows, dim});
  Run(Linear{.x = x, .w = indexer_.key, .y = keys}, context.stream);
  Run(LayerNorm{.x = keys,
                .weight = AsView(indexer_.norm_weight),
                .bias = AsView(indexer_.norm_bias),
                .epsilon = kIndexNormEpsilon,
                .y = keys},
      context.stream);
  if (rope > 0) {
    Run(Rope{.x = SplitHeads(keys, 1).Columns(0, rope),
             .cosines = state.cosines,
             .sines = state.sines,
             .pairing = pairing},
        context.stream);
  }
  stage_.Append(step, keys, {}, {}, context);
  if (state.selection_given) return;

  View<float, 2> queries = context.scratch.Take<float>({step.rows, heads * dim});
  Run(Linear{.x = query_latent, .w = indexer_.query, .y = queries}, context.stream);
  const View<float, 3> query_heads = SplitHeads(queries, heads);
  if (rope > 0) {
    Run(Rope{.x = query_heads.Columns(0, rope),
             .cosines = state.cosines,
             .sines = state.sines,
             .pairing = pairing},
        context.stream);
  }
  View<float, 2> weights = context.scratch.Take<float>({step.rows, heads});
  Run(Linear{.x = x,
             .w = Matrix{.data = indexer_.weights.data(),
                         .dtype = DType::kF32,
                         .rows = heads,
                         .cols = config_->hidden,
                         .row_stride = config_->hidden},
             .y = weights},
      context.stream);
  stage_.Select(step, query_heads, weights, graph, state.selection, context);
}

void MlaLayer::Forward(const StepInput& step, const View<const float, 2>& x,
                       const View<float, 2>& y, MlaStepState& state, SelectionGraph& graph,
                       StepContext& context) const {
  const size_t mark = context.scratch.used();
  const int64_t heads = config_->heads, latent = config_->kv_lora_rank, rope = config_->rope_dim;
  const int64_t nope = config_->nope_dim;
  const float norm_epsilon = static_cast<float>(config_->lora_norm_epsilon);
  const RopePairing pairing =
      config_->rope_interleaved ? RopePairing::kInterleaved : RopePairing::kHalfSplit;

  // Queries through their low-rank latent, which the indexer reads too.
  View<float, 2> query_latent = context.scratch.Take<float>({step.rows, config_->q_lora_rank});
  Run(Linear{.x = x, .w = query_down_, .y = query_latent}, context.stream);
  Run(RmsNorm{.x = query_latent,
              .weight = AsView(query_norm_),
              .epsilon = norm_epsilon,
              .y = query_latent},
      context.stream);
  View<float, 2> query = context.scratch.Take<float>({step.rows, heads * (nope + rope)});
  Run(Linear{.x = query_latent, .w = query_up_, .y = query}, context.stream);
  const View<float, 3> query_heads = SplitHeads(query, heads);

  // The cell's latent row.
  View<float, 2> cell = context.scratch.Take<float>({step.rows, latent + rope});
  Run(Linear{.x = x, .w = kv_down_, .y = cell}, context.stream);
  Run(RmsNorm{.x = cell.Columns(0, latent),
              .weight = AsView(kv_norm_),
              .epsilon = norm_epsilon,
              .y = cell.Columns(0, latent)},
      context.stream);
  if (rope > 0) {
    Run(Rope{.x = query_heads.Columns(nope, nope + rope),
             .cosines = state.cosines,
             .sines = state.sines,
             .pairing = pairing},
        context.stream);
    Run(Rope{.x = SplitHeads(cell, 1).Columns(latent, latent + rope),
             .cosines = state.cosines,
             .sines = state.sines,
             .pairing = pairing},
        context.stream);
  }
  attention_.Append(step, cell, context);

  if (stage_.mode() == IndexerStage::Mode::kCompute)
    RunIndexer(step, x, query_latent, state, graph, context);

  // Absorbed form: the query goes to the latent space, attention stays there, the values come back
  // per head.
  View<float, 3> absorbed = context.scratch.Take<float>({step.rows, heads, latent + rope});
  Run(BatchedLinear{.x = HeadsFirst(View<const float, 3>(query_heads.Columns(0, nope))),
                    .w = key_matrix_,
                    .batch_stride = key_stride_,
                    .y = HeadsFirst(absorbed.Columns(0, latent))},
      context.stream);
  if (rope > 0) {
    Run(CopyRows{.x = query_heads.Columns(nope, nope + rope),
                 .y = absorbed.Columns(latent, latent + rope)},
        context.stream);
  }
  View<float, 3> attended = context.scratch.Take<float>({step.rows, heads, latent});
  attention_.Attend(step, absorbed, state.selection, attended, context);
  View<float, 2> values = context.scratch.Take<float>({step.rows, heads * config_->value_dim});
  Run(BatchedLinear{.x = HeadsFirst(View<const float, 3>(attended)),
                    .w = value_matrix_,
                    .batch_stride = value_stride_,
                    .y = HeadsFirst(SplitHeads(values, heads))},
      context.stream);
  Run(Linear{.x = values, .w = output_, .y = y, .accumulate = true}, context.stream);
  context.scratch.Release(mark);
}

size_t MlaLayer::owned_bytes() const {
  return absorbed_keys_.size() + absorbed_values_.size() +
         (query_norm_.size() + kv_norm_.size() + indexer_.norm_weight.size() +
          indexer_.norm_bias.size() + indexer_.weights.size()) *
             sizeof(float);
}

int64_t MlaLayer::ScratchFloats(const ModelConfig& config) {
  return config.q_lora_rank + config.heads * config.query_dim() + config.kv_lora_rank +
         config.rope_dim + config.index_dim + config.index_heads * (config.index_dim + 1) +
         config.heads * (2 * config.kv_lora_rank + config.rope_dim + config.value_dim);
}

}  // namespace strata
