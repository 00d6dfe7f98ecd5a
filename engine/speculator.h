// Between two steps: who drafts for which sequence, and how much.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/depth_policy.h"
#include "engine/mtp_drafter.h"
#include "engine/sequence.h"

namespace strata {

// Rows of a step whose tokens stand.
struct StandingRows {
  Sequence* sequence = nullptr;
  int64_t first_row = 0;   // of the step
  int64_t first_cell = 0;  // of the sequence
  int64_t rows = 0;
  bool prompt = false;
};

class Speculator {
 public:
  Speculator(StepRunner& runner, const SpeculationOptions& defaults);

  // Fail(kUsage): a value out of range, or the prediction layer is asked for and not loaded.
  void Check(const SpeculationOptions& options) const;

  // Guesses the next tokens of the sequences of a step that goes to its end; `hidden` are the
  // step's outputs [rows, hidden]. `room(sequence, wanted)` gives how many drafts a window of the
  // sequence may have: its pages, its limits.
  using Room = std::function<int64_t(Sequence&, int64_t wanted)>;
  void Propose(std::span<const StandingRows> standing, const View<const float, 2>& hidden,
               const Room& room);
  // A step of decode rows alone took so long.
  void ObserveStep(int64_t rows, int64_t sequences, double seconds) {
    policy_.ObserveStep(rows, sequences, seconds);
  }
  // `drafted` tokens of the sequence were verified, the first `kept` were right.
  static void ObserveWindow(Sequence& sequence, int64_t drafted, int64_t kept);

  // Replaces every drafter: up to `limit` guesses behind the sequence's last token. For callers
  // that know what comes, and for tests.
  using Source = std::function<std::vector<int32_t>(const Sequence&, int64_t limit)>;
  void set_source(Source source) { source_ = std::move(source); }

 private:
  const SpeculationOptions& OptionsOf(const Sequence& sequence) const {
    return sequence.request.speculation ? *sequence.request.speculation : defaults_;
  }
  bool UsesLayer(const Sequence& sequence) const;

  SpeculationOptions defaults_;
  bool has_layer_;
  MtpDrafter layer_;
  DepthPolicy policy_;
  Source source_;
};

}  // namespace strata
