// The step loop: requests in, tokens out, several sequences in one batch.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/prefix_pages.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/speculator.h"
#include "engine/stage_clock.h"
#include "engine/step_runner.h"

namespace strata {

// Work done so far. A step that reads any prompt tokens counts as prefill, with all its rows;
// others as decode, with the tokens they gave. Drafting counts with the step before it.
struct EngineStats {
  int64_t finished[kFinishReasons] = {};  // by FinishReason
  int64_t prompt_tokens = 0;              // of requests that were admitted
  int64_t cached_tokens = 0;              // of these, taken from the prefix cache
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;  // a sequence gave its pages to older ones and was read again later
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  DraftCounts drafts;
  int64_t steps = 0;
  StageClock prefill;
  StageClock decode;
};

// One owner thread calls everything. A request's tokens do not depend on its neighbours, the chunk,
// prefix reuse, drafts, or whether it was preempted.
class Engine {
 public:
  Engine(const Model& model, Backend& backend, const EngineOptions& options);
  ~Engine();

  // Fail(kUsage) for an empty prompt, a token outside the vocabulary or a sampling value out of
  // range; Fail(kCapacity) for a prompt that leaves no room for a token, naming both numbers. Any
  // thread may call it.
  void Check(const Request& request) const;
  // Checks; then the request waits for a slot.
  RequestId Submit(Request request, TokenCallback callback);
  // The sequence ends before the next step and its pages are free then. Unknown ids are ignored.
  void Cancel(RequestId id);

  // Runs one step; false when there was nothing to do. Pages are taken as sequences grow; when
  // none is left, the youngest sequence waits again and loses nothing but time.
  bool Step();
  // Ends every request with kError: what is in the cache can no longer be trusted.
  void FailAll(const std::string& message);

  // Tokens that prompt and answer of one sequence may have together.
  int64_t context() const { return context_; }
  void RunUntilIdle() {
    while (Step()) {
    }
  }

  // Sees the selections of every step while set, in place of watched requests; may be null.
  void set_observer(SelectionObserver* observer) { observer_ = observer; }

  const EngineStats& stats() const { return stats_; }
  Speculator& speculator() { return speculator_; }
  StepRunner& runner() { return runner_; }
  const StepRunner& runner() const { return runner_; }
  const PrefixCache& prefixes() const { return prefixes_; }
  // What the prefix cache knows, to be copied out and in between steps.
  PrefixPages prefix_pages() { return PrefixPages(runner_, prefixes_); }
  // Those that run, oldest request first.
  const std::vector<std::unique_ptr<Sequence>>& sequences() const { return running_; }
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }

 private:
  void Admit();
  bool TryAdmit(Sequence& sequence);
  std::vector<StepShare> Plan();
  bool Grow(Sequence& sequence, int64_t cells);
  void PreemptYoungest();
  void Emit(Sequence& sequence, const View<const float, 1>& logits, int64_t row);
  int64_t EmitWindow(Sequence& sequence, std::span<const int32_t> drafts,
                     const View<const float, 2>& logits, int64_t first_row);
  int64_t DraftRoom(Sequence& sequence, int64_t wanted);
  void Finish(Sequence& sequence, TokenEvent event);
  void Remember(Sequence& sequence, int64_t cells);
  void Release(Sequence& sequence, bool keep_prefix);
  void DropCancelled();
  void DropFinished();

  StepRunner runner_;
  const int64_t context_;
  PrefixCache prefixes_;
  Speculator speculator_;
  std::vector<int64_t> free_slots_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest request first
  RequestId next_id_ = 1;
  EngineStats stats_;
  std::vector<uint32_t> allowed_;  // scratch: tokens that a constraint allows
  SelectionRecorder recorder_;     // for watched requests
  SelectionObserver* observer_ = nullptr;
};

}  // namespace strata
