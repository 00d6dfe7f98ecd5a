// MLA attention over the selected cells only.
#pragma once

#include <cstdint>

#include "engine/indexer_stage.h"
#include "engine/model.h"
#include "engine/step.h"

namespace strata {

class SparseAttention {
 public:
  // `scale` is the whole softmax scale, YaRN's mscale squared included.
  SparseAttention(int64_t layer, float scale) : layer_(layer), scale_(scale) {}

  // Appends the step's latent rows: [rows, latent + rope], normalised and rotated.
  void Append(const StepInput& step, const View<const float, 2>& latent_rows,
              StepContext& context) const;

  // query [rows, heads, latent + rope] absorbed; out [rows, heads, latent].
  void Attend(const StepInput& step, const View<const float, 3>& query, const Selection& selection,
              const View<float, 3>& out, StepContext& context) const;

 private:
  int64_t layer_;
  float scale_;
};

}  // namespace strata
