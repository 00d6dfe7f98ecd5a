// The parts of strata-parity. Each compares its CUDA ops with the CPU ops, prints counts, hashes
// and PASS or FAIL lines, and returns the number of failures. `small` keeps to sizes that suit
// compute-sanitizer.
#pragma once

namespace strata {

int ParityIndexScan(bool small);
int ParityTopk(bool small);
int ParityScanSelect(bool small);
int ParitySparseMla(bool small);
int ParityCacheWrite(bool small);

}  // namespace strata
