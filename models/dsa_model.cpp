#include "models/dsa_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/sparse_mla.h"
#include "kernels/status.h"

namespace strata {

namespace {

// Every view of the arena starts at a multiple of 64 bytes; a step takes fewer than this many.
constexpr size_t kArenaSlack = 64 * 64;

}  // namespace

ModelGeometry MakeGeometry(const ModelConfig& config, bool mtp) {
  ModelGeometry geometry;
  geometry.vocabulary = config.vocabulary;
  geometry.hidden = config.hidden;
  geometry.heads = config.heads;
  geometry.latent = config.kv_lora_rank;
  geometry.rope = config.rope_dim;
  geometry.max_position = config.max_position;
  geometry.index_heads = config.index_heads;
  geometry.index_dim = config.index_dim;
  geometry.index_topk = config.index_topk;
  geometry.index_kpool = config.index_kpool;
  const int64_t layers = config.layers + (mtp ? 1 : 0);
  geometry.layer_has_indexer.assign(config.layer_has_indexer.begin(),
                                    config.layer_has_indexer.begin() + layers);
  return geometry;
}

DsaLayer::DsaLayer(const Checkpoint& checkpoint, const ModelConfig& config,
                   const ModelGeometry& geometry, int64_t index, float softmax_scale)
    : epsilon_(static_cast<float>(config.rms_norm_epsilon)),
      attention_norm_(checkpoint.NeedFloats(
          fmt::format("model.layers.{}.input_layernorm.weight", index), {{config.hidden}})),
      mlp_norm_(checkpoint.NeedFloats(
          fmt::format("model.layers.{}.post_attention_layernorm.weight", index),
          {{config.hidden}})),
      attention_(checkpoint, config, geometry, index, softmax_scale),
      mlp_(checkpoint, config, index) {}

void DsaLayer::Forward(const StepInput& step, const View<float, 2>& x, MlaStepState& state,
                       SelectionGraph& graph, StepContext& context) const {
  const size_t mark = context.scratch.used();
  const int64_t hidden = x.dim(1);
  View<float, 2> normed = context.scratch.Take<float>({step.rows, hidden});
  Run(RmsNorm{.x = x,
              .weight = MakeView(attention_norm_.data(), {hidden}),
              .epsilon = epsilon_,
              .y = normed},
      context.stream);
  attention_.Forward(step, normed, x, state, graph, context);
  Run(
      RmsNorm{
          .x = x, .weight = MakeView(mlp_norm_.data(), {hidden}), .epsilon = epsilon_, .y = normed},
      context.stream);
  mlp_.Forward(normed, x, context);
  context.scratch.Release(mark);
}

size_t DsaLayer::owned_bytes() const {
  return attention_.owned_bytes() + (attention_norm_.size() + mlp_norm_.size()) * sizeof(float);
}

DsaModel::DsaModel(Checkpoint checkpoint, ModelConfig config, Backend& backend, bool mtp)
    : checkpoint_(std::move(checkpoint)),
      config_(std::move(config)),
      geometry_(MakeGeometry(config_, mtp)),
      frequencies_(ComputeRopeFrequencies(config_)),
      stream_(backend.DefaultStream()),
      selection_(std::make_unique<SelectionGraph>(backend)) {}

std::unique_ptr<DsaModel> DsaModel::Load(const std::filesystem::path& directory, ModelConfig config,
                                         Backend& backend, const LoadOptions& options) {
  if (options.draft_layer == DraftLayer::kNeeded && config.mtp_layers == 0) {
    Fail(ErrorCode::kModelFile,
         fmt::format("{} has no prediction layer (num_nextn_predict_layers is 0); use --drafter "
                     "ngram, or leave --spec out",
                     directory.string()));
  }
  Checkpoint opened = Checkpoint::Open(directory);
  const bool mtp =
      options.draft_layer == DraftLayer::kNeeded ||
      (options.draft_layer == DraftLayer::kIfPresent && MtpHead::Present(opened, config));
  std::unique_ptr<DsaModel> model(new DsaModel(std::move(opened), std::move(config), backend, mtp));
  const ModelConfig& settings = model->config_;
  const Checkpoint& checkpoint = model->checkpoint_;
  model->embedding_ =
      checkpoint.NeedMatrix("model.embed_tokens.weight", settings.vocabulary, settings.hidden);
  const bool tied = settings.tie_word_embeddings && checkpoint.Find("lm_head.weight") == nullptr;
  model->head_ =
      tied ? model->embedding_
           : checkpoint.NeedMatrix("lm_head.weight", settings.vocabulary, settings.hidden);
  model->final_norm_ = checkpoint.NeedFloats("model.norm.weight", {{settings.hidden}});
  const double mscale = model->frequencies_.softmax_mscale;
  const float softmax_scale =
      static_cast<float>(mscale * mscale / std::sqrt(static_cast<double>(settings.query_dim())));
  const double total = static_cast<double>(settings.layers + (mtp ? 1 : 0));
  for (int64_t index = 0; index < settings.layers; ++index) {
    model->layers_.push_back(
        std::make_unique<DsaLayer>(checkpoint, settings, model->geometry_, index, softmax_scale));
    if (options.progress) options.progress(static_cast<double>(index + 1) / total);
  }
  if (mtp) {
    model->mtp_ = std::make_unique<MtpHead>(checkpoint, settings, model->geometry_, softmax_scale);
    if (options.progress) options.progress(1.0);
  }
  return model;
}

std::string DsaModel::Describe() const {
  const int64_t full = std::count(config_.layer_has_indexer.begin(),
                                  config_.layer_has_indexer.begin() + config_.layers, true);
  return fmt::format(
      "{}: {} layers ({} with an indexer), hidden {}, {} heads, latent {}+{}, top {} of {} index "
      "heads x {}",
      config_.model_type, config_.layers, full, config_.hidden, config_.heads, config_.kv_lora_rank,
      config_.rope_dim, config_.index_topk, config_.index_heads, config_.index_dim);
}

size_t DsaModel::weight_bytes() const {
  size_t bytes = checkpoint_.total_bytes() + final_norm_.size() * sizeof(float);
  for (const std::unique_ptr<DsaLayer>& layer : layers_) bytes += layer->owned_bytes();
  return bytes + (mtp_ ? mtp_->owned_bytes() : 0);
}

size_t DsaModel::ScratchBytes(int64_t rows, int64_t logit_rows, int64_t score_elements) const {
  const int64_t columns = geometry_.SelectedColumns();
  // Kept for the whole step: residual stream, a draft's pair, rotary tables, selection, normed
  // rows, logits.
  const int64_t kept = 5 * config_.hidden + config_.rope_dim + columns + 1 + config_.hidden;
  const int64_t layer_floats =
      config_.hidden + MlaLayer::ScratchFloats(config_) + MoeLayer::ScratchFloats(config_);
  const LatentLayout layout{
      .dtype = DType::kF32, .latent = geometry_.latent, .rope = geometry_.rope};
  const size_t attention =
      SparseMla::WorkspaceBytes(rows, geometry_.heads, columns, layout, stream_);
  return static_cast<size_t>((kept + layer_floats) * rows) * sizeof(float) +
         static_cast<size_t>(logit_rows * (config_.vocabulary + config_.hidden)) * sizeof(float) +
         MoeLayer::WorkspaceBytes(config_, rows) + attention +
         TopkSelect::WorkspaceBytes(rows, score_elements, config_.index_topk, stream_) +
         static_cast<size_t>(score_elements) * sizeof(float) + kArenaSlack;
}

MlaStepState DsaModel::BeginStep(const StepInput& step, StepContext& context) const {
  MlaStepState state;
  const int64_t half = config_.rope_dim / 2;
  state.cosines = context.scratch.Take<float>({step.rows, half});
  state.sines = context.scratch.Take<float>({step.rows, half});
  if (half > 0) {
    strata::Run(RopeTable{.positions = step.positions,
                          .frequencies = MakeView(frequencies_.inverse.data(), {half}),
                          .scale = frequencies_.table_scale,
                          .cosines = state.cosines,
                          .sines = state.sines},
                context.stream);
  }
  state.selection.ids = context.scratch.Take<int32_t>({step.rows, geometry_.SelectedColumns()});
  state.selection.counts = context.scratch.Take<int32_t>({step.rows});
  return state;
}

View<float, 2> DsaModel::Embed(const StepInput& step, StepContext& context) const {
  View<float, 2> x = context.scratch.Take<float>({step.rows, config_.hidden});
  strata::Run(EmbedRows{.table = embedding_, .ids = step.tokens, .y = x}, context.stream);
  return x;
}

View<float, 2> DsaModel::Logits(const StepInput& step, const View<const float, 2>& normed,
                                StepContext& context) const {
  const int64_t count = step.logit_rows.dim(0);
  View<float, 2> rows = context.scratch.Take<float>({count, config_.hidden});
  View<float, 2> logits = context.scratch.Take<float>({count, config_.vocabulary});
  strata::Run(GatherRows{.x = normed, .rows = step.logit_rows, .y = rows}, context.stream);
  strata::Run(Linear{.x = rows, .w = head_, .y = logits}, context.stream);
  return logits;
}

StepOutput DsaModel::Run(const StepInput& step, StepContext& context) const {
  MlaStepState state = BeginStep(step, context);
  View<float, 2> x = Embed(step, context);
  for (const std::unique_ptr<DsaLayer>& layer : layers_)
    layer->Forward(step, x, state, *selection_, context);
  View<float, 2> normed = context.scratch.Take<float>({step.rows, config_.hidden});
  strata::Run(RmsNorm{.x = x,
                      .weight = MakeView(final_norm_.data(), {config_.hidden}),
                      .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                      .y = normed},
              context.stream);
  return StepOutput{
      .logits = Logits(step, normed, context), .hidden = normed, .selected = state.selection.ids};
}

StepOutput DsaModel::RunDraft(const StepInput& step, const DraftInput& input,
                              StepContext& context) const {
  if (mtp_ == nullptr)
    Fail(ErrorCode::kInternal, "a draft was asked of a model loaded without its prediction layer");
  MlaStepState state = BeginStep(step, context);
  if (!input.shared_ids.empty()) {
    state.selection.ids = input.shared_ids;
    state.selection_given = true;
  }
  View<float, 2> embedded = Embed(step, context);
  View<float, 2> normed = context.scratch.Take<float>({step.rows, config_.hidden});
  mtp_->Forward(step, embedded, input.hidden, normed, state, *selection_, context);
  return StepOutput{
      .logits = Logits(step, normed, context), .hidden = normed, .selected = state.selection.ids};
}

}  // namespace strata
