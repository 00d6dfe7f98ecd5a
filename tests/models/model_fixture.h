// A model folder loaded once, and prompts run through it step by step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/step_runner.h"
#include "models/dsa_model.h"

namespace strata {

inline std::filesystem::path ShippedModel() {
  return std::filesystem::path(STRATA_SOURCE_DIR) / "models" / "tiny-glm-dsa";
}
inline std::filesystem::path Golden(const std::string& name) {
  return std::filesystem::path(STRATA_SOURCE_DIR) / "tests" / "golden" / name;
}

// Keeps the selected ids of every row, per full layer.
class IdRecorder : public SelectionObserver {
 public:
  void Observe(const ObservedSelection& selection) override {
    for (int64_t row = 0; row < selection.ids.dim(0); ++row) {
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < selection.counts(row); ++i) ids.push_back(selection.ids(row, i));
      layers[selection.layer].push_back(ids);
      std::vector<float> scores;
      if (!selection.scores.empty()) {
        scores.assign(selection.scores.row(row),
                      selection.scores.row(row) + selection.candidates(row));
      }
      if (keep_scores) layer_scores[selection.layer].push_back(scores);
    }
  }
  std::map<int64_t, std::vector<std::vector<int32_t>>> layers;  // [layer][row] selected ids
  std::map<int64_t, std::vector<std::vector<float>>> layer_scores;
  bool keep_scores = false;
};

class LoadedModel {
 public:
  explicit LoadedModel(const std::filesystem::path& directory, int threads = 2, bool mtp = false)
      : LoadedModel(LoadModelConfig(directory), directory, threads, mtp) {}
  LoadedModel(ModelConfig config, const std::filesystem::path& directory, int threads = 2,
              bool mtp = false)
      : backend(MakeCpuBackend(threads)),
        model(
            DsaModel::Load(directory, std::move(config), *backend,
                           LoadOptions{.draft_layer = mtp ? DraftLayer::kNeeded : DraftLayer::kSkip,
                                       .progress = {}})) {}

  std::unique_ptr<Backend> backend;
  std::unique_ptr<DsaModel> model;
};

// One sequence at a time in slot 0 of a runner of its own, or several in a shared one.
struct TestSequence {
  int64_t slot = 0;
  int64_t length = 0;
  std::vector<int32_t> pages;
};

class PromptRunner {
 public:
  PromptRunner(const LoadedModel& loaded, EngineOptions options)
      : loaded_(&loaded), runner_(*loaded.model, *loaded.backend, options) {}

  static EngineOptions Options(int64_t context = 4096, KvFormat format = KvFormat::kFp32,
                               int64_t chunk = 512) {
    EngineOptions options;
    options.max_context = context;
    options.kv_format = format;
    options.chunk = chunk;
    return options;
  }

  // Appends tokens to the sequence in steps of at most `step` rows; returns the logits of the last
  // `wanted` rows of each step, row after row.
  std::vector<std::vector<float>> Append(TestSequence& sequence, const std::vector<int32_t>& tokens,
                                         int64_t step, bool all_logits,
                                         SelectionObserver* observer = nullptr) {
    std::vector<std::vector<float>> logits;
    for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(step)) {
      const size_t end = std::min(tokens.size(), begin + static_cast<size_t>(step));
      const std::span<const int32_t> part(tokens.data() + begin, end - begin);
      Reserve(sequence, sequence.length + static_cast<int64_t>(part.size()));
      const bool last = end == tokens.size();
      const StepGroup group{.slot = sequence.slot,
                            .first_position = sequence.length,
                            .tokens = part,
                            .pages = sequence.pages,
                            .logit_rows = all_logits ? static_cast<int64_t>(part.size())
                                          : last     ? 1
                                                     : 0};
      const StepOutput output = runner_.Run({&group, 1}, nullptr, observer);
      for (int64_t row = 0; row < output.logits.dim(0); ++row) {
        logits.emplace_back(output.logits.row(row), output.logits.row(row) + output.logits.dim(1));
      }
      if (keep_hidden) {
        for (int64_t row = 0; row < output.hidden.dim(0); ++row) {
          hidden.insert(hidden.end(), output.hidden.row(row),
                        output.hidden.row(row) + output.hidden.dim(1));
        }
      }
      sequence.length += static_cast<int64_t>(part.size());
    }
    return logits;
  }

  void Reserve(TestSequence& sequence, int64_t cells) {
    while (static_cast<int64_t>(sequence.pages.size()) * kPageCells < cells)
      sequence.pages.push_back(runner_.pages().Take());
  }

  StepRunner& runner() { return runner_; }
  bool keep_hidden = false;
  std::vector<float> hidden;  // of all rows run, when keep_hidden

 private:
  const LoadedModel* loaded_;
  StepRunner runner_;
};

inline int32_t ArgMax(const std::vector<float>& values) {
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] > values[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

}  // namespace strata
