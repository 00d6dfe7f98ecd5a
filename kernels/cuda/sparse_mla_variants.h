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
  size_t (*WorkspaceBytes)(int64_t rows, int64_t heads, int64_t columns, int64_t latent);
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

// How the sm_90a kernel spreads a unit (one row, 64 heads) over the device. Every plan gives the
// same bits.
struct SparseMlaPlan {
  int ctas;    // of a cluster that take the id chunks apart; 1: one CTA walks them
  int chunks;  // of 128 ids for each CTA of a cluster; 1 when ctas is 1
  int parts;   // the output latents are cut into
};
std::span<const SparseMlaPlan> SparseMlaPlans();
SparseMlaPlan ChooseSparseMlaPlan(int64_t rows, int64_t heads, int64_t columns);
bool SparseMlaPlanFits(const SparseMlaPlan& plan, int64_t columns);
void RunSparseMlaSm90(const SparseMla& op, const SparseMlaPlan& plan, cudaStream_t stream);

}  // namespace strata::cuda
