// Which vector width the CPU kernels use. Each hot file in kernels/cpu/isa/ is compiled once per
// level from the same source; all levels compute the same bits, so the choice is only about speed.
#pragma once

namespace strata::cpu {

enum class Isa { kBaseline, kAvx2, kAvx512 };

// The widest level this machine and this build support.
Isa ChosenIsa();
const char* IsaName(Isa isa);  // "sse2", "avx2", "avx512"
bool IsaSupported(Isa isa);

}  // namespace strata::cpu
