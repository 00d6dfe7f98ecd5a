// What `strata` can be told to do; each returns the exit code.
#pragma once

#include <filesystem>

#include "tools/options.h"

namespace strata {

int RunGenerate(const Options& options, const std::filesystem::path& directory);
int RunServe(const Options& options, const std::filesystem::path& directory);
int RunLogits(const Options& options, const std::filesystem::path& directory);
int RunPlan(const Options& options, const std::filesystem::path& directory);
int RunEval(const Options& options, const std::filesystem::path& directory);

}  // namespace strata
