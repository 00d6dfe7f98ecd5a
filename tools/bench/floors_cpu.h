// What a core can do at best: read bytes, and multiply and add in registers, at the vector width
// the kernels use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/thread_pool.h"

namespace strata::bench {

// Reads every 64-byte line of the bytes once with all threads; returns a value that depends on all
// of them.
uint64_t StreamBytes(ThreadPool& pool, const std::byte* data, size_t bytes);

// Multiplies and adds on all threads, `rounds` times 16 independent registers of 16 lanes; returns
// the floating-point operations done.
double MulAddInRegisters(ThreadPool& pool, int64_t rounds);

}  // namespace strata::bench
