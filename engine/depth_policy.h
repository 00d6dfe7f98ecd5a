// How many tokens to draft, from what steps cost and how often drafts were right.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/speculation.h"

namespace strata {

// How often the draft at each place was right, given that those before it were. It starts hopeful,
// so that places are tried, learns fast at first, then follows the text.
class Acceptance {
 public:
  // A window of `drafted` tokens of which the first `kept` were right.
  void Observe(int64_t drafted, int64_t kept);
  double rate(int64_t place) const { return rates_[static_cast<size_t>(place)]; }
  // What was learned weighs no more than a few windows from now on.
  void Doubt();

 private:
  static constexpr double kStart = 0.8;
  static constexpr int64_t kLeast = 2, kMost = 16;  // windows that the mean reaches over
  std::array<double, kMaxDrafts> rates_ = {kStart, kStart, kStart, kStart, kStart, kStart, kStart};
  std::array<int64_t, kMaxDrafts> seen_ = {};
};

// The time of a decode step as a line over its rows, fitted to recent steps.
class StepCost {
 public:
  void Observe(double rows, double seconds);
  bool known() const { return weight_ > 0.0; }
  double PerRow() const;  // seconds that one row more costs, 0 or more
  double Seconds(double rows) const;

 private:
  static constexpr double kDecay = 0.96;  // of a step's weight, per later step
  double weight_ = 0.0, rows_ = 0.0, seconds_ = 0.0, rows_squared_ = 0.0, product_ = 0.0;
};

// Chooses depths so that tokens per second are expected to be the most, and at least those of plain
// steps. Times are given, none is read: the same observations give the same choices.
class DepthPolicy {
 public:
  struct Candidate {
    int64_t limit = 0;                 // drafts it may have
    bool layer = false;                // the prediction layer drafts: its time counts
    Acceptance* acceptance = nullptr;  // of this sequence with this drafter
    int64_t depth = 0;                 // the choice
  };
  // All sequences that decode, those with limit 0 included.
  void Choose(std::span<Candidate> candidates);

  // A step of decode rows only, without the drafting.
  void ObserveStep(int64_t rows, int64_t sequences, double seconds);
  // The prediction layer's first pass of a step (it also reads the step's rows), and one later
  // pass.
  void ObserveFirstDraft(double seconds) { Follow(first_draft_, seconds); }
  void ObserveNextDraft(double seconds) { Follow(next_draft_, seconds); }

 private:
  static void Follow(double& mean, double seconds) {
    mean += (mean == 0.0 ? 1.0 : 0.1) * (seconds - mean);
  }
  void ChooseBest(std::span<Candidate> candidates) const;

  static constexpr int64_t kPlainSteps = 2;  // first of all, to know their cost
  static constexpr int64_t kFirstTrial = 2;  // steps at up to kTrialDepth after these
  static constexpr int64_t kTrialDepth = 2;
  static constexpr int64_t kPlainEvery = 48;  // steps with drafts between plain ones
  // Steps between trials of one draft when drafts do not pay.
  static constexpr int64_t kFirstRetry = 128, kLastRetry = 1024;
  static constexpr int64_t kRetrySteps = 2;
  static constexpr double kMargin = 1.02;  // drafts must promise this much more

  StepCost cost_;
  double first_draft_ = 0.0, next_draft_ = 0.0;
  int64_t plain_seen_ = 0;    // up to kPlainSteps
  int64_t since_plain_ = 0;   // steps since the last plain one
  int64_t since_drafts_ = 0;  // steps since the last one with drafts
  int64_t trial_left_ = kFirstTrial;
  int64_t trial_depth_ = kTrialDepth;
  int64_t retry_ = kFirstRetry;
};

}  // namespace strata
