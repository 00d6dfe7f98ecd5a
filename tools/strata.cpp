// strata: one-shot generation, comparison dumps, memory plans. Follow a token from RunGenerate
// through engine/engine.h.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "kernels/cpu/isa.h"
#include "kernels/status.h"
#include "kernels/thread_pool.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/session.h"

namespace strata {
namespace {

int PrintVersion(const Options& options) {
  fmt::print("strata {} (cpu kernels: {}, cuda: {})\n", STRATA_VERSION,
             cpu::IsaName(cpu::ChosenIsa()), STRATA_CUDA_TEXT);
  if (options.verbose) {
    const auto text = [](int value) {
      return value < 0 ? std::string("unset: the measured best") : std::to_string(value);
    };
    fmt::print("cores: {}\nSTRATA_SCORES_HALVE: {}\nSTRATA_TOPK_SPLIT: {}\n", UsableCores(),
               text(options.switches.scores_halve), text(options.switches.topk_split));
    fmt::print("index scan: cpu {} lanes; selection: cpu threshold + radix\n",
               cpu::IsaName(cpu::ChosenIsa()));
  }
  return 0;
}

int Main(int argc, char** argv) {
  std::optional<int> exit_code;
  const Options options = ParseOptions(argc, argv, exit_code);
  if (exit_code) return *exit_code;
  if (options.command == Command::kVersion) return PrintVersion(options);
  const std::filesystem::path directory = ModelDirectory(options, argv[0]);
  switch (options.command) {
    case Command::kServe:
      return RunServe(options, directory);
    case Command::kLogits:
      return RunLogits(options, directory);
    case Command::kPlan:
      return RunPlan(options, directory);
    case Command::kEval:
      return RunEval(options, directory);
    default:
      return RunGenerate(options, directory);
  }
}

// A full disk or a closed stdout fails the run: what was lost must not look like an answer.
int WithOutputWritten(int exit_code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fprintf(stderr, "strata: stdout cannot be written: %s\n",
               errno != 0 ? std::strerror(errno) : "an earlier write failed");
  return exit_code != 0 ? exit_code : 1;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  try {
    return strata::WithOutputWritten(strata::Main(argc, argv));
  } catch (const strata::Error& error) {
    std::fprintf(stderr, "strata: %s\n", error.what());
    return error.code() == strata::ErrorCode::kUsage ? 2 : 1;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "strata: out of memory; lower --max-context or --chunk\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "strata: unexpected failure: %s\n", error.what());
    return 1;
  }
}
