// Any text as config.json: it is read, or refused with an Error.
#include <cstdint>
#include <string>

#include "kernels/status.h"
#include "models/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const strata::ModelConfig config =
        strata::ParseModelConfig(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    strata::ComputeRopeFrequencies(config);
  } catch (const strata::Error&) {
  }
  return 0;
}
