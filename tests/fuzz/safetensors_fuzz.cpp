// Any bytes as a .safetensors file: it opens, and every tensor's bytes are readable, or it is
// refused with an Error.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "kernels/status.h"
#include "models/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("fuzz.safetensors", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    return 0;
  try {
    const strata::Checkpoint checkpoint = strata::Checkpoint::OpenFile(path);
    volatile unsigned sum = 0;
    for (const std::string& name : checkpoint.Names()) {
      const strata::TensorRef& tensor = *checkpoint.Find(name);
      for (size_t i = 0; i < tensor.bytes; ++i) sum = sum + static_cast<unsigned>(tensor.data[i]);
    }
  } catch (const strata::Error&) {
  }
  return 0;
}
