// Networks small enough to know everything about: one with a pooled index cache and sparse
// attention, whose logits depend on every cached value, and one that is a table.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/indexer_stage.h"
#include "engine/model.h"
#include "engine/selection_graph.h"
#include "engine/sparse_attention.h"
#include "kernels/sparse_mla.h"

namespace strata {

// A value in [-1, 1) that is a pure function of its arguments.
inline float Hashed(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t z = (a * 0x9e3779b97f4a7c15ull) ^ ((b + 1) * 0xbf58476d1ce4e5b9ull) ^
               ((c + 1) * 0x94d049bb133111ebull);
  z = (z ^ (z >> 31)) * 0xd6e8feb86659fd93ull;
  z ^= z >> 32;
  return static_cast<float>(static_cast<int32_t>(z)) * 0x1p-31f;
}

// One layer: latent rows, index keys pooled 4 to 1 and the unfinished pool appended, top 8 cells.
class PooledToyModel : public Model {
 public:
  static constexpr int64_t kVocabulary = 48, kWidth = 16, kPool = 4;

  explicit PooledToyModel(Backend& backend)
      : stream_(backend.DefaultStream()), selection_graph_(backend) {
    geometry_.vocabulary = kVocabulary;
    geometry_.hidden = kWidth;
    geometry_.heads = 1;
    geometry_.latent = kWidth;
    geometry_.max_position = 1 << 20;
    geometry_.index_heads = 1;
    geometry_.index_dim = kWidth;
    geometry_.index_topk = 8;
    geometry_.index_kpool = kPool;
    geometry_.pool_tail = PoolTail::kAppend;
    geometry_.layer_has_indexer = {true};
    for (int64_t place = 0; place < kPool; ++place) {
      for (int64_t c = 0; c < kWidth; ++c) ape_.push_back(Hashed(5, place, c));
    }
  }
  const ModelGeometry& geometry() const override { return geometry_; }
  std::string Describe() const override { return "toy"; }
  size_t weight_bytes() const override { return 0; }
  size_t ScratchBytes(int64_t rows, int64_t logit_rows, int64_t score_elements) const override {
    const LatentLayout layout{.dtype = DType::kF32, .latent = kWidth, .rope = 0};
    return static_cast<size_t>(rows * (8 * kWidth + 64) + logit_rows * kVocabulary +
                               score_elements) *
               sizeof(float) +
           SparseMla::WorkspaceBytes(rows, 1, geometry_.SelectedColumns(), layout, stream_) +
           TopkSelect::WorkspaceBytes(rows, score_elements, geometry_.index_topk, stream_) +
           (1 << 16);
  }

  StepOutput Run(const StepInput& step, StepContext& context) const override {
    const IndexerStage stage(IndexerStage::Mode::kCompute, 0, geometry_);
    const SparseAttention attention(0, 2.0f);
    attention.Append(step, Fill(step, context, 1), context);
    stage.Append(step, Fill(step, context, 2), Fill(step, context, 3),
                 MakeView(ape_.data(), {kPool, kWidth}), context);
    const Selection selection{
        .ids = context.scratch.Take<int32_t>({step.rows, geometry_.SelectedColumns()}),
        .counts = context.scratch.Take<int32_t>({step.rows})};
    View<float, 2> weights = context.scratch.Take<float>({step.rows, 1});
    for (int64_t row = 0; row < step.rows; ++row) weights(row, 0) = 1.0f;
    stage.Select(step, Heads(Fill(step, context, 4)), weights, selection_graph_, selection,
                 context);
    View<float, 2> attended = context.scratch.Take<float>({step.rows, kWidth});
    attention.Attend(step, Heads(Fill(step, context, 6)), selection, Heads(attended), context);
    View<float, 2> logits = context.scratch.Take<float>({step.logit_rows.dim(0), kVocabulary});
    for (int64_t i = 0; i < logits.dim(0); ++i) {
      for (int64_t v = 0; v < kVocabulary; ++v) {
        float logit = Hashed(7, static_cast<uint64_t>(step.tokens(step.logit_rows(i))),
                             static_cast<uint64_t>(v));
        for (int64_t c = 0; c < kWidth; ++c)
          logit += 4.0f * attended(step.logit_rows(i), c) *
                   Hashed(8, static_cast<uint64_t>(v), static_cast<uint64_t>(c));
        logits(i, v) = logit;
      }
    }
    return StepOutput{.logits = logits, .hidden = attended, .selected = selection.ids};
  }

 private:
  // [rows, width] values that depend on the rows' tokens and positions.
  static View<float, 2> Fill(const StepInput& step, StepContext& context, uint64_t kind) {
    View<float, 2> values = context.scratch.Take<float>({step.rows, kWidth});
    for (int64_t row = 0; row < step.rows; ++row) {
      const uint64_t cell = static_cast<uint64_t>(step.positions(row)) * 4096 +
                            static_cast<uint64_t>(step.tokens(row));
      for (int64_t c = 0; c < kWidth; ++c)
        values(row, c) = Hashed(kind, cell, static_cast<uint64_t>(c));
    }
    return values;
  }
  static View<float, 3> Heads(const View<float, 2>& rows) {
    return MakeView(rows.data, {rows.dim(0), 1, kWidth});
  }

  Stream stream_;
  ModelGeometry geometry_;
  std::vector<float> ape_;
  mutable SelectionGraph selection_graph_;
};

// logits = table[token]: what follows depends on the last token alone.
class MarkovModel : public Model {
 public:
  static constexpr int64_t kVocabulary = 8;

  MarkovModel() {
    geometry_.vocabulary = kVocabulary;
    geometry_.hidden = 1;
    geometry_.heads = 1;
    geometry_.latent = 4;
    geometry_.max_position = 1 << 20;
    geometry_.index_heads = 1;
    geometry_.index_dim = 4;
    geometry_.index_topk = 8;
    geometry_.layer_has_indexer = {true};
  }
  static float Logit(int64_t token, int64_t next) {
    return 1.5f * Hashed(11, static_cast<uint64_t>(token), static_cast<uint64_t>(next));
  }
  const ModelGeometry& geometry() const override { return geometry_; }
  std::string Describe() const override { return "table"; }
  size_t weight_bytes() const override { return 0; }
  size_t ScratchBytes(int64_t rows, int64_t logit_rows, int64_t) const override {
    return static_cast<size_t>(rows + logit_rows * kVocabulary) * sizeof(float) + 4096;
  }
  StepOutput Run(const StepInput& step, StepContext& context) const override {
    View<float, 2> logits = context.scratch.Take<float>({step.logit_rows.dim(0), kVocabulary});
    for (int64_t i = 0; i < logits.dim(0); ++i) {
      for (int64_t v = 0; v < kVocabulary; ++v)
        logits(i, v) = Logit(step.tokens(step.logit_rows(i)), v);
    }
    return StepOutput{
        .logits = logits, .hidden = context.scratch.Take<float>({step.rows, 1}), .selected = {}};
  }

 private:
  ModelGeometry geometry_;
};

}  // namespace strata
