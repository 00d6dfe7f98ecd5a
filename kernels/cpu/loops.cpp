#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/isa/indexer.h"

namespace strata::cpu {

const DenseLoops& ChosenDenseLoops() {
  static const DenseLoops& loops = ChosenIsa() == Isa::kAvx512 ? avx512::kDenseLoops
                                   : ChosenIsa() == Isa::kAvx2 ? avx2::kDenseLoops
                                                               : baseline::kDenseLoops;
  return loops;
}

const IndexerLoops& ChosenIndexerLoops() {
  static const IndexerLoops& loops = ChosenIsa() == Isa::kAvx512 ? avx512::kIndexerLoops
                                     : ChosenIsa() == Isa::kAvx2 ? avx2::kIndexerLoops
                                                                 : baseline::kIndexerLoops;
  return loops;
}

}  // namespace strata::cpu
