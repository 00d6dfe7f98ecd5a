#include "tools/bench/floors_cpu.h"

#include <atomic>
#include <cstring>

#include "kernels/cpu/isa.h"

namespace strata::bench {

namespace {

typedef float F32x16 __attribute__((vector_size(64)));
typedef uint64_t U64x8 __attribute__((vector_size(64)));

constexpr int kRegisters = 16;

__attribute__((always_inline)) inline float MulAdd(int64_t rounds) {
  F32x16 sums[kRegisters];
  for (int i = 0; i < kRegisters; ++i) sums[i] = F32x16{} + static_cast<float>(i);
  const F32x16 factor = F32x16{} + 0.999f, term = F32x16{} + 0.001f;
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kRegisters; ++i) sums[i] = sums[i] * factor + term;
  }
  for (int i = 1; i < kRegisters; ++i) sums[0] += sums[i];
  return sums[0][0];
}

__attribute__((always_inline)) inline uint64_t Stream(const std::byte* data, size_t bytes) {
  U64x8 sums[4] = {};
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
    U64x8 values[4];
    std::memcpy(values, data + i, sizeof(values));
    for (int v = 0; v < 4; ++v) sums[v] ^= values[v];
  }
  sums[0] ^= sums[1] ^ sums[2] ^ sums[3];
  return sums[0][0] ^ sums[0][1] ^ sums[0][2] ^ sums[0][3] ^ sums[0][4] ^ sums[0][5] ^ sums[0][6] ^
         sums[0][7];
}

float MulAddBaseline(int64_t rounds) { return MulAdd(rounds); }
uint64_t StreamBaseline(const std::byte* data, size_t bytes) { return Stream(data, bytes); }
#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v3"))) float MulAddAvx2(int64_t rounds) {
  return MulAdd(rounds);
}
__attribute__((target("arch=x86-64-v3"))) uint64_t StreamAvx2(const std::byte* data, size_t bytes) {
  return Stream(data, bytes);
}
// GCC splits wide vectors unless told; clang has no such attribute and keeps them.
#if defined(__clang__)
#define STRATA_TARGET_V4 "arch=x86-64-v4"
#else
#define STRATA_TARGET_V4 "arch=x86-64-v4,prefer-vector-width=512"
#endif
__attribute__((target(STRATA_TARGET_V4))) float MulAddAvx512(int64_t rounds) {
  return MulAdd(rounds);
}
__attribute__((target(STRATA_TARGET_V4))) uint64_t StreamAvx512(const std::byte* data,
                                                                size_t bytes) {
  return Stream(data, bytes);
}
#undef STRATA_TARGET_V4
#endif

struct Loops {
  float (*mul_add)(int64_t rounds);
  uint64_t (*stream)(const std::byte* data, size_t bytes);
};
Loops ChosenLoops() {
#if defined(__x86_64__)
  if (cpu::ChosenIsa() == cpu::Isa::kAvx512) return {MulAddAvx512, StreamAvx512};
  if (cpu::ChosenIsa() == cpu::Isa::kAvx2) return {MulAddAvx2, StreamAvx2};
#endif
  return {MulAddBaseline, StreamBaseline};
}

std::atomic<uint64_t> sink;  // keeps results alive

}  // namespace

uint64_t StreamBytes(ThreadPool& pool, const std::byte* data, size_t bytes) {
  const Loops loops = ChosenLoops();
  std::atomic<uint64_t> total = 0;
  pool.For(static_cast<int64_t>(bytes), 4096, [&](int64_t begin, int64_t end, int) {
    total ^= loops.stream(data + begin, static_cast<size_t>(end - begin));
  });
  sink ^= total.load();
  return total;
}

double MulAddInRegisters(ThreadPool& pool, int64_t rounds) {
  const Loops loops = ChosenLoops();
  pool.For(pool.threads(), 1,
           [&](int64_t, int64_t, int) { sink ^= static_cast<uint64_t>(loops.mul_add(rounds)); });
  return 2.0 * 16 * kRegisters * static_cast<double>(rounds) * pool.threads();
}

}  // namespace strata::bench
