// The step loop: requests in, tokens out, several sequences in one batch.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "engine/stage_clock.h"
#include "engine/step_runner.h"

namespace strata {

// Work done so far. A step that reads any prompt tokens counts as prefill with all its rows; others
// as decode.
struct EngineStats {
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t steps = 0;
  StageClock prefill;
  StageClock decode;
};

// One owner thread calls everything. A request's tokens do not depend on its neighbours, the chunk,
// or prefix reuse.
class Engine {
 public:
  Engine(const Model& model, Backend& backend, const EngineOptions& options);
  ~Engine();

  // Fail(kUsage) for an empty prompt, a token outside the vocabulary or a sampling value out of
  // range; Fail(kCapacity) for a prompt that leaves no room for a token, naming both numbers.
  // Otherwise the request waits for a slot.
  RequestId Submit(Request request, TokenCallback callback);
  // The sequence ends before the next step and its pages are free then. Unknown ids are ignored.
  void Cancel(RequestId id);

  // Runs one step; false when there was nothing to do.
  bool Step();
  void RunUntilIdle() {
    while (Step()) {
    }
  }

  // Sees the selections of every step while set; may be null.
  void set_observer(SelectionObserver* observer) { observer_ = observer; }

  const EngineStats& stats() const { return stats_; }
  StepRunner& runner() { return runner_; }
  const PrefixCache& prefixes() const { return prefixes_; }
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }

 private:
  void Admit();
  bool TryAdmit(Sequence& sequence);
  void Emit(Sequence& sequence, const View<const float, 1>& logits);
  void Finish(Sequence& sequence, TokenEvent event);
  void Release(Sequence& sequence, bool keep_prefix);
  void DropFinished();

  StepRunner runner_;
  PrefixCache prefixes_;
  std::vector<int64_t> free_slots_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest first
  RequestId next_id_ = 1;
  EngineStats stats_;
  SelectionObserver* observer_ = nullptr;
};

}  // namespace strata
