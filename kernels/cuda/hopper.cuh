// Hopper's instructions as functions: mbarriers, bulk copies, warpgroup matrix products, clusters.
// Everything here compiles to nothing on other architectures; kernels that use it are launched on
// sm_90a alone.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define STRATA_SM90A 1
#else
#define STRATA_SM90A 0
#endif

namespace strata::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

#if STRATA_SM90A
__device__ __forceinline__ void BarrierInit(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals));
}
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ __forceinline__ void BarrierExpect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void BarrierWait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], "
      "%1;\n@!done bra WAIT;\n}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
// Ordinary accesses before it come before bulk copies and matrix products that are ordered after
// it.
__device__ __forceinline__ void FenceAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void BulkCopy(void* shared, const void* global, uint32_t bytes,
                                         uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void PrefetchL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// A kernel launched behind this one may start; it waits with WaitForLaunches() before it reads what
// this one wrote.
__device__ __forceinline__ void LetDependentsLaunch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void WaitForLaunches() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// All threads of all CTAs of the cluster; shared memory written before it, anywhere in the cluster,
// is seen behind it.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// The two halves of a barrier that orders nothing: behind the second all CTAs of the cluster have
// begun.
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// `shared`, an address in this CTA's shared memory, as the same place in CTA `rank` of the cluster.
template <class T>
__device__ __forceinline__ T* InCta(T* shared, int rank) {
  T* there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
  return there;
}

// Matrix descriptor of K-major rows of 128 swizzled bytes, 8-row groups 1024 bytes apart.
__device__ __forceinline__ uint64_t SwizzledDescriptor(const void* shared) {
  return static_cast<uint64_t>((SharedAddress(shared) & 0x3ffffu) >> 4) | 1ull << 16 | 64ull << 32 |
         1ull << 62;
}
__device__ __forceinline__ void WarpgroupFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WarpgroupCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Behind it the products committed before are in `d`. They read `a` until then, which the compiler
// does not know: `a` is kept from being reused before. That binds the compiler's front alone: ptxas
// has given these registers to loads in a branch between the products and the wait, so load nothing
// there.
template <int kCount, int kSteps>
__device__ __forceinline__ void WarpgroupWait(float (&d)[kCount], const uint32_t (&a)[kSteps][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i]));
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
    asm volatile("" ::"r"(a[s][0]), "r"(a[s][1]), "r"(a[s][2]), "r"(a[s][3]));
}
// Moves registers between the warpgroups of a CTA; each calls one of them in a branch of its own.
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// d (64 x 32, 64 x 64 or 64 x 128, fp32) = or += a (64 keys x 32 bytes, in registers) * b.
#define STRATA_ACC16(d, o)                                                                    \
  "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]), "+f"(d[o + 5]), \
      "+f"(d[o + 6]), "+f"(d[o + 7]), "+f"(d[o + 8]), "+f"(d[o + 9]), "+f"(d[o + 10]),        \
      "+f"(d[o + 11]), "+f"(d[o + 12]), "+f"(d[o + 13]), "+f"(d[o + 14]), "+f"(d[o + 15])
#define STRATA_WGMMA32(shape_and_types, tail)                                                      \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned." shape_and_types    \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, " tail \
      ";\n}\n"                                                                                     \
      : STRATA_ACC16(d, 0)                                                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define STRATA_WGMMA64(shape_and_types, tail)                                                     \
  asm volatile(                                                                                   \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned." shape_and_types   \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%" \
      "24,"                                                                                       \
      "%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, " tail ";\n}\n"                   \
      : STRATA_ACC16(d, 0), STRATA_ACC16(d, 16)                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define STRATA_WGMMA128(shape_and_types, tail)                                                   \
  asm volatile(                                                                                  \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned." shape_and_types  \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
      "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
      "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "               \
      "{%64,%65,%66,%67}, %68, p, " tail ";\n}\n"                                                \
      : STRATA_ACC16(d, 0), STRATA_ACC16(d, 16), STRATA_ACC16(d, 32), STRATA_ACC16(d, 48)        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
template <int kColumns, bool kFp8>
__device__ __forceinline__ void WarpgroupProduct(float (&d)[kColumns / 2], const uint32_t (&a)[4],
                                                 uint64_t b, int accumulate) {
  if constexpr (kColumns == 128) {
    if constexpr (kFp8) {
      STRATA_WGMMA128("m64n128k32.f32.e4m3.e4m3", "1, 1");
    } else {
      STRATA_WGMMA128("m64n128k16.f32.bf16.bf16", "1, 1, 0");
    }
  } else if constexpr (kColumns == 64) {
    if constexpr (kFp8) {
      STRATA_WGMMA64("m64n64k32.f32.e4m3.e4m3", "1, 1");
    } else {
      STRATA_WGMMA64("m64n64k16.f32.bf16.bf16", "1, 1, 0");
    }
  } else {
    if constexpr (kFp8) {
      STRATA_WGMMA32("m64n32k32.f32.e4m3.e4m3", "1, 1");
    } else {
      STRATA_WGMMA32("m64n32k16.f32.bf16.bf16", "1, 1, 0");
    }
  }
}
#undef STRATA_ACC16
#undef STRATA_WGMMA32
#undef STRATA_WGMMA64
#undef STRATA_WGMMA128
#endif  // STRATA_SM90A

}  // namespace strata::cuda
