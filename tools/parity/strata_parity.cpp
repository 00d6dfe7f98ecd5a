// strata-parity --selftest [--small]: every CUDA op against its CPU op.
#include <cstdio>
#include <cstring>

#include "kernels/status.h"
#include "tools/parity/parity.h"

namespace {

struct Part {
  const char* name;
  int (*run)(bool small);
};
constexpr Part kParts[] = {
    {"index-scan", strata::ParityIndexScan},   {"topk", strata::ParityTopk},
    {"scan-select", strata::ParityScanSelect}, {"sparse-mla", strata::ParitySparseMla},
    {"cache-write", strata::ParityCacheWrite},
};

int Usage() {
  std::fprintf(stderr, "usage: strata-parity --selftest [--small] [--only PART]\nparts:");
  for (const Part& part : kParts) std::fprintf(stderr, " %s", part.name);
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a line as soon as it is known, to a file too
  bool selftest = false, small = false;
  const char* only = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--selftest") == 0) {
      selftest = true;
    } else if (std::strcmp(argv[i], "--small") == 0) {
      small = true;
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else {
      return Usage();
    }
  }
  if (!selftest) return Usage();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int failures = 0, parts = 0;
  try {
    for (const Part& part : kParts) {
      if (only != nullptr && std::strcmp(only, part.name) != 0) continue;
      failures += part.run(small);
      ++parts;
    }
  } catch (const strata::Error& error) {
    std::fprintf(stderr, "strata-parity: %s\n", error.what());
    return 1;
  }
  if (parts == 0) return Usage();
  std::printf("%s: %d failures in %d parts\n", failures == 0 ? "PASS" : "FAIL", failures, parts);
  return failures == 0 ? 0 : 1;
}
