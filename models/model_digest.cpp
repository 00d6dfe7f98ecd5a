#include "models/model_digest.h"

#include <xxhash.h>

#include <algorithm>
#include <string>

#include "models/checkpoint.h"
#include "models/json.h"

namespace strata {

namespace {

constexpr size_t kSampleBytes = 256;

}  // namespace

uint64_t ModelDigest(const std::filesystem::path& directory) {
  const Checkpoint checkpoint = Checkpoint::Open(directory);
  const std::string config = ReadTextFile(directory / "config.json");
  uint64_t digest = XXH3_64bits(config.data(), config.size());
  const auto add = [&](const void* bytes, size_t count) {
    digest = XXH3_64bits_withSeed(bytes, count, digest);
  };
  for (const std::string& name : checkpoint.Names()) {
    const TensorRef& tensor = *checkpoint.Find(name);
    add(name.data(), name.size());
    add(&tensor.dtype, sizeof tensor.dtype);
    add(tensor.shape.data(), tensor.shape.size() * sizeof tensor.shape[0]);
    const size_t sample = std::min(kSampleBytes, tensor.bytes);
    add(tensor.data + (tensor.bytes - sample) / 2, sample);
  }
  return digest;
}

}  // namespace strata
