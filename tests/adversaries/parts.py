"""What adversaries are made of: a task, an honest candidate for it, and the places where one line of it can be exchanged.

A candidate's source is one text for both targets: `rms.cpp` for g++, the same as `rms.cu` for nvcc (`for_target`)."""
from dataclasses import dataclass
from textwrap import dedent, indent

from cuda_agent_lab.tasks import Task


def task(name: str, forward: str, inputs: str, init: str = 'pass', args: str = '', size: str = '') -> Task:
    "A task whose Model takes `size` ('d', or nothing) and computes `forward` of x."
    return Task(name, 1, dedent('''
        import torch, torch.nn as nn
        class Model(nn.Module):
            def __init__(self{}):
                super().__init__()
                {}
            def forward(self, x): {}
        def get_inputs(): return [{}]
        def get_init_inputs(): return [{}]
        ''').format(', ' + size if size else '', init, forward, inputs, args))


TORCH = 'x*torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)*self.w'
RMS = task('rms', 'return ' + TORCH, 'torch.randn(256, 512)', 'self.w = nn.Parameter(torch.ones(d))', '512', 'd')
PRODUCT = task('product', 'return x@self.w', 'torch.randn(256, 512)', 'self.w = nn.Parameter(torch.randn(d, d)/d**.5)', '512', 'd')
TRANSPOSED = task('transposed', 'return (' + TORCH + ').t()', 'torch.randn(2048, 1024)', 'self.w = nn.Parameter(torch.ones(d))', '1024', 'd')

MODEL = '''
import torch, torch.nn as nn, cuda_extension
{head}
class ModelNew(nn.Module):
    def __init__(self{size}):
        super().__init__()
{init}
    def forward(self, x):
{forward}
{tail}'''
RMS_HEAD = 'rms = cuda_extension.declare("void rms(float* out, const float* x, const float* w, int64_t n, int64_t d, void* stream)")\n'
EACH_HEAD = 'each = cuda_extension.declare("void each(float* out, const float* x, int64_t n, void* stream)")\n'
# A line of these words in a forward stands for the statements.
WORDS = dict(ONCE=['out = torch.empty_like(x)', 'rms(out, x, self.w, x.shape[0], x.shape[1])'], EACH=['out = torch.empty_like(x)', 'each(out, x, x.numel())'])
WORDS['RUN'] = WORDS['ONCE'] + ['return out']
SIDES = '''
#include <cmath>
#include <cstdint>
#ifdef __CUDACC__
#define ON_DEVICE __device__ static inline
#define FIRST threadIdx.x
#define STEP blockDim.x
#define STOP() __trap()
typedef cudaStream_t Stream;
ON_DEVICE float total(float s) {
  __shared__ float part[128];
  part[threadIdx.x] = s;
  __syncthreads();
  for (int k = 64; k; k /= 2) { if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k]; __syncthreads(); }
  s = part[0];
  __syncthreads();
  return s;
}
#else
#include <cstdlib>
#define ON_DEVICE static inline
#define FIRST 0
#define STEP 1
#define STOP() abort()
typedef void* Stream;
ON_DEVICE float total(float s) { return s; }
#endif
'''
ROW = '''
ON_DEVICE void row(float* q, const float* p, const float* w, int64_t i, int64_t d) {
  float s = 0;
  for (int64_t j = FIRST; j < d; j += STEP) s += p[j]*p[j];
  s = total(s);
  float r = 1.f/sqrtf(s/d + 1e-5f);
  for (int64_t j = FIRST; j < d; j += STEP) q[j] = p[j]*r*w[j];
}
'''
LAUNCH = '''
#ifdef __CUDACC__
__global__ static void rows(float* out, const float* x, const float* w, int64_t n, int64_t d) {
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) row(out + i*d, x + i*d, w, i, d);
}
static void launch(float* out, const float* x, const float* w, int64_t n, int64_t d, Stream stream) {
  rows<<<(unsigned)n, 128, 0, stream>>>(out, x, w, n, d);
}
#else
static void launch(float* out, const float* x, const float* w, int64_t n, int64_t d, Stream) {
  for (int64_t i = 0; i < n; ++i) row(out + i*d, x + i*d, w, i, d);
}
#endif
extern "C" void rms(float* out, const float* x, const float* w, int64_t n, int64_t d, Stream stream) {
  launch(out, x, w, n, d, stream);
}
'''
CODE = SIDES + ROW + LAUNCH
CALL = '  launch(out, x, w, n, d, stream);'
# x@w, a row of x at a time: each lane takes columns.
PRODUCT_CODE = SIDES + '''
ON_DEVICE void row(float* q, const float* p, const float* w, int64_t, int64_t d) {
  for (int64_t j = FIRST; j < d; j += STEP) q[j] = 0;
  for (int64_t k = 0; k < d; ++k) for (int64_t j = FIRST; j < d; j += STEP) q[j] += p[k]*w[k*d + j];
}
''' + LAUNCH


def swap(*pairs: str, code: str = CODE) -> str:
    "The honest source with a, b, c, d ...: a replaced by b, c by d."
    for a, b in zip(pairs[::2], pairs[1::2]):
        assert a in code, a
        code = code.replace(a, b)
    return code


def before(statements: str, include: str = '', code: str = CODE) -> str:
    "The honest source with host code that runs before each launch."
    return include + swap(CALL, f'  {statements}\n{CALL}', code=code)


def statements(text: str) -> str:
    "The text as the body of a method, with WORDS replaced."
    lines = []
    for line in dedent(text).strip('\n').split('\n'):
        pad = line[:len(line) - len(line.lstrip())]
        lines += [pad + w for w in WORDS.get(line.strip(), [line.strip()])]
    return indent('\n'.join(lines), ' '*8)


def model(forward: str, head: str, tail: str = '', init: str = 'pass', size: str = '') -> str:
    "The text of model_new.py; `head` and `tail` go around the class."
    return MODEL.format(head=head, tail=dedent(tail), size=', ' + size if size else '', init=statements(init), forward=statements(forward))


def files(forward: str = 'RUN', head: str = '', code: str = CODE, tail: str = '', init: str = '', square: bool = False, **more) -> dict:
    "A candidate for `RMS`, or for `PRODUCT` if `square`."
    init = f'self.w = nn.Parameter({"torch.empty(d, d)" if square else "torch.ones(d)"})\n' + dedent(init)
    return {'model_new.py': model(forward, RMS_HEAD + dedent(head), tail, init, 'd'), 'kernels/rms.cpp': code} | more


EACH = '''
#ifdef __CUDACC__
__global__ static void all(float* out, const float* x, int64_t n) { int64_t i = blockIdx.x*256ll + threadIdx.x; if (i < n) out[i] = one(x[i]); }
extern "C" void each(float* out, const float* x, int64_t n, Stream stream) { all<<<(unsigned)((n + 255)/256), 256, 0, stream>>>(out, x, n); }
#else
extern "C" void each(float* out, const float* x, int64_t n, Stream) { for (int64_t i = 0; i < n; ++i) out[i] = one(x[i]); }
#endif
'''


def pointwise(expression: str, forward: str = 'EACH\nreturn out', init: str = 'pass') -> dict:
    "A candidate for a task without arguments: `expression` of v, element by element."
    code = SIDES + f'ON_DEVICE float one(float v) {{ return {expression}; }}\n' + EACH
    return {'model_new.py': model(forward, EACH_HEAD, init=init), 'kernels/each.cpp': code}


def for_target(files: dict, target: str) -> dict:
    "The same candidate for 'cpu' or 'cuda': sources that are written for both get the suffix of one."
    to_cuda = lambda p, t: p[:-4] + '.cu' if p.endswith('.cpp') and '__CUDACC__' in t else p
    return {to_cuda(p, t) if target == 'cuda' else p: t for p, t in files.items()}


@dataclass(frozen=True)
class Case:
    "One candidate with the answers that are right, any of them: a reason, a status other than rejected, or 'no_gain': right, and no faster than it is."
    number: str               # of its entry in the catalogue of hacks; '' for an honest one
    files: dict
    words: str
    task: Task = RMS
    only: str = ''            # the target that it needs
    needs: str = ''           # the least isolation that can stop it; '' where the referee itself does
    room: float = 2.5         # how many times as fast is still no gain: for noise


def honest(files: dict, task: Task = RMS, only: str = '') -> Case:
    "A candidate that must be accepted."
    return Case('', files, 'correct', task, only)
