// Turns "these tokens at these positions of these sequences" into one forward step over the caches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/model.h"
#include "engine/options.h"
#include "engine/page_pool.h"

namespace strata {

// Rows of one sequence in a step.
struct StepGroup {
  int64_t slot = 0;            // row of the block table
  int64_t first_position = 0;  // cell of the first token
  std::span<const int32_t> tokens;
  std::span<const int32_t> pages;  // the sequence's pages, covering every position of the group
  int64_t logit_rows = 0;          // how many of the last rows need logits
};

// The bytes of every part an engine allocates; what `strata plan` prints and what StepRunner
// allocates.
struct CachePlan {
  int64_t pages = 0;
  size_t latent_bytes = 0;
  size_t key_bytes = 0;
  size_t scratch_bytes = 0;  // activations of a step, without the scores
  size_t score_bytes = 0;    // the score budget
  size_t step_bytes = 0;     // step inputs and block table
  size_t total() const {
    return latent_bytes + key_bytes + scratch_bytes + score_bytes + step_bytes;
  }
};
CachePlan PlanCaches(const Model& model, const EngineOptions& options);

// Owns the caches and the step's buffers. One owner thread. A step is refused (kCapacity) when it
// has more rows than options.chunk.
class StepRunner {
 public:
  StepRunner(const Model& model, Backend& backend, const EngineOptions& options);

  // Runs one step; groups are of different slots. The outputs lie in the scratch arena until the
  // next call. `hidden` of the output covers all rows.
  StepOutput Run(std::span<const StepGroup> groups, StageClock* clock = nullptr,
                 SelectionObserver* observer = nullptr);
  // As Run, with another network body over the same caches (the MTP layer): body(step, context)
  // gives the output.
  using Body = std::function<StepOutput(const StepInput&, StepContext&)>;
  StepOutput RunBody(std::span<const StepGroup> groups, const Body& body,
                     StageClock* clock = nullptr, SelectionObserver* observer = nullptr);

  PagePool& pages() { return pages_; }
  const PagePool& pages() const { return pages_; }
  KvCache& kv() { return kv_; }
  KeyCache& keys() { return keys_; }
  Backend& backend() { return *backend_; }
  const Model& model() const { return *model_; }
  const EngineOptions& options() const { return options_; }
  const CachePlan& plan() const { return plan_; }

 private:
  StepInput Fill(std::span<const StepGroup> groups);

  const Model* model_;
  Backend* backend_;
  EngineOptions options_;
  CachePlan plan_;
  int64_t max_pages_ = 0;  // per sequence
  PagePool pages_;
  KvCache kv_;
  KeyCache keys_;
  Arena scratch_;
  Arena inputs_;
  View<int32_t, 2> block_table_;
  size_t step_mark_ = 0;  // of inputs_: what lies behind belongs to one step
};

}  // namespace strata
