// One-shot generation.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "kernels/status.h"
#include "models/json.h"
#include "models/utf8.h"
#include "server/draft_json.h"
#include "tools/commands.h"
#include "tools/selection_trace.h"
#include "tools/session.h"

namespace strata {

namespace {

volatile std::sig_atomic_t interrupted = 0;
void OnInterrupt(int) { interrupted = 1; }

// More than the largest context holds, and little enough to read before it is refused.
constexpr size_t kMaxPromptBytes = size_t{256} << 20;

std::string ReadStdin() {
  std::string text;
  char piece[1 << 16];
  while (const size_t bytes = std::fread(piece, 1, sizeof piece, stdin)) {
    text.append(piece, bytes);
    if (text.size() > kMaxPromptBytes)
      Fail(ErrorCode::kUsage, fmt::format("stdin has more than {} bytes, at most that many are "
                                          "read; shorten the prompt",
                                          kMaxPromptBytes));
  }
  if (std::ferror(stdin) != 0)
    Fail(ErrorCode::kUsage, fmt::format("stdin cannot be read: {}; give --prompt TEXT or --file "
                                        "FILE",
                                        std::strerror(errno)));
  return text;
}

std::string ReadPrompt(const Options& options) {
  std::string text;
  if (!options.file.empty()) {
    text = ReadTextFile(options.file, kMaxPromptBytes);
    if (options.prompt) text += "\n\n" + *options.prompt;
  } else if (options.prompt) {
    text = *options.prompt;
  } else {
    if (isatty(STDIN_FILENO) != 0)
      Fail(ErrorCode::kUsage, "no prompt: give --prompt TEXT, --file FILE, or pipe text to stdin");
    text = ReadStdin();
  }
  if (text.empty()) Fail(ErrorCode::kUsage, "the prompt is empty");
  return text;
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kLength;
  std::string error;
  int64_t cached_tokens = 0;
  double first_token_seconds = 0.0;
};

double Rate(int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

std::string TimingLine(const char* name, int64_t tokens, const StageClock& clock) {
  const double total = clock.total_seconds();
  std::string line = fmt::format("{:8} {:7} tokens {:9.3f} s {:9.1f} tok/s  ", name, tokens, total,
                                 Rate(tokens, total));
  for (Stage stage : {Stage::kScan, Stage::kSelect, Stage::kAttend, Stage::kRest}) {
    const double seconds = clock.seconds(stage);
    line += fmt::format(" {} {:.3f} s ({:.0f} %)", StageName(stage), seconds,
                        total > 0.0 ? 100.0 * seconds / total : 0.0);
  }
  return line + "\n";
}

nlohmann::ordered_json TimingJson(int64_t tokens, const StageClock& clock) {
  nlohmann::ordered_json json = {{"tokens", tokens},
                                 {"seconds", clock.total_seconds()},
                                 {"tokens_per_second", Rate(tokens, clock.total_seconds())}};
  for (Stage stage : {Stage::kScan, Stage::kSelect, Stage::kAttend, Stage::kRest}) {
    json[fmt::format("{}_seconds", StageName(stage))] = clock.seconds(stage);
  }
  return json;
}

// "87 % 61 % 40 %": of the drafts at each place, those that were right.
std::string AcceptanceText(const DraftCounts& drafts) {
  std::string text;
  for (size_t place = 0; place < drafts.drafted.size() && drafts.drafted[place] > 0; ++place)
    text += fmt::format(" {:.0f} %", 100.0 * static_cast<double>(drafts.accepted[place]) /
                                         static_cast<double>(drafts.drafted[place]));
  return text;
}

void PrintJson(const Answer& answer, const Session& session, int64_t prompt_tokens) {
  const EngineStats& stats = session.engine->stats();
  const nlohmann::ordered_json json = {
      {"text", ReplaceInvalidUtf8(answer.text)},
      {"finish_reason", FinishReasonName(answer.reason)},
      {"usage",
       {{"prompt_tokens", prompt_tokens},
        {"completion_tokens", answer.tokens.size()},
        {"cached_tokens", answer.cached_tokens}}},
      {"tokens", answer.tokens},
      {"timings",
       {{"load_seconds", session.load_seconds},
        {"first_token_seconds", answer.first_token_seconds},
        {"prefill", TimingJson(stats.prefill_tokens, stats.prefill)},
        {"decode", TimingJson(stats.decode_tokens, stats.decode)}}},
      {"drafts", DraftJson(stats.drafts)}};
  fmt::print("{}\n", json.dump());
}

// Progress of a long prompt, on a terminal only.
void ShowPrefill(const Engine& engine, int64_t prompt_tokens) {
  std::fputs(fmt::format("\rreading the prompt: {} of {} tokens", engine.stats().prefill_tokens,
                         prompt_tokens)
                 .c_str(),
             stderr);
  std::fflush(stderr);
}

}  // namespace

int RunGenerate(const Options& options, const std::filesystem::path& directory) {
  const auto start = std::chrono::steady_clock::now();
  const std::string prompt = ReadPrompt(options);
  Session session(options, directory);
  if (!session.chat && !options.raw && !options.quiet) {
    std::fputs(fmt::format("note: raw prompt: {}\n", session.chat_missing).c_str(), stderr);
  }
  Request request;
  request.prompt = session.EncodePrompt(options, prompt);
  request.sampling = session.Sampling(options);
  request.max_tokens = options.n_predict;
  request.stop_tokens = session.generation.eos_token_ids;
  request.ignore_eos = options.ignore_eos;
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  std::vector<int32_t> sequence = request.prompt;

  Answer answer;
  Tokenizer::Stream stream(session.tokenizer);
  const auto write = [&](const std::string& piece) {
    answer.text += piece;
    if (!options.json && !piece.empty()) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    }
  };
  const bool show_progress = !options.quiet && !options.json && isatty(STDERR_FILENO) != 0 &&
                             prompt_tokens > options.chunk;
  bool first = true;
  Engine& engine = *session.engine;
  const RequestId id = engine.Submit(std::move(request), [&](const TokenEvent& event) {
    if (first) {
      answer.first_token_seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (show_progress) std::fputs("\r\033[K", stderr);
    }
    first = false;
    answer.cached_tokens = event.cached_tokens;
    const bool ends = event.finish == FinishReason::kStop;
    if (event.token >= 0 && !ends) {
      answer.tokens.push_back(event.token);
      sequence.push_back(event.token);
      write(stream.Push(event.token));
    }
    if (event.finish) {
      answer.reason = *event.finish;
      answer.error = event.error;
    }
  });

  SelectionTrace trace;
  std::signal(SIGINT, OnInterrupt);
  bool more = true;
  while (more) {
    // Nobody can read the rest of an answer that cannot be written; main says so.
    if (interrupted != 0 || std::ferror(stdout) != 0) engine.Cancel(id);
    if (options.trace_selection) engine.set_observer(first ? nullptr : &trace);
    more = engine.Step();
    if (show_progress && first && more) ShowPrefill(engine, prompt_tokens);
  }
  write(stream.Finish());
  if (options.json) {
    PrintJson(answer, session, prompt_tokens);
  } else if (!answer.text.empty() && answer.text.back() != '\n') {
    std::fputs("\n", stdout);
  }
  std::fflush(stdout);
  if (answer.reason == FinishReason::kError) Fail(ErrorCode::kNumeric, answer.error);
  if (options.timings) {
    const EngineStats& stats = engine.stats();
    std::fputs(
        fmt::format("load {:.3f} s, first token after {:.3f} s, {} answer tokens, finish: {}\n",
                    session.load_seconds, answer.first_token_seconds, answer.tokens.size(),
                    FinishReasonName(answer.reason))
            .c_str(),
        stderr);
    std::fputs(TimingLine("prefill", stats.prefill_tokens, stats.prefill).c_str(), stderr);
    std::fputs(TimingLine("decode", stats.decode_tokens, stats.decode).c_str(), stderr);
    if (stats.drafts.windows > 0)
      std::fputs(fmt::format("drafts   {:7} of {} right in {} windows; by place:{}\n",
                             stats.drafts.accepted_tokens(), stats.drafts.drafted_tokens(),
                             stats.drafts.windows, AcceptanceText(stats.drafts))
                     .c_str(),
                 stderr);
  }
  if (options.trace_selection) {
    std::fputs("selected cells over the answer's steps (dark: much of the stretch is selected)\n",
               stderr);
    std::fputs(trace.Text(session.tokenizer, sequence).c_str(), stderr);
  }
  return interrupted != 0 && answer.reason == FinishReason::kCancelled ? 130 : 0;
}

}  // namespace strata
