// CUDA devices: memory, streams, captured graphs.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace strata {

// The backend of CUDA device `ordinal`; Fail(kDevice) names the device that is missing.
std::unique_ptr<Backend> MakeCudaBackend(int ordinal);

namespace cuda {

// What launches are sized from. Read once per device and kept.
struct DeviceLimits {
  int sm = 0;  // 10 * major + minor
  int multiprocessors = 0;
  int shared_bytes = 0;  // shared memory one block may ask for
  int max_cluster = 1;   // CTAs of a cluster, with non-portable sizes allowed
};
const DeviceLimits& LimitsOf(int ordinal);

}  // namespace cuda
}  // namespace strata
