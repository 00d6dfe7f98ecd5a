// The input of one forward step: rows of any mix of sequences, windows and prefill chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged.h"

namespace strata {

// Consecutive rows of a step that are scored together. Blocks bound the score scratch: a prefill
// chunk over a long context is cut into several, a decode step is one.
struct RowBlock {
  int64_t begin = 0;
  int64_t end = 0;
  RowMap rows;  // sequence and first_row of these rows alone, counted from `begin`
  int64_t candidates =
      0;  // largest candidate count of any row that is scored: the score matrix's width; 0: none is
};

// All views lie on the stream's device. `rows` and the counts in `blocks` are the only host values.
struct StepInput {
  int64_t rows = 0;
  View<const int32_t, 1> tokens;      // [rows]
  View<const int32_t, 1> positions;   // [rows] cell of the row in its sequence
  View<const int32_t, 1> lengths;     // [rows] cells the row sees: position + 1, 0 for an idle row
  View<const int32_t, 1> candidates;  // [rows] index keys the row sees: whole pools of its cells
  View<const int32_t, 1> scan_candidates;  // [rows] the same, 0 where everything is selected and
                                           // nothing need be scored
  RowMap row_map;
  View<const int32_t, 2> block_table;  // [sequences, max_pages]
  View<const int32_t, 1> logit_rows;   // [logit rows] rows whose logits are wanted
  std::vector<RowBlock> blocks;
};

}  // namespace strata
