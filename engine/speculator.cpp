#include "engine/speculator.h"

#include <algorithm>

#include "kernels/status.h"

namespace strata {

namespace {

// Repeats of at least so many tokens are followed rather than asked of the prediction layer.
constexpr int64_t kLongRepeat = 8;

}  // namespace

Speculator::Speculator(StepRunner& runner, const SpeculationOptions& defaults)
    : defaults_(defaults), has_layer_(runner.model().has_draft_layer()), layer_(runner) {
  Check(defaults);
}

void Speculator::Check(const SpeculationOptions& options) const {
  ValidateSpeculation(options);
  if (options.drafts > 0 && options.drafter == DrafterKind::kMtp && !has_layer_)
    Fail(ErrorCode::kUsage,
         "the drafter mtp needs the model's prediction layer, which is not loaded; use ngram, or "
         "start with --spec N --drafter mtp and a checkpoint that has one");
}

bool Speculator::UsesLayer(const Sequence& sequence) const {
  const SpeculationOptions& options = OptionsOf(sequence);
  return has_layer_ && !source_ && options.drafts > 0 &&
         (options.drafter == DrafterKind::kMtp || options.drafter == DrafterKind::kAuto);
}

void Speculator::ObserveWindow(Sequence& sequence, int64_t drafted, int64_t kept) {
  sequence.draft.acceptance().Observe(drafted, kept);
}

void Speculator::Propose(std::span<const StandingRows> standing, const View<const float, 2>& hidden,
                         const Room& room) {
  std::vector<DepthPolicy::Candidate> candidates;
  std::vector<NgramIndex::Match> matches;
  for (const StandingRows& rows : standing) {
    Sequence& sequence = *rows.sequence;
    DraftState& draft = sequence.draft;
    const SpeculationOptions& options = OptionsOf(sequence);
    draft.tokens.clear();
    const bool layer = UsesLayer(sequence);
    if (layer)
      layer_.Keep(sequence, rows.first_cell,
                  hidden.Rows(rows.first_row, rows.first_row + rows.rows));
    NgramIndex::Match match;
    if (!source_ && options.drafts > 0 &&
        (options.drafter == DrafterKind::kNgram || options.drafter == DrafterKind::kAuto)) {
      draft.ngram.Extend(sequence.tokens);
      match = draft.ngram.Find(sequence.tokens);
    }
    const bool long_repeat = match.length >= kLongRepeat;
    draft.origin = long_repeat ? DraftOrigin::kLongRepeat
                   : layer     ? DraftOrigin::kLayer
                               : DraftOrigin::kRepeat;
    const bool from_layer = draft.origin == DraftOrigin::kLayer;
    int64_t limit = 0;
    if (sequence.decoding() && options.drafter != DrafterKind::kOff &&
        (source_ || from_layer || match.length > 0))
      limit = room(sequence, options.drafts);
    candidates.push_back(
        {.limit = limit, .layer = from_layer, .acceptance = &draft.acceptance(), .depth = 0});
    matches.push_back(match);
  }
  policy_.Choose(candidates);

  std::vector<DraftTask> tasks;
  for (size_t i = 0; i < standing.size(); ++i) {
    Sequence& sequence = *standing[i].sequence;
    const SpeculationOptions& options = OptionsOf(sequence);
    const int64_t depth = options.adaptive ? candidates[i].depth : candidates[i].limit;
    const bool from_layer = candidates[i].layer;
    if (UsesLayer(sequence))
      tasks.push_back({.sequence = &sequence,
                       .depth = from_layer ? depth : 0,
                       .prompt = standing[i].prompt,
                       .min_probability = options.min_probability});
    if (depth == 0 || from_layer) continue;
    if (source_) {
      sequence.draft.tokens = source_(sequence, depth);
      continue;
    }
    const int64_t next = matches[i].next;
    const int64_t known = static_cast<int64_t>(sequence.tokens.size()) - next;
    const auto from = sequence.tokens.begin() + next;
    sequence.draft.tokens.assign(from, from + std::min(depth, known));
  }
  if (tasks.empty()) return;
  const DraftTimes times = layer_.Propose(tasks);
  const bool prompts =
      std::any_of(tasks.begin(), tasks.end(), [](const DraftTask& t) { return t.prompt; });
  if (prompts) return;
  if (times.first > 0.0) policy_.ObserveFirstDraft(times.first);
  if (times.next_passes > 0)
    policy_.ObserveNextDraft(times.next / static_cast<double>(times.next_passes));
}

}  // namespace strata
