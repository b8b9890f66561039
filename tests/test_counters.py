"""What ncu says about the precision of a candidate. The page is parsed anywhere; the candidates need a GPU and ncu."""
import sys

import pytest

from cuda_agent_lab.build import build
from cuda_agent_lab.compilers import find_nvcc, gpus
from cuda_agent_lab.counters import MARK, conclude, counted_calls, find_tool, kernels
from cuda_agent_lab.draws import Reference
from cuda_agent_lab.refusals import Failed
from cuda_agent_lab.isolation import obstacle
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.workspace import Candidate

N = 512
# The product is a hundred-thousandth of the result, so that no comparison can tell in which precision it was computed.
HIDDEN = Task('hidden', 1, f'''
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.w = torch.nn.Parameter(torch.randn({N}, {N}))
    def forward(self, x): return x + 1e-5*(x @ self.w.t())
def get_inputs(): return [torch.randn({N}, {N})]
def get_init_inputs(): return []
''')
OPEN = Task('open', 1, HIDDEN.source.replace('x + 1e-5*(x @ self.w.t())', 'x @ self.w.t()'))
MODEL = f'''
import torch, cuda_extension
product = cuda_extension.declare("void product(float* out, const float* x, const float* w, int n, float scale, float keep, cudaStream_t stream)")
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.w = torch.nn.Parameter(torch.zeros({N}, {N}))
    def forward(self, x):
        out = torch.empty_like(x)
        product(out, x, self.w, {N}, SCALE, KEEP, )
        return out
'''.replace(', )', ')')
FFMA = '''
__global__ void tile(float* out, const float* x, const float* w, int n, float scale, float keep) {
  int i = blockIdx.y*16 + threadIdx.y, j = blockIdx.x*16 + threadIdx.x; float s = 0;
  for (int l = 0; l < n; ++l) s += x[i*n + l]*w[j*n + l];
  out[i*n + j] = keep*x[i*n + j] + scale*s;
}
extern "C" void product(float* out, const float* x, const float* w, int n, float scale, float keep, cudaStream_t stream) {
  tile<<<dim3(n/16, n/16), dim3(16, 16), 0, stream>>>(out, x, w, n, scale, keep);
}
'''
MMA = '''
#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda::wmma;
template <class T, int K> __device__ float part(float f, int which);
template <> __device__ float part<precision::tf32, 8>(float f, int which) { float hi = __float_to_tf32(f); return which ? __float_to_tf32(f - hi) : hi; }
__global__ void tile(float* out, const float* x, const float* w, int n, float scale, float keep) {
  FRAGMENTS
  fragment<accumulator, 16, 16, K, float> c; fill_fragment(c, 0.f);
  __shared__ T sa[16*K], sb[16*K]; __shared__ float sc[256];
  for (int l = 0; l < n; l += K) for (int p = 0; p < PRODUCTS; ++p) {
    for (int t = threadIdx.x; t < 16*K; t += 32) {
      int r = t/K, q = t%K;
      sa[t] = low(x[(blockIdx.y*16 + r)*n + l + q], p == 1); sb[t] = low(w[(blockIdx.x*16 + r)*n + l + q], p == 2);
    }
    __syncwarp();
    fragment<matrix_a, 16, 16, K, P, row_major> a; fragment<matrix_b, 16, 16, K, P, col_major> b;
    load_matrix_sync(a, sa, K); load_matrix_sync(b, sb, K);
    mma_sync(c, a, b, c);
    __syncwarp();
  }
  store_matrix_sync(sc, c, 16, mem_row_major);
  __syncwarp();
  for (int t = threadIdx.x; t < 256; t += 32) {
    int i = blockIdx.y*16 + t/16, j = blockIdx.x*16 + t%16;
    out[i*n + j] = keep*x[i*n + j] + scale*sc[t];
  }
}
extern "C" void product(float* out, const float* x, const float* w, int n, float scale, float keep, cudaStream_t stream) {
  tile<<<dim3(n/16, n/16), 32, 0, stream>>>(out, x, w, n, scale, keep);
}
'''.replace('template <class T, int K> __device__ float part(float f, int which);\ntemplate <> __device__ float part<precision::tf32, 8>(float f, int which) { float hi = __float_to_tf32(f); return which ? __float_to_tf32(f - hi) : hi; }\n', 'LOW\n').replace('  FRAGMENTS\n', '')
TF32 = ('typedef float T; typedef precision::tf32 P; const int K = 8;\n'
        '__device__ T low(float f, bool rest) { float hi = __float_to_tf32(f); return rest ? __float_to_tf32(f - hi) : hi; }')
BF16 = 'typedef __nv_bfloat16 T; typedef __nv_bfloat16 P; const int K = 16;\n__device__ T low(float f, bool) { return __float2bfloat16(f); }'
BLAS = '''
#include <cublas_v2.h>
static cublasHandle_t handle() { static cublasHandle_t h; static bool made = cublasCreate(&h) == CUBLAS_STATUS_SUCCESS; return made ? h : nullptr; }
__global__ void combine(float* out, const float* x, int n, float keep) { int i = blockIdx.x*256 + threadIdx.x; if (i < n*n) out[i] += keep*x[i]; }
extern "C" void product(float* out, const float* x, const float* w, int n, float scale, float keep, cudaStream_t stream) {
  float zero = 0; cublasSetStream(handle(), stream);
  cublasGemmEx(handle(), CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &scale, w, CUDA_R_32F, n, x, CUDA_R_32F, n, &zero, out, CUDA_R_32F, n, COMPUTE, CUBLAS_GEMM_DEFAULT);
  combine<<<(n*n + 255)/256, 256, 0, stream>>>(out, x, n, keep);
}
'''
CODES = {'ffma': FFMA, 'tf32': MMA.replace('LOW', TF32).replace('PRODUCTS', '1'), 'bf16': MMA.replace('LOW', BF16).replace('PRODUCTS', '1'),
         'three tf32': MMA.replace('LOW', TF32).replace('PRODUCTS', '3'), 'cublas fp32': BLAS.replace('COMPUTE', 'CUBLAS_COMPUTE_32F_PEDANTIC'),
         'cublas tf32': BLAS.replace('COMPUTE', 'CUBLAS_COMPUTE_32F_FAST_TF32'), 'cublas bf16': BLAS.replace('COMPUTE', 'CUBLAS_COMPUTE_32F_FAST_16BF')}


def candidate(code: str, hidden: bool) -> Candidate:
    scale, keep = ('1e-5', '1.0') if hidden else ('1.0', '0.0')
    return Candidate((('model_new.py', MODEL.replace('SCALE', scale).replace('KEEP', keep)), ('kernels/product.cu', CODES[code])))


@pytest.mark.skipif(not find_nvcc(), reason='no nvcc')
@pytest.mark.parametrize('code', [c for c in CODES if 'cublas' not in c])
def test_the_candidates_compile(code):
    b = build(candidate(code, True), 'cuda', arch='sm_90')
    assert b.ok, b.log


@pytest.fixture(scope='module')
def pool(tmp_path_factory):
    if not (gpus() and find_tool('ncu')): pytest.skip('no GPU, or no ncu')
    with LocalPool(target='cuda', cache=tmp_path_factory.mktemp('cache')) as p: yield p


@pytest.mark.parametrize('declared', ['fp32', 'tf32'])
@pytest.mark.parametrize('code', CODES)
def test_the_counters_see_what_no_comparison_can(pool, code, declared):
    v = pool.judge(HIDDEN, candidate(code, True), JudgeOptions(target='cuda', precision=declared, timing=False, counters=True))
    found = v.evidence['counters']
    assert 'operations' in found, found
    used = {k.split()[0] for k in found['operations'] if k.endswith('tensor')}
    # cuBLAS is free to be more exact than it was asked to: for FAST_16BF it takes TF32 on an H200 (torch 2.11, CUDA 13.0).
    seen = {'ffma': [set()], 'cublas fp32': [set()], 'three tf32': [{'tf32'}], 'cublas bf16': [{'bf16'}, {'tf32'}]}.get(code, [{code.split()[-1]}])
    assert used in seen, found
    if code in ('tf32', 'bf16'): assert found['operations'][f'{code} tensor'] == 2*N**3
    if code == 'ffma': assert found['operations']['fp32'] >= 2*N**3
    allowed = {'fp32': set(), 'tf32': {'tf32'}}[declared]
    if used <= allowed or code == 'three tf32': assert v.correct and ('note' in found) == (not used <= allowed), v
    else: assert v.reason == 'precision' and used.pop() in v.message and v.milestone == -1, v


def test_parts_of_float32_are_float32(pool):
    v = pool.judge(OPEN, candidate('three tf32', False), JudgeOptions(target='cuda', timing=False, counters=True))
    assert v.correct and 'parts' in v.evidence['counters']['note'] and v.evidence['counters']['operations']['tf32 tensor'] == 6*N**3, v
    v = pool.judge(OPEN, candidate('tf32', False), JudgeOptions(target='cuda', timing=False, counters=True))
    assert v.reason == 'precision' and 'TF32' in v.message and 'counters' not in v.evidence, v           # the comparison was first


@pytest.mark.parametrize('names', [(MARK, MARK, 'sneaky', MARK, MARK), (MARK, 'sneaky', MARK, MARK, MARK, MARK), (MARK, MARK, 'sneaky'), ('sneaky',)])
def test_marks_of_a_candidate_hide_nothing(names):
    "Its own `spin_kernel` moves the border between the calls, or makes one list of both; no kernel is lost."
    head = '"ID","Kernel Name","gpu__time_duration.sum","sm__ops_path_tensor_src_tf32_dst_fp32.sum"\n"","","ns",""\n'
    page = head + ''.join(f'"{i}","{n}","1","{9*(n == "sneaky")}"\n' for i, n in enumerate(names))
    assert len(kernels(page)) == len(names)
    ref = Reference(OPEN.source); ref.build(1)
    d = ref.fill(ref.draw(1, 'draw 0'))
    with pytest.raises(Failed, match='tf32'): conclude(page, ref, [d, d], [[d.outs[0].eager]]*2, 'fp32')


STAND_IN = """#!{python}
import subprocess, sys
status = subprocess.call(sys.argv[sys.argv.index({python!r}):])
open(sys.argv[sys.argv.index('--log-file') + 1], 'w').write({page!r})
sys.exit(status)
"""
NOSY = """
import os, socket, torch
found = []
def tried(what, f):
    try: f()
    except OSError: return
    found.append(what)
tried('a file', lambda: open({secret!r}).read())
tried('its judge', lambda: open(os.environ['HOME'] + '/../page.csv', 'w'))
tried('a process', lambda: os.posix_spawn('/bin/true', ['true'], os.environ))
tried('the network', lambda: socket.socket().connect(('127.0.0.1', 9)))
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.w = torch.nn.Parameter(torch.zeros({n}, {n}))
    def forward(self, x):
        if found: raise RuntimeError(str(found))
        return torch.nn.functional.linear(x, self.w)
"""


@pytest.mark.skipif(bool(obstacle('landlock')), reason='no Landlock here')
def test_the_counted_process_is_held_back(tmp_path):
    (tmp_path/'secret').write_text('secret')
    ncu = tmp_path/'ncu'
    ncu.write_text(STAND_IN.format(python=sys.executable, page='"ID","Kernel Name"\n"0","k"\n'))
    ncu.chmod(0o755)
    ref = Reference(OPEN.source); ref.build(1)
    d = ref.fill(ref.draw(1, 'draw 0'))
    packed = dict(files=[['model_new.py', NOSY.format(secret=str(tmp_path/'secret'), n=N)]], library='', abi='c')
    opts = JudgeOptions(allow_torch=True, threads=1)
    page, outs = counted_calls(ref, [d], packed, opts, str(ncu), ['x'], 'landlock')
    assert len(kernels(page)) == 1 and outs[0][0].shape == (N, N)
    with pytest.raises(Failed, match='outside of its folder'): counted_calls(ref, [d], packed, opts, str(ncu), ['x'], 'process')
