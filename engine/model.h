// What the engine needs to know of a network, and what a network is given for one step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/key_cache.h"
#include "engine/kv_cache.h"
#include "engine/options.h"
#include "engine/selection_observer.h"
#include "engine/stage_clock.h"
#include "engine/step.h"
#include "kernels/device.h"
#include "kernels/topk_select.h"

namespace strata {

// Sizes that caches, plans and schedulers are made from. Layers count every layer that owns cache
// rows: the main ones, then the MTP layers that are loaded.
struct ModelGeometry {
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t latent = 0;
  int64_t rope = 0;
  int64_t max_position = 0;
  int64_t index_heads = 0;
  int64_t index_dim = 0;
  int64_t index_topk = 0;
  int64_t index_kpool = 1;
  PoolTail pool_tail = PoolTail::kNone;
  std::vector<bool> layer_has_indexer;  // [layers]

  int64_t layers() const { return static_cast<int64_t>(layer_has_indexer.size()); }
  int64_t SelectedColumns() const {
    return TopkSelect::IdColumns(index_topk, index_kpool, pool_tail);
  }
};

// State a step works on; all of it outlives the step.
struct StepContext {
  KvCache& kv;
  KeyCache& keys;
  Arena& scratch;  // reset by the caller between steps
  Stream stream;
  Switches switches = {};
  StageClock* clock = nullptr;            // may be null
  SelectionObserver* observer = nullptr;  // may be null
};

// What a draft pass reads beside its tokens.
struct DraftInput {
  View<const float, 2> hidden;  // [rows, hidden] outputs of the pass before, as in StepOutput
  // [rows, columns] cells to attend to, ascending, -1 padded: the selection of the first pass of
  // the same draft. Empty: the layer selects itself.
  View<int32_t, 2> shared_ids = {};
};

struct StepOutput {
  View<float, 2> logits;  // [logit rows, vocabulary], in the scratch arena
  View<float, 2> hidden;  // [rows, hidden] after the final norm, in the scratch arena
  View<int32_t, 2> selected =
      {};  // [rows, columns] ids of the last full layer, in the scratch arena
};

// A step is a pure function of StepInput and the caches: it allocates nothing, reads no host value
// but the sizes in StepInput, and leaves the caches with the step's rows written.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelGeometry& geometry() const = 0;
  virtual std::string Describe() const = 0;  // one line: family, parameters, layers
  virtual size_t weight_bytes() const = 0;   // in their loaded type, derived copies included
  // Scratch for a step of `rows` rows of which `logit_rows` need logits, scores of `score_elements`
  // at most.
  virtual size_t ScratchBytes(int64_t rows, int64_t logit_rows, int64_t score_elements) const = 0;
  virtual StepOutput Run(const StepInput& step, StepContext& context) const = 0;

  // Whether there is a prediction layer, and RunDraft can be called.
  virtual bool has_draft_layer() const { return false; }
  // The second and later passes of a draft attend to what the first one selected.
  virtual bool shares_draft_selection() const { return false; }
  // The prediction layer: row i takes the token step.tokens(i), which is the one behind the row's
  // cell step.positions(i), and hidden(i); writes that cell of the layer's own caches, and gives
  // logits for the token after that.
  virtual StepOutput RunDraft(const StepInput& step, const DraftInput& input,
                              StepContext& context) const;
};

}  // namespace strata
