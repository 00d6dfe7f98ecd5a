// A sequence's numbers depend on its tokens alone: not on step size, batch, threads, pages, or what
// was cached.
#include <gtest/gtest.h>

#include <random>

#include "kernels/status.h"
#include "tests/models/model_fixture.h"

namespace strata {
namespace {

std::vector<int32_t> RandomTokens(int64_t count, uint32_t seed, int32_t vocabulary) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(3 + static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary - 3)));
  return tokens;
}

struct Trial {
  std::vector<std::vector<float>> logits;
  std::map<int64_t, std::vector<std::vector<int32_t>>> ids;
};

Trial RunAlone(const LoadedModel& loaded, const std::vector<int32_t>& tokens, int64_t step,
               KvFormat format, int64_t first_page = 0, int64_t scratch_mib = 64) {
  EngineOptions options = PromptRunner::Options(1024, format, 512);
  options.score_scratch_mib = scratch_mib;
  PromptRunner runner(loaded, options);
  for (int64_t i = 0; i < first_page; ++i) runner.runner().pages().Take();
  TestSequence sequence;
  IdRecorder recorder;
  Trial run;
  run.logits = runner.Append(sequence, tokens, step, true, &recorder);
  run.ids = recorder.layers;
  return run;
}

class Invariance : public ::testing::TestWithParam<KvFormat> {};

TEST_P(Invariance, StepSizesGiveTheSameBitsAndIds) {
  for (const char* name : {"glm_moe_dsa", "deepseek_v32"}) {
    const LoadedModel loaded(Golden(name));
    const std::vector<int32_t> tokens = RandomTokens(150, 1, 250);
    const Trial whole = RunAlone(loaded, tokens, 512, GetParam());
    for (int64_t step : {1, 2, 3, 5, 8, 9, 32}) {
      const Trial cut = RunAlone(loaded, tokens, step, GetParam());
      EXPECT_EQ(cut.logits, whole.logits) << name << " step " << step;
      EXPECT_EQ(cut.ids, whole.ids) << name << " step " << step;
    }
  }
}

TEST_P(Invariance, ThreadsAndPagesGiveTheSameBits) {
  const std::vector<int32_t> tokens = RandomTokens(150, 2, 250);
  const LoadedModel one(Golden("glm_moe_dsa"), 1), two(Golden("glm_moe_dsa"), 2),
      three(Golden("glm_moe_dsa"), 3);
  const Trial reference = RunAlone(one, tokens, 32, GetParam());
  EXPECT_EQ(RunAlone(two, tokens, 32, GetParam()).logits, reference.logits);
  EXPECT_EQ(RunAlone(three, tokens, 512, GetParam()).logits, reference.logits);
  EXPECT_EQ(RunAlone(two, tokens, 32, GetParam(), 7).logits, reference.logits);
}

TEST_P(Invariance, NeighboursInTheBatchChangeNothing) {
  const LoadedModel loaded(Golden("glm_moe_dsa"));
  // Lengths around the selection's 16 cells and a page's 64, decoded together.
  const std::vector<int64_t> lengths = {1, 15, 16, 17, 64, 65, 100};
  EngineOptions options = PromptRunner::Options(256, GetParam(), 512);
  options.max_sequences = static_cast<int64_t>(lengths.size());
  PromptRunner runner(loaded, options);
  std::vector<TestSequence> sequences(lengths.size());
  std::vector<std::vector<int32_t>> prompts;
  std::vector<StepGroup> groups;
  for (size_t i = 0; i < lengths.size(); ++i) {
    prompts.push_back(RandomTokens(lengths[i] + 4, 10 + static_cast<uint32_t>(i), 250));
    sequences[i].slot = static_cast<int64_t>(i);
    runner.Append(sequences[i], {prompts[i].begin(), prompts[i].end() - 4}, 512, false);
    runner.Reserve(sequences[i], lengths[i] + 4);
  }
  for (size_t i = 0; i < lengths.size(); ++i) {  // windows of one to four rows in one step
    const size_t rows = 1 + i % 4;
    groups.push_back(StepGroup{
        .slot = sequences[i].slot,
        .first_position = sequences[i].length,
        .tokens =
            std::span<const int32_t>(prompts[i]).subspan(static_cast<size_t>(lengths[i]), rows),
        .pages = sequences[i].pages,
        .logit_rows = static_cast<int64_t>(rows)});
  }
  const StepOutput output = runner.runner().Run(groups);
  int64_t row = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t rows = groups[i].tokens.size();
    const Trial alone = RunAlone(
        loaded, {prompts[i].begin(), prompts[i].begin() + lengths[i] + static_cast<int64_t>(rows)},
        7, GetParam());
    for (size_t r = 0; r < rows; ++r, ++row) {
      const std::vector<float> found(output.logits.row(row),
                                     output.logits.row(row) + output.logits.dim(1));
      EXPECT_EQ(found, alone.logits[static_cast<size_t>(lengths[i]) + r])
          << "sequence " << i << " row " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Invariance,
                         ::testing::Values(KvFormat::kFp32, KvFormat::kBf16, KvFormat::kInt8,
                                           KvFormat::kFp8),
                         [](const auto& info) { return KvFormatName(info.param); });

TEST(Invariance, RowsThatReplaceOthersLeaveNoTrace) {
  const LoadedModel loaded(Golden("glm_moe_dsa"));
  const std::vector<int32_t> tokens = RandomTokens(90, 4, 250);
  const Trial reference = RunAlone(loaded, tokens, 512, KvFormat::kBf16);
  PromptRunner runner(loaded, PromptRunner::Options(256, KvFormat::kBf16));
  TestSequence sequence;
  runner.Append(sequence, {tokens.begin(), tokens.begin() + 61}, 512, false);
  runner.Append(sequence, RandomTokens(7, 99, 250), 8,
                false);  // a window over a page's end, rejected
  sequence.length = 61;
  const auto logits = runner.Append(sequence, {tokens.begin() + 61, tokens.end()}, 3, true);
  for (size_t i = 0; i < logits.size(); ++i) EXPECT_EQ(logits[i], reference.logits[61 + i]) << i;
}

TEST(Invariance, TheScoreBudgetChangesNothingButMemory) {
  const LoadedModel loaded(ShippedModel());
  const std::vector<int32_t> tokens = RandomTokens(900, 5, 4096);
  const Trial wide = RunAlone(loaded, tokens, 512, KvFormat::kBf16);
  const Trial narrow = RunAlone(loaded, tokens, 512, KvFormat::kBf16, 0, 1);
  EXPECT_EQ(narrow.logits, wide.logits);
  EXPECT_EQ(narrow.ids, wide.ids);
}

TEST(Invariance, TheIndexerPairingFlagIsReadAndFamiliesHaveTheirOwn) {
  const std::vector<int32_t> tokens = RandomTokens(60, 6, 250);
  for (const char* name : {"glm_moe_dsa", "deepseek_v32"}) {
    ModelConfig config = LoadModelConfig(Golden(name));
    EXPECT_EQ(config.index_rope_interleaved, std::string(name) == "glm_moe_dsa");
    config.index_topk = 8;
    ModelConfig flipped = config;
    flipped.index_rope_interleaved = !flipped.index_rope_interleaved;
    ModelConfig dense = config;
    dense.index_topk = 64;
    ModelConfig dense_flipped = flipped;
    dense_flipped.index_topk = 64;
    const auto run = [&](const ModelConfig& c) {
      return RunAlone(LoadedModel(c, Golden(name)), tokens, 512, KvFormat::kFp32);
    };
    EXPECT_NE(run(config).ids, run(flipped).ids) << name;
    EXPECT_EQ(run(dense).logits, run(dense_flipped).logits)
        << name;  // everything selected: the pairing has no say
  }
}

TEST(Invariance, AScratchSmallerThanOneRowIsRefusedAtStart) {
  const LoadedModel loaded(ShippedModel());
  EngineOptions options = PromptRunner::Options(int64_t{1} << 20);
  options.score_scratch_mib = 1;
  EXPECT_THROW(StepRunner(*loaded.model, *loaded.backend, options), Error);
}

}  // namespace
}  // namespace strata
