// Rows of scores of the distributions that selections have been seen to fail on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/dtype.h"

namespace strata {

enum class ScoreShape {
  kNormal,
  kFewLevels,  // 11 values
  kEqual,
  kZeroPlateau,  // most are exactly zero, of both signs
  kOneBin,     // distinct, one or two units in the last place apart: they share every leading digit
  kNotFinite,  // NaN and infinities among numbers
  kAllNaN,
  kAscending,
  kHidden,  // the best stand where an even sample does not look
};
inline constexpr ScoreShape kScoreShapes[] = {
    ScoreShape::kNormal,      ScoreShape::kFewLevels, ScoreShape::kEqual,
    ScoreShape::kZeroPlateau, ScoreShape::kOneBin,    ScoreShape::kNotFinite,
    ScoreShape::kAllNaN,      ScoreShape::kAscending, ScoreShape::kHidden};
inline const char* ScoreShapeName(ScoreShape shape) {
  constexpr const char* kNames[] = {"normal",       "few levels", "equal",
                                    "zero plateau", "one bin",    "not finite",
                                    "all NaN",      "ascending",  "hidden"};
  return kNames[static_cast<int>(shape)];
}

inline std::vector<float> MakeScoreRow(ScoreShape shape, int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed * 977 + static_cast<uint64_t>(shape));
  std::normal_distribution<float> normal;
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> row(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    float& x = row[static_cast<size_t>(i)];
    switch (shape) {
      case ScoreShape::kNormal:
        x = normal(random);
        break;
      case ScoreShape::kFewLevels:
        x = static_cast<float>(random() % 11) - 5.0f;
        break;
      case ScoreShape::kEqual:
        x = 2.5f;
        break;
      case ScoreShape::kZeroPlateau:
        x = random() % 100 == 0 ? normal(random) : random() % 3 == 0 ? -0.0f : 0.0f;
        break;
      case ScoreShape::kOneBin:
        x = BitsToFloat(0x3f800000u + static_cast<uint32_t>(i) * (seed % 2 + 1));
        break;
      case ScoreShape::kNotFinite: {
        const uint64_t kind = random() % 16;
        x = kind == 0                 ? nan
            : kind == 1               ? -nan
            : kind == 2               ? -infinity
            : kind == 3 && i % 7 == 0 ? infinity
                                      : normal(random);
        break;
      }
      case ScoreShape::kAllNaN:
        x = i % 2 == 0 ? nan : -nan;
        break;
      case ScoreShape::kAscending:
        x = static_cast<float>(i) - static_cast<float>(n / 2);
        break;
      case ScoreShape::kHidden:
        x = i % 97 == 1 ? 5.0f + normal(random) : 0.25f;
        break;
    }
  }
  if (shape == ScoreShape::kOneBin) std::shuffle(row.begin(), row.end(), random);
  return row;
}

}  // namespace strata
