#include "kernels/scan_select.h"

namespace strata {

void Run(const ScanSelect& op, Stream stream) {
  Run(op.scan, stream);
  TopkSelect select = op.select;
  select.scores = op.scan.scores;
  select.lengths = op.scan.lengths;
  select.behind_scan = true;
  Run(select, stream);
}

}  // namespace strata
