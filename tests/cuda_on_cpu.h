// Runs simple CUDA kernels on the CPU, one fiber per thread, so that the text of the templates can be checked without a GPU.
// Covers what the templates use: block and grid indices, __syncthreads, __shfl_xor_sync, shared memory, cublasSgemm.
#pragma once
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>
#define __global__
#define __device__
#define __shared__ static
#define __restrict__
#define __launch_bounds__(n)
using std::isnan;
struct dim3 { unsigned x, y, z; dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} };
struct float4 { float x, y, z, w; };
typedef void* cudaStream_t;
static dim3 blockIdx, blockDim, gridDim, threadIdx;
static float keep[1 << 16];
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
static int cudaGetLastError() { return 0; }
template <class F> int cudaFuncSetAttribute(F, int, int) { return 0; }
template <class T> void __stcs(T* p, T v) { *p = v; }
static float rsqrtf(float x) { return 1.f / sqrtf(x); }
static long long min(long long a, long long b) { return a < b ? a : b; }

namespace emulator {
struct Fiber { ucontext_t context; std::vector<char> stack; bool done; double value; };
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;
static std::function<void()> body;
static void entry() { body(); fibers[current].done = true; swapcontext(&fibers[current].context, &scheduler); }
static void yield() { swapcontext(&fibers[current].context, &scheduler); threadIdx = dim3(current); }
// Every fiber runs to its next meeting point, in turn; all threads of a team meet at the same ones.
static void run(dim3 grid, unsigned block, std::function<void()> f) {
  body = f; gridDim = grid; blockDim = dim3(block);
  if (fibers.size() < block) fibers.resize(block);
  for (unsigned z = 0; z < grid.z; ++z) for (unsigned y = 0; y < grid.y; ++y) for (unsigned x = 0; x < grid.x; ++x) {
    blockIdx = dim3(x, y, z);
    for (unsigned t = 0; t < block; ++t) {
      Fiber& b = fibers[t];
      if (b.stack.empty()) b.stack.resize(1 << 16);
      getcontext(&b.context);
      b.context.uc_stack.ss_sp = b.stack.data(); b.context.uc_stack.ss_size = b.stack.size(); b.context.uc_link = &scheduler;
      b.done = false;
      makecontext(&b.context, entry, 0);
    }
    for (bool busy = true; busy;) {
      busy = false;
      for (current = 0; current < block; ++current)
        if (!fibers[current].done) { threadIdx = dim3(current); swapcontext(&scheduler, &fibers[current].context); busy = true; }
    }
  }
}
}
static void __syncthreads() { emulator::yield(); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
  unsigned me = emulator::current;
  emulator::fibers[me].value = v;
  emulator::yield();
  T other = emulator::fibers[me ^ mask].value;
  emulator::yield();
  return other;
}
typedef int cublasHandle_t;
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
static void cublasCreate(int*) {}
static void cublasSetStream(int, void*) {}
static void cublasSgemm(int, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, const float* b, int ldb, const float*, float* c, int ldc) {
  for (int j = 0; j < n; ++j) for (int i = 0; i < m; ++i) {
    double s = 0;
    for (int p = 0; p < k; ++p) s += (double)a[ta ? p + (int64_t)i * lda : i + (int64_t)p * lda] * b[tb ? j + (int64_t)p * ldb : p + (int64_t)j * ldb];
    c[i + (int64_t)j * ldc] = *alpha * s;
  }
}
static void cublasSgemmStridedBatched(int h, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, long long sa, const float* b, int ldb,
                                      long long sb, const float* beta, float* c, int ldc, long long sc, int count) {
  for (int g = 0; g < count; ++g) cublasSgemm(h, ta, tb, m, n, k, alpha, a + g * sa, lda, b + g * sb, ldb, beta, c + g * sc, ldc);
}
