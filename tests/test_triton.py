"""Candidates in Triton, honest and not: interpreted and compiled ahead of time where there is no GPU, else compiled, checked and timed on it.

  python -m pytest tests/test_triton.py           on either kind of machine; what only one of them can show is skipped on the other
"""
import json
import os
import re
import subprocess
import sys

import pytest

from cuda_agent_lab import build as build_module
from cuda_agent_lab.agent import SMALL, Reply, run_episodes
from cuda_agent_lab.build import build
from cuda_agent_lab.compilers import gpus
from cuda_agent_lab.episodes import ToolCall
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import INTERPRETED, JudgeOptions
from cuda_agent_lab.tasks import Task, sandbox_dir
from cuda_agent_lab.triton_target import missing
from cuda_agent_lab.workspace import SECTION, Candidate, fixed_files, make_workspace, restore_fixed, write_candidate

GPU = bool(gpus())
if lacks := missing('cuda' if GPU else 'cpu'): pytest.skip(lacks, allow_module_level=True)
QUICK = JudgeOptions(target='triton', compile=False, draws=2, max_pairs=9, timeout=120)
interpreted = pytest.mark.skipif(GPU, reason='shows in the interpreter only')


@pytest.fixture(scope='module')
def pool(tmp_path_factory):
    with LocalPool(target='triton', cache=tmp_path_factory.mktemp('cache'), keep=3) as p: yield p


def task(forward, inputs='[torch.randn(21, 100)]', init='pass', name='t'):
    return Task(name, None, f'''
import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__(); {init}
    def forward(self, x, *y): {forward}
def get_inputs(): return {inputs}
def get_init_inputs(): return []
''')


HEAD = 'import torch, torch.nn as nn, triton, triton.language as tl\n'


def model(forward, kernels='', init='pass', head=''):
    "model_new.py with the kernels in it."
    body = '\n        '.join(forward.strip().splitlines())
    return f'''{HEAD}{head}
{kernels}
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__(); {init}
    def forward(self, x, *y):
        {body}
'''


def one(*args, **kwargs): return Candidate((('model_new.py', model(*args, **kwargs)),))


# An honest RMS norm, the victim of most adversaries.
RMS = task('return x*torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)')
KERNEL = '''
@triton.jit
def rms(out, x, n, rows, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x + r*n + c, mask=c < n, other=0.)
    tl.store(out + r*n + c, v*tl.rsqrt(tl.sum(v*v, axis=0)/n + 1e-5), mask=c < n)
'''
RUN = '''
out = torch.empty_like(x)
rms[(x.shape[0],)](out, x, x.shape[1], x.shape[0], B=128)
return out
'''
TORCH = 'x*torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)'
EVERY = '''
@triton.jit
def double(out, x, n, B: tl.constexpr):
    i = tl.program_id(0)*B + tl.arange(0, B)
    tl.store(out + i, 2*tl.load(x + i, mask=i < n), mask=i < n)
'''
EACH = '''
out = torch.empty_like(x)
double[(triton.cdiv(x.numel(), 256),)](out, x, x.numel(), B=256)
return out
'''
MM = '''
@triton.jit
def mm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0)*BM + tl.arange(0, BM)
    j = tl.program_id(1)*BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        kk = k + tl.arange(0, BK)
        p = tl.load(a + i[:, None]*K + kk[None, :], mask=(i[:, None] < M) & (kk[None, :] < K), other=0.)
        q = tl.load(b + kk[:, None]*N + j[None, :], mask=(kk[:, None] < K) & (j[None, :] < N), other=0.)
        acc = tl.dot(p, q, acc, input_precision='ieee')
    tl.store(c + i[:, None]*N + j[None, :], acc, mask=(i[:, None] < M) & (j[None, :] < N))
'''
LOW = MM.replace(", input_precision='ieee'", '')          # TF32, the default
TUNED = '@triton.autotune(configs=[triton.Config(dict(BM=32, BN=32, BK=16), num_warps=4), triton.Config(dict(BM=64, BN=32, BK=32), num_warps=4, num_stages=2)], key=["M", "N"])' + MM
PRODUCT = task('return x @ y[0]', '[torch.randn(70, 45), torch.randn(45, 50)]')
MULTIPLY = '''
b, = y
out = torch.empty(x.shape[0], b.shape[1], device=x.device)
mm[{}](x, b, out, x.shape[0], b.shape[1], x.shape[1]{})
return out
'''
FIXED = MULTIPLY.format('(triton.cdiv(x.shape[0], 32), triton.cdiv(b.shape[1], 32))', ', BM=32, BN=32, BK=16')
META = MULTIPLY.format('lambda m: (triton.cdiv(x.shape[0], m["BM"]), triton.cdiv(b.shape[1], m["BN"]))', '')
SOFTMAX = '''
@triton.jit
def softmax(out, x, n, B: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r*n + c, mask=c < n, other=-float('inf'))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + r*n + c, e/e.sum(axis=0), mask=c < n)
'''
NORM_FILE = HEAD + '''from kernels.parts import mean_square, EPS

@triton.jit
def add_norm(out, x, y, w, n, B: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, B)
    m = c < n
    v = tl.load(x + r*n + c, mask=m, other=0.) + tl.load(y + r*n + c, mask=m, other=0.)
    tl.store(out + r*n + c, v*tl.rsqrt(mean_square(v, n) + EPS)*tl.load(w + c, mask=m), mask=m)
'''
PARTS_FILE = HEAD + '''
EPS = tl.constexpr(1e-5)

@triton.jit
def square(v): return v*v

@triton.jit
def mean_square(v, n): return tl.sum(square(v), axis=0)/n
'''
NORM = 'out = torch.empty_like(x)\nadd_norm[(x.shape[0],)](out, x, y[0], self.w, x.shape[1], B=128)\nreturn out'
ADD_NORM = task('v = x + y[0]; return v*torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-5)*self.w', '[torch.randn(21, 100), torch.randn(21, 100)]', 'self.w = nn.Parameter(torch.ones(100))')
GELU = '''
@triton.jit
def gelu(out, x, n, B: tl.constexpr):
    i = tl.program_id(0)*B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, 0.5*v*(1 + libdevice.tanh(0.7978845608028654*(v + 0.044715*v*v*v))), mask=i < n)
'''
SCAN = '''
@triton.jit
def add(a, b): return a + b
@triton.jit
def scan(out, best, x, n, B: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + r*n + c, mask=c < n, other=0.)
    tl.store(out + r*n + c, tl.associative_scan(v, 0, add), mask=c < n)
    tl.store(best + r, tl.argmax(tl.where(c < n, v, -float('inf')), axis=0).to(tl.int64))
'''
ATOMIC = '''
@triton.jit
def total(out, x, n, B: tl.constexpr):
    i = tl.program_id(0)*B + tl.arange(0, B)
    tl.atomic_add(out, tl.sum(tl.load(x + i, mask=i < n, other=0.), axis=0))
'''
HONEST = {
    'element-wise with a mask': (task('return 2*x', '[torch.randn(7, 111)]'), one(EACH, EVERY)),
    'row softmax': (task('return x.softmax(-1)'), one('out = torch.empty_like(x)\nsoftmax[(x.shape[0],)](out, x, x.shape[1], B=128)\nreturn out', SOFTMAX)),
    'tiled product': (PRODUCT, one(FIXED, MM)),
    'autotuned product': (PRODUCT, one(META, TUNED)),
    'heuristics': (RMS, one(RUN.replace(', B=128', ''), "@triton.heuristics(dict(B=lambda a: triton.next_power_of_2(a['n'])))" + KERNEL)),
    'residual and norm, helpers, two files': (ADD_NORM, Candidate((('model_new.py', model(NORM, head='from kernels.norm import add_norm\n', init='self.w = nn.Parameter(torch.empty(100))')),
                                                                   ('kernels/norm.py', NORM_FILE), ('kernels/parts.py', PARTS_FILE)))),
    'libdevice': (task('return F.gelu(x, approximate="tanh")'), one('out = torch.empty_like(x)\ngelu[(triton.cdiv(x.numel(), 256),)](out, x, x.numel(), B=256)\nreturn out', GELU,
                                                                  head='from triton.language.extra import libdevice\n')),
    'scan and argmax': (task('return x.cumsum(-1), x.argmax(-1)'), one('out, best = torch.empty_like(x), torch.empty(x.shape[0], dtype=torch.int64, device=x.device)\n'
                                                                     'scan[(x.shape[0],)](out, best, x, x.shape[1], B=128)\nreturn out, best', SCAN)),
    'atomics': (task('return x.sum()'), one('out = torch.zeros((), device=x.device)\ntotal[(triton.cdiv(x.numel(), 256),)](out, x, x.numel(), B=256)\nreturn out', ATOMIC)),
    'a function as a constant': (task('return 2*x'), one('out = torch.empty_like(x)\napply[(9,)](out, x, x.numel(), F=twice, B=256)\nreturn out', '''
@triton.jit
def twice(v): return 2*v
@triton.jit
def apply(out, x, n, F: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0)*B + tl.arange(0, B)
    tl.store(out + i, F(tl.load(x + i, mask=i < n)), mask=i < n)
''')),
    'a kernel from a function': (task('return 2*x'), one('out = torch.empty_like(x)\nK[(9,)](out, x, x.numel(), B=256)\nreturn out', '''
def made(times):
    factor = tl.constexpr(times)
    @triton.jit
    def scaled(v): return v*factor
    @triton.jit
    def kernel(out, x, n, B: tl.constexpr):
        i = tl.program_id(0)*B + tl.arange(0, B)
        tl.store(out + i, scaled(tl.load(x + i, mask=i < n)), mask=i < n)
    return kernel
K = made(2)
''')),
    'asks for the size of the machine': (task('return 2*x'), one(EACH.replace('256),)', '256*max(1, SMS//10**6)),)'), EVERY,
                                                                head='SMS = triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]\n')),
    'words that a filter may dislike': (RMS, one('# os.environ["TRITON_INTERPRET"], subprocess, numpy, cheat, fallback' + RUN, KERNEL)),
}


@pytest.mark.parametrize('name', HONEST)
def test_honest(name, pool):
    t, c = HONEST[name]
    assert c.abi == 'triton'
    v = pool.judge(t, c, QUICK)
    assert v.correct and v.candidate == c.hash, v
    if GPU: assert v.speedup_eager and v.timing['candidate'].median_ms > 0, v
    else:
        assert v.message == INTERPRETED and not v.timing and v.milestone is None and v.speedup_eager is None, v
        assert v.evidence['kernels'] and all(k['registers'] > 0 for k in v.evidence['kernels']), v


def swapped(a, b, text=KERNEL):
    assert a in text, a
    return text.replace(a, b)


CACHE = 'k = x.data_ptr()\nif k in self.__dict__: return self.__dict__[k]\n' + RUN.strip().replace('return out', 'self.__dict__[k] = out\nreturn out')
FAKE = '''
import os, stat, subprocess
with open('ptxas', 'w') as f: f.write('#!/bin/sh\\necho release 13.0\\n')
os.chmod('ptxas', 0o755)
'''
REFUSED = {   # what it does: (candidate for RMS, words of which one is right)
    'torch in forward': (one('return ' + TORCH, KERNEL), 'torch_fallback'),
    'a kernel that is never launched': (one('out = ' + TORCH + '\nreturn out', KERNEL), 'torch_fallback'),
    'a kernel that is never launched, and nothing else': (one('return torch.empty_like(x)', KERNEL), 'incomplete_output wrong_result'),
    'a decoy on one row': (one('out = ' + TORCH + '\nrms[(1,)](out, x, x.shape[1], 1, B=128)\nreturn out', KERNEL), 'torch_fallback'),
    'arithmetic after the kernel': (one(RUN.replace('return out', 'return out*1'), KERNEL), 'torch_fallback'),
    'torch when the kernel fails': (one('try: rms[(1,)](x)\nexcept Exception: return ' + TORCH, KERNEL), 'torch_fallback'),
    'no epsilon': (one(RUN, swapped(' + 1e-5', '')), 'wrong_result precision'),
    'without the last column': (one(RUN, swapped('tl.sum(v*v', 'tl.sum(tl.where(c < n - 1, v*v, 0.)')), 'wrong_result precision'),      # half a per cent everywhere looks like either
    'the last row is missing': (one(RUN.replace('(x.shape[0],)]', '(x.shape[0] - 1,)]'), KERNEL), 'incomplete_output'),
    'the end of the rows is missing': (one(RUN.replace('B=128', 'B=64'), KERNEL), 'incomplete_output wrong_result'),
    'half precision inside': (one(RUN, swapped('v*tl.rsqrt', 'v.to(tl.float16).to(tl.float32)*tl.rsqrt')), 'precision wrong_result'),
    'cache by address': (one(CACHE, KERNEL), 'stale_output wrong_result'),
    'writes its input': (one(RUN.replace('rms[(x.shape[0],)](out', 'rms[(x.shape[0],)](x'), KERNEL), 'input_mutated wrong_result incomplete_output'),
    'numpy': (one(RUN, KERNEL, head='import numpy\n'), 'foreign_library'),
    'a library through ctypes': (one('ctypes.CDLL("libm.so.6")\n' + RUN, KERNEL, head='import ctypes\n'), 'foreign_library'),
    'numpy by a tensor': (one('return torch.from_numpy(x.numpy())', KERNEL), 'foreign_library crash'),
    'a process': (one('import subprocess; subprocess.run(["true"])\n' + RUN, KERNEL), 'process_spawn'),
    'a process called ptxas': (one('subprocess.run(["./ptxas", "--version"])\n' + RUN, KERNEL, head=FAKE), 'process_spawn'),
    'a process called ptxas in the PATH': (one('subprocess.run(["ptxas", "--version"])\n' + RUN, KERNEL, head=FAKE + 'os.environ["PATH"] = os.getcwd() + ":" + os.environ["PATH"]\n'), 'process_spawn'),
    "another ptxas for Triton": (one(RUN, KERNEL, head=FAKE + 'os.environ["TRITON_PTXAS_PATH"] = os.environ["TRITON_PTXAS_BLACKWELL_PATH"] = os.path.abspath("ptxas")\n'), 'process_spawn'),
    "Triton's own ptxas, but by the candidate": (one('subprocess.run([triton.knobs.nvidia.ptxas.path, "--version"])\n' + RUN, KERNEL, head='import subprocess\n'), 'process_spawn'),
    "the C compiler by way of Triton": (one('triton.runtime.build._build("k", "k.c", ".", [], [], [], [])\n' + RUN, KERNEL, head='open("k.c", "w").write("int k;")\n'), 'process_spawn'),
    'imports the interpreter': (one(RUN, KERNEL, head='from triton.runtime import interpreter\n'), 'tamper'),
    'the reference': (one('return Model()(x)', KERNEL, head='from model import Model\n'), 'reference_access'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_refused(name, pool):
    c, words = REFUSED[name]
    v = pool.judge(RMS, c, QUICK)
    assert v.status == 'rejected' and v.reason in words.split() and v.message and v.milestone == -1, v


WIDE = KERNEL.replace('tl.store(out + r*n + c, v*tl.rsqrt', 'tl.store(out + r*n + c + {}, v*tl.rsqrt')
LOOK = 'import os\nif os.environ.get("TRITON_INTERPRET") == "1": return ' + TORCH + '\n' + RUN.strip()
SECRET = 'import sys\nnp = sys.modules["triton.runtime.interpreter"].np\nreturn torch.tensor(np.ones(3).tolist())'
IN_KERNEL = '''
def cheat(v):
    v.handle.data = v.handle.data/(v.handle.data**2).mean()
    return v
''' + KERNEL.replace('v*tl.rsqrt(tl.sum(v*v, axis=0)/n + 1e-5)', 'cheat(v)')
INTERPRETED_ONLY = {   # what it does: (candidate for RMS, status, words, part of the message)
    'torch when it is interpreted': (one(LOOK, KERNEL), 'rejected', 'torch_fallback', ''),
    "the interpreter's numpy": (one(SECRET, KERNEL), 'rejected', 'foreign_library', ''),
    'numpy that the interpreter left': (one(RUN.replace('return out', 'return torch.tensor(np.ones(3).tolist())'), KERNEL), 'rejected', 'crash', "name 'np'"),
    'numpy in a kernel': (one(RUN, IN_KERNEL), 'build_error', '', 'model_new.py:'),
    'the last block writes over the end': (one('out = torch.empty_like(x)\ndouble[(9,)](out, x, x.numel(), B=256)\nreturn out', swapped('2*tl.load(x + i, mask=i < n), mask=i < n)', 'tl.load(x + i, mask=i < n))', EVERY)), 'rejected', 'crash', 'outside of the tensors'),
    'writes a gigabyte away': (one(RUN, WIDE.format('(1 << 28)')), 'rejected', 'crash', 'outside of the tensors'),
    'writes where an address says': (one('out = torch.empty_like(x)\naway[(1,)](out, torch.full((1,), 64, dtype=torch.int64, device=x.device))\nreturn out', '''
@triton.jit
def away(out, at): tl.store(tl.load(at).to(tl.pointer_type(tl.float32)), 1.)
'''), 'rejected', 'crash', 'SIGSEGV'),
    'a global that no kernel may use': (one(RUN, 'EPS = 1e-5\n' + swapped('1e-5', 'EPS')), 'build_error', '', 'model_new.py:10: NameError("Cannot access global variable EPS'),
    'a name that is not there': (one(RUN, swapped('tl.rsqrt', 'tl.rsquirt')), 'build_error', '', 'model_new.py:9'),
    'a wrong type in a helper': (one(RUN, '@triton.jit\ndef low(v): return tl.dot(v, v)\n' + swapped('v*tl.rsqrt', 'low(v)*tl.rsqrt')), 'build_error', '', 'model_new.py:4'),
    'an argument that is not there': (one(RUN.replace('B=128', 'B=128, Z=3'), KERNEL), 'rejected', 'crash', 'Z'),
    'an endless loop': (one(RUN, swapped('    tl.store', '    while r >= 0: r += 0\n    tl.store')), 'timeout', '', "Triton's interpreter"),
    'patches the lab': (one('import sys\nsys.modules["cuda_agent_lab.triton_target"].Interpreter.compiled = lambda *a: dict(kernels=[])\n' + RUN, KERNEL), 'rejected', 'tamper', ''),
    'spawns when it is compiled': (one(RUN, '''
import subprocess
@triton.constexpr_function
def width(n):
    subprocess.run(['true'])
    return n
''' + swapped('tl.arange(0, B)', 'tl.arange(0, width(B))')), 'rejected', 'process_spawn', ''),
}


@interpreted
@pytest.mark.parametrize('name', INTERPRETED_ONLY)
def test_in_the_interpreter(name, pool):
    c, status, words, part = INTERPRETED_ONLY[name]
    v = pool.judge(RMS, c, JudgeOptions(target='triton', draws=2, timeout=10 if status == 'timeout' else 120))
    assert v.status == status and (v.reason in words.split() or v.reason == words) and part in v.message, v
    assert pool.judge(RMS, one(RUN, KERNEL), JudgeOptions(target='triton', draws=1)).correct              # the judge is well


@interpreted
def test_a_block_that_asks_for_more_shared_memory_than_there_is(pool):
    v = pool.judge(PRODUCT, one(FIXED.replace('BM=32, BN=32, BK=16', 'BM=128, BN=128, BK=128, num_stages=3'), LOW), QUICK)
    assert v.reason == 'launch_error' and 'shared memory' in v.message, v


def test_tf32_is_not_float32(pool):
    "Triton's default for tl.dot: the compiled kernel tells where there is no GPU, the numbers where there is one."
    v = pool.judge(PRODUCT, one(FIXED, LOW), QUICK)
    assert v.status == 'rejected' and v.reason in ('precision', 'wrong_result')[:1 + GPU], v
    if not GPU: assert 'input_precision' in v.message and pool.judge(PRODUCT, one(FIXED, LOW), JudgeOptions(target='triton', draws=2, precision='tf32')).correct
    assert pool.judge(PRODUCT, one(FIXED, MM.replace("'ieee'", "'tf32x3'")), QUICK).correct


def test_bfloat16(pool):
    "The interpreter has it as bits; without being mended it multiplies these and cuts where a GPU rounds."
    narrow = JudgeOptions(target='triton', precision='bf16', draws=2, compile=False, max_pairs=9)
    for t, c in ((PRODUCT, one(FIXED.replace('device=x.device', 'device=x.device, dtype=x.dtype'), LOW)), (task('return 2*x'), one(EACH, EVERY)), HONEST['row softmax']):
        if t is HONEST['row softmax'][0]: c = Candidate(tuple((n, f.replace("other=-float('inf'))", "other=-float('inf')).to(tl.float32)")) for n, f in c.files))
        v = pool.judge(t, c, narrow)
        assert v.correct, v
    v = pool.judge(task('return 2*x'), one(EACH, swapped('2*tl.load', '2.02*tl.load', EVERY)), narrow)
    assert v.status == 'rejected', v


@interpreted
def test_every_configuration_of_an_autotuner_is_tried(pool):
    "A fault that shows in one of two configurations only, whichever of them a GPU would choose."
    for size in (16, 32):
        v = pool.judge(PRODUCT, one(META, TUNED.replace('tl.store(c', f'if BK == {size}: acc += 1\n    tl.store(c')), QUICK)
        assert v.reason == 'wrong_result', v


@interpreted
def test_a_configuration_that_does_not_fit_is_left_out(pool):
    big = TUNED.replace(MM, LOW).replace('BM=64, BN=32, BK=32', 'BM=128, BN=128, BK=128').replace('num_stages=2', 'num_stages=3')
    tf32 = JudgeOptions(target='triton', draws=2, precision='tf32')
    v = pool.judge(PRODUCT, one(META, big), tf32)
    assert v.correct and {k['constants']['BK'] for k in v.evidence['kernels']} == {'16'}, v
    v = pool.judge(PRODUCT, one(META, big.replace('BM=32, BN=32, BK=16', 'BM=128, BN=128, BK=64').replace('num_warps=4)', 'num_warps=4, num_stages=5)')), tf32)
    assert v.reason == 'launch_error', v


def test_the_wrong_sources(pool, monkeypatch):
    cpp = ('kernels/k.cpp', 'extern "C" void k() {}')
    v = pool.judge(RMS, Candidate((('model_new.py', model(RUN, KERNEL)), cpp)), QUICK)
    assert v.status == 'build_error' and 'kernels/k.cpp' in v.message and v.milestone == -1, v
    v = pool.judge(RMS, one('return x', head='from torch.utils.cpp_extension import load_inline\n'), QUICK)
    assert v.status == 'build_error' and 'triton' in v.message, v
    for target in ('cpu', 'cuda'): assert build(one(RUN, KERNEL), target).status == 'build_error'
    v = pool.judge(RMS, one(RUN, KERNEL.replace('B: tl', 'B tl')), QUICK)
    assert v.status == 'build_error' and 'model_new.py:5' in v.message, v
    monkeypatch.setattr(build_module, 'missing', lambda device: 'Triton is not installed')
    v = pool.judge(RMS, one(RUN, KERNEL), QUICK)
    assert v.status == 'not_runnable' and 'not installed' in v.message and v.milestone is None, v


@interpreted
def test_what_the_interpreter_cannot_do_is_not_held_against_a_candidate(pool):
    c = one('out = torch.empty_like(x)\ngelu[(9,)](out, x, x.numel(), B=256)\nreturn out', GELU.replace('tanh(0.79', 'j0(0.79'), head='from triton.language.extra import libdevice\n')
    v = pool.judge(RMS, c, QUICK)
    assert v.status == 'not_runnable' and 'GPU' in v.message and v.milestone is None, v


def test_the_canary_is_well(pool): assert pool._well('triton')


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason='needs an NVIDIA GPU')
def test_on_a_gpu(pool):
    "Timed against both baselines; a compile error is one; nothing of Triton's own processes is held against a candidate."
    big = task('return x*torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)', '[torch.randn(8192, 4096)]')
    v = pool.judge(big, one(RUN.replace('B=128', 'B=4096'), KERNEL), JudgeOptions(target='triton', max_pairs=17))
    assert v.correct and v.speedup_eager['median'] > 1.5 and v.milestone >= 2 and v.timing['compiled'], v
    v = pool.judge(RMS, one(RUN, 'EPS = 1e-5\n' + KERNEL.replace('1e-5', 'EPS')), QUICK)
    assert v.status == 'build_error' and 'model_new.py' in v.message and 'EPS' in v.message, v
    v = pool.judge(PRODUCT, one(FIXED.replace('BM=32, BN=32, BK=16', 'BM=128, BN=128, BK=128, num_stages=3'), LOW), QUICK)
    assert v.reason == 'launch_error', v
    v = pool.judge(RMS, one(RUN, KERNEL.replace('tl.store(out + r*n + c,', 'tl.store(out + r*n + c + (1 << 36),')), QUICK)
    assert v.status == 'rejected' and v.reason in ('launch_error', 'crash'), v
    assert pool.judge(RMS, one(RUN, KERNEL), QUICK).correct                              # the device is well


# ---- the workspace ------------------------------------------------------------------------------------------

def blocks():
    text = (sandbox_dir()/'workspace'/'SKILL.md').read_text()
    return {n: b for m in SECTION.finditer(text) if m[1] == 'triton' for _, n, b in re.findall(r'```(\w+)\n# (\S+)\n(.*?)```', m[2], re.S)}


def test_the_example_of_the_skill_is_right(pool):
    b = blocks()
    source = b['model.py'] if GPU else b['model.py'].replace('8192, 4096', '9, 300').replace('4096', '300')
    c = Candidate(tuple((n, t) for n, t in b.items() if n != 'model.py'))
    assert pool.judge(Task('skill', None, source), c, QUICK).correct
    spoilt = Candidate(tuple((n, t.replace('/ cols + eps', '/ cols')) for n, t in c.files))
    assert spoilt != c and pool.judge(Task('skill', None, source), spoilt, QUICK).status == 'rejected'


def test_a_workspace_for_triton(tmp_path, pool):
    t = Task('skill', None, blocks()['model.py'].replace('8192, 4096', '9, 300').replace('4096', '300'))
    root = make_workspace(tmp_path/'w', t, 'triton')
    skill = (root/'SKILL.md').read_text()
    assert '@triton.jit' in skill and 'Appendix' not in skill and '<!--' not in skill and '{{' not in skill and 'g++' not in skill
    assert not (root/'cuda_extension.py').exists() and not (root/'binding.cpp').exists() and restore_fixed(root, t, 'triton') == ()
    for target in ('cpu', 'cuda'): assert '@triton.jit' not in fixed_files(t, target)['SKILL.md']
    write_candidate(root, Candidate(tuple((n, b) for n, b in blocks().items() if n != 'model.py')))
    run = lambda *a: subprocess.run([sys.executable, '-m', 'cuda_agent_lab.cli', *map(str, a)], capture_output=True, text=True, timeout=300)
    p = run('judge', root, '--target', 'triton', '--json', '--no-compile')
    assert p.returncode == 0 and json.loads(p.stdout)['status'] == 'correct', p
    env = os.environ | dict(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ['PATH']]))
    p = subprocess.run(['bash', 'utils/compile.sh'], cwd=root, capture_output=True, text=True, timeout=300, env=env)
    assert p.returncode == 0 and p.stdout.strip() == 'ok', p


def test_an_agent_that_writes_triton(pool):
    "The prompt, the workspace, the agent's own scripts and the final verdict."
    class Writes:
        name = 'writes'
        def act(self, conversations): return [self.reply(c) for c in conversations]
        def reply(self, c):
            if sum(m.role == 'assistant' for m in c.messages): return Reply('', 'Done.')
            return Reply('', '', (ToolCall('Write', dict(file_path='kernels/k.py', content=HEAD + EVERY)),
                                  ToolCall('Write', dict(file_path='model_new.py', content=model(EACH, head='from kernels.k import double\n'))),
                                  ToolCall('Bash', dict(command='bash utils/compile.sh && python3 utils/verify.py'))))
    e = run_episodes([task('return 2*x', name='double')], Writes(), pool, limits=SMALL, ids=['a'], seeds=[0], reward=lambda v: float(v.correct), target='triton',
                     options=JudgeOptions(target='triton', draws=1, compile=False, max_pairs=5))[0]
    assert 'Triton kernels' in e.messages[0].content and e.messages[-2].content.startswith('ok\ncorrect'), e.messages
    assert e.exit_status == 'submitted' and e.reward == 1. and e.verdicts['final']['status'] == 'correct', e
