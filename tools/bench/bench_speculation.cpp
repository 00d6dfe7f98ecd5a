// strata-bench speculation: decoding with drafts against decoding without, by context, drafter and
// depth. Both take turns in one process, so that a busy machine slows both.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <random>

#include "engine/engine.h"
#include "kernels/status.h"
#include "models/dsa_model.h"
#include "models/json.h"
#include "models/tokenizer.h"
#include "tools/bench/bench.h"

namespace strata::bench {

namespace {

struct Settings {
  std::string model = STRATA_SOURCE_DIR "/models/tiny-glm-dsa";
  std::string file = STRATA_SOURCE_DIR "/tools/examples/long.txt";
  std::vector<int64_t> contexts = {1024, 8192, 32768}, drafts = {1, 3, 5, 7};
  std::vector<std::string> drafters = {"mtp", "ngram", "auto"};
  int64_t tokens = 200, repeats = 5;
  int threads = 0;
  bool fixed = false, json = false;
};

class SpeculationBench {
 public:
  SpeculationBench(const Settings& settings, Report& report)
      : settings_(settings), report_(report), backend_(MakeCpuBackend(settings.threads)) {
    model_ = DsaModel::Load(settings.model, LoadModelConfig(settings.model), *backend_,
                            LoadOptions{.draft_layer = DraftLayer::kIfPresent, .progress = {}});
    const Tokenizer tokenizer = Tokenizer::Load(settings.model);
    const std::string text = ReadTextFile(settings.file);
    for (size_t begin = 0, end; begin < text.size(); begin = end) {
      end = text.find(". ", begin);
      end = end == text.npos ? text.size() : end + 1;  // the blank begins the next sentence
      sentences_.push_back(tokenizer.Encode(text.substr(begin, end - begin)));
    }
    if (sentences_.empty())
      Fail(ErrorCode::kUsage, fmt::format("--file {} is empty; name a text", settings.file));
  }

  void Run() {
    for (int64_t context : settings_.contexts) {
      for (const char* task : {"text", "copy"}) RunTask(context, task);
    }
  }

 private:
  // The file's sentences in a random order, again and again; "copy" ends with the beginning of a
  // passage that stands in front of it.
  std::vector<int32_t> Prompt(int64_t context, const std::string& task) const {
    std::mt19937 random(7);
    std::vector<size_t> order(sentences_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::vector<int32_t> tokens;
    const size_t size = static_cast<size_t>(context);
    while (tokens.size() < size) {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
      for (size_t i : order)
        tokens.insert(tokens.end(), sentences_[i].begin(), sentences_[i].end());
    }
    tokens.resize(size);
    if (task == "copy") {
      const size_t begin = size / 4, shown = std::min<size_t>(32, begin);
      std::copy_n(tokens.begin() + static_cast<int64_t>(begin), shown, tokens.end() - shown);
    }
    return tokens;
  }

  std::unique_ptr<Engine> NewEngine(int64_t context) const {
    EngineOptions options;
    options.max_context = context + settings_.tokens + kPageCells;
    return std::make_unique<Engine>(*model_, *backend_, options);
  }

  void RunTask(int64_t context, const std::string& task) {
    Request request;
    request.prompt = Prompt(context, task);
    request.sampling.temperature = 0.0f;
    request.max_tokens = settings_.tokens;
    request.ignore_eos = true;
    const std::unique_ptr<Engine> plain = NewEngine(context);
    std::vector<int32_t> answer;
    Decode(*plain, request, answer);  // reads the prompt; later runs find its pages
    std::vector<std::byte> pages(static_cast<size_t>(context / kPageCells) *
                                 plain->prefix_pages().page_bytes());
    plain->prefix_pages().Read(request.prompt, 0, pages);
    for (const std::string& drafter : settings_.drafters) {
      if (drafter == "mtp" && !model_->has_draft_layer()) continue;
      for (int64_t drafts : settings_.drafts) {
        const std::unique_ptr<Engine> engine = NewEngine(context);
        engine->prefix_pages().Write(request.prompt, 0, pages);
        Request drafted = request;
        drafted.speculation = SpeculationOptions{.drafts = drafts,
                                                 .min_probability = 0.0f,
                                                 .drafter = *ParseDrafter(drafter.c_str()),
                                                 .adaptive = !settings_.fixed};
        std::vector<double> rates, gains;
        for (int64_t i = 0; i < settings_.repeats; ++i) {
          std::vector<int32_t> again, same;
          const double without = Decode(*plain, request, again);
          rates.push_back(Decode(*engine, drafted, same));
          gains.push_back(rates.back() / without);
          if (again != answer || same != answer)
            Fail(ErrorCode::kInternal, "drafts changed an answer");
        }
        AddRow(context, task, drafter, drafts, engine->stats(), rates, gains);
      }
    }
  }

  // Tokens per second behind the first one.
  static double Decode(Engine& engine, const Request& request, std::vector<int32_t>& answer) {
    using Clock = std::chrono::steady_clock;
    Clock::time_point first, last;
    engine.Submit(request, [&](const TokenEvent& event) {
      last = Clock::now();
      if (answer.empty()) first = last;
      if (event.token >= 0) answer.push_back(event.token);
    });
    engine.RunUntilIdle();
    return static_cast<double>(answer.size() - 1) /
           std::chrono::duration<double>(last - first).count();
  }

  void AddRow(int64_t context, const std::string& task, const std::string& drafter, int64_t drafts,
              const EngineStats& stats, std::vector<double>& rates, std::vector<double>& gains) {
    std::sort(rates.begin(), rates.end());
    std::sort(gains.begin(), gains.end());
    const DraftCounts& counts = stats.drafts;
    const double drafted = static_cast<double>(std::max<int64_t>(1, counts.drafted_tokens()));
    Report::Row row;
    row.Number("context", static_cast<double>(context), 0)
        .Text("task", task)
        .Text("drafter", drafter)
        .Number("drafts", static_cast<double>(drafts), 0)
        .Number("tok/s", rates[rates.size() / 2], 0)
        .Number("x plain", gains[gains.size() / 2], 2)
        .Number("least", gains.front(), 2)
        .Number("most", gains.back(), 2)
        .Number("accepted", static_cast<double>(counts.accepted_tokens()) / drafted, 2)
        .Number("tokens/step",
                static_cast<double>(stats.generated_tokens) / static_cast<double>(stats.steps), 2);
    report_.Add(row);
  }

  const Settings& settings_;
  Report& report_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DsaModel> model_;
  std::vector<std::vector<int32_t>> sentences_;
};

}  // namespace

int RunSpeculation(int argc, const char* const* argv) {
  Settings settings;
  CLI::App app(
      "Times greedy decoding with drafts against decoding without, on the CPU. 'text' goes on with "
      "the sentences of a file in a random order, 'copy' repeats a passage of them.",
      "strata-bench speculation");
  const auto count = CLI::Range(int64_t{1}, int64_t{1} << 20);
  app.add_option("--model", settings.model, "checkpoint folder");
  app.add_option("--file", settings.file, "text to take sentences from")->check(CLI::ExistingFile);
  app.add_option("--context", settings.contexts, "prompt tokens, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{128}, int64_t{1} << 24));
  app.add_option("--drafts", settings.drafts, "drafts per step at most, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kMaxDrafts));
  app.add_option("--drafter", settings.drafters, "mtp, ngram and auto, comma-separated")
      ->delimiter(',')
      ->check(CLI::IsMember({"mtp", "ngram", "auto"}));
  app.add_option("--tokens", settings.tokens, "tokens of an answer")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20));
  app.add_option("--repeats", settings.repeats, "pairs of runs")->check(count);
  app.add_option("--threads", settings.threads, "threads, 0: as many as cores may be used")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--fixed", settings.fixed, "always draft to the full depth");
  app.add_flag("--json", settings.json, "one JSON object a line");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  Report report(settings.json);
  SpeculationBench(settings, report).Run();
  report.Finish();
  return 0;
}

}  // namespace strata::bench
