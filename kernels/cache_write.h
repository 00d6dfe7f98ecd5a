// Appending to the caches: quantise and store the rows of a step, all sequences in one call.
#pragma once

#include "kernels/device.h"
#include "kernels/paged.h"

namespace strata {

constexpr int64_t kMaxPooledDim = 1024;  // widest pooled key

// Stores row r as cell positions(r) of sequence rows.sequence(r).
// bf16: round to nearest even. int8: scale = max |latent| / 127. fp8: scale = max |128 values| /
// 448 (fp32, no power of two).
struct WriteLatent {
  View<const float, 2> values;  // [rows, latent + rope]
  RowMap rows;
  View<const int32_t, 1> positions;  // [rows]; a negative position writes nothing
  LatentPages pages;
};
void Run(const WriteLatent& op, Stream stream);

// Stores key r as cell positions(r) (kpool = 1). fp8: scale = max |key| / 448.
struct WriteIndexKeys {
  View<const float, 2> keys;  // [rows, dim]
  RowMap rows;
  View<const int32_t, 1> positions;  // [rows]; a negative position writes nothing
  KeyPages pages;
};
void Run(const WriteIndexKeys& op, Stream stream);

// Pooled keys (kpool > 1). Every cell's raw key and pooling logits go to a ring per sequence; when
// a step's rows fill a pool, its key is formed from the ring:
//   key(d) = sum_c softmax_c(logits(c, d) + ape(c, d)) * raw(c, d), c = the pool's cells, ape(c, :)
//   their place in it
// A pool is formed anew whenever its last cell is written, so rows that replace rolled-back drafts
// repair it.
struct WritePooledKeys {
  View<const float, 2> keys;  // [rows, dim] raw keys
  View<const float, 2> gate;  // [rows, dim] pooling logits of the row
  View<const float, 2> ape;   // [kpool, dim] learned place embedding
  RowMap rows;
  View<const int32_t, 1> positions;  // [rows]; a negative position writes nothing
  KeyPages pages;                    // layout.kpool > 1
  View<float, 3>
      ring;  // [sequences, ring cells, 2 * dim]; cell p is at p % ring cells: raw, then logits
};
void Run(const WritePooledKeys& op, Stream stream);

namespace cpu {
void Run(const WriteLatent& op, Stream stream);
void Run(const WriteIndexKeys& op, Stream stream);
void Run(const WritePooledKeys& op, Stream stream);
}  // namespace cpu
namespace cuda {
void Run(const WriteLatent& op, Stream stream);
void Run(const WriteIndexKeys& op, Stream stream);
void Run(const WritePooledKeys& op, Stream stream);
}  // namespace cuda
}  // namespace strata
