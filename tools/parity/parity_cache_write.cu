// strata-parity: the cache writes against the CPU ops, byte for byte.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/cache_write.h"
#include "tools/parity/device_array.h"
#include "tools/parity/parity.h"
#include "tools/parity/sparse_mla_cases.h"

namespace strata {

namespace {

constexpr int64_t kSequences = 3, kPages = 4;

std::vector<int32_t> ShuffledTable(std::mt19937& random) {
  std::vector<int32_t> table(kSequences * kPages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random);
  return table;
}

std::vector<float> Values(int64_t rows, int64_t width, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(rows * width);
  for (float& value : values) value = normal(random);
  for (int64_t r = 0; r < rows; ++r) {  // rows of zeros, tiny, huge, halfway cases
    for (int64_t i = 0; i < width; ++i) {
      float& value = values[r * width + i];
      if (r % 7 == 1) value = 0.0f;
      if (r % 7 == 2) value *= 1e-30f;
      if (r % 7 == 3) value *= 1e30f;
      if (r % 7 == 4) value = std::round(value * 8.0f) * 0.5f;
      if (r % 7 == 5 && i % 3) value *= 1e-42f;
    }
  }
  return values;
}

int Report(const char* op, const std::string& what, const std::vector<std::byte>& expected,
           const std::vector<std::byte>& found) {
  int64_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) different += expected[i] != found[i];
  std::printf("%s cache-write %-15s %-28s %7zu bytes, %ld differ, hash %016llx\n",
              different ? "FAIL" : "PASS", op, what.c_str(), expected.size(),
              static_cast<long>(different),
              static_cast<unsigned long long>(HashBytes(found.data(), found.size())));
  return different ? 1 : 0;
}

// Rows of three sequences, a negative position among them.
struct Rows {
  std::vector<int32_t> sequence, first_row{0}, positions;
  void Add(int32_t seq, int32_t first, int32_t count, bool gap) {
    for (int32_t i = 0; i < count; ++i) {
      sequence.push_back(seq);
      positions.push_back(gap && i == count - 1 ? -1 : first + i);
    }
    first_row.push_back(static_cast<int32_t>(sequence.size()));
  }
  int64_t size() const { return static_cast<int64_t>(sequence.size()); }
};

RowMap MapOf(const int32_t* sequence, const int32_t* first_row, const Rows& rows) {
  return {MakeView(sequence, {rows.size()}),
          MakeView(first_row, {static_cast<int64_t>(rows.first_row.size())})};
}

int CheckLatent(DType dtype, int64_t latent, int64_t rope, std::mt19937& random, Stream cpu) {
  Rows rows;
  rows.Add(0, 60, 9, false), rows.Add(1, 0, 5, true), rows.Add(2, 127, 3, false);
  const LatentLayout layout{dtype, latent, rope};
  const int64_t width = latent + rope;
  const std::vector<int32_t> table = ShuffledTable(random);
  const std::vector<float> values = Values(rows.size(), width, random);
  std::vector<std::byte> cache(table.size() * layout.PageBytes(), std::byte{0xa5});
  DeviceArray<std::byte> device_cache(cache);
  DeviceArray<int32_t> device_table(table), sequence(rows.sequence), first_row(rows.first_row),
      positions(rows.positions);
  DeviceArray<float> device_values(values);
  cpu::Run(WriteLatent{.values = MakeView(values.data(), {rows.size(), width}),
                       .rows = MapOf(rows.sequence.data(), rows.first_row.data(), rows),
                       .positions = MakeView<const int32_t>(rows.positions.data(), {rows.size()}),
                       .pages = {cache.data(), layout, layout.PageBytes(),
                                 MakeView(table.data(), {kSequences, kPages})}},
           cpu);
  cuda::Run(
      WriteLatent{.values = MakeView<const float>(device_values.data(), {rows.size(), width}),
                  .rows = MapOf(sequence.data(), first_row.data(), rows),
                  .positions = MakeView<const int32_t>(positions.data(), {rows.size()}),
                  .pages = {device_cache.data(), layout, layout.PageBytes(),
                            MakeView<const int32_t>(device_table.data(), {kSequences, kPages})}},
      Stream{});
  CheckParityCuda(cudaDeviceSynchronize());
  return Report(
      "latent",
      std::string(DTypeName(dtype)) + " " + std::to_string(latent) + " + " + std::to_string(rope),
      cache, device_cache.Host());
}

int CheckKeys(DType dtype, int64_t dim, std::mt19937& random, Stream cpu) {
  Rows rows;
  rows.Add(0, 60, 9, false), rows.Add(1, 0, 5, true), rows.Add(2, 127, 3, false);
  const KeyLayout layout{dtype, dim, 1};
  const std::vector<int32_t> table = ShuffledTable(random);
  const std::vector<float> keys = Values(rows.size(), dim, random);
  std::vector<std::byte> cache(table.size() * layout.PageBytes(), std::byte{0xa5});
  DeviceArray<std::byte> device_cache(cache);
  DeviceArray<int32_t> device_table(table), sequence(rows.sequence), first_row(rows.first_row),
      positions(rows.positions);
  DeviceArray<float> device_keys(keys);
  cpu::Run(
      WriteIndexKeys{.keys = MakeView(keys.data(), {rows.size(), dim}),
                     .rows = MapOf(rows.sequence.data(), rows.first_row.data(), rows),
                     .positions = MakeView<const int32_t>(rows.positions.data(), {rows.size()}),
                     .pages = {cache.data(), layout, layout.PageBytes(),
                               MakeView(table.data(), {kSequences, kPages})}},
      cpu);
  cuda::Run(
      WriteIndexKeys{.keys = MakeView<const float>(device_keys.data(), {rows.size(), dim}),
                     .rows = MapOf(sequence.data(), first_row.data(), rows),
                     .positions = MakeView<const int32_t>(positions.data(), {rows.size()}),
                     .pages = {device_cache.data(), layout, layout.PageBytes(),
                               MakeView<const int32_t>(device_table.data(), {kSequences, kPages})}},
      Stream{});
  CheckParityCuda(cudaDeviceSynchronize());
  return Report("index keys", std::string(DTypeName(dtype)) + " " + std::to_string(dim), cache,
                device_cache.Host());
}

// Three steps over the same cache and ring: a prefill longer than the ring, windows that leave
// pools unfinished, and a window that replaces rolled-back rows.
int CheckPooled(DType dtype, int64_t dim, int64_t kpool, int64_t ring_cells, std::mt19937& random,
                Stream cpu) {
  const KeyLayout layout{dtype, dim, kpool};
  const std::vector<int32_t> table = ShuffledTable(random);
  std::vector<std::byte> cache(table.size() * layout.PageBytes(), std::byte{0xa5});
  std::vector<float> ring(kSequences * ring_cells * 2 * dim, 0.0f);
  const std::vector<float> ape = Values(kpool, dim, random);
  DeviceArray<std::byte> device_cache(cache);
  DeviceArray<float> device_ring(ring), device_ape(ape);
  DeviceArray<int32_t> device_table(table);
  int failures = 0;
  for (int step = 0; step < 3; ++step) {
    Rows rows;
    if (step == 0) rows.Add(0, 0, 70, false), rows.Add(1, 0, 3, false), rows.Add(2, 0, 6, true);
    if (step == 1) rows.Add(0, 70, 8, false), rows.Add(1, 3, 1, false), rows.Add(2, 5, 4, false);
    if (step == 2) rows.Add(0, 73, 8, false), rows.Add(1, 4, 8, true), rows.Add(2, 7, 1, false);
    std::normal_distribution<float> normal;
    std::vector<float> keys(rows.size() * dim), gate(rows.size() * dim);
    for (float& x : keys) x = normal(random);
    for (float& x : gate) x = 3.0f * normal(random);
    DeviceArray<int32_t> sequence(rows.sequence), first_row(rows.first_row),
        positions(rows.positions);
    DeviceArray<float> device_keys(keys), device_gate(gate);
    cpu::Run(
        WritePooledKeys{.keys = MakeView<const float>(keys.data(), {rows.size(), dim}),
                        .gate = MakeView<const float>(gate.data(), {rows.size(), dim}),
                        .ape = MakeView(ape.data(), {kpool, dim}),
                        .rows = MapOf(rows.sequence.data(), rows.first_row.data(), rows),
                        .positions = MakeView<const int32_t>(rows.positions.data(), {rows.size()}),
                        .pages = {cache.data(), layout, layout.PageBytes(),
                                  MakeView(table.data(), {kSequences, kPages})},
                        .ring = MakeView(ring.data(), {kSequences, ring_cells, 2 * dim})},
        cpu);
    cuda::Run(
        WritePooledKeys{
            .keys = MakeView<const float>(device_keys.data(), {rows.size(), dim}),
            .gate = MakeView<const float>(device_gate.data(), {rows.size(), dim}),
            .ape = MakeView<const float>(device_ape.data(), {kpool, dim}),
            .rows = MapOf(sequence.data(), first_row.data(), rows),
            .positions = MakeView<const int32_t>(positions.data(), {rows.size()}),
            .pages = {device_cache.data(), layout, layout.PageBytes(),
                      MakeView<const int32_t>(device_table.data(), {kSequences, kPages})},
            .ring = MakeView(device_ring.data(), {kSequences, ring_cells, 2 * dim})},
        Stream{});
    CheckParityCuda(cudaDeviceSynchronize());
    const std::string what = std::string(DTypeName(dtype)) + " " + std::to_string(dim) + ", pool " +
                             std::to_string(kpool) + ", step " + std::to_string(step);
    failures += Report("pooled keys", what, cache, device_cache.Host());
    const std::vector<float> found = device_ring.Host();
    std::vector<std::byte> a(ring.size() * 4), b(ring.size() * 4);
    std::memcpy(a.data(), ring.data(), a.size()), std::memcpy(b.data(), found.data(), b.size());
    failures += Report("ring", what, a, b);
  }
  return failures;
}

}  // namespace

int ParityCacheWrite(bool small) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(0);
  const Stream cpu = backend->DefaultStream();
  std::mt19937 random(11);
  int failures = 0;
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E4M3, DType::kInt8}) {
    failures += CheckLatent(dtype, 512, 64, random, cpu);
    if (!small)
      failures += CheckLatent(dtype, 512, 0, random, cpu),
          failures += CheckLatent(dtype, 80, 16, random, cpu);
  }
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E4M3}) {
    failures += CheckKeys(dtype, 128, random, cpu);
    failures += CheckPooled(dtype, 128, 4, 12, random, cpu);
    if (!small)
      failures += CheckKeys(dtype, 32, random, cpu),
          failures += CheckPooled(dtype, 96, 8, 16, random, cpu);
  }
  return failures;
}

}  // namespace strata
