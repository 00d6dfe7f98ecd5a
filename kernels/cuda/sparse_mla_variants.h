// The CUDA implementations of sparse attention and what each of them states that it serves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/check.h"
#include "kernels/sparse_mla.h"

namespace strata::cuda {

struct SparseMlaVariant {
  const char* name;      // "sm90", "mma", "simple"
  const char* features;  // what it serves, for error messages
  // `sm` is 10 * major + minor of the device.
  bool (*Supports)(const SparseMla& op, int sm);
  void (*Run)(const SparseMla& op, cudaStream_t stream);
  // Enough for `rows` rows and for fewer.
  size_t (*WorkspaceBytes)(int64_t rows, int64_t heads, int64_t columns, DType dtype,
                           int64_t latent);
};

extern const SparseMlaVariant kSparseMlaSm90;
extern const SparseMlaVariant kSparseMlaMma;
extern const SparseMlaVariant kSparseMlaSimple;
// In the order of preference.
inline constexpr const SparseMlaVariant* kSparseMlaVariants[] = {&kSparseMlaSm90, &kSparseMlaMma,
                                                                 &kSparseMlaSimple};

// The first variant that serves the op on device `ordinal`; Fail(kDevice) names the need and what
// each serves.
const SparseMlaVariant& ChooseSparseMla(const SparseMla& op, int ordinal);

// Whether the sm_90a kernel knows such rows (fp32 stands for any storage type) and heads.
bool SparseMlaSm90Serves(const LatentLayout& layout, int64_t heads);

// How the sm_90a kernel spreads a unit (one row, 64 heads) over the device. Chunks are of 64 ids.
// Plans of more than two splits give the same bits, whatever their number.
struct SparseMlaPlan {
  // CTAs of a unit. 1: it walks all chunks; 2: each walks one half, and they join their results; as
  // many as chunks: each takes one; a number between: pairs of chunks are dealt out.
  int splits;
  int parts;  // the output latents are cut into: 1, 2 or 4; 1 where pairs are dealt out
};
std::span<const SparseMlaPlan> SparseMlaPlans();  // what parity and bench try beside the chosen one
// `order_rows`: as SparseMla has it.
SparseMlaPlan ChooseSparseMlaPlan(int64_t rows, int64_t heads, int64_t columns, DType dtype,
                                  int64_t order_rows = 0);
bool SparseMlaPlanFits(const SparseMlaPlan& plan, int64_t columns);
size_t SparseMlaPlanBytes(const SparseMlaPlan& plan, int64_t rows, int64_t heads, int64_t columns,
                          DType dtype);
void RunSparseMlaSm90(const SparseMla& op, const SparseMlaPlan& plan, cudaStream_t stream);

}  // namespace strata::cuda
