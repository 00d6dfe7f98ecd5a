// Look-up evaluation: facts planted in a text, asked for at its end, answers judged with every
// token right.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "kernels/status.h"
#include "models/json.h"
#include "tools/commands.h"
#include "tools/lookup_task.h"
#include "tools/session.h"

namespace strata {

namespace {

struct Score {
  int64_t right = 0, asked = 0;
  double seconds = 0.0;
  int64_t tokens = 0;
};

int32_t ArgMax(const View<float, 2>& logits, int64_t row) {
  int64_t best = 0;
  for (int64_t i = 1; i < logits.dim(1); ++i) {
    if (logits(row, i) > logits(row, best)) best = i;
  }
  return static_cast<int32_t>(best);
}

// Reads the text once; an answer counts when each of its tokens is the model's first choice given
// those before it.
void RunText(Session& session, const LookupText& text, Score& score) {
  StepRunner& runner = session.engine->runner();
  std::vector<int32_t> pages;
  const int64_t count = static_cast<int64_t>(text.tokens.size());
  while (static_cast<int64_t>(pages.size()) * kPageCells < count)
    pages.push_back(runner.pages().Take());
  std::vector<bool> correct(text.tokens.size(), false);
  const auto start = std::chrono::steady_clock::now();
  const int64_t questions_begin = text.answers.front().begin - 1;
  for (int64_t begin = 0; begin < count;) {
    // Logits are needed only from the first answer on.
    const int64_t limit = begin < questions_begin ? questions_begin : count;
    const int64_t rows = std::min(runner.options().chunk, limit - begin);
    const StepGroup group{
        .slot = 0,
        .first_position = begin,
        .tokens = std::span<const int32_t>(text.tokens)
                      .subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)),
        .pages = pages,
        .logit_rows = begin < questions_begin ? 0 : rows};
    const StepOutput output = runner.Run({&group, 1});
    for (int64_t row = 0; row < output.logits.dim(0); ++row) {
      const int64_t next = begin + row + 1;
      if (next < count)
        correct[static_cast<size_t>(next)] =
            ArgMax(output.logits, row) == text.tokens[static_cast<size_t>(next)];
    }
    begin += rows;
  }
  score.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  score.tokens += count;
  for (const TokenRange& answer : text.answers) {
    bool all = true;
    for (int64_t i = answer.begin; i < answer.end; ++i)
      all = all && correct[static_cast<size_t>(i)];
    score.right += all;
    ++score.asked;
  }
  for (int32_t page : pages) runner.pages().Release(page);
}

}  // namespace

int RunEval(const Options& options, const std::filesystem::path& directory) {
  int64_t largest = 0;
  for (int64_t context : options.eval_contexts) largest = std::max(largest, context);
  Options sized = options;
  sized.max_context = largest + 64;
  Session session(sized, directory);
  const bool show_progress = !options.quiet && !options.json && isatty(STDERR_FILENO) != 0;
  if (!options.json)
    fmt::print("{:>9}  {:>14}  {:>14}  {:>9}\n", "context", "kinds", "all right", "tok/s");
  for (int64_t context : options.eval_contexts) {
    for (const bool numbers_only : {true, false}) {
      if (options.eval_numbers_only && !numbers_only) continue;
      // As many texts and questions as the published evaluation has at these lengths.
      const bool brief = context <= 1024;
      const int64_t texts = brief ? 32 : std::max<int64_t>(2, 65536 / context);
      LookupTask task(session.tokenizer, 123 + static_cast<uint64_t>(context));
      Score score;
      for (int64_t i = 0; i < texts; ++i) {
        RunText(session, task.Make(context, brief ? 8 : 16, brief ? 4 : 12, numbers_only), score);
        if (show_progress)
          std::fputs(fmt::format("\r{} of {} texts", i + 1, texts).c_str(), stderr);
      }
      if (show_progress) std::fputs("\r\033[K", stderr);
      const double share =
          100.0 * static_cast<double>(score.right) / static_cast<double>(score.asked);
      const double rate = static_cast<double>(score.tokens) / score.seconds;
      if (options.json) {
        const nlohmann::ordered_json json = {{"context", context},
                                             {"numbers_only", numbers_only},
                                             {"right", score.right},
                                             {"asked", score.asked},
                                             {"tokens_per_second", rate}};
        fmt::print("{}\n", json.dump());
      } else {
        fmt::print("{:>9}  {:>14}  {:>5} of {:>3} {:>3.0f} %  {:>7.0f}\n", context,
                   numbers_only ? "numbers" : "all", score.right, score.asked, share, rate);
      }
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace strata
