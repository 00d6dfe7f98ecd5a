// Sparse attention cases on the host, with the CPU op's answer: what the CUDA variants are compared
// against.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "kernels/sparse_mla.h"

namespace strata {

constexpr int64_t kSparseMlaKinds = 14;  // of id rows

struct SparseMlaShape {
  DType dtype = DType::kFp8E4M3;
  int64_t rows = kSparseMlaKinds;
  int64_t heads = 64;
  int64_t columns = 2048;
  int64_t latent = 512;
  int64_t rope = 64;
  bool bf16_query = true;
};

// One launch's inputs and the expected outputs. Pages are shuffled; every byte that no valid id
// names is 0xff, which is NaN in every storage type, so a read of a row that was not selected
// shows.
struct SparseMlaCase {
  SparseMlaShape shape;
  LatentLayout layout;
  float scale = 0.0f;
  std::vector<float> query;          // [rows, heads, latent + rope], bf16 values when bf16_query
  std::vector<uint16_t> query_bf16;  // the same
  std::vector<std::byte> cache;
  std::vector<int32_t> block_table, sequence, first_row, ids, lengths;
  int64_t sequences = 0, max_pages = 0;
  std::vector<float> out, lse;
};

SparseMlaCase MakeSparseMlaCase(const SparseMlaShape& shape, uint64_t seed, Stream cpu);

struct SparseMlaDifference {
  double out = 0.0;         // largest norm of difference over norm of any row
  double lse = 0.0;         // largest absolute difference
  bool exact_empty = true;  // rows without valid ids gave zeros and -infinity
  bool nan = true;          // NaN stands where it is expected
};
SparseMlaDifference Compare(const SparseMlaCase& expected, const std::vector<float>& out,
                            const std::vector<float>& lse);

uint64_t HashBytes(const void* data, size_t bytes);

}  // namespace strata
