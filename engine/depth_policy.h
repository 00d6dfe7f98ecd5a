// How many tokens to draft, from what steps cost and how often drafts were right.
#pragma once

#include <algorithm>
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

// The mean of what was seen lately; of all that was seen while that is little.
class RecentMean {
 public:
  void Observe(double value) {
    seen_ = std::min(seen_ + 1, kReach);
    mean_ += (value - mean_) / static_cast<double>(seen_);
  }
  bool known() const { return seen_ > 0; }
  double value() const { return mean_; }  // 0 when nothing was seen

 private:
  static constexpr int64_t kReach = 12;
  double mean_ = 0.0;
  int64_t seen_ = 0;
};

// The time of a decode step as a line over its rows: what plain steps take, and what each row of a
// draft adds. Both are followed apart, so that long stretches of one kind do not forget the other.
class StepCost {
 public:
  // A step of `rows` rows for `sequences` sequences, that is `rows - sequences` drafts.
  void Observe(int64_t rows, int64_t sequences, double seconds);
  bool known() const { return plain_seconds_.known(); }
  double PerRow() const { return row_.value(); }  // seconds that one row more costs, 0 or more
  double Seconds(double rows) const {
    return plain_seconds_.value() + PerRow() * (rows - plain_rows_.value());
  }

 private:
  RecentMean plain_rows_, plain_seconds_, row_;
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
  void ObserveFirstDraft(double seconds) { first_draft_.Observe(seconds); }
  void ObserveNextDraft(double seconds) { next_draft_.Observe(seconds); }

 private:
  void ChooseBest(std::span<Candidate> candidates) const;

  // First of all, to know their cost. The very first is left out: it finds everything cold.
  static constexpr int64_t kPlainSteps = 3;
  static constexpr int64_t kTrialSteps = 2;   // with one draft, after these
  static constexpr int64_t kPlainEvery = 48;  // steps with drafts between plain ones
  // Steps between trials of one draft when drafts do not pay.
  static constexpr int64_t kFirstRetry = 128, kLastRetry = 1024;
  // Drafts must promise this much more: a small promise is within what costs are mistaken by.
  static constexpr double kMargin = 1.08;

  StepCost cost_;
  RecentMean first_draft_, next_draft_;
  int64_t plain_seen_ = 0;    // up to kPlainSteps
  int64_t since_plain_ = 0;   // steps since the last plain one
  int64_t since_drafts_ = 0;  // steps since the last one with drafts
  int64_t trial_left_ = kTrialSteps;
  int64_t retry_ = kFirstRetry;
};

}  // namespace strata
