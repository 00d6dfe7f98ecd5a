// Launches of the sm_90a sparse attention kernel: which plan, which instantiation.
#include <iterator>
#include <string>

#include "kernels/cuda/sparse_mla_sm90.cuh"
#include "kernels/cuda/sparse_mla_variants.h"
#include "kernels/status.h"

namespace strata::cuda {

namespace {

using sm90::Arguments;
using sm90::Format;

struct Instance {
  void (*kernel[3])(Arguments);  // by Format
};

template <int kCtas, int kChunks, int kParts>
Instance MakeInstance() {
  return {{sm90::SparseMlaKernel<Format::kFp8, kCtas, kChunks, kParts>,
           sm90::SparseMlaKernel<Format::kInt8, kCtas, kChunks, kParts>,
           sm90::SparseMlaKernel<Format::kBf16, kCtas, kChunks, kParts>}};
}

constexpr SparseMlaPlan kPlans[] = {{1, 1, 1},  {1, 1, 2},  {1, 1, 4},
                                    {16, 2, 2}, {16, 2, 4}, {16, 3, 4}};
const Instance kInstances[] = {
    MakeInstance<1, 1, 1>(),  MakeInstance<1, 1, 2>(),  MakeInstance<1, 1, 4>(),
    MakeInstance<16, 2, 2>(), MakeInstance<16, 2, 4>(), MakeInstance<16, 3, 4>(),
};
static_assert(std::size(kPlans) == std::size(kInstances));

const Instance& Find(const SparseMlaPlan& plan) {
  for (size_t i = 0; i < std::size(kPlans); ++i) {
    if (kPlans[i].ctas == plan.ctas && kPlans[i].chunks == plan.chunks &&
        kPlans[i].parts == plan.parts) {
      return kInstances[i];
    }
  }
  Fail(ErrorCode::kInternal, "SparseMla: no instance of plan " + std::to_string(plan.ctas) + " x " +
                                 std::to_string(plan.chunks) + " x " + std::to_string(plan.parts));
}

int FormatIndex(DType dtype) {
  return dtype == DType::kFp8E4M3 ? 0 : dtype == DType::kInt8 ? 1 : 2;
}

// Sets the attributes a launch needs and fills its configuration.
void Configure(const SparseMlaPlan& plan, int format, int64_t units, cudaStream_t stream,
               cudaLaunchConfig_t* config, cudaLaunchAttribute* attribute) {
  const auto kernel = Find(plan).kernel[format];
  CheckCuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sm90::kSharedBytes),
      "SparseMla: shared memory size");
  if (plan.ctas > 8) {
    CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
              "SparseMla: cluster of 16");
  }
  config->gridDim = dim3(static_cast<unsigned>(units * plan.parts * plan.ctas));
  config->blockDim = dim3(sm90::kThreads);
  config->dynamicSmemBytes = sm90::kSharedBytes;
  config->stream = stream;
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim.x = static_cast<unsigned>(plan.ctas);
  attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
  config->attrs = attribute;
  config->numAttrs = plan.ctas > 1 ? 1 : 0;
}

}  // namespace

std::span<const SparseMlaPlan> SparseMlaPlans() { return kPlans; }

bool SparseMlaPlanFits(const SparseMlaPlan& plan, int64_t columns) {
  return plan.ctas == 1 || columns <= int64_t{plan.ctas} * plan.chunks * sm90::kChunk;
}

SparseMlaPlan ChooseSparseMlaPlan(int64_t rows, int64_t heads, int64_t columns) {
  const int64_t units = rows * ((heads + sm90::kUnitHeads - 1) / sm90::kUnitHeads);
  const SparseMlaPlan wide = {16, 2, 4}, narrow = {16, 2, 2}, long_rows = {16, 3, 4};
  if (units <= 1 && SparseMlaPlanFits(wide, columns)) return wide;
  if (units <= 8 && SparseMlaPlanFits(narrow, columns)) return narrow;
  if (units <= 8 && SparseMlaPlanFits(long_rows, columns)) return long_rows;
  if (units <= 33) return {1, 1, 4};
  if (units <= 66) return {1, 1, 2};
  return {1, 1, 1};
}

void RunSparseMlaSm90(const SparseMla& op, const SparseMlaPlan& plan, cudaStream_t stream) {
  const int64_t rows = op.query.dim(0), heads = op.query.dim(1);
  Arguments args;
  args.query = op.query.data;
  args.query_row = op.query.stride[0], args.query_head = op.query.stride[1];
  args.query_bf16 = op.query.dtype == DType::kBf16;
  args.cache = reinterpret_cast<const uint8_t*>(op.pages.base);
  args.page_stride = op.pages.page_stride;
  args.block_table = op.pages.block_table.data, args.table_stride = op.pages.block_table.stride[0];
  args.sequence = op.rows.sequence.data;
  args.ids = op.ids.data, args.ids_stride = op.ids.stride[0];
  args.columns = static_cast<int>(op.ids.dim(1));
  args.lengths = op.lengths.data;
  args.out = op.out.data, args.out_row = op.out.stride[0], args.out_head = op.out.stride[1];
  args.lse = op.lse.data, args.lse_row = op.lse.stride[0];
  args.heads = static_cast<int>(heads);
  args.groups = static_cast<int>((heads + sm90::kUnitHeads - 1) / sm90::kUnitHeads);
  args.row_bytes = static_cast<int>(op.pages.layout.RowBytes());
  args.has_rope = op.pages.layout.rope > 0;
  args.scale_log2 = op.scale * 1.4426950408889634f;
  const int format = FormatIndex(op.pages.layout.dtype);
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute;
  Configure(plan, format, rows * args.groups, stream, &config, &attribute);
  CheckCuda(cudaLaunchKernelEx(&config, Find(plan).kernel[format], args),
            "SparseMla: launch (sm90)");
}

namespace {

bool SupportsSm90(const SparseMla& op, int sm) {
  const LatentLayout& layout = op.pages.layout;
  const bool format = layout.dtype == DType::kFp8E4M3 || layout.dtype == DType::kInt8 ||
                      layout.dtype == DType::kBf16;
  const int64_t align = op.query.dtype == DType::kBf16 ? 8 : 4;  // elements in 16 bytes
  return sm == 90 && format && layout.latent == sm90::kLatent &&
         (layout.rope == 0 || layout.rope == sm90::kRope) && op.query.dim(1) % 8 == 0 &&
         op.query.dim(1) <= 128 &&
         (op.query.dtype == DType::kBf16 || op.query.dtype == DType::kF32) &&
         op.query.stride[0] % align == 0 && op.query.stride[1] % align == 0 &&
         op.out.stride[0] % 4 == 0 && op.out.stride[1] % 4 == 0 && op.pages.page_stride % 16 == 0;
}

}  // namespace

const SparseMlaVariant kSparseMlaSm90 = {
    "sm90",
    "sm_90, latent 512 with rope 64 or 0, fp8 / int8 / bf16 rows, 8 to 128 heads (multiples of 8), "
    "fp32 / bf16 query in "
    "16-byte steps",
    SupportsSm90,
    [](const SparseMla& op, cudaStream_t stream) {
      RunSparseMlaSm90(op, ChooseSparseMlaPlan(op.query.dim(0), op.query.dim(1), op.ids.dim(1)),
                       stream);
    },
    [](int64_t, int64_t, int64_t, int64_t) { return size_t{0}; }};

}  // namespace strata::cuda
