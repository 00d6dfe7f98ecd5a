#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa/attend.h"
#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/isa/scan.h"
#include "kernels/cpu/isa/select.h"

namespace strata::cpu {

namespace {

template <class Loops>
const Loops& Choose(const Loops& avx512, const Loops& avx2, const Loops& baseline) {
  return ChosenIsa() == Isa::kAvx512 ? avx512 : ChosenIsa() == Isa::kAvx2 ? avx2 : baseline;
}

}  // namespace

const DenseLoops& ChosenDenseLoops() {
  static const DenseLoops& loops =
      Choose(avx512::kDenseLoops, avx2::kDenseLoops, baseline::kDenseLoops);
  return loops;
}

const ScanLoops& ChosenScanLoops() {
  static const ScanLoops& loops =
      Choose(avx512::kScanLoops, avx2::kScanLoops, baseline::kScanLoops);
  return loops;
}

const SelectLoops& ChosenSelectLoops() {
  static const SelectLoops& loops =
      Choose(avx512::kSelectLoops, avx2::kSelectLoops, baseline::kSelectLoops);
  return loops;
}

const AttendLoops& ChosenAttendLoops() {
  static const AttendLoops& loops =
      Choose(avx512::kAttendLoops, avx2::kAttendLoops, baseline::kAttendLoops);
  return loops;
}

}  // namespace strata::cpu
