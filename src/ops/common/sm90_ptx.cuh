// SPDX-License-Identifier: Apache-2.0
// The few sm_90a instructions that the kernels use, by their PTX names. Device code only.
// Source of layouts and semantics: NVIDIA PTX ISA 9.0, sections on mbarrier, ldmatrix/stmatrix, mma and wgmma.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace fluvial::sm90 {

__device__ __forceinline__ uint32_t SmemAddr(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- mbarrier ---------------------------------------------------------------------------------------------
__device__ __forceinline__ void BarrierInit(uint64_t* bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SmemAddr(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void BarrierInvalidate(uint64_t* bar) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(SmemAddr(bar)) : "memory");
}
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SmemAddr(bar)) : "memory");
}
/// Waits until the phase with this parity has completed.
__device__ __forceinline__ void BarrierWait(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE_%=;\n"
      "bra WAIT_%=;\n"
      "DONE_%=:\n}" ::"r"(SmemAddr(bar)),
      "r"(parity)
      : "memory");
}
/// Named barrier among `threads` threads of the CTA (a multiple of 32).
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// The same, and whether `p` holds for any of the threads.
__device__ __forceinline__ bool NamedBarrierAny(int id, int threads, bool p) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbarrier.cta.red.or.pred q, %1, %2, p;\nselp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(p))
      : "memory");
  return any != 0;
}
/// Generic-proxy writes to shared memory become visible to wgmma and TMA (each writing thread, before its arrival).
__device__ __forceinline__ void FenceProxyAsync() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- bulk copies (TMA) ------------------------------------------------------------------------------------------
__device__ __forceinline__ void BarrierExpect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SmemAddr(bar)), "r"(bytes) : "memory");
}
/// `bytes` (a multiple of 16) of contiguous memory -> shared memory; they count towards `bar`. One thread.
__device__ __forceinline__ void BulkLoad(uint32_t smem, const void* global, uint32_t bytes, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem),
               "l"(global), "r"(bytes), "r"(SmemAddr(bar))
               : "memory");
}
/// The other way; returns when shared memory has been read. The thread must not exit before.
__device__ __forceinline__ void BulkStoreAndWait(void* global, uint32_t smem, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group.read 0;" ::"l"(global),
      "r"(smem), "r"(bytes)
      : "memory");
}
/// Box of a 3-D tensor map at (c0, c1, c2) -> shared memory; its bytes count towards `bar`. One thread.
__device__ __forceinline__ void TensorLoad3(uint32_t smem, const void* map, uint64_t* bar, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(smem),
      "l"(map), "r"(SmemAddr(bar)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
/// Box of a 4-D tensor map at (c0, c1, c2, c3). One thread.
__device__ __forceinline__ void TensorLoad4(uint32_t smem, const void* map, uint64_t* bar, int c0, int c1, int c2,
                                            int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(smem),
      "l"(map), "r"(SmemAddr(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
/// The same box into L2 only.
__device__ __forceinline__ void TensorPrefetch3(const void* map, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(c0), "r"(c1),
               "r"(c2)
               : "memory");
}
__device__ __forceinline__ void PrefetchMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- registers per thread ----------------------------------------------------------------------------------------
template <int kRegisters>
__device__ __forceinline__ void RegistersUp() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void RegistersDown() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- arithmetic ---------------------------------------------------------------------------------------------
/// 2^x with relative error 2^-22; -inf -> 0; results below 2^-126 are 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// {lo, hi} rounded to nearest even.
__device__ __forceinline__ uint32_t PackBf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
/// Two bf16 products, each rounded once.
__device__ __forceinline__ uint32_t MulBf16(uint32_t x, uint32_t y) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
__device__ __forceinline__ float Bf16Lo(uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float Bf16Hi(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

// ---- shared memory by 32-bit address ----------------------------------------------------------------------
__device__ __forceinline__ uint32_t LoadShared(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
__device__ __forceinline__ float LoadSharedFloat(uint32_t at) { return __uint_as_float(LoadShared(at)); }
__device__ __forceinline__ uint4 LoadSharedU4(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ __forceinline__ float2 LoadShared2(uint32_t at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
  return x;
}
__device__ __forceinline__ float4 LoadShared4(uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ __forceinline__ void StoreShared(uint32_t at, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ __forceinline__ void StoreShared(uint32_t at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
__device__ __forceinline__ void StoreShared2(uint32_t at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void StoreShared4(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// ---- warp-level matrices ------------------------------------------------------------------------------------
__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}
__device__ __forceinline__ void LoadMatrix4Transposed(uint32_t (&r)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}
__device__ __forceinline__ void StoreMatrix4Transposed(uint32_t smem, uint32_t r0, uint32_t r1, uint32_t r2,
                                                       uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(smem), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}
/// D[16x8] += A[16x16] B[16x8], bf16 operands, fp32 accumulation.
__device__ __forceinline__ void Mma16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- warpgroup matrices -------------------------------------------------------------------------------------
/// Shared-memory matrix descriptor. swizzle: 0 none, 1 = 128 B, 2 = 64 B, 3 = 32 B. Strides in bytes; see the PTX ISA's
/// canonical layouts.
__device__ __forceinline__ uint64_t MatrixDescriptor(uint32_t smem, uint32_t leading_bytes, uint32_t stride_bytes,
                                                     uint32_t swizzle) {
  uint64_t d = (smem & 0x3ffffu) >> 4;
  d |= static_cast<uint64_t>((leading_bytes & 0x3ffffu) >> 4) << 16;
  d |= static_cast<uint64_t>((stride_bytes & 0x3ffffu) >> 4) << 32;
  d |= static_cast<uint64_t>(swizzle) << 62;
  return d;
}
__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// x, kept in a register: the compiler would otherwise read threadIdx anew inside loops, tens of cycles each time
/// (an empty asm does not stop ptxas, a shuffle does).
__device__ __forceinline__ uint32_t Opaque(uint32_t x) {
  asm volatile("shfl.sync.bfly.b32 %0, %0, 0, 0x1f, 0xffffffff;" : "+r"(x));
  return x;
}
/// x unknown to the front end from here on: what is computed from it is not hoisted over this point.
__device__ __forceinline__ uint32_t Unhoisted(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Keeps the compiler from moving reads or writes of `r` across this point (wgmma is asynchronous).
template <int kCount>
__device__ __forceinline__ void Pin(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void Pin(uint32_t (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

#define FLUVIAL_D8(d, o)                                                                                      \
  "+f"(d[(o) + 0]), "+f"(d[(o) + 1]), "+f"(d[(o) + 2]), "+f"(d[(o) + 3]), "+f"(d[(o) + 4]), "+f"(d[(o) + 5]), \
      "+f"(d[(o) + 6]), "+f"(d[(o) + 7])

/// D[64x32] (+)= A[64x16] B[16x32]: A in registers, B in shared memory, tokens x channels (K-major).
__device__ __forceinline__ void WgmmaM64N32K16(float (&d)[16], const uint32_t* a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
      : FLUVIAL_D8(d, 0), FLUVIAL_D8(d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
/// D[64x16] (+)= A[64x16] B[16x16], B K-major.
__device__ __forceinline__ void WgmmaM64N16K16(float (&d)[8], const uint32_t* a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, "
      "0;\n}"
      : FLUVIAL_D8(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
/// D[64x128] += A[64x16] B[16x128]: B in shared memory with the 128 columns contiguous (MN-major).
__device__ __forceinline__ void WgmmaM64N128K16Transposed(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : FLUVIAL_D8(d, 0), FLUVIAL_D8(d, 8), FLUVIAL_D8(d, 16), FLUVIAL_D8(d, 24), FLUVIAL_D8(d, 32), FLUVIAL_D8(d, 40),
        FLUVIAL_D8(d, 48), FLUVIAL_D8(d, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Both operands in shared memory, K-major (rows of channels); `accumulate` 0 starts from zero.
/// D[64x64] (+)= A[64x16] B[16x64].
__device__ __forceinline__ void WgmmaM64N64K16(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31}, %32, %33, p, 1, 1, 0, 0;\n}"
      : FLUVIAL_D8(d, 0), FLUVIAL_D8(d, 8), FLUVIAL_D8(d, 16), FLUVIAL_D8(d, 24)
      : "l"(a), "l"(b), "r"(accumulate));
}
/// D[64x96] (+)= A[64x16] B[16x96].
__device__ __forceinline__ void WgmmaM64N96K16(float (&d)[48], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
      "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, %48, %49, p, 1, 1, 0, 0;\n}"
      : FLUVIAL_D8(d, 0), FLUVIAL_D8(d, 8), FLUVIAL_D8(d, 16), FLUVIAL_D8(d, 24), FLUVIAL_D8(d, 32), FLUVIAL_D8(d, 40)
      : "l"(a), "l"(b), "r"(accumulate));
}
/// D[64x128] (+)= A[64x16] B[16x128].
__device__ __forceinline__ void WgmmaM64N128K16(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 0;\n}"
      : FLUVIAL_D8(d, 0), FLUVIAL_D8(d, 8), FLUVIAL_D8(d, 16), FLUVIAL_D8(d, 24), FLUVIAL_D8(d, 32), FLUVIAL_D8(d, 40),
        FLUVIAL_D8(d, 48), FLUVIAL_D8(d, 56)
      : "l"(a), "l"(b), "r"(accumulate));
}

// A in registers, B in shared memory with its columns contiguous (MN-major).
/// D[64x64] += A[64x16] B[16x64].
__device__ __forceinline__ void WgmmaM64N64K16Transposed(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
      : FLUVIAL_D8(d, 0), FLUVIAL_D8(d, 8), FLUVIAL_D8(d, 16), FLUVIAL_D8(d, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/// D[64x16] += A[64x16] B[16x16].
__device__ __forceinline__ void WgmmaM64N16K16Transposed(float (&d)[8], const uint32_t* a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1, 1, 1, "
      "1;"
      : FLUVIAL_D8(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace fluvial::sm90
