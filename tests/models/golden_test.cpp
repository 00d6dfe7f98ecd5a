// The networks against transformers' own outputs (float32, eager attention).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/json.h"
#include "tests/models/model_fixture.h"

namespace strata {
namespace {

constexpr float kLogitTolerance = 2e-3f;

std::vector<int32_t> ReadIds(const Checkpoint& file, const std::string& name) {
  const TensorRef* tensor = file.Find(name);
  const int32_t* values = reinterpret_cast<const int32_t*>(tensor->data);
  return {values, values + tensor->bytes / sizeof(int32_t)};
}

std::vector<std::vector<float>> ReadRows(const Checkpoint& file, const std::string& name) {
  const TensorRef* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  const float* values = reinterpret_cast<const float*>(tensor->data);
  const int64_t width = tensor->shape.back();
  std::vector<std::vector<float>> rows;
  for (int64_t at = 0; at < static_cast<int64_t>(tensor->bytes / sizeof(float)); at += width) {
    rows.emplace_back(values + at, values + at + width);
  }
  return rows;
}

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

// Equal sets, or sets that differ only in candidates whose scores lie within 1e-6 of each other at
// the boundary.
void ExpectSameSelection(std::vector<int32_t> expected, const std::vector<int32_t>& found,
                         const std::vector<float>& scores, const std::string& where) {
  std::sort(expected.begin(), expected.end());
  if (expected == found) return;
  std::vector<int32_t> missing, extra;
  std::set_difference(expected.begin(), expected.end(), found.begin(), found.end(),
                      std::back_inserter(missing));
  std::set_difference(found.begin(), found.end(), expected.begin(), expected.end(),
                      std::back_inserter(extra));
  ASSERT_EQ(missing.size(), extra.size()) << where;
  for (size_t i = 0; i < missing.size(); ++i) {
    ASSERT_FALSE(scores.empty()) << where;
    const float a = scores[missing[i]], b = scores[extra[i]];
    EXPECT_LE(std::fabs(a - b), 1e-6f * std::max(std::fabs(a), std::fabs(b)))
        << where << ": " << missing[i] << " (" << a << ") is missing, " << extra[i] << " (" << b
        << ") was taken";
    std::printf("tie at %s: candidates %d and %d\n", where.c_str(), missing[i], extra[i]);
  }
}

// What torch.topk picks on a CPU: std::nth_element over (score, index) pairs in index order, masked
// keys at -infinity. Random weights give many scores of exactly zero, and among equal scores the
// reference takes what this leaves in front.
std::vector<int32_t> TorchTopk(std::vector<float> scores, size_t keys, size_t k) {
  scores.resize(keys, -std::numeric_limits<float>::infinity());
  std::vector<std::pair<float, int64_t>> queue;
  for (size_t i = 0; i < keys; ++i) queue.emplace_back(scores[i], static_cast<int64_t>(i));
  const auto larger = [](const auto& x, const auto& y) { return x.first > y.first; };
  if (k * 64 <= keys) {
    std::partial_sort(queue.begin(), queue.begin() + k, queue.end(), larger);
  } else {
    std::nth_element(queue.begin(), queue.begin() + k - 1, queue.end(), larger);
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < k; ++i) {
    if (queue[i].first > -std::numeric_limits<float>::infinity())
      ids.push_back(static_cast<int32_t>(queue[i].second));
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Checks every selection against the reference's up to exact ties, and imposes the reference's
// choice among them, so that what follows is comparable.
class TieResolver : public SelectionObserver {
 public:
  explicit TieResolver(int64_t prompt_keys) : keys_(prompt_keys) {}
  void Observe(const ObservedSelection& selection) override {
    for (int64_t row = 0; row < selection.ids.dim(0); ++row) {
      std::vector<int32_t> own(selection.ids.row(row),
                               selection.ids.row(row) + selection.counts(row));
      if (selection.scores.empty() || selection.candidates(row) <= selection.ids.dim(1)) {
        layers[selection.layer].push_back(own);
        continue;
      }
      const std::vector<float> scores(selection.scores.row(row),
                                      selection.scores.row(row) + selection.candidates(row));
      const size_t keys =
          static_cast<size_t>(std::max(keys_, selection.candidates(row) + int64_t{0}));
      const std::vector<int32_t> reference = TorchTopk(scores, keys, own.size());
      ExpectSameSelection(reference, own, scores,
                          "layer " + std::to_string(selection.layer) + " position " +
                              std::to_string(scores.size() - 1));
      if (reference.size() == own.size())
        std::copy(reference.begin(), reference.end(), selection.ids.row(row));
      layers[selection.layer].push_back(reference);
    }
  }
  std::map<int64_t, std::vector<std::vector<int32_t>>> layers;

 private:
  int64_t keys_;
};

class FixtureGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(FixtureGolden, LogitsSelectionsAndGreedyTokensAreTransformers) {
  const std::filesystem::path directory = Golden(GetParam());
  const LoadedModel loaded(directory);
  const Checkpoint golden = Checkpoint::OpenFile(directory / "golden.safetensors");
  const std::vector<int32_t> ids = ReadIds(golden, "input_ids");
  PromptRunner runner(loaded, PromptRunner::Options(512));
  TestSequence sequence;
  TieResolver resolver(static_cast<int64_t>(ids.size()));
  std::vector<std::vector<float>> logits = runner.Append(sequence, ids, 40, true, &resolver);
  const auto expected = ReadRows(golden, "logits");
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t row = 0; row < logits.size(); ++row) {
    EXPECT_LE(LargestDifference(logits[row], expected[row]), kLogitTolerance) << "row " << row;
    EXPECT_EQ(ArgMax(logits[row]), ArgMax(expected[row])) << "row " << row;
  }
  ASSERT_FALSE(resolver.layers.empty());
  for (const auto& [layer, rows] : resolver.layers) {
    const std::string name = "topk.model.layers." + std::to_string(layer) + ".self_attn.indexer";
    const std::vector<int32_t> flat = ReadIds(golden, name);
    const size_t k = static_cast<size_t>(golden.Find(name)->shape[1]);
    ASSERT_EQ(rows.size(), ids.size());
    for (size_t row = 0; row < rows.size(); ++row) {
      std::vector<int32_t> visible;  // rows that see fewer than k keys hold masked ones too
      for (size_t i = 0; i < k; ++i) {
        const int32_t id = flat[row * k + i];
        if (id >= 0 && id <= static_cast<int32_t>(row)) visible.push_back(id);
      }
      std::sort(visible.begin(), visible.end());
      EXPECT_EQ(rows[row], visible) << name << " row " << row;
    }
  }
  std::vector<int32_t> greedy = {ArgMax(logits.back())};
  const std::vector<int32_t> expected_greedy = ReadIds(golden, "greedy_cached");
  while (greedy.size() < expected_greedy.size()) {
    greedy.push_back(ArgMax(runner.Append(sequence, {greedy.back()}, 1, true, &resolver)[0]));
  }
  EXPECT_EQ(greedy, expected_greedy);
}

INSTANTIATE_TEST_SUITE_P(Random, FixtureGolden, ::testing::Values("deepseek_v32", "glm_moe_dsa"));

class ShippedGolden : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    loaded_ = new LoadedModel(ShippedModel(), 2, /*mtp=*/true);
    golden_ = new nlohmann::ordered_json(
        ParseJson(ReadTextFile(Golden("tiny-glm-dsa") / "golden.json"), "golden.json"));
    tensors_ = new Checkpoint(Checkpoint::OpenFile(Golden("tiny-glm-dsa") / "golden.safetensors"));
  }
  static void TearDownTestSuite() {
    delete tensors_;
    delete golden_;
    delete loaded_;
  }
  static LoadedModel* loaded_;
  static nlohmann::ordered_json* golden_;
  static Checkpoint* tensors_;
};
LoadedModel* ShippedGolden::loaded_ = nullptr;
nlohmann::ordered_json* ShippedGolden::golden_ = nullptr;
Checkpoint* ShippedGolden::tensors_ = nullptr;

TEST_F(ShippedGolden, LogitsSelectionsAndGreedyTokensAreTransformers) {
  for (const auto& prompt : (*golden_)["prompts"]) {
    const std::string name = prompt["name"];
    SCOPED_TRACE(name);
    const auto ids = prompt["input_ids"].get<std::vector<int32_t>>();
    PromptRunner runner(*loaded_, PromptRunner::Options(4096));
    TestSequence sequence;
    IdRecorder recorder;
    recorder.keep_scores = true;
    const std::vector<std::vector<float>> logits =
        runner.Append(sequence, ids, 512, true, &recorder);
    const auto argmax = prompt["argmax_all"].get<std::vector<int32_t>>();
    for (size_t row = 0; row < ids.size(); ++row)
      EXPECT_EQ(ArgMax(logits[row]), argmax[row]) << "row " << row;
    const auto positions = prompt["positions"].get<std::vector<int64_t>>();
    const auto expected = ReadRows(*tensors_, name + ".logits");
    for (size_t i = 0; i < positions.size(); ++i) {
      EXPECT_LE(LargestDifference(logits[positions[i]], expected[i]), kLogitTolerance)
          << "position " << positions[i];
    }
    EXPECT_LE(LargestDifference(logits.back(), ReadRows(*tensors_, name + ".last_logits")[0]),
              kLogitTolerance);
    for (const auto& [layer, selected] : prompt["topk_last"].items()) {
      const int64_t index = std::stoll(layer);
      std::vector<int32_t> visible;  // a short prompt's list holds masked positions too
      for (int32_t id : selected.get<std::vector<int32_t>>()) {
        if (id < static_cast<int32_t>(ids.size())) visible.push_back(id);
      }
      ExpectSameSelection(visible, recorder.layers[index].back(),
                          recorder.layer_scores[index].back(), "layer " + layer);
    }
    std::vector<int32_t> greedy = {ArgMax(logits.back())};
    const auto expected_greedy = prompt["greedy_ids"].get<std::vector<int32_t>>();
    while (greedy.size() < expected_greedy.size()) {
      greedy.push_back(ArgMax(runner.Append(sequence, {greedy.back()}, 1, true)[0]));
    }
    EXPECT_EQ(greedy, expected_greedy);
  }
}

TEST_F(ShippedGolden, PredictionLayerDraftsTheReferenceTokens) {
  for (const auto& prompt : (*golden_)["prompts"]) {
    const std::string name = prompt["name"];
    SCOPED_TRACE(name);
    const auto ids = prompt["input_ids"].get<std::vector<int32_t>>();
    PromptRunner runner(*loaded_, PromptRunner::Options(4096));
    runner.keep_hidden = true;
    TestSequence sequence;
    const std::vector<std::vector<float>> logits = runner.Append(sequence, ids, 512, true);
    const auto drafts = prompt["mtp_draft_all"].get<std::vector<int32_t>>();
    // Row i takes hidden state i and the token after it; the last one the greedy next token.
    std::vector<int32_t> next(ids.begin() + 1, ids.end());
    next.push_back(ArgMax(logits.back()));
    const int64_t width = loaded_->model->geometry().hidden;
    std::vector<float> last_logits;
    for (size_t begin = 0; begin < next.size(); begin += 512) {
      const size_t end = std::min(next.size(), begin + 512);
      const int64_t rows = static_cast<int64_t>(end - begin);
      const StepGroup group{.slot = 0,
                            .first_position = static_cast<int64_t>(begin),
                            .tokens = {next.data() + begin, end - begin},
                            .pages = sequence.pages,
                            .logit_rows = rows};
      const View<const float, 2> hidden = MakeView(
          static_cast<const float*>(runner.hidden.data()) + static_cast<int64_t>(begin) * width,
          {rows, width});
      const StepOutput output =
          runner.runner().RunBody({&group, 1}, [&](const StepInput& step, StepContext& context) {
            return loaded_->model->RunDraft(step, {.hidden = hidden}, context);
          });
      for (int64_t row = 0; row < rows; ++row) {
        last_logits.assign(output.logits.row(row), output.logits.row(row) + output.logits.dim(1));
        EXPECT_EQ(ArgMax(last_logits), drafts[begin + static_cast<size_t>(row)])
            << "row " << begin + static_cast<size_t>(row);
      }
    }
    EXPECT_LE(LargestDifference(last_logits, ReadRows(*tensors_, name + ".mtp_last_logits")[0]),
              kLogitTolerance);
  }
}

}  // namespace
}  // namespace strata
