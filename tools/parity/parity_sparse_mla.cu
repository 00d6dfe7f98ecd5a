// strata-parity: every sparse attention variant and every plan against the CPU op.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "kernels/cuda/sparse_mla_variants.h"
#include "tools/parity/device_array.h"
#include "tools/parity/parity.h"
#include "tools/parity/sparse_mla_cases.h"

namespace strata {

namespace {

// The case on the device.
struct DeviceCase {
  explicit DeviceCase(const SparseMlaCase& host)
      : host(host),
        query(host.query),
        query_bf16(host.query_bf16),
        cache(host.cache),
        block_table(host.block_table),
        sequence(host.sequence),
        first_row(host.first_row),
        ids(host.ids),
        lengths(host.lengths),
        out(host.out.size()),
        lse(host.lse.size()) {}

  // The op over rows [first, first + rows).
  SparseMla Op(int64_t first, int64_t rows) const {
    const SparseMlaShape& shape = host.shape;
    const int64_t width = shape.latent + shape.rope, skip = first * shape.heads;
    SparseMla op;
    op.query =
        shape.bf16_query
            ? AnyView<3>(query_bf16.data() + skip * width, DType::kBf16, {rows, shape.heads, width})
            : AnyView<3>(query.data() + skip * width, DType::kF32, {rows, shape.heads, width});
    op.pages = {cache.data(), host.layout, host.layout.PageBytes(),
                MakeView<const int32_t>(block_table.data(), {host.sequences, host.max_pages})};
    op.rows = {MakeView<const int32_t>(sequence.data() + first, {rows}),
               MakeView<const int32_t>(first_row.data(), {host.sequences + 1})};
    op.ids = MakeView<const int32_t>(ids.data() + first * shape.columns, {rows, shape.columns});
    op.lengths = MakeView<const int32_t>(lengths.data() + first, {rows});
    op.scale = host.scale;
    op.out = MakeView(out.data() + skip * shape.latent, {rows, shape.heads, shape.latent});
    op.lse = MakeView(lse.data() + skip, {rows, shape.heads});
    return op;
  }

  const SparseMlaCase& host;
  DeviceArray<float> query;
  DeviceArray<uint16_t> query_bf16;
  DeviceArray<std::byte> cache;
  DeviceArray<int32_t> block_table, sequence, first_row, ids, lengths;
  DeviceArray<float> out, lse;
};

// Bounds of the relative error. bf16 weights of the softmax cost about 1.0e-3, a query that is
// rounded to bf16 about 2.2e-3.
double Bound(const SparseMlaShape& shape, const std::string& variant) {
  if (variant == "simple") return 1e-5;
  if (shape.dtype == DType::kBf16 && variant == "sm90") return shape.bf16_query ? 2.2e-3 : 3.2e-3;
  return shape.bf16_query ? 1e-3 : 2e-3;
}

// Of the absolute error of lse: a score's error. Where the query is rounded to bf16 that alone is
// 1.25e-2 in a row of one id.
double LseBound(const SparseMlaShape& shape) {
  return shape.dtype == DType::kBf16 && !shape.bf16_query ? 2e-2 : 5e-3;
}

// `order`: in which a row is folded; the rows one by one have the order `alone_order`. `hashes`: of
// the results of each order so far.
template <class Launch>
int CheckOne(DeviceCase& device, const std::string& name, const std::string& bound_name, int runs,
             int order, int alone_order, uint64_t (&hashes)[3], Launch&& launch) {
  const SparseMlaCase& host = device.host;
  const SparseMlaShape& shape = host.shape;
  bool repeat = true;
  uint64_t first_hash = 0;
  std::vector<float> out, lse;
  for (int run = 0; run < runs; ++run) {
    device.out.Poison(), device.lse.Poison();
    launch(device.Op(0, shape.rows));
    CheckParityCuda(cudaDeviceSynchronize());
    out = device.out.Host(), lse = device.lse.Host();
    const uint64_t h =
        HashBytes(out.data(), out.size() * 4) ^ HashBytes(lse.data(), lse.size() * 4);
    if (run == 0) first_hash = h;
    repeat &= h == first_hash;
  }
  device.out.Poison(), device.lse.Poison();
  for (int64_t row = 0; row < shape.rows; ++row) launch(device.Op(row, 1));
  CheckParityCuda(cudaDeviceSynchronize());
  const std::vector<float> alone_out = device.out.Host(), alone_lse = device.lse.Host();
  const auto agrees = [&](int with, uint64_t hash) {
    const bool first = hashes[with] == 0;
    if (first) hashes[with] = hash;
    return first || hashes[with] == hash;
  };
  const bool same = agrees(order, first_hash);
  const bool alone = agrees(alone_order, HashBytes(alone_out.data(), alone_out.size() * 4) ^
                                             HashBytes(alone_lse.data(), alone_lse.size() * 4));
  const SparseMlaDifference d = Compare(host, out, lse);
  const bool pass = repeat && alone && same && d.exact_empty && d.nan &&
                    d.out <= Bound(shape, bound_name) && d.lse <= LseBound(shape);
  std::printf(
      "%s sparse-mla %-14s %-4s %s query, %3ld heads, %4ld ids, rope %2ld: error %.2e, lse %.1e, "
      "hash %016llx%s%s%s%s%s\n",
      pass ? "PASS" : "FAIL", name.c_str(), DTypeName(shape.dtype),
      shape.bf16_query ? "bf16" : "fp32", static_cast<long>(shape.heads),
      static_cast<long>(shape.columns), static_cast<long>(shape.rope), d.out, d.lse,
      static_cast<unsigned long long>(first_hash), repeat ? "" : " NOT REPEATABLE",
      alone ? "" : " ALONE DIFFERS", same ? "" : " PLANS DIFFER",
      d.exact_empty ? "" : " EMPTY ROWS WRONG", d.nan ? "" : " NAN LOST");
  std::fflush(stdout);
  return pass ? 0 : 1;
}

}  // namespace

int ParitySparseMla(bool small) {
  cudaDeviceProp properties;
  CheckParityCuda(cudaGetDeviceProperties(&properties, 0));
  const int sm = properties.major * 10 + properties.minor;
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(0);
  std::vector<SparseMlaShape> shapes;
  for (DType dtype : {DType::kFp8E4M3, DType::kInt8, DType::kBf16}) {
    if (small) {
      shapes.push_back({.dtype = dtype, .heads = 8, .columns = 300});
      continue;
    }
    shapes.push_back({.dtype = dtype, .heads = 64, .columns = 2048});
    shapes.push_back({.dtype = dtype, .heads = 128, .columns = 2051, .bf16_query = false});
    shapes.push_back({.dtype = dtype, .heads = 24, .columns = 1000, .rope = 0});
  }
  int failures = 0;
  const int runs = small ? 1 : 20;
  for (const SparseMlaShape& shape : shapes) {
    const SparseMlaCase host = MakeSparseMlaCase(shape, 7 + shape.columns, cpu->DefaultStream());
    DeviceCase device(host);
    for (const cuda::SparseMlaVariant* variant : cuda::kSparseMlaVariants) {
      if (!variant->Supports(device.Op(0, shape.rows), sm)) continue;
      // One CTA, two halves, and partial results that another kernel folds: an order each.
      const auto order_of = [](const cuda::SparseMlaPlan& plan) {
        return std::min(plan.splits, 3) - 1;
      };
      const auto chosen_order = [&](int64_t rows) {
        return variant == &cuda::kSparseMlaSm90
                   ? order_of(
                         cuda::ChooseSparseMlaPlan(rows, shape.heads, shape.columns, shape.dtype))
                   : 0;
      };
      uint64_t hashes[3] = {};
      DeviceArray<std::byte> workspace(variant->WorkspaceBytes(
          shape.rows, shape.heads, shape.columns, shape.dtype, shape.latent));
      workspace.Poison();
      failures += CheckOne(device, variant->name, variant->name, runs, chosen_order(shape.rows),
                           chosen_order(1), hashes, [&](SparseMla op) {
                             op.workspace = MakeView(workspace.data(),
                                                     {static_cast<int64_t>(workspace.size())});
                             variant->Run(op, nullptr);
                           });
      if (variant != &cuda::kSparseMlaSm90) continue;
      for (const cuda::SparseMlaPlan& plan : cuda::SparseMlaPlans()) {
        if (!cuda::SparseMlaPlanFits(plan, shape.columns)) continue;
        const std::string name =
            "sm90 " + std::to_string(plan.splits) + "/" + std::to_string(plan.parts);
        DeviceArray<std::byte> partials(
            cuda::SparseMlaPlanBytes(plan, shape.rows, shape.heads, shape.columns, shape.dtype));
        partials.Poison();
        failures += CheckOne(device, name, variant->name, small ? 1 : 3, order_of(plan),
                             order_of(plan), hashes, [&](SparseMla op) {
                               op.workspace = MakeView(partials.data(),
                                                       {static_cast<int64_t>(partials.size())});
                               cuda::RunSparseMlaSm90(op, plan, nullptr);
                             });
      }
    }
  }
  return failures;
}

}  // namespace strata
