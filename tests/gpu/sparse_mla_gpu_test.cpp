// Sparse attention on the CUDA device against the CPU op, through the ops as the engine calls them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/sparse_mla.h"
#include "tools/parity/device_array.h"
#include "tools/parity/sparse_mla_cases.h"

namespace strata {
namespace {

class SparseMlaGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device on this machine";
    }
    cpu_ = MakeCpuBackend(2);
    gpu_ = MakeCudaBackend(0);
  }

  std::unique_ptr<Backend> cpu_, gpu_;
};

// A case's arrays on the device, and the op over them.
struct DeviceCase {
  DeviceCase(const SparseMlaCase& c, Stream stream)
      : shape(c.shape),
        query(c.query),
        cache(c.cache),
        table(c.block_table),
        sequence(c.sequence),
        first_row(c.first_row),
        ids(c.ids),
        lengths(c.lengths),
        out(c.out.size()),
        lse(c.lse.size()),
        workspace(
            SparseMla::WorkspaceBytes(shape.rows, shape.heads, shape.columns, c.layout, stream)) {
    const int64_t width = shape.latent + shape.rope;
    op.query = MakeView<const float>(query.data(), {shape.rows, shape.heads, width});
    op.pages = {cache.data(), c.layout, c.layout.PageBytes(),
                MakeView<const int32_t>(table.data(), {c.sequences, c.max_pages})};
    op.rows = {MakeView<const int32_t>(sequence.data(), {shape.rows}),
               MakeView<const int32_t>(first_row.data(), {c.sequences + 1})};
    op.ids = MakeView<const int32_t>(ids.data(), {shape.rows, shape.columns});
    op.lengths = MakeView<const int32_t>(lengths.data(), {shape.rows});
    op.scale = c.scale;
    op.out = MakeView(out.data(), {shape.rows, shape.heads, shape.latent});
    op.lse = MakeView(lse.data(), {shape.rows, shape.heads});
    op.workspace = MakeView(workspace.data(), {static_cast<int64_t>(workspace.size())});
  }

  SparseMlaShape shape;
  DeviceArray<float> query;
  DeviceArray<std::byte> cache;
  DeviceArray<int32_t> table, sequence, first_row, ids, lengths;
  DeviceArray<float> out, lse;
  DeviceArray<std::byte> workspace;
  SparseMla op;
};

TEST_F(SparseMlaGpuTest, AgreesWithTheCpuForEveryStorageTypeAndKindOfIdRow) {
  for (DType dtype : {DType::kFp8E4M3, DType::kInt8, DType::kBf16}) {
    for (int64_t rope : {64, 0}) {
      const SparseMlaCase c = MakeSparseMlaCase(
          {.dtype = dtype, .heads = 16, .columns = 700, .rope = rope, .bf16_query = false}, 3,
          cpu_->DefaultStream());
      DeviceCase device(c, gpu_->DefaultStream());
      device.out.Poison(), device.lse.Poison();
      strata::Run(device.op, gpu_->DefaultStream());
      gpu_->Synchronize(gpu_->DefaultStream());
      const SparseMlaDifference d = Compare(c, device.out.Host(), device.lse.Host());
      EXPECT_LE(d.out, dtype == DType::kBf16 ? 3.2e-3 : 2e-3)
          << DTypeName(dtype) << ", rope " << rope;
      // bf16 rows: the query is rounded to bf16 too.
      EXPECT_LE(d.lse, dtype == DType::kBf16 ? 2e-2 : 5e-3)
          << DTypeName(dtype) << ", rope " << rope;
      EXPECT_TRUE(d.exact_empty) << DTypeName(dtype) << ", rope " << rope;
      EXPECT_TRUE(d.nan) << DTypeName(dtype) << ", rope " << rope;
    }
  }
}

TEST_F(SparseMlaGpuTest, ServesTheSmallWidthsAndFp32RowsOfTestModels) {
  const SparseMlaCase c = MakeSparseMlaCase({.dtype = DType::kF32,
                                             .heads = 4,
                                             .columns = 40,
                                             .latent = 48,
                                             .rope = 8,
                                             .bf16_query = false},
                                            5, cpu_->DefaultStream());
  DeviceCase device(c, gpu_->DefaultStream());
  device.out.Poison(), device.lse.Poison();
  strata::Run(device.op, gpu_->DefaultStream());
  gpu_->Synchronize(gpu_->DefaultStream());
  const SparseMlaDifference d = Compare(c, device.out.Host(), device.lse.Host());
  EXPECT_LE(d.out, 1e-5);
  EXPECT_TRUE(d.exact_empty);
  EXPECT_TRUE(d.nan);
}

TEST_F(SparseMlaGpuTest, RowAloneHasTheBitsItHasInABatch) {
  for (DType dtype : {DType::kFp8E4M3, DType::kBf16}) {
    const SparseMlaCase c = MakeSparseMlaCase(
        {.dtype = dtype, .rows = 16, .heads = 64, .columns = 2048, .bf16_query = false}, 9,
        cpu_->DefaultStream());
    DeviceCase device(c, gpu_->DefaultStream());
    strata::Run(device.op, gpu_->DefaultStream());
    gpu_->Synchronize(gpu_->DefaultStream());
    const std::vector<float> batch = device.out.Host();
    device.out.Poison();
    for (int64_t row = 0; row < c.shape.rows; ++row) {
      SparseMla op = device.op;
      op.query = MakeView<const float>(device.query.data() + row * 64 * 576, {1, 64, 576});
      op.rows.sequence = MakeView<const int32_t>(device.sequence.data() + row, {1});
      op.ids = MakeView<const int32_t>(device.ids.data() + row * 2048, {1, 2048});
      op.lengths = MakeView<const int32_t>(device.lengths.data() + row, {1});
      op.out = device.op.out.Rows(row, row + 1);
      op.lse = device.op.lse.Rows(row, row + 1);
      strata::Run(op, gpu_->DefaultStream());
    }
    gpu_->Synchronize(gpu_->DefaultStream());
    EXPECT_EQ(HashBytes(batch.data(), batch.size() * 4),
              HashBytes(device.out.Host().data(), batch.size() * 4));
  }
}

TEST_F(SparseMlaGpuTest, RowHasTheSameBitsInEveryBatchThatStatesTheSameOrderRows) {
  for (DType dtype : {DType::kFp8E4M3, DType::kBf16}) {
    const SparseMlaCase c = MakeSparseMlaCase(
        {.dtype = dtype, .rows = 70, .heads = 64, .columns = 700, .bf16_query = false}, 31,
        cpu_->DefaultStream());
    DeviceCase device(c, gpu_->DefaultStream());
    for (int64_t order_rows : {12, 40, 70}) {
      uint64_t first = 0;
      // On both sides of where the order would change.
      for (int64_t rows : {1, 12, 16, 17, 24, 25, 40, 66, 67, 70}) {
        if (rows > order_rows) continue;
        SparseMla op = device.op;
        op.query = MakeView<const float>(device.query.data(), {rows, 64, 576});
        op.rows.sequence = MakeView<const int32_t>(device.sequence.data(), {rows});
        op.ids = device.op.ids.Rows(0, rows);
        op.lengths = MakeView<const int32_t>(device.lengths.data(), {rows});
        op.out = device.op.out.Rows(0, rows);
        op.lse = device.op.lse.Rows(0, rows);
        op.order_rows = order_rows;
        device.out.Poison(), device.lse.Poison();
        strata::Run(op, gpu_->DefaultStream());
        gpu_->Synchronize(gpu_->DefaultStream());
        const std::vector<float> out = device.out.Host();
        const uint64_t hash = HashBytes(out.data(), 64 * 512 * sizeof(float));
        if (rows == 1) first = hash;
        EXPECT_EQ(hash, first) << DTypeName(dtype) << ", " << rows << " rows of " << order_rows;
      }
    }
  }
}

TEST_F(SparseMlaGpuTest, ReplayOfACapturedGraphFollowsLengthsAndIds) {
  const SparseMlaShape shape{.rows = 8, .heads = 64, .columns = 500, .bf16_query = false};
  const SparseMlaCase c = MakeSparseMlaCase(shape, 21, cpu_->DefaultStream());
  DeviceCase device(c, gpu_->DefaultStream());
  const std::unique_ptr<Graph> graph =
      gpu_->Capture(gpu_->DefaultStream(), [&](Stream stream) { strata::Run(device.op, stream); });
  // Every row's length grows from 0 in steps; ids at and behind it are ignored.
  for (int32_t length : {0, 1, 64, 3000, 6144}) {
    std::vector<int32_t> lengths(c.lengths);
    for (int32_t& value : lengths) value = std::min(value, length);
    device.lengths.Assign(lengths);
    device.out.Poison();
    graph->Replay(gpu_->DefaultStream());
    gpu_->Synchronize(gpu_->DefaultStream());
    const std::vector<float> replayed = device.out.Host();
    device.out.Poison();
    strata::Run(device.op, gpu_->DefaultStream());
    gpu_->Synchronize(gpu_->DefaultStream());
    EXPECT_EQ(HashBytes(replayed.data(), replayed.size() * 4),
              HashBytes(device.out.Host().data(), replayed.size() * 4))
        << length;
    if (length == 0) {
      EXPECT_EQ(replayed, std::vector<float>(replayed.size(), 0.0f));
    } else if (length == 6144) {
      EXPECT_LE(Compare(c, replayed, c.lse).out, 2e-3);
    }
  }
}

TEST_F(SparseMlaGpuTest, AWidthThatNoVariantServesIsRefusedWithWhatEachServes) {
  const SparseMlaCase c = MakeSparseMlaCase({.dtype = DType::kBf16,
                                             .rows = 1,
                                             .heads = 8,
                                             .columns = 16,
                                             .latent = 640,
                                             .bf16_query = false},
                                            1, cpu_->DefaultStream());
  DeviceCase device(c, gpu_->DefaultStream());
  try {
    strata::Run(device.op, gpu_->DefaultStream());
    FAIL() << "latent 640 was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_NE(std::string(error.what()).find("640 + 64"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("simple: sm_75"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace strata
