// Tells checkpoints apart without reading all of them.
#pragma once

#include <cstdint>
#include <filesystem>

namespace strata {

// A hash of config.json and of every tensor's name, type, shape and a sample of its bytes. Weights
// that were trained on differ in all tensors and so in the digest. Fail(kModelFile) as Checkpoint.
uint64_t ModelDigest(const std::filesystem::path& directory);

}  // namespace strata
