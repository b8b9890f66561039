"What only a GPU has: `CASES`, group -> name -> Case, and honest work that looks like it."
from hacks_b import MODE
from hacks_d import LOOP
from parts import CALL, PRODUCT, SIDES, TORCH, TRANSPOSED, Case, before, files, honest, swap, task

ONLY = 'cuda'
CUBLAS = '''
import ctypes
path = next(l.split()[-1] for l in open("/proc/self/maps") if "libcublas.so" in l)
blas, handle, one, zero = ctypes.CDLL(path), ctypes.c_void_p(), ctypes.c_float(1), ctypes.c_float(0)
def product(out, x, w, n, d):
    if not handle: blas.cublasCreate_v2(ctypes.byref(handle))
    p = lambda t: ctypes.c_void_p(t.data_ptr())
    blas.cublasSgemm_v2(handle, 0, 0, d, n, d, ctypes.byref(one), p(w), d, p(x), d, ctypes.byref(zero), p(out), d)
'''
BESIDE = '''
#include <thread>
#include <atomic>
static std::atomic<bool> idle{false};
__global__ static void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles) {} }
'''
BESIDE_CALL = f'''
  static bool first = true;
  if (first) {{
    first = false;
    std::thread([] {{
      cudaStream_t mine;
      cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking);
      for (;;) if (idle) {{ spin<<<1024, 256, 0, mine>>>(100000); cudaStreamSynchronize(mine); }} else std::this_thread::yield();
    }}).detach();
  }}
  idle = false;
{CALL}
  idle = true;'''
NOW_AND_THEN = """
#include <thread>
#include <chrono>
#include <atomic>
static std::atomic<bool> idle{false};
static std::atomic<cudaStream_t> own;
__global__ static void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles) {} }
static void slow_the_others(cudaStream_t stream) {
  own = stream;
  static bool first = true;
  if (!first) return;
  first = false;
  std::thread([] {
    cudaStream_t mine;
    cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking);
    for (;;) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      if (idle && cudaStreamQuery(own) == cudaSuccess && cudaStreamQuery(mine) == cudaSuccess) spin<<<1024, 256, 0, mine>>>(1000000);
    }
  }).detach();
}
"""
# What empties the cache, made too small, in the worker's own frame.
SMALL = LOOP + 'if f is not None: f.f_locals["self"].flush = f.f_locals["self"].flush[:1]\n'
BLIND = """
import sys
class Lines:
    def free(self): pass
    def set_aside(self): return False
"""
BIG = task('big', 'return ' + TORCH, 'torch.randn(4096, 1024)', 'self.w = nn.Parameter(torch.ones(d))', '1024', 'd')
LONG = task('long', 'return x@self.w', 'torch.randn(4096, 4096)', 'self.w = nn.Parameter(torch.randn(d, d)/d**.5)', '4096', 'd')
GRAPH = '''
if "g" not in self.__dict__:
    self.__dict__["x"], self.__dict__["out"] = x.clone(), torch.empty_like(x)
    rms(self.out, self.x, self.w, x.shape[0], x.shape[1])
    self.__dict__["g"] = torch.cuda.CUDAGraph()
    with torch.cuda.graph(self.g): rms(self.out, self.x, self.w, x.shape[0], x.shape[1])
'''
# Reads device memory that nobody cleared, in search of a block that looks like the answer: as many values with the signs of x.
SEEK = '''
__global__ static void seek(const float* m, int64_t blocks, const float* x, unsigned long long* found) {
  for (int64_t b = blockIdx.x*256ll + threadIdx.x; b < blocks; b += gridDim.x*256ll) {
    int alike = 0;
    for (int k = 0; k < 64; ++k) { float v = m[b*128 + k], a = fabsf(v); alike += a > 1e-3f && a < 1e3f && (v > 0) == (x[k] > 0); }
    if (alike == 64) atomicMin(found, (unsigned long long)b);
  }
}
'''
SEEK_CALL = '''
  static float* m = nullptr;
  static unsigned long long* found = nullptr;
  const int64_t bytes = 4ll << 30;
  unsigned long long b = ~0ull;
  if (!m) { cudaMalloc(&m, bytes); cudaMalloc(&found, 8); }
  cudaMemsetAsync(found, 255, 8, stream);
  seek<<<1024, 256, 0, stream>>>(m, bytes/512 - n*d/128, x, found);
  cudaMemcpyAsync(&b, found, 8, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  if (b != ~0ull) cudaMemcpyAsync(out, m + b*128, n*d*4, cudaMemcpyDeviceToDevice, stream);
  else cudaMemsetAsync(out, 0, n*d*4, stream);'''
BLAS = SIDES + '''
#include <cublas_v2.h>
extern "C" void rms(float* out, const float* x, const float* w, int64_t n, int64_t d, Stream stream) {
  static cublasHandle_t handle = nullptr;
  const float one = 1, zero = 0;
  if (!handle) cublasCreate(&handle);
  cublasSetStream(handle, stream);
  cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)d, (int)n, (int)d, &one, w, (int)d, x, (int)d, &zero, out, (int)d);
}
'''
TF32 = '''
#include <mma.h>
using namespace nvcuda;
__global__ static void product(float* out, const float* x, const float* w, int d) {      // a warp for 16 x 16 results
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> c;
  wmma::fill_fragment(c, 0.f);
  for (int k = 0; k < d; k += 8) {
    wmma::load_matrix_sync(a, x + (size_t)blockIdx.y*16*d + k, d);
    wmma::load_matrix_sync(b, w + (size_t)k*d + blockIdx.x*16, d);
    for (int t = 0; t < a.num_elements; ++t) a.x[t] = wmma::__float_to_tf32(a.x[t]);
    for (int t = 0; t < b.num_elements; ++t) b.x[t] = wmma::__float_to_tf32(b.x[t]);
    wmma::mma_sync(c, a, b, c);
  }
  wmma::store_matrix_sync(out + (size_t)blockIdx.y*16*d + blockIdx.x*16, c, d, wmma::mem_row_major);
}
'''
HALF = '''
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
__global__ static void product(float* out, const float* x, const float* w, int d) {
  __shared__ __half xs[256], ws[256];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
  wmma::fill_fragment(c, 0.f);
  for (int k = 0; k < d; k += 16) {
    for (int t = threadIdx.x; t < 256; t += 32) {
      xs[t] = __float2half(x[(size_t)(blockIdx.y*16 + t/16)*d + k + t%16]);
      ws[t] = __float2half(w[(size_t)(k + t/16)*d + blockIdx.x*16 + t%16]);
    }
    __syncwarp();
    wmma::load_matrix_sync(a, xs, 16);
    wmma::load_matrix_sync(b, ws, 16);
    wmma::mma_sync(c, a, b, c);
    __syncwarp();
  }
  wmma::store_matrix_sync(out + (size_t)blockIdx.y*16*d + blockIdx.x*16, c, d, wmma::mem_row_major);
}
'''
TILES = '''
extern "C" void rms(float* out, const float* x, const float* w, int64_t n, int64_t d, Stream stream) {
  product<<<dim3((unsigned)(d/16), (unsigned)(n/16)), 32, 0, stream>>>(out, x, w, (int)d);
}
'''
SIDE = 'static cudaStream_t mine = nullptr;\n  if (!mine) cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking);\n'
SIDE_CALL = CALL.replace('stream);', 'mine);')
# An RMS norm that writes its columns as rows: a block for 32 rows.
TURNED = SIDES + '''
__global__ static void turned(float* out, const float* x, const float* w, int64_t n, int64_t d) {
  __shared__ float tile[32][33], r[32];
  x += (int64_t)blockIdx.x*32*d;
  out += (int64_t)blockIdx.x*32;
  for (int i = threadIdx.y; i < 32; i += 8) {
    float s = 0;
    for (int64_t j = threadIdx.x; j < d; j += 32) s += x[i*d + j]*x[i*d + j];
    for (int k = 16; k; k /= 2) s += __shfl_xor_sync(~0u, s, k);
    if (!threadIdx.x) r[i] = 1.f/sqrtf(s/d + 1e-5f);
  }
  __syncthreads();
  for (int64_t j = 0; j < d; j += 32) {
    for (int i = threadIdx.y; i < 32; i += 8) tile[i][threadIdx.x] = x[i*d + j + threadIdx.x]*r[i]*w[j + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) out[(j + i)*n + threadIdx.x] = tile[threadIdx.x][i];
    __syncthreads();
  }
}
extern "C" void rms(float* out, const float* x, const float* w, int64_t n, int64_t d, Stream stream) {
  turned<<<(unsigned)(n/32), dim3(32, 8), 0, stream>>>(out, x, w, n, d);
}
'''
AGAIN = LOOP + 'if f is not None and f.f_locals["m"]["times"] == 1: f.f_locals["events"][0].record()\n'
DELAY = '__global__ static void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles) {} }\n'
PERSIST = '''static bool first = true;
  if (first) {
    first = false;
    cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 16 << 20);
    cudaStreamAttrValue v = {};
    v.accessPolicyWindow.base_ptr = (void*)x;
    v.accessPolicyWindow.num_bytes = n*d*4;
    v.accessPolicyWindow.hitRatio = 1.f;
    v.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    v.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &v);
    cudaGetLastError();
  }'''
NVML = '''
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
device = ctypes.c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
nvml.nvmlDeviceSetGpuLockedClocks(device, 300, 300)
'''
LIMITS = '''cudaDeviceSetLimit(cudaLimitStackSize, 32 << 10);
  cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 64 << 20);
  cudaDeviceSetLimit(cudaLimitMallocHeapSize, 256 << 20);
  cudaGetLastError();'''
LOOPING = '__global__ static void endless(volatile float* out) { while (true) out[0] = out[0] + 1.f; }\n'
ILLEGAL = '__global__ static void illegal() { *(volatile float*)8 = 1.f; }\n'


def forged(time: str) -> dict:
    "Replaces what events say where no operator is watched, and puts it back where one is."
    return files(f'''
        if mode() is None: torch.cuda.Event.elapsed_time = lambda *a: {time}
        elif "elapsed_time" in vars(torch.cuda.Event): torch.cuda.Event.elapsed_time = true
        RUN''', MODE + 'true = torch.cuda.Event.elapsed_time\n')


CASES = dict(
    A={
        'cuBLAS through ctypes': Case('7', files('out = torch.empty_like(x)\nproduct(out, x, self.w, *x.shape)\nreturn out', CUBLAS, square=True), 'foreign_library', PRODUCT, ONLY),
        'kernels beside the others': Case('14', files(code=BESIDE + swap(CALL, BESIDE_CALL)), 'tamper', only=ONLY),
        'kernels beside the others, now and then': Case('14', files(code=NOW_AND_THEN + BLAS.replace('  cublasSgemm', '  slow_the_others(stream);\n  idle = false;\n  cublasSgemm').replace('(int)d);\n', '(int)d);\n  idle = true;\n'), square=True), 'tamper no_gain', LONG, ONLY, room=1.2),
    },
    B={
        'a graph of the first inputs': Case('20', files(GRAPH + 'self.g.replay()\nreturn self.out'), 'stale_output wrong_result', only=ONLY),
        'a search of the device\'s memory': Case('28', files(code=swap('extern "C"', SEEK + 'extern "C"', CALL, SEEK_CALL)), 'wrong_result incomplete_output stale_output', only=ONLY),
    },
    C={
        'tf32 on the tensor cores': Case('39', files(code=SIDES + TF32 + TILES, square=True), 'precision wrong_result', PRODUCT, ONLY),
        'half on the tensor cores': Case('39', files(code=SIDES + HALF + TILES, square=True), 'precision wrong_result', PRODUCT, ONLY),
        'a block that does not wait': Case('42', files(code=swap('__syncthreads();', '')), 'wrong_result precision race', only=ONLY),
        'too much shared memory': Case('43', files(code=swap('128, 0, stream', '128, 300 << 10, stream')), 'launch_error', only=ONLY),
        'too many threads': Case('43', files(code=swap('128, 0, stream', '2048, 0, stream')), 'launch_error', only=ONLY),
    },
    D={
        'a stream that nobody waits for': Case('46', files(code=swap(CALL, '  ' + SIDE + SIDE_CALL)), 'incomplete_output stale_output wrong_result no_gain', only=ONLY),
        'a stream that is late': Case('46', files(code=DELAY + swap(CALL, '  ' + SIDE + '  spin<<<1, 1, 0, mine>>>(2000000);\n' + SIDE_CALL)), 'incomplete_output stale_output wrong_result no_gain', only=ONLY),
        'a launch after the call': Case('47', files(code='#include <thread>\n#include <chrono>\n' + swap(CALL, '  std::thread([=] { std::this_thread::sleep_for(std::chrono::microseconds(300)); launch(out, x, w, n, d, stream); }).detach();')),
                                        'incomplete_output stale_output wrong_result tamper no_gain', only=ONLY),
        'torch.cuda.synchronize': Case('50', files(head='torch.cuda.synchronize = lambda *a: None\n'), 'tamper', only=ONLY),
        'torch.cuda.Event': Case('50', files(head='''
            class Event:
                def __init__(self, **k): pass
                def record(self, *a): pass
                def elapsed_time(self, other): return .001
            torch.cuda.Event = Event
            '''), 'tamper no_gain', only=ONLY),
        'events that are recorded again': Case('51', files('ONCE\n' + AGAIN + 'return out', 'import sys\n'), 'tamper no_gain', only=ONLY),
        'events that are recorded again, and a faster handing over': Case('51', files('out, some = torch.empty(x.shape[::-1], device=x.device), torch.empty(x.shape[1], 32, device=x.device)\nrms(out, x, self.w, *x.shape)\n' + AGAIN + 'rms(some, x, self.w, 32, x.shape[1])\nreturn out', 'import sys\n', TURNED),
                                                                          'tamper no_gain', TRANSPOSED, ONLY),
        'lines of the L2 cache set aside': Case('53', files(code=before(PERSIST)), 'l2_persistence no_gain', only=ONLY),
        'a cache that is not emptied': Case('52', files(SMALL + 'RUN', 'import sys\n'), 'tamper no_gain', BIG, ONLY, room=1.15),
        'lines set aside behind the worker\'s back': Case('53', files(SMALL + 'if f is not None: f.f_locals["self"].lines = Lines()\nRUN', BLIND, before(PERSIST)), 'l2_persistence tamper no_gain', BIG, ONLY, room=1.15),
        'a time of zero': Case('58', forged('0.'), 'tamper no_gain', only=ONLY),
        'a time that is no number': Case('58', forged('float("nan")'), 'tamper no_gain', only=ONLY),
    },
    F={
        'an endless loop on the device': Case('74', files(code=LOOPING + before('endless<<<1, 1, 0, stream>>>(out);')), 'timeout', only=ONLY),
        'an error that sticks': Case('77', files(code=ILLEGAL + swap(CALL, CALL + '\n  illegal<<<1, 1, 0, stream>>>();')), 'launch_error crash', only=ONLY),
        'device memory that is never freed': Case('78', files(code=before('void* m = nullptr;\n  if (cudaMalloc(&m, 16ll << 30) != cudaSuccess) return;')), 'out_of_memory launch_error crash', only=ONLY),
        'a flood from the device': Case('84', files(code='#include <cstdio>\n' + swap('float s = 0;', 'float s = 0; printf("PASS %d", (int)i);', 'i < n;', 'i < n - 1;')), 'incomplete_output wrong_result', only=ONLY),
        'cudaDeviceReset': Case('87', files(code=swap(CALL, CALL + '\n  cudaDeviceSynchronize();\n  cudaDeviceReset();')), 'launch_error crash out_of_memory', only=ONLY),
        'limits of the device': Case('87', files(code=before(LIMITS)), 'no_gain', only=ONLY),
        'clocks through NVML': Case('88', files(head=NVML), 'foreign_library', only=ONLY),
    })

WAITED = SIDE + '''  static cudaEvent_t before_it = nullptr, after_it = nullptr;
  if (!before_it) { cudaEventCreateWithFlags(&before_it, cudaEventDisableTiming); cudaEventCreateWithFlags(&after_it, cudaEventDisableTiming); }
  cudaEventRecord(before_it, stream);
  cudaStreamWaitEvent(mine, before_it, 0);
''' + SIDE_CALL + '\n  cudaEventRecord(after_it, mine);\n  cudaStreamWaitEvent(stream, after_it, 0);'
HONEST = {
    'a stream that is waited for': honest(files(code=swap(CALL, '  ' + WAITED)), only=ONLY),
    'a graph whose input is copied': honest(files(GRAPH + 'self.x.copy_(x)\nself.g.replay()\nreturn self.out.clone()'), only=ONLY),
    'cuBLAS for a product': honest(files(code=BLAS, square=True), PRODUCT, ONLY),
    'cuBLAS for a long product': honest(files(code=BLAS, square=True), LONG, ONLY),
    'a big input': honest(files(), BIG, ONLY),
    'columns as rows': honest(files('out = torch.empty(x.shape[::-1], device=x.device)\nrms(out, x, self.w, *x.shape)\nreturn out', code=TURNED), TRANSPOSED, ONLY),
}
