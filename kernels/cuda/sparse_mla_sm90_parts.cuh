// Building blocks of the sm_90a sparse attention kernel: barriers, asynchronous copies, wgmma,
// number formats.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace strata::cuda::sm90 {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---------------------------------------------------------------- barriers
__device__ __forceinline__ void BarrierInit(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint64_t* barrier) {
  asm volatile(
      "{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}" ::"r"(SharedAddress(barrier))
      : "memory");
}
// Arrives and lets the phase last until `bytes` have been copied.
__device__ __forceinline__ void BarrierExpect(uint64_t* barrier, int bytes) {
  asm volatile("{.reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;}" ::"r"(
                   SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void BarrierWait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void NamedSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void FenceAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The next kernel of the stream may be set up; its DependencyWait returns when this one has ended.
__device__ __forceinline__ void AllowDependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void DependencyWait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// All threads of the cluster that have not ended; shared memory written before it is seen behind
// it.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// True in one lane of a converged warp; the compiler then knows that it is one.
__device__ __forceinline__ bool ElectLane() {
  uint32_t elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
}

// ---------------------------------------------------------------- memory
__device__ __forceinline__ void StoreShared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
// To the same place in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t AddressIn(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void StoreCluster(uint32_t address, int rank, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(AddressIn(address, rank)),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void StoreCluster(uint32_t address, int rank, float2 v) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(AddressIn(address, rank)), "f"(v.x),
               "f"(v.y)
               : "memory");
}
__device__ __forceinline__ uint4 LoadShared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
// Copies 16 bytes, or writes 16 zero bytes when `bytes` is 0.
__device__ __forceinline__ void CopyAsync16(uint32_t target, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CopyCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Copies `bytes` (a multiple of 16), telling `barrier`, which expects them.
__device__ __forceinline__ void CopyBulk(uint32_t target, const void* source, int bytes,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}
__device__ __forceinline__ void PrefetchL2(const uint8_t* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// ---------------------------------------------------------------- numbers
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ uint32_t PackF16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ uint32_t Bits(__half2 h) { return *reinterpret_cast<uint32_t*>(&h); }
__device__ __forceinline__ __half2 Halves(uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}

// Four fp8 codes times `ratio`, as f16.
__device__ __forceinline__ uint2 Fp8ToF16(uint32_t codes, __half2 ratio) {
  uint32_t low, high;
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
  return make_uint2(Bits(__hmul2(Halves(low), ratio)), Bits(__hmul2(Halves(high), ratio)));
}
// Four int8 codes as f16, exact: 1024 + (code + 128) by bytes, then the offset off.
__device__ __forceinline__ uint2 Int8ToF16(uint32_t codes) {
  const uint32_t shifted = codes ^ 0x80808080u;
  const __half2 offset = __float2half2_rn(1152.0f);
  return make_uint2(Bits(__hsub2(Halves(__byte_perm(shifted, 0x64646464u, 0x4140)), offset)),
                    Bits(__hsub2(Halves(__byte_perm(shifted, 0x64646464u, 0x4342)), offset)));
}

// ---------------------------------------------------------------- wgmma
// Tiles are 64 rows of 64 16-bit values with the 128-byte swizzle; groups of 8 rows lie 1024 bytes
// apart.
__device__ __forceinline__ uint64_t TileDescriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) |
         (1ull << 62);
}
__device__ __forceinline__ void MmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void MmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void MmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// d += a b^T, both K-major in shared memory (m64n64k16).
template <bool kBf16>
__device__ __forceinline__ void MmaScores(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
#define STRATA_MMA_SCORES(type)                                                                    \
  asm volatile(                                                                                    \
      "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"                                                    \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                  \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"    \
      ",%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;}"                               \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                         \
      : "l"(a), "l"(b), "r"(accumulate))
  if constexpr (kBf16) {
    STRATA_MMA_SCORES("bf16");
  } else {
    STRATA_MMA_SCORES("f16");
  }
#undef STRATA_MMA_SCORES
}

// d += a b, a in registers, b stored [k][n] in shared memory: bf16 with fp32 results (m64n32k16).
__device__ __forceinline__ void MmaValues(float (&d)[16], const uint32_t* a, uint64_t b,
                                          int accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16"
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, "
      "1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
// The same on f16 with f16 results, two to a register (m64n64k16).
__device__ __forceinline__ void MmaValues(uint32_t (&d)[16], const uint32_t* a, uint64_t b,
                                          int accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f16.f16.f16"
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, "
      "1;}"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
        "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
        "+r"(d[14]), "+r"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

}  // namespace strata::cuda::sm90
