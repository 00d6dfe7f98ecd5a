// strata-bench step: what a forward step costs by its rows. A verify window of 1 + drafts rows, or
// a batch of sequences, pays when its rows cost less than steps of one row.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <numeric>

#include "engine/step_runner.h"
#include "models/dsa_model.h"
#include "tools/bench/bench.h"

namespace strata::bench {

namespace {

constexpr double kBudgetSeconds = 0.7;  // per measurement
constexpr int64_t kChunk = 512;
constexpr int64_t kWindows[] = {1, 2, 4, 6, 8};
constexpr int64_t kBatches[] = {2, 4, 8};

class StepBench {
 public:
  StepBench(const std::string& model, int threads, int64_t context, Report& report)
      : backend_(MakeCpuBackend(threads)), context_(context), report_(&report) {
    ModelConfig config = LoadModelConfig(model);
    model_ = DsaModel::Load(model, std::move(config), *backend_,
                            LoadOptions{.draft_layer = DraftLayer::kIfPresent, .progress = {}});
    EngineOptions options;
    options.max_context = context + kMaxRows;
    options.max_sequences = kMaxRows;
    options.cache_pages = kMaxRows * PagesFor(options.max_context);
    options.chunk = kChunk;
    runner_ = std::make_unique<StepRunner>(*model_, *backend_, options);
    for (int64_t i = 0; i < PagesFor(options.max_context) * kMaxRows; ++i)
      pages_.push_back(runner_->pages().Take());
    tokens_.resize(static_cast<size_t>(context + kMaxRows));
    const int64_t vocabulary = model_->geometry().vocabulary;
    for (size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = static_cast<int32_t>((i * 2654435761u >> 7) % static_cast<size_t>(vocabulary));
    FillCaches();
    if (model_->has_draft_layer())
      hidden_ = std::vector<float>(static_cast<size_t>(kMaxRows * model_->geometry().hidden), 0.5f);
  }

  void Run() {
    const double single = Time(1, 1, false);
    for (int64_t window : kWindows) Add(1, window, single);
    for (int64_t batch : kBatches) Add(batch, 1, single);
  }

 private:
  static constexpr int64_t kMaxRows = 8;
  static int64_t PagesFor(int64_t cells) { return (cells + kPageCells - 1) / kPageCells; }

  StepGroup Group(int64_t slot, int64_t first, int64_t count, int64_t logit_rows) const {
    const size_t pages = static_cast<size_t>(PagesFor(context_ + kMaxRows));
    return StepGroup{
        .slot = slot,
        .first_position = first,
        .tokens = std::span<const int32_t>(tokens_).subspan(static_cast<size_t>(first),
                                                            static_cast<size_t>(count)),
        .pages = std::span<const int32_t>(pages_).subspan(static_cast<size_t>(slot) * pages, pages),
        .logit_rows = logit_rows};
  }

  // One sequence is read; the others get copies of its cells.
  void FillCaches() {
    for (int64_t first = 0; first < context_; first += kChunk) {
      const StepGroup group = Group(0, first, std::min(kChunk, context_ - first), 0);
      runner_->Run({&group, 1});
    }
    const int64_t pages = PagesFor(context_ + kMaxRows);
    for (int64_t slot = 1; slot < kMaxRows; ++slot) {
      for (int64_t page = 0; page < pages; ++page) {
        runner_->kv().CopyPage(pages_[page], pages_[slot * pages + page]);
        runner_->keys().CopyPage(pages_[page], pages_[slot * pages + page]);
      }
    }
  }

  double Time(int64_t sequences, int64_t window, bool draft) {
    std::vector<StepGroup> groups;
    for (int64_t slot = 0; slot < sequences; ++slot)
      groups.push_back(Group(slot, context_, window, draft ? 1 : window));
    if (!draft) return MedianSeconds(kBudgetSeconds, [&] { runner_->Run(groups); });
    const View<const float, 2> hidden = MakeView(static_cast<const float*>(hidden_.data()),
                                                 {sequences * window, model_->geometry().hidden});
    return MedianSeconds(kBudgetSeconds, [&] {
      runner_->RunBody(groups, [&](const StepInput& step, StepContext& context) {
        return model_->RunDraft(step, {.hidden = hidden}, context);
      });
    });
  }

  void Add(int64_t sequences, int64_t window, double single) {
    const double seconds = Time(sequences, window, false);
    Report::Row row;
    row.Number("context", static_cast<double>(context_), 0)
        .Number("sequences", static_cast<double>(sequences), 0)
        .Number("window", static_cast<double>(window), 0)
        .Number("ms", seconds * 1e3, 3)
        .Number("of one row", seconds / single, 2);
    if (!hidden_.empty()) row.Number("draft ms", Time(sequences, window, true) * 1e3, 3);
    report_->Add(row);
  }

  std::unique_ptr<Backend> backend_;
  int64_t context_;
  Report* report_;
  std::unique_ptr<DsaModel> model_;
  std::unique_ptr<StepRunner> runner_;
  std::vector<int32_t> pages_, tokens_;
  std::vector<float> hidden_;  // empty: the model has no prediction layer
};

}  // namespace

int RunStep(int argc, const char* const* argv) {
  int threads = 0;
  bool json = false;
  std::string model = STRATA_SOURCE_DIR "/models/tiny-glm-dsa";
  std::vector<int64_t> contexts = {1024, 8192};
  CLI::App app("Times forward steps by the rows they hold, on the CPU.", "strata-bench step");
  app.add_option("--model", model, "checkpoint folder");
  app.add_option("--context", contexts, "cells in the cache, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--threads", threads, "threads, 0: as many as cores may be used")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--json", json, "one JSON object a line");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  Report report(json);
  for (int64_t context : contexts) StepBench(model, threads, context, report).Run();
  report.Finish();
  return 0;
}

}  // namespace strata::bench
