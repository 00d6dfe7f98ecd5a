// strata-bench sparse-mla; see docs/sparse_mla.md.
#pragma once

namespace strata::bench {

int RunSparseMla(int argc, const char* const* argv);

}  // namespace strata::bench
