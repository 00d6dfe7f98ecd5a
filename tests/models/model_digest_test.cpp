#include "models/model_digest.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/status.h"
#include "models/json.h"
#include "tests/models/temporary_folder.h"

namespace strata {
namespace {

TEST(ModelDigest, TellsModelsApartAndKnowsThemAgain) {
  const std::filesystem::path golden =
      std::filesystem::path(STRATA_SOURCE_DIR) / "tests" / "golden" / "glm_moe_dsa";
  const std::string config = ReadTextFile(golden / "config.json");
  const std::string weights = ReadTextFile(golden / "model.safetensors");
  const TemporaryFolder folder;
  folder.Write("config.json", config);
  folder.Write("model.safetensors", weights);
  const uint64_t digest = ModelDigest(golden);
  EXPECT_EQ(ModelDigest(folder.path()), digest);

  folder.Write("config.json", config + " ");
  EXPECT_NE(ModelDigest(folder.path()), digest);
  folder.Write("config.json", config);

  // Weights that were trained on: every value moves, sizes and names stay.
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  std::string trained = weights;
  for (size_t i = sizeof header + header; i < trained.size(); i += 2)
    trained[i] = static_cast<char>(trained[i] ^ 1);
  folder.Write("model.safetensors", trained);
  EXPECT_NE(ModelDigest(folder.path()), digest);

  folder.Write("model.safetensors", weights.substr(0, weights.size() / 2));
  EXPECT_THROW(ModelDigest(folder.path()), Error);
}

}  // namespace
}  // namespace strata
