// Scan, selection and both as one unit on the CUDA device give what the CPU ops give.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tools/parity/parity.h"

namespace strata {
namespace {

class IndexerGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TEST_F(IndexerGpuTest, EveryScanVariantStaysInsideItsFamilysBound) {
  EXPECT_EQ(ParityIndexScan(false), 0) << "the FAIL lines above name the cases";
}

TEST_F(IndexerGpuTest, EverySelectionVariantGivesTheCpusIds) {
  EXPECT_EQ(ParityTopk(false), 0) << "the FAIL lines above name the cases";
}

TEST_F(IndexerGpuTest, ScanAndSelectionInOneLaunchSelectFromTheScansScores) {
  EXPECT_EQ(ParityScanSelect(false), 0) << "the FAIL lines above name the cases";
}

}  // namespace
}  // namespace strata
