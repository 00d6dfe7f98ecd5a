#include "engine/step_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/status.h"

namespace strata {

namespace {

constexpr int64_t kRowVectors =
    8;  // int32 arrays of one entry per row in a step's input, group bounds included

int64_t PagesFor(int64_t cells) { return (cells + kPageCells - 1) / kPageCells; }

LatentLayout MakeLatentLayout(const ModelGeometry& geometry, KvFormat format) {
  return LatentLayout{
      .dtype = LatentType(format), .latent = geometry.latent, .rope = geometry.rope};
}

KeyLayout MakeKeyLayout(const ModelGeometry& geometry, KvFormat format) {
  return KeyLayout{
      .dtype = IndexKeyType(format), .dim = geometry.index_dim, .kpool = geometry.index_kpool};
}

int64_t ScoreElements(const EngineOptions& options) {
  return options.score_scratch_mib * (int64_t{1} << 20) / static_cast<int64_t>(sizeof(float));
}

const EngineOptions& Checked(const EngineOptions& options, const ModelGeometry& geometry) {
  const int64_t candidates =
      (options.max_context + geometry.index_kpool - 1) / geometry.index_kpool;
  if (ScoreElements(options) < candidates) {
    Fail(ErrorCode::kCapacity, fmt::format("a score scratch of {} MiB holds less than one row of "
                                           "{} candidates ({} MiB); raise it or lower "
                                           "--max-context",
                                           options.score_scratch_mib, candidates,
                                           (candidates * 4 + (1 << 20) - 1) >> 20));
  }
  return options;
}

// Fills `view` with the values of a callable of the index.
template <class Fill>
View<const int32_t, 1> TakeFilled(Arena& arena, int64_t count, const Fill& fill) {
  View<int32_t, 1> view = arena.Take<int32_t>({count});
  for (int64_t i = 0; i < count; ++i) view(i) = fill(i);
  return view;
}

}  // namespace

CachePlan PlanCaches(const Model& model, const EngineOptions& options) {
  const ModelGeometry& geometry = model.geometry();
  CachePlan plan;
  const int64_t max_pages = PagesFor(options.max_context);
  plan.pages = options.cache_pages > 0 ? options.cache_pages : max_pages * options.max_sequences;
  plan.latent_bytes =
      KvCache::Bytes(geometry.layers(), plan.pages, MakeLatentLayout(geometry, options.kv_format));
  const int64_t indexer_layers =
      std::count(geometry.layer_has_indexer.begin(), geometry.layer_has_indexer.end(), true);
  plan.key_bytes = KeyCache::Bytes(indexer_layers, plan.pages, options.max_sequences,
                                   MakeKeyLayout(geometry, options.kv_format));
  plan.score_bytes = static_cast<size_t>(ScoreElements(options)) * sizeof(float);
  plan.scratch_bytes =
      model.ScratchBytes(options.chunk, options.chunk, ScoreElements(options)) - plan.score_bytes;
  // Every array of the input starts at a multiple of 64 bytes; block bounds repeat per block of at
  // least one row.
  plan.step_bytes =
      static_cast<size_t>(options.chunk + options.max_sequences + 16) * kRowVectors * 64 +
      static_cast<size_t>(max_pages * options.max_sequences) * sizeof(int32_t);
  return plan;
}

StepRunner::StepRunner(const Model& model, Backend& backend, const EngineOptions& options)
    : model_(&model),
      backend_(&backend),
      options_(Checked(options, model.geometry())),
      plan_(PlanCaches(model, options)),
      max_pages_(PagesFor(options.max_context)),
      pages_(plan_.pages),
      kv_(backend, model.geometry().layers(), plan_.pages,
          MakeLatentLayout(model.geometry(), options.kv_format)),
      keys_(backend, model.geometry().layer_has_indexer, plan_.pages, options.max_sequences,
            MakeKeyLayout(model.geometry(), options.kv_format)),
      scratch_(backend.Allocate(plan_.scratch_bytes + plan_.score_bytes)),
      inputs_(backend.Allocate(plan_.step_bytes)) {
  block_table_ = inputs_.Take<int32_t>({options.max_sequences, max_pages_});
  step_mark_ = inputs_.used();
}

StepInput StepRunner::Fill(std::span<const StepGroup> groups) {
  const int64_t kpool = model_->geometry().index_kpool;
  const int64_t selectable = model_->geometry().index_topk / kpool;
  StepInput step;
  std::vector<int32_t> row_group;
  int64_t logit_rows = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const StepGroup& group = groups[g];
    const int64_t end = group.first_position + static_cast<int64_t>(group.tokens.size());
    if (PagesFor(end) > static_cast<int64_t>(group.pages.size()) || end > max_pages_ * kPageCells) {
      Fail(ErrorCode::kInternal,
           fmt::format("a step writes cells up to {} but its sequence has {} pages", end,
                       group.pages.size()));
    }
    for (int64_t page = 0; page < PagesFor(end); ++page)
      block_table_(group.slot, page) = group.pages[page];
    row_group.insert(row_group.end(), group.tokens.size(), static_cast<int32_t>(g));
    logit_rows += group.logit_rows;
  }
  step.rows = static_cast<int64_t>(row_group.size());
  if (step.rows > options_.chunk) {
    Fail(ErrorCode::kCapacity,
         fmt::format("a step of {} rows, at most {} fit", step.rows, options_.chunk));
  }
  std::vector<int64_t> group_begin(groups.size() + 1, 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    group_begin[g + 1] = group_begin[g] + static_cast<int64_t>(groups[g].tokens.size());
  }
  const auto offset = [&](int64_t row) { return row - group_begin[row_group[row]]; };
  const auto position = [&](int64_t row) {
    return groups[row_group[row]].first_position + offset(row);
  };
  const auto candidates = [&](int64_t row) { return (position(row) + 1) / kpool; };
  const auto scanned = [&](int64_t row) {
    return candidates(row) > selectable ? candidates(row) : 0;
  };

  step.tokens = TakeFilled(inputs_, step.rows,
                           [&](int64_t row) { return groups[row_group[row]].tokens[offset(row)]; });
  step.positions = TakeFilled(inputs_, step.rows,
                              [&](int64_t row) { return static_cast<int32_t>(position(row)); });
  step.lengths = TakeFilled(inputs_, step.rows,
                            [&](int64_t row) { return static_cast<int32_t>(position(row) + 1); });
  step.candidates = TakeFilled(inputs_, step.rows,
                               [&](int64_t row) { return static_cast<int32_t>(candidates(row)); });
  step.scan_candidates = TakeFilled(
      inputs_, step.rows, [&](int64_t row) { return static_cast<int32_t>(scanned(row)); });
  step.row_map.sequence = TakeFilled(inputs_, step.rows, [&](int64_t row) {
    return static_cast<int32_t>(groups[row_group[row]].slot);
  });
  step.row_map.first_row =
      TakeFilled(inputs_, static_cast<int64_t>(group_begin.size()),
                 [&](int64_t g) { return static_cast<int32_t>(group_begin[g]); });
  step.block_table = block_table_;

  std::vector<int32_t> wanted;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int64_t row = group_begin[g + 1] - groups[g].logit_rows; row < group_begin[g + 1]; ++row) {
      wanted.push_back(static_cast<int32_t>(row));
    }
  }
  step.logit_rows = TakeFilled(inputs_, logit_rows, [&](int64_t i) { return wanted[i]; });

  // Blocks: as many rows as the score budget holds at the widest row's candidate count.
  const int64_t budget = ScoreElements(options_);
  for (int64_t begin = 0; begin < step.rows;) {
    RowBlock block{.begin = begin, .end = begin, .rows = {}, .candidates = 0};
    while (block.end < step.rows) {
      const int64_t widest = std::max(block.candidates, scanned(block.end));
      if (block.end > begin && widest * (block.end + 1 - begin) > budget) break;
      block.candidates = widest;
      ++block.end;
    }
    std::vector<int32_t> bounds = {0};
    for (int64_t row = begin + 1; row < block.end; ++row) {
      if (row_group[row] != row_group[row - 1]) bounds.push_back(static_cast<int32_t>(row - begin));
    }
    bounds.push_back(static_cast<int32_t>(block.end - begin));
    block.rows.sequence = step.row_map.sequence.Rows(begin, block.end);
    block.rows.first_row = TakeFilled(inputs_, static_cast<int64_t>(bounds.size()),
                                      [&](int64_t i) { return bounds[i]; });
    step.blocks.push_back(block);
    begin = block.end;
  }
  return step;
}

StepOutput StepRunner::Run(std::span<const StepGroup> groups, StageClock* clock,
                           SelectionObserver* observer) {
  return RunBody(
      groups,
      [this](const StepInput& step, StepContext& context) { return model_->Run(step, context); },
      clock, observer);
}

StepOutput StepRunner::RunBody(std::span<const StepGroup> groups, const Body& body,
                               StageClock* clock, SelectionObserver* observer) {
  // Here and not behind the step, so that one that throws keeps nothing.
  scratch_.Reset();
  inputs_.Release(step_mark_);
  StepContext context{.kv = kv_,
                      .keys = keys_,
                      .scratch = scratch_,
                      .stream = backend_->DefaultStream(),
                      .switches = options_.switches,
                      .clock = clock,
                      .observer = observer};
  const StepInput step = Fill(groups);
  StepOutput output = step.rows > 0 ? body(step, context) : StepOutput{};
  backend_->Synchronize(context.stream);
  return output;
}

}  // namespace strata
