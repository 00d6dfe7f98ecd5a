// The one order of scores, shared by every selection: higher score first, then the lower position;
// NaN last.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace strata {

// Order-preserving: a < b as numbers iff OrderKey(a) < OrderKey(b). -0.0 equals +0.0; NaN is 0,
// below -infinity.
STRATA_HD inline uint32_t OrderKey(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0u;
  if (bits == 0x80000000u) bits = 0u;
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// All entries of a row are distinct under this key, so the k largest are unique and ties need no
// second rule.
STRATA_HD inline uint64_t SelectionKey(uint32_t bits, uint32_t position) {
  return uint64_t{OrderKey(bits)} << 32 | (0xffffffffu - position);
}

}  // namespace strata
