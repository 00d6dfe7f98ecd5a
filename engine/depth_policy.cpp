#include "engine/depth_policy.h"

#include <algorithm>
#include <vector>

namespace strata {

namespace {

// Windows until a place behind drafts that are always right is taken to be as good as they are.
constexpr double kHope = 48.0;

}  // namespace

void Acceptance::Observe(int64_t drafted, int64_t kept) {
  const auto follow = [&](int64_t place, double right) {
    const size_t i = static_cast<size_t>(place);
    seen_[i] = std::min(seen_[i] + 1, kMost);
    rates_[i] += (right - rates_[i]) / static_cast<double>(kLeast + seen_[i]);
  };
  for (int64_t place = 0; place < kept; ++place) follow(place, 1.0);
  if (kept < drafted) return follow(kept, 0.0);
  // Where all were right, the place behind them deserves another trial by and by.
  if (drafted == 0 || drafted == kMaxDrafts) return;
  double& next = rates_[static_cast<size_t>(drafted)];
  next += std::max(0.0, rates_[static_cast<size_t>(drafted - 1)] - next) / kHope;
}

void Acceptance::Doubt() {
  for (int64_t& seen : seen_) seen = 0;
}

void StepCost::Observe(int64_t rows, int64_t sequences, double seconds) {
  // One step that was held up by something else must not bend the line.
  if (known()) seconds = std::min(seconds, 3.0 * Seconds(static_cast<double>(rows)));
  const double plain_rows = static_cast<double>(sequences);
  const double drafts = static_cast<double>(rows - sequences);
  if (drafts > 0.0) {
    if (known()) row_.Observe(std::max(0.0, (seconds - Seconds(plain_rows)) / drafts));
    return;
  }
  plain_rows_.Observe(plain_rows);
  plain_seconds_.Observe(seconds);
}

void DepthPolicy::ObserveStep(int64_t rows, int64_t sequences, double seconds) {
  if (plain_seen_ > 0) cost_.Observe(rows, sequences, seconds);
  if (rows == sequences) {
    plain_seen_ = std::min(plain_seen_ + 1, kPlainSteps);
    since_plain_ = 0;
    ++since_drafts_;
  } else {
    ++since_plain_;
    since_drafts_ = 0;
    trial_left_ = std::max<int64_t>(0, trial_left_ - 1);
  }
}

// Level by level: a sequence's next draft is taken when it gives more tokens per second than the
// step has so far; the level with the best ratio stands.
void DepthPolicy::ChooseBest(std::span<Candidate> candidates) const {
  const double per_row = cost_.PerRow();
  double tokens = static_cast<double>(candidates.size());
  double seconds = cost_.Seconds(tokens);
  double best = kMargin * tokens / seconds;
  std::vector<double> chance(candidates.size(), 1.0);
  std::vector<int64_t> depth(candidates.size(), 0);
  for (int64_t level = 0; level < kMaxDrafts; ++level) {
    bool any = false, layer = false;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (depth[i] < level || level >= candidates[i].limit) continue;
      chance[i] *= candidates[i].acceptance->rate(level);
      if (chance[i] * seconds < per_row * tokens) continue;
      tokens += chance[i];
      seconds += per_row;
      depth[i] = level + 1;
      any = true;
      layer = layer || candidates[i].layer;
    }
    if (!any) break;
    if (layer) seconds += (level == 0 ? first_draft_ : next_draft_).value();
    if (tokens / seconds <= best) continue;
    best = tokens / seconds;
    for (size_t i = 0; i < candidates.size(); ++i) candidates[i].depth = depth[i];
  }
}

void DepthPolicy::Choose(std::span<Candidate> candidates) {
  for (Candidate& candidate : candidates) candidate.depth = 0;
  if (plain_seen_ < kPlainSteps || since_plain_ >= kPlainEvery) return;
  if (trial_left_ == 0) {
    ChooseBest(candidates);
    const bool drafts = std::any_of(candidates.begin(), candidates.end(),
                                    [](const Candidate& c) { return c.depth > 0; });
    if (drafts) retry_ = kFirstRetry;
    if (drafts || since_drafts_ < retry_) return;
    retry_ = std::min(2 * retry_, kLastRetry);
    trial_left_ = kTrialSteps;
    for (Candidate& candidate : candidates) {
      if (candidate.acceptance != nullptr) candidate.acceptance->Doubt();
    }
  }
  for (Candidate& candidate : candidates) candidate.depth = std::min<int64_t>(candidate.limit, 1);
}

}  // namespace strata
