#include "engine/mtp_drafter.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace strata {

namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void MtpDrafter::Keep(Sequence& sequence, int64_t first_cell,
                      const View<const float, 2>& hidden) const {
  DraftState& draft = sequence.draft;
  const int64_t width = hidden.dim(1);
  const int64_t kept = static_cast<int64_t>(draft.hidden.size()) / width;
  // Cells that came from the prefix cache were read by the layer when it was filled.
  if (draft.layer_cells + kept != first_cell) {
    draft.layer_cells = first_cell;
    draft.hidden.clear();
  }
  for (int64_t row = 0; row < hidden.dim(0); ++row)
    draft.hidden.insert(draft.hidden.end(), hidden.row(row), hidden.row(row) + width);
}

bool MtpDrafter::Take(Chain& chain, const StepOutput& output, int64_t row, int64_t logit_row) {
  Sequence& sequence = *chain.task->sequence;
  const int64_t vocabulary = output.logits.dim(1), width = output.hidden.dim(1);
  const Sampled sampled = sequence.sampler.Sample(
      MakeView(static_cast<const float*>(output.logits.row(logit_row)), {vocabulary}), nullptr,
      runner_->backend().DefaultStream());
  // Nothing is drafted behind a token that ends the answer, and it needs no row of its own.
  if (sampled.token < 0 || std::exp(sampled.logprob) < chain.task->min_probability ||
      sequence.request.StopsAt(sampled.token))
    return false;
  sequence.draft.tokens.push_back(sampled.token);
  sequence.sampler.Accept(sampled.token);
  chain.token = sampled.token;
  ++chain.cell;
  chain.hidden.assign(output.hidden.row(row), output.hidden.row(row) + width);
  return static_cast<int64_t>(sequence.draft.tokens.size()) < chain.task->depth;
}

// Runs the layer over the kept rows of all tasks, as many at a time as a step holds.
void MtpDrafter::CatchUp(std::span<DraftTask> tasks, std::vector<Chain>& chains) {
  const int64_t width = runner_->model().geometry().hidden, limit = runner_->options().chunk;
  const bool shares = runner_->model().shares_draft_selection();
  for (size_t begin = 0; begin < tasks.size();) {
    std::vector<StepGroup> groups;
    size_t end = begin;
    int64_t rows = 0;
    input_.clear();
    for (; end < tasks.size(); ++end) {
      Sequence& sequence = *tasks[end].sequence;
      DraftState& draft = sequence.draft;
      const int64_t kept = sequence.cells - draft.layer_cells;
      // Rows that wait for the next pass: all of one sequence go together.
      if (rows > 0 && rows + kept > limit) break;
      rows += kept;
      input_.insert(input_.end(), draft.hidden.begin(), draft.hidden.end());
      groups.push_back(StepGroup{.slot = sequence.slot,
                                 .first_position = draft.layer_cells,
                                 .tokens = std::span<const int32_t>(sequence.tokens)
                                               .subspan(static_cast<size_t>(draft.layer_cells + 1),
                                                        static_cast<size_t>(kept)),
                                 .pages = sequence.pages,
                                 .logit_rows = tasks[end].depth > 0 ? 1 : 0});
      draft.layer_cells = sequence.cells;
      draft.hidden.clear();
    }
    const StepOutput output =
        runner_->RunBody(groups, [&](const StepInput& step, StepContext& context) {
          return runner_->model().RunDraft(
              step, {.hidden = MakeView(static_cast<const float*>(input_.data()), {rows, width})},
              context);
        });
    int64_t row = 0, logit_row = 0;
    for (size_t i = begin; i < end; ++i) {
      row += static_cast<int64_t>(groups[i - begin].tokens.size());
      if (tasks[i].depth == 0) continue;
      Chain chain{.task = &tasks[i],
                  .cell = tasks[i].sequence->cells - 1,
                  .token = -1,
                  .hidden = {},
                  .shared_ids = {}};
      if (shares) {
        const int32_t* ids = output.selected.row(row - 1);
        chain.shared_ids.assign(ids, ids + output.selected.dim(1));
      }
      if (Take(chain, output, row - 1, logit_row++)) chains.push_back(std::move(chain));
    }
    begin = end;
  }
}

// One token more for every chain.
void MtpDrafter::Advance(std::vector<Chain>& chains) {
  const int64_t width = runner_->model().geometry().hidden;
  std::vector<StepGroup> groups;
  std::vector<int32_t> ids;
  input_.clear();
  for (const Chain& chain : chains) {
    input_.insert(input_.end(), chain.hidden.begin(), chain.hidden.end());
    ids.insert(ids.end(), chain.shared_ids.begin(), chain.shared_ids.end());
    groups.push_back(StepGroup{.slot = chain.task->sequence->slot,
                               .first_position = chain.cell,
                               .tokens = {&chain.token, 1},
                               .pages = chain.task->sequence->pages,
                               .logit_rows = 1});
  }
  const int64_t rows = static_cast<int64_t>(chains.size());
  DraftInput input{.hidden = MakeView(static_cast<const float*>(input_.data()), {rows, width})};
  if (!ids.empty())
    input.shared_ids = MakeView(ids.data(), {rows, static_cast<int64_t>(ids.size()) / rows});
  const StepOutput output =
      runner_->RunBody(groups, [&](const StepInput& step, StepContext& context) {
        return runner_->model().RunDraft(step, input, context);
      });
  std::vector<Chain> left;
  for (int64_t row = 0; row < rows; ++row) {
    Chain& chain = chains[static_cast<size_t>(row)];
    if (Take(chain, output, row, row)) left.push_back(std::move(chain));
  }
  chains = std::move(left);
}

DraftTimes MtpDrafter::Propose(std::span<DraftTask> tasks) {
  DraftTimes times;
  const auto start = std::chrono::steady_clock::now();
  const int64_t width = runner_->model().geometry().hidden;
  std::vector<DraftTask> due;
  bool behind = false;
  for (const DraftTask& task : tasks) {
    DraftState& draft = task.sequence->draft;
    const int64_t kept = static_cast<int64_t>(draft.hidden.size()) / width;
    if (kept == 0) continue;  // all its cells came from the prefix cache and nothing ran since
    if (task.depth > 0 || task.prompt) {
      due.push_back(task);
      behind = behind || kept > kMaxDrafts + 1;
    } else if (kept > kMostKept) {
      draft.hidden.erase(
          draft.hidden.begin(),
          draft.hidden.begin() + static_cast<std::ptrdiff_t>((kept - kMostKept) * width));
      draft.layer_cells = task.sequence->cells - kMostKept;
    }
  }
  if (due.empty()) return times;
  std::vector<Chain> chains;
  CatchUp(due, chains);
  times.first = SecondsSince(start);
  while (!chains.empty()) {
    Advance(chains);
    ++times.next_passes;
  }
  times.next = SecondsSince(start) - times.first;
  if (behind) times.first = 0.0;
  for (DraftTask& task : due) {
    DraftState& draft = task.sequence->draft;
    for (auto token = draft.tokens.rbegin(); token != draft.tokens.rend(); ++token)
      task.sequence->sampler.Undo(*token);
  }
  return times;
}

}  // namespace strata
