// strata-bench: times a kernel, prints bytes, FLOPs and the distance to the floors measured in the
// same run.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <exception>

#include "kernels/status.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_sparse_mla.h"

namespace strata::bench {

namespace {

constexpr Command kCommands[] = {
    {"cpu", "the indexer path on the CPU: scan, selection, sparse attention", RunCpu},
    {"step", "forward steps on the CPU by their rows: verify windows and batches", RunStep},
    {"speculation", "decoding with drafts against decoding without, on the CPU", RunSpeculation},
    {"serve", "a running server as its clients see it", RunServe},
#if defined(STRATA_HAVE_CUDA)
    {"indexer", "the index scan on a GPU against reading the same keys", RunIndexer},
    {"select", "the exact selection on a GPU against reading the scores", RunSelect},
    {"fused", "scan and selection as one unit on a GPU", RunFused},
    {"sparse-mla", "sparse attention on a GPU against the gather of the same rows", RunSparseMla},
#endif
};

void PrintHelp() {
  fmt::print("usage: strata-bench <command> [flags]\n\ncommands of this build:\n");
  for (const Command& command : kCommands)
    fmt::print("  {:<12} {}\n", command.name, command.summary);
  fmt::print("\nstrata-bench <command> --help lists the command's flags.\n");
}

int Main(int argc, const char* const* argv) {
  if (argc < 2) {
    PrintHelp();
    return 2;
  }
  if (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0) {
    PrintHelp();
    return 0;
  }
  for (const Command& command : kCommands) {
    if (std::strcmp(argv[1], command.name) == 0) return command.run(argc - 1, argv + 1);
  }
  fmt::print(
      stderr,
      "strata-bench: unknown command '{}'; strata-bench --help lists the commands of this build\n",
      argv[1]);
  return 2;
}

}  // namespace

}  // namespace strata::bench

int main(int argc, char** argv) {
  try {
    const int code = strata::bench::Main(argc, argv);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    fmt::print(stderr, "strata-bench: the output cannot be written in full\n");
    return 1;
  } catch (const strata::Error& error) {
    fmt::print(stderr, "strata-bench: {}\n", error.what());
    return error.code() == strata::ErrorCode::kUsage ? 2 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "strata-bench: unexpected failure: {}\n", error.what());
    return 1;
  }
}
