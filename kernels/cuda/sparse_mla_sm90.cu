// Launches of the sm_90a sparse attention kernel: which plan, which instantiation.
#include <algorithm>
#include <limits>
#include <string>

#include "kernels/cuda/sparse_mla_sm90.cuh"
#include "kernels/cuda/sparse_mla_sm90_merge.cuh"
#include "kernels/cuda/sparse_mla_variants.h"
#include "kernels/status.h"

namespace strata::cuda {

namespace {

using sm90::Arguments;
using sm90::Format;
using sm90::Spread;
using Kernel = void (*)(Arguments);

Spread SpreadOf(const SparseMlaPlan& plan, int64_t chunks) {
  if (plan.splits <= 2) return plan.splits == 1 ? Spread::kWalk : Spread::kHalves;
  return plan.splits == chunks ? Spread::kChunks : Spread::kPairs;
}

template <Format kFormat, Spread kSpread>
Kernel KernelOfParts(int parts) {
  switch (parts) {
    case 1:
      return sm90::SparseMlaKernel<kFormat, 1, kSpread>;
    case 2:
      return sm90::SparseMlaKernel<kFormat, 2, kSpread>;
    case 4:
      return sm90::SparseMlaKernel<kFormat, 4, kSpread>;
    default:
      Fail(ErrorCode::kInternal, "SparseMla: no kernel for " + std::to_string(parts) + " parts");
  }
}
template <Format kFormat>
Kernel KernelOf(Spread spread, int parts) {
  switch (spread) {
    case Spread::kWalk:
      return KernelOfParts<kFormat, Spread::kWalk>(parts);
    case Spread::kHalves:
      return KernelOfParts<kFormat, Spread::kHalves>(parts);
    case Spread::kChunks:
      return KernelOfParts<kFormat, Spread::kChunks>(parts);
    default:
      return sm90::SparseMlaKernel<kFormat, 1, Spread::kPairs>;
  }
}
Kernel MergeOf(bool bf16, Spread spread) {
  if (spread == Spread::kPairs) {
    return bf16 ? sm90::MergeKernel<true, true> : sm90::MergeKernel<false, true>;
  }
  return bf16 ? sm90::MergeKernel<true, false> : sm90::MergeKernel<false, false>;
}

int64_t Groups(int64_t heads) { return (heads + sm90::kUnitHeads - 1) / sm90::kUnitHeads; }
int64_t Chunks(int64_t columns) { return (columns + sm90::kChunk - 1) / sm90::kChunk; }

// The most units whose chunks are dealt out, one by one or in pairs: from here on, what a merge
// would move costs more than halves on part of the device.
constexpr int64_t kMostDealtUnits = 24;
int64_t DealtUnits(DType dtype) { return dtype == DType::kBf16 ? 16 : kMostDealtUnits; }
constexpr int64_t kMultiprocessors = 132;

// Partial results of a unit.
int64_t Partials(const SparseMlaPlan& plan, int64_t chunks) {
  return plan.splits == chunks ? chunks : (chunks + 1) / 2;
}
size_t FactsBytes(int64_t partials) {
  return static_cast<size_t>(partials) * sm90::kUnitHeads * sizeof(float2);
}
size_t ValuesBytes(int64_t partials, bool bf16) {
  return static_cast<size_t>(partials) * sm90::kUnitHeads * sm90::kLatent * (bf16 ? 4 : 2);
}

// `overlaps`: with the kernel before; `cluster`: CTAs of one.
void Launch(Kernel kernel, dim3 grid, int threads, int shared_bytes, bool overlaps, int cluster,
            const Arguments& args, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (overlaps) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, args), "SparseMla: launch (sm90)");
}

}  // namespace

std::span<const SparseMlaPlan> SparseMlaPlans() {
  static constexpr SparseMlaPlan kPlans[] = {{1, 1},  {1, 2},  {1, 4},  {2, 1}, {2, 2}, {2, 4},
                                             {32, 4}, {32, 2}, {16, 1}, {8, 1}, {5, 1}, {4, 1}};
  return kPlans;
}

bool SparseMlaPlanFits(const SparseMlaPlan& plan, int64_t columns) {
  const int64_t chunks = Chunks(columns);
  if (plan.splits <= 2) return true;
  return plan.splits <= chunks && chunks <= sm90::kMaxSplitChunks &&
         (plan.splits == chunks || plan.parts == 1);
}

size_t SparseMlaPlanBytes(const SparseMlaPlan& plan, int64_t rows, int64_t heads, int64_t columns,
                          DType dtype) {
  if (plan.splits <= 2) return 0;
  const int64_t partials = rows * Groups(heads) * Partials(plan, Chunks(columns));
  return FactsBytes(partials) + ValuesBytes(partials, dtype == DType::kBf16);
}

SparseMlaPlan ChooseSparseMlaPlan(int64_t rows, int64_t heads, int64_t columns, DType dtype,
                                  int64_t order_rows) {
  const int64_t units = rows * Groups(heads), chunks = Chunks(columns);
  // The order of a row's fold depends on these alone.
  const int64_t order_units = std::max(rows, order_rows) * Groups(heads);
  if (order_units <= DealtUnits(dtype) && chunks > 1 && chunks <= sm90::kMaxSplitChunks) {
    // A single unit's latents go to two CTAs. More would leave no multiprocessor on which the merge
    // can wait.
    const int parts = units == 1 ? 2 : 1;
    const int64_t room = kMultiprocessors / (units * parts);
    if (chunks <= room) return {static_cast<int>(chunks), parts};
    const int64_t pairs = (chunks + 1) / 2, each = (pairs + room - 1) / room;
    return {static_cast<int>((pairs + each - 1) / each), 1};
  }
  const int splits = order_units <= kMultiprocessors / 2 && chunks > 1 ? 2 : 1;
  for (int parts : {4, 2}) {
    if (units * splits * parts <= kMultiprocessors) return {splits, parts};
  }
  return {splits, 1};
}

void RunSparseMlaSm90(const SparseMla& op, const SparseMlaPlan& plan, cudaStream_t stream) {
  const int64_t rows = op.query.dim(0), heads = op.query.dim(1), columns = op.ids.dim(1);
  const int64_t units = rows * Groups(heads);
  const bool bf16 = op.pages.layout.dtype == DType::kBf16;
  const Spread spread = SpreadOf(plan, Chunks(columns));
  Arguments args{};
  args.query = op.query.data;
  args.query_row = op.query.stride[0], args.query_head = op.query.stride[1];
  args.query_bf16 = op.query.dtype == DType::kBf16;
  args.cache = reinterpret_cast<const uint8_t*>(op.pages.base);
  args.page_stride = op.pages.page_stride;
  args.block_table = op.pages.block_table.data, args.table_stride = op.pages.block_table.stride[0];
  args.cells = static_cast<int>(
      std::min<int64_t>(op.pages.block_table.dim(1) * kPageCells, std::numeric_limits<int>::max()));
  args.sequence = op.rows.sequence.data;
  args.ids = op.ids.data, args.ids_stride = op.ids.stride[0];
  args.columns = static_cast<int>(columns), args.chunks = static_cast<int>(Chunks(columns));
  args.half = (args.chunks + 1) / 2;
  args.lengths = op.lengths.data;
  args.out = op.out.data, args.out_row = op.out.stride[0], args.out_head = op.out.stride[1];
  args.lse = op.lse.data, args.lse_row = op.lse.stride[0];
  args.heads = static_cast<int>(heads), args.groups = static_cast<int>(Groups(heads));
  args.row_bytes = static_cast<int>(op.pages.layout.RowBytes());
  args.has_rope = op.pages.layout.rope > 0;
  args.scale_log2 = op.scale * 1.4426950408889634f;
  args.splits = plan.splits;
  const bool leaves = plan.splits > 2;
  if (leaves) {
    args.partials = static_cast<int>(Partials(plan, args.chunks));
    args.facts = reinterpret_cast<float2*>(op.workspace.data);
    args.values = reinterpret_cast<uint4*>(op.workspace.data + FactsBytes(units * args.partials));
  }

  const Kernel kernel =
      op.pages.layout.dtype == DType::kFp8E4M3 ? KernelOf<Format::kFp8>(spread, plan.parts)
      : op.pages.layout.dtype == DType::kInt8  ? KernelOf<Format::kInt8>(spread, plan.parts)
                                               : KernelOf<Format::kBf16>(spread, plan.parts);
  const int shared = bf16 ? sm90::kSharedBytes<true> : sm90::kSharedBytes<false>;
  AllowSharedBytes(kernel, shared, "SparseMla: shared memory size");
  Launch(kernel, dim3(static_cast<unsigned>(units * plan.parts * plan.splits)), sm90::kThreads,
         shared, false, plan.splits == 2 ? 2 : 1, args, stream);
  if (!leaves) return;
  const Kernel merge = MergeOf(bf16, spread);
  const int merge_shared = sm90::MergeSharedBytes(args.partials);
  AllowSharedBytes(merge, merge_shared, "SparseMla: shared memory size");
  // The division of the multiprocessors' memory stays as it is.
  CheckCuda(cudaFuncSetAttribute(merge, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            "SparseMla: shared memory carve-out");
  const int pieces = bf16 ? sm90::Partial<true>::kPieces : sm90::Partial<false>::kPieces;
  Launch(merge, dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(units)),
         sm90::kMergeThreads, merge_shared, true, 1, args, stream);
}

bool SparseMlaSm90Serves(const LatentLayout& layout, int64_t heads) {
  return layout.latent == sm90::kLatent && (layout.rope == 0 || layout.rope == sm90::kRope) &&
         heads % 8 == 0 && heads <= 128;
}

namespace {

// What the plans of `rows` rows and fewer need at most: a larger batch may need less.
size_t MostBytes(int64_t rows, int64_t heads, int64_t columns, DType dtype) {
  size_t bytes = 0;
  const int64_t most = std::min(rows, kMostDealtUnits / Groups(heads));
  for (int64_t r = 1; r <= most; ++r) {
    bytes = std::max(bytes, SparseMlaPlanBytes(ChooseSparseMlaPlan(r, heads, columns, dtype), r,
                                               heads, columns, dtype));
  }
  return bytes;
}

bool StartsAt16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool SupportsSm90(const SparseMla& op, int sm) {
  const LatentLayout& layout = op.pages.layout;
  const bool format = layout.dtype == DType::kFp8E4M3 || layout.dtype == DType::kInt8 ||
                      layout.dtype == DType::kBf16;
  const int64_t align = op.query.dtype == DType::kBf16 ? 8 : 4;  // elements in 16 bytes
  return sm == 90 && format && SparseMlaSm90Serves(layout, op.query.dim(1)) &&
         (op.query.dtype == DType::kBf16 || op.query.dtype == DType::kF32) &&
         op.query.stride[0] % align == 0 && op.query.stride[1] % align == 0 &&
         op.out.stride[0] % 4 == 0 && op.out.stride[1] % 4 == 0 && op.pages.page_stride % 16 == 0 &&
         StartsAt16(op.query.data) && StartsAt16(op.pages.base) && StartsAt16(op.out.data);
}

}  // namespace

const SparseMlaVariant kSparseMlaSm90 = {
    "sm90",
    "sm_90, latent 512 with rope 64 or 0, fp8 / int8 / bf16 rows, 8 to 128 heads (multiples of 8), "
    "fp32 / bf16 query; query, output and rows in 16-byte steps",
    SupportsSm90,
    [](const SparseMla& op, cudaStream_t stream) {
      RunSparseMlaSm90(op,
                       ChooseSparseMlaPlan(op.query.dim(0), op.query.dim(1), op.ids.dim(1),
                                           op.pages.layout.dtype, op.order_rows),
                       stream);
    },
    [](int64_t rows, int64_t heads, int64_t columns, DType dtype, int64_t) {
      return dtype != DType::kF32 ? MostBytes(rows, heads, columns, dtype)
                                  : std::max(MostBytes(rows, heads, columns, DType::kFp8E4M3),
                                             MostBytes(rows, heads, columns, DType::kBf16));
    }};

}  // namespace strata::cuda
