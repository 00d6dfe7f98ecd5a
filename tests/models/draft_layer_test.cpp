// Drafts of a checkpoint's own prediction layer: the same answers, its caches, its selection.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/engine.h"
#include "kernels/status.h"
#include "models/json.h"
#include "models/tokenizer.h"
#include "tests/models/model_fixture.h"
#include "tests/models/temporary_folder.h"

namespace strata {
namespace {

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  DraftCounts drafts;
};

void Submit(Engine& engine, const Request& request, Outcome& outcome) {
  engine.Submit(request, [&outcome](const TokenEvent& event) {
    if (event.token >= 0 && event.finish != FinishReason::kStop) {
      outcome.tokens.push_back(event.token);
      outcome.logprobs.push_back(event.logprob);
    }
    outcome.drafts = event.drafts;
  });
}
Outcome RunOne(Engine& engine, const Request& request) {
  Outcome outcome;
  Submit(engine, request, outcome);
  engine.RunUntilIdle();
  return outcome;
}

EngineOptions Options(int64_t drafts, DrafterKind drafter, int64_t sequences = 1,
                      int64_t chunk = 512) {
  EngineOptions options;
  options.max_context = 1024;
  options.max_sequences = sequences;
  options.chunk = chunk;
  options.speculation = {.drafts = drafts, .drafter = drafter, .adaptive = false};
  return options;
}

// The shipped model, whose prediction layer is trained.
class ShippedDrafts : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    loaded_ = new LoadedModel(ShippedModel(), 2, true);
    tokenizer_ = new Tokenizer(Tokenizer::Load(ShippedModel()));
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete loaded_;
  }
  static Request MakeRequest(const std::string& text, int64_t answer_tokens) {
    Request request;
    request.prompt = tokenizer_->EncodePrompt(text);
    request.max_tokens = answer_tokens;
    return request;
  }
  static Outcome Run(const Request& request, const EngineOptions& options) {
    Engine engine(*loaded_->model, *loaded_->backend, options);
    return RunOne(engine, request);
  }
  static LoadedModel* loaded_;
  static Tokenizer* tokenizer_;
};
LoadedModel* ShippedDrafts::loaded_ = nullptr;
Tokenizer* ShippedDrafts::tokenizer_ = nullptr;

constexpr const char* kTexts[] = {
    "The package manager installs",  // prose
    "for (int i = 0; i < 10; ++i) {\n  total += values[i];\n}\nfor (int",
    "one two three four five six seven eight nine ten eleven twelve",
    "red, green, blue, red, green, blue, red, green, blue, red,",
};

TEST_F(ShippedDrafts, AnswersAreThoseWithoutDraftsForEveryDrafterAndDepth) {
  const std::pair<DrafterKind, int64_t> choices[] = {{DrafterKind::kMtp, 1},
                                                     {DrafterKind::kMtp, 7},
                                                     {DrafterKind::kNgram, 3},
                                                     {DrafterKind::kAuto, 5}};
  int64_t accepted = 0, wrong = 0;
  for (size_t i = 0; i < std::size(kTexts); ++i) {
    Request request = MakeRequest(kTexts[i], 70);  // crosses a page
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.seed = 5;
    const Outcome truth = Run(request, Options(0, DrafterKind::kOff));
    for (const auto& [drafter, drafts] : choices) {
      const Outcome outcome = Run(request, Options(drafts, drafter));
      EXPECT_EQ(outcome.tokens, truth.tokens) << kTexts[i] << DrafterName(drafter) << drafts;
      EXPECT_EQ(outcome.logprobs, truth.logprobs) << kTexts[i] << DrafterName(drafter) << drafts;
      accepted += outcome.drafts.accepted_tokens();
      wrong += outcome.drafts.drafted_tokens() - outcome.drafts.accepted_tokens();
    }
    EngineOptions adaptive = Options(7, DrafterKind::kAuto);
    adaptive.speculation.adaptive = true;
    EXPECT_EQ(Run(request, adaptive).tokens, truth.tokens) << kTexts[i];
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(wrong, 100);
}

TEST_F(ShippedDrafts, ABatchOfEightEqualsSoloRuns) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request request = MakeRequest(kTexts[i % 4], 40 + i);
    if (i >= 4) request.prompt.push_back(100 + i);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.7f;
    request.sampling.seed = static_cast<uint64_t>(i);
    requests.push_back(request);
  }
  Engine engine(*loaded_->model, *loaded_->backend, Options(4, DrafterKind::kAuto, 8, 64));
  std::vector<Outcome> outcomes(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) Submit(engine, requests[i], outcomes[i]);
  engine.RunUntilIdle();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Outcome truth = Run(requests[i], Options(0, DrafterKind::kOff));
    EXPECT_EQ(outcomes[i].tokens, truth.tokens) << i;
    EXPECT_EQ(outcomes[i].logprobs, truth.logprobs) << i;
  }
  EXPECT_GT(engine.stats().drafts.accepted_tokens(), 0);
}

// A passage that repeats. The layer was trained for one token ahead; that later places hold shows
// that each pass is fed what it expects.
TEST_F(ShippedDrafts, LaterPlacesOfADraftAgreeNearlyAsOftenAsTheFirst) {
  const Request request = MakeRequest(
      "The file is read. The file is written. The file is closed. The file is read. The file is "
      "written. The file is closed. The file is read.",
      120);
  const DraftCounts counts = Run(request, Options(3, DrafterKind::kMtp)).drafts;
  ASSERT_GT(counts.windows, 25);
  const auto rate = [&](size_t place) {
    return static_cast<double>(counts.accepted[place]) / static_cast<double>(counts.drafted[place]);
  };
  EXPECT_GT(rate(0), 0.85);
  EXPECT_GT(rate(2), 0.8 * rate(0));
}

TEST_F(ShippedDrafts, DraftingStopsBeforeTokensThatAreNotLikelyEnough) {
  const Request request = MakeRequest(kTexts[0], 60);
  EngineOptions options = Options(7, DrafterKind::kMtp);
  const DraftCounts all = Run(request, options).drafts;
  options.speculation.min_probability = 0.6f;
  const DraftCounts likely = Run(request, options).drafts;
  EXPECT_LT(likely.drafted_tokens(), all.drafted_tokens());
  EXPECT_GT(
      static_cast<double>(likely.accepted_tokens()) / static_cast<double>(likely.drafted_tokens()),
      static_cast<double>(all.accepted_tokens()) / static_cast<double>(all.drafted_tokens()));
}

TEST_F(ShippedDrafts, APreemptedOrReusedSequenceDraftsOn) {
  // Answers outgrow the cache: the younger one is read again.
  EngineOptions options = Options(3, DrafterKind::kMtp, 2, 64);
  options.cache_pages = 3;
  std::vector<Request> requests = {MakeRequest(kTexts[0], 90), MakeRequest(kTexts[1], 90)};
  Engine engine(*loaded_->model, *loaded_->backend, options);
  std::vector<Outcome> outcomes(2);
  for (size_t i = 0; i < 2; ++i) Submit(engine, requests[i], outcomes[i]);
  engine.RunUntilIdle();
  EXPECT_GT(engine.stats().preemptions, 0);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(outcomes[i].tokens, Run(requests[i], Options(0, DrafterKind::kOff)).tokens) << i;
  const Outcome again = RunOne(engine, requests[0]);
  EXPECT_EQ(again.tokens, outcomes[0].tokens);
  EXPECT_GT(again.drafts.accepted_tokens(), 0);
}

TEST(DraftLayer, SpeculationThatNeedsALayerTheCheckpointLacksIsRefusedAtLoad) {
  try {
    LoadedModel(Golden("glm_moe_dsa"), 1, true);
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("num_nextn_predict_layers"), std::string::npos);
  }
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  const auto model =
      DsaModel::Load(Golden("glm_moe_dsa"), LoadModelConfig(Golden("glm_moe_dsa")), *backend,
                     {.draft_layer = DraftLayer::kIfPresent, .progress = {}});
  EXPECT_FALSE(model->has_draft_layer());
}

// A random network of index_topk 16 with a prediction layer made of its third layer's weights,
// whose later passes share the first one's selection when asked to.
class RandomDraftLayer : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kLayer = 5;

  RandomDraftLayer() {
    auto json = ParseJson(ReadTextFile(Golden("glm_moe_dsa") / "config.json"), "config.json");
    json["num_nextn_predict_layers"] = 1;
    json["index_share_for_mtp_iteration"] = GetParam();
    const Checkpoint source = Checkpoint::Open(Golden("glm_moe_dsa"));
    std::vector<TensorToWrite> tensors;
    for (const std::string& name : source.Names()) {
      const TensorRef* tensor = source.Find(name);
      tensors.push_back({name, tensor->dtype, tensor->shape, tensor->data});
      const std::string prefix = "model.layers.2.";
      if (name.starts_with(prefix))
        tensors.push_back({"model.layers.5." + name.substr(prefix.size()), tensor->dtype,
                           tensor->shape, tensor->data});
    }
    const TensorRef* norm = source.Find("model.norm.weight");
    const int64_t hidden = norm->shape[0];
    for (const char* name : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"})
      tensors.push_back(
          {std::string("model.layers.5.") + name, norm->dtype, norm->shape, norm->data});
    projection_.resize(static_cast<size_t>(2 * hidden * hidden));
    uint32_t state = 7;
    for (float& value : projection_) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-34f;
    }
    tensors.push_back({"model.layers.5.eh_proj.weight",
                       DType::kF32,
                       {hidden, 2 * hidden},
                       reinterpret_cast<const std::byte*>(projection_.data())});
    WriteSafetensors(folder_.path() / "model.safetensors", tensors);
    loaded_ = std::make_unique<LoadedModel>(ParseModelConfig(json.dump(), "config.json"),
                                            folder_.path(), 1, true);
  }
  static Request MakeRequest(int64_t prompt_tokens, int64_t answer_tokens) {
    Request request;
    for (int64_t i = 0; i < prompt_tokens; ++i)
      request.prompt.push_back(static_cast<int32_t>(3 + (i * 37 + i * i * 11) % 247));
    request.max_tokens = answer_tokens;
    return request;
  }
  // Latent rows and index keys of the prediction layer, for the cells that it has read.
  static std::string LayerBytes(Engine& engine) {
    const Sequence& sequence = *engine.sequences().at(0);
    const View<const int32_t, 2> table =
        MakeView(sequence.pages.data(), {1, static_cast<int64_t>(sequence.pages.size())});
    const LatentPages latents = engine.runner().kv().Pages(kLayer, table);
    const KeyPages keys = engine.runner().keys().Pages(kLayer, table);
    std::string bytes;
    EXPECT_EQ(sequence.draft.layer_cells, sequence.cells);
    for (int64_t cell = 0; cell < sequence.draft.layer_cells; ++cell) {
      const int64_t page = table(0, cell / kPageCells), place = cell % kPageCells;
      bytes.append(reinterpret_cast<const char*>(latents.base + page * latents.page_stride +
                                                 place * latents.layout.RowBytes()),
                   static_cast<size_t>(latents.layout.RowBytes()));
      bytes.append(reinterpret_cast<const char*>(keys.base + page * keys.page_stride +
                                                 place * keys.layout.KeyBytes()),
                   static_cast<size_t>(keys.layout.KeyBytes()));
    }
    return bytes;
  }

  TemporaryFolder folder_;
  std::vector<float> projection_;
  std::unique_ptr<LoadedModel> loaded_;
};

TEST_P(RandomDraftLayer, APromptInOneChunkAndInManyGivesTheSameLayerCacheAndDrafts) {
  std::string bytes;
  std::vector<std::vector<int32_t>> drafts;
  for (int64_t chunk : {512, 64, 25}) {
    Engine engine(*loaded_->model, *loaded_->backend, Options(5, DrafterKind::kMtp, 1, chunk));
    Outcome outcome;
    Submit(engine, MakeRequest(100, 40), outcome);
    while (outcome.tokens.empty()) engine.Step();
    std::vector<std::vector<int32_t>> found;
    std::string first;
    for (int step = 0; step < 4; ++step) {
      if (step == 0) first = LayerBytes(engine);
      found.push_back(engine.sequences().at(0)->draft.tokens);
      EXPECT_EQ(found.back().size(), 5u);
      engine.Step();
    }
    if (bytes.empty()) {
      bytes = first;
      drafts = found;
    }
    EXPECT_TRUE(first == bytes) << chunk;
    EXPECT_EQ(found, drafts) << chunk;
  }
}

TEST_P(RandomDraftLayer, AfterWindowsTheLayerCacheEqualsThatOfPlainSteps) {
  // Every answer token is read by the layer with the network's own output, whatever was drafted.
  const Request request = MakeRequest(60, 30);
  Engine windows(*loaded_->model, *loaded_->backend, Options(7, DrafterKind::kMtp));
  Engine plain(*loaded_->model, *loaded_->backend, Options(1, DrafterKind::kMtp));
  Outcome outcome, truth;
  Submit(windows, request, outcome);
  Submit(plain, request, truth);
  while (outcome.tokens.size() < 20) windows.Step();
  while (truth.tokens.size() < outcome.tokens.size()) plain.Step();
  if (truth.tokens.size() == outcome.tokens.size()) {
    EXPECT_TRUE(LayerBytes(windows) == LayerBytes(plain));
  }
  windows.RunUntilIdle();
  plain.RunUntilIdle();
  EXPECT_EQ(outcome.tokens, truth.tokens);
  EXPECT_EQ(outcome.logprobs, truth.logprobs);
}

TEST_P(RandomDraftLayer, LaterPassesStoreTheirKeysAndTakeTheSelectionThatIsGiven) {
  const int64_t cells = 50, width = loaded_->model->geometry().hidden;
  PromptRunner runner(*loaded_, PromptRunner::Options(256));
  runner.keep_hidden = true;
  IdRecorder target;
  TestSequence sequence;
  std::vector<int32_t> tokens = MakeRequest(cells, 1).prompt;
  runner.Append(sequence, tokens, 512, false, &target);
  runner.Reserve(sequence, cells + 8);
  std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
  next.push_back(9);
  const auto pass = [&](int64_t first, std::span<const int32_t> read, const float* hidden,
                        View<int32_t, 2> shared, std::vector<int32_t>& ids) {
    const int64_t rows = static_cast<int64_t>(read.size());
    const StepGroup group{.slot = 0,
                          .first_position = first,
                          .tokens = read,
                          .pages = sequence.pages,
                          .logit_rows = 1};
    const StepOutput output =
        runner.runner().RunBody({&group, 1}, [&](const StepInput& step, StepContext& context) {
          return loaded_->model->RunDraft(
              step, {.hidden = MakeView(hidden, {rows, width}), .shared_ids = shared}, context);
        });
    const int32_t* last = output.selected.row(rows - 1);
    ids.assign(last, last + output.selected.dim(1));
    return std::vector<float>(output.logits.row(0), output.logits.row(0) + output.logits.dim(1));
  };
  std::vector<int32_t> own, fresh, shared_ids;
  pass(0, next, runner.hidden.data(), {}, own);
  // The layer selects with its own weights, not the target's last selection.
  EXPECT_NE(own, target.layers.rbegin()->second.back());
  const std::vector<float> hidden(static_cast<size_t>(width), 0.3f);
  const std::vector<int32_t> token = {17};
  const std::vector<float> alone = pass(cells, token, hidden.data(), {}, fresh);
  const auto key = [&] {
    const KeyPages keys = runner.runner().keys().Pages(
        kLayer, MakeView(static_cast<const int32_t*>(sequence.pages.data()),
                         {1, static_cast<int64_t>(sequence.pages.size())}));
    std::byte* place =
        keys.base + sequence.pages[0] * keys.page_stride + cells * keys.layout.KeyBytes();
    std::string bytes(reinterpret_cast<const char*>(place),
                      static_cast<size_t>(keys.layout.KeyBytes()));
    std::fill(place, place + keys.layout.KeyBytes(), std::byte{0});
    return bytes;
  };
  const std::string stored = key();
  std::vector<int32_t> given = own;
  const std::vector<float> shared =
      pass(cells, token, hidden.data(),
           MakeView(given.data(), {1, static_cast<int64_t>(given.size())}), shared_ids);
  EXPECT_EQ(shared_ids, own);
  EXPECT_NE(fresh, own);
  EXPECT_NE(shared, alone);
  EXPECT_TRUE(key() == stored);
}

TEST_P(RandomDraftLayer, DraftsWithOrWithoutASharedSelectionLeaveTheAnswerAsItIs) {
  EXPECT_EQ(loaded_->model->shares_draft_selection(), GetParam());
  const Request request = MakeRequest(100, 40);
  Engine plain(*loaded_->model, *loaded_->backend, Options(0, DrafterKind::kOff));
  Engine drafting(*loaded_->model, *loaded_->backend, Options(5, DrafterKind::kMtp));
  EXPECT_EQ(RunOne(drafting, request).tokens, RunOne(plain, request).tokens);
  EXPECT_GT(drafting.stats().drafts.drafted_tokens(), 100);
}

INSTANTIATE_TEST_SUITE_P(Shared, RandomDraftLayer, ::testing::Bool(), [](const auto& info) {
  return info.param ? "WithSharedSelection" : "WithOwnSelections";
});

}  // namespace
}  // namespace strata
