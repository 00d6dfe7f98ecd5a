// Cache writes on the CUDA device store the CPU ops' bytes.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tools/parity/parity.h"

namespace strata {
namespace {

TEST(CacheWriteGpuTest, StoresTheBytesOfTheCpuOps) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    GTEST_SKIP() << "no CUDA device on this machine";
  EXPECT_EQ(ParityCacheWrite(false), 0) << "the FAIL lines above name the rows";
}

}  // namespace
}  // namespace strata
