#include "engine/speculation.h"

#include <fmt/format.h>

#include <cstring>

#include "kernels/status.h"

namespace strata {

namespace {
constexpr DrafterKind kKinds[] = {DrafterKind::kOff, DrafterKind::kAuto, DrafterKind::kMtp,
                                  DrafterKind::kNgram};
}

const char* DrafterName(DrafterKind kind) {
  constexpr const char* kNames[] = {"off", "auto", "mtp", "ngram"};
  return kNames[static_cast<size_t>(kind)];
}

std::optional<DrafterKind> ParseDrafter(const char* name) {
  for (DrafterKind kind : kKinds) {
    if (std::strcmp(name, DrafterName(kind)) == 0) return kind;
  }
  return std::nullopt;
}

void ValidateSpeculation(const SpeculationOptions& options) {
  if (options.drafts < 0 || options.drafts > kMaxDrafts)
    Fail(ErrorCode::kUsage, fmt::format("speculative drafts are {}, 0 to {} are accepted",
                                        options.drafts, kMaxDrafts));
  if (!(options.min_probability >= 0.0f && options.min_probability <= 1.0f))
    Fail(ErrorCode::kUsage, fmt::format("the least draft probability is {}, 0 to 1 is accepted",
                                        options.min_probability));
}

}  // namespace strata
