// The hot loops of the selection, one table per vector width; all give the same values.
#pragma once

#include <cstdint>

namespace strata::cpu {

// Loops that append write whole runs of sixteen: their outputs need this many places to spare.
constexpr int64_t kAppendSlack = 16;

struct KeyRange {
  uint32_t lowest;
  uint32_t highest;
};

// What a row has above a threshold, and the first places where it equals it; both in ascending
// position.
struct Collected {
  uint32_t* keys;      // OrderKey of the scores above
  int32_t* positions;  // their places
  int64_t count;
  int64_t capacity;  // collecting stops when it is exceeded: count is then capacity + 1
  int32_t* equal_positions;
  int64_t equal_count;  // stops growing at equal_capacity
  int64_t equal_capacity;
};

struct SelectLoops {
  // OrderKey of n scores, and their range. n > 0.
  KeyRange (*order_keys)(const float* scores, int64_t n, uint32_t* keys);
  // Appends to `out` what scores [begin, end) have above and at a threshold.
  void (*collect)(const float* scores, int64_t begin, int64_t end, float threshold, Collected* out);
  // Appends the keys in [range.lowest, range.highest] to out, narrows the range to what they are,
  // returns their number. `out` may be `keys`.
  int64_t (*keep_range)(const uint32_t* keys, int64_t n, KeyRange* range, uint32_t* out);
  // The places of keys above `kth` and of the first `ties` equal to it, ascending; `positions`
  // null: the places are 0, 1, 2 ... Returns their number.
  int64_t (*emit)(const uint32_t* keys, const int32_t* positions, int64_t n, uint32_t kth,
                  int64_t ties, int32_t* out);
};

namespace baseline {
extern const SelectLoops kSelectLoops;
}
namespace avx2 {
extern const SelectLoops kSelectLoops;
}
namespace avx512 {
extern const SelectLoops kSelectLoops;
}

// The table of ChosenIsa().
const SelectLoops& ChosenSelectLoops();

}  // namespace strata::cpu
