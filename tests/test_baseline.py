"""Every template against float64: C++ on the CPU, CUDA text on an emulator of threads and (marked gpu) on the device, and with nvcc where it is installed."""
import hashlib
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cuda_agent_lab import templates_cpu, templates_cuda
from cuda_agent_lab.agent import Conversation, SMALL
from cuda_agent_lab.baseline import TemplatePolicy
from cuda_agent_lab.episodes import Message
from cuda_agent_lab.expressions import flawed
from cuda_agent_lab.plan import plan
from cuda_agent_lab.tasks import Task, load_module, load_tasks, sandbox_dir
from cuda_agent_lab.nodes import NoTemplate

HERE = Path(__file__).parent
EPS = torch.finfo(torch.float32).eps

# name -> (forward's return, constructor); X is one of SHAPES, its last size is W
BODIES = {
    'relu': 'torch.relu(x)', 'leaky': 'F.leaky_relu(x, 0.2)', 'gelu': 'F.gelu(x)', 'gelu_tanh': "F.gelu(x, approximate='tanh')", 'silu': 'F.silu(x)',
    'sigmoid': 'torch.sigmoid(x)', 'tanh': 'torch.tanh(x)', 'softplus': 'F.softplus(x)', 'softsign': 'F.softsign(x)', 'elu': 'F.elu(x, 0.7)', 'selu': 'F.selu(x)',
    'celu': 'F.celu(x, 0.5)', 'hardtanh': 'F.hardtanh(x)', 'hardsigmoid': 'F.hardsigmoid(x)', 'hardswish': 'F.hardswish(x)', 'mish': 'F.mish(x)', 'clamp': 'x.clamp(-0.3, 0.8)',
    'exp': 'torch.exp(x.clamp(max=20))', 'log': 'torch.log(x.abs() + 0.1)', 'log1p': 'torch.log1p(x.abs())', 'sqrt': 'torch.sqrt(x.abs())', 'rsqrt': 'torch.rsqrt(x.abs() + 1)',
    'pow': 'x ** 3 + x.abs() ** 1.7', 'minmax': 'torch.maximum(x, torch.minimum(y, x * 0.5))', 'where': 'torch.where(x > y, x - y, 2 * y)', 'mask': '(x > 0) * x + (x != x).float()',
    'logsigmoid': 'F.logsigmoid(x)', 'erf': 'torch.erf(x)', 'trig': 'torch.sin(x / 64) * torch.cos(y / 64)', 'neg': '-x / (1 + y * y)',
    'scalar': 'x * s + y', 'column': ('(x + self.w) * self.u', 'self.w, self.u = nn.Parameter(torch.randn(W)), nn.Parameter(torch.randn(ROWS, 1))'),
    'sum': 'x.sum(-1)', 'mean': 'x.mean(dim=-1, keepdim=True)', 'max': 'x.amax(-1)', 'min': 'torch.min(x, dim=-1)[0]', 'all': 'x.mean()', 'prod': '(1 + x.clamp(-1, 1) / 100).prod(-1)',
    'logsumexp': 'torch.logsumexp(x, -1)', 'softmax': 'torch.softmax(x, -1)', 'log_softmax': 'F.log_softmax(x, dim=-1)', 'scaled_softmax': 'torch.softmax(x * 0.3 + y, -1) * 2 - 1',
    'entropy': '-(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)', 'norm': 'x / (x.norm(dim=-1, keepdim=True) + 1e-3)', 'l1': 'x / (1 + x.abs().mean(-1, keepdim=True))',
    'normalize': 'F.normalize(x, dim=-1)', 'rms': ('F.rms_norm(x, (W,), self.w, 1e-6)', 'self.w = nn.Parameter(torch.randn(W))'),
    'layer_norm': ('x + torch.relu(self.n(x))', 'self.n = nn.LayerNorm(W); nn.init.normal_(self.n.weight); nn.init.normal_(self.n.bias)'),
    'var': 'x.var(-1) + (x - x.mean(-1, keepdim=True)).abs().amax(-1)', 'sum_first': 'x.sum(0)', 'softmax_first': 'torch.softmax(x, 0)', 'max_first': 'x.amax(0, keepdim=True)',
    'std_first': '(x - x.mean(0)) / (x.std(0, unbiased=False) + 1)', 'transpose': 'x.t() + 1', 'two': '(x + y, x.sum(-1))',
    'linear': ('F.gelu(self.l(x)) * 0.5', 'self.l = nn.Linear(W, 37)'), 'linear_softmax': ('torch.softmax(self.l(x), -1)', 'self.l = nn.Linear(W, 19)'),
    'gram': 'torch.relu(x @ x.T - 1)', 'gram_t': 'x.T @ y', 'vector': ('x @ self.v + 1', 'self.v = nn.Parameter(torch.randn(W, 1))'), 'mv': ('torch.mv(x, self.v)', 'self.v = nn.Parameter(torch.randn(W))'),
    'triu': 'torch.triu(x @ y.T)', 'tril': 'torch.tril(x @ y.T, -1)', 'diag': 'torch.diag(x[0]) @ y.T', 'slices': 'x.chunk(2, 0)[0] * y[:1] - x[-1]',
}
IMAGES = {   # inputs of shape (2, 8, 5, 6)
    'batch_norm': ('torch.relu(self.n(x))', 'self.n = nn.BatchNorm2d(8); self.n.running_mean.normal_(); self.n.running_var.uniform_(0.5, 2); nn.init.normal_(self.n.weight)'),
    'group_norm': ('self.n(x) * y', 'self.n = nn.GroupNorm(4, 8); nn.init.normal_(self.n.weight); nn.init.normal_(self.n.bias)'), 'instance_norm': ('self.n(x)', 'self.n = nn.InstanceNorm2d(8)'),
    'pointwise': ('torch.clamp(self.c(x) + y, -1, 1)', 'self.c = nn.Conv2d(8, 8, 1)'), 'channel_softmax': 'torch.softmax(x, 1)', 'einsum': ("torch.einsum('bijl,lk->bijk', x, self.w)", 'self.w = nn.Parameter(torch.randn(6, 9))'),
    'bmm': 'torch.matmul(x, y.transpose(2, 3))', 'tokens': ('x + self.l(x.transpose(2, 3)).transpose(2, 3)', 'self.l = nn.Linear(5, 5)'), 'channel_mean': 'x - x.mean((2, 3), keepdim=True)',
    'all_channels': '(x - x.mean((0, 2, 3), keepdim=True)) * 2', 'permute': 'x.permute(0, 2, 3, 1) * 2', 'excite': ('x * torch.sigmoid(self.l(x.mean((2, 3))))[:, :, None, None]', 'self.l = nn.Linear(8, 8)'),
}
SHAPES = [(3, 1), (3, 7), (5, 1000), (2, 1025), (64, 96)]


def make_task(body, shape, init='', scale=1.0):
    body, init = body if isinstance(body, tuple) else (body, init)
    return Task(f'test/{hashlib.sha1(repr((body, shape, scale)).encode()).hexdigest()[:8]}', 1, f'''
import torch, torch.nn as nn, torch.nn.functional as F
SHAPE = {shape}
ROWS, W = SHAPE[0], SHAPE[-1]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init or 'pass'}
    def forward(self, x, y, s): return {body}
def get_inputs(): return [{scale} * torch.randn(SHAPE), {scale} * torch.randn(SHAPE), 0.7]
def get_init_inputs(): return []
''')


def some_tasks():
    "(name, task): every body at one odd and one plain shape, larger and smaller inputs for some."
    for i, (name, body) in enumerate(BODIES.items()):
        for j in (i % 4, 4):
            yield f'{name}-{SHAPES[j]}', make_task(body, SHAPES[j])
    for name in ('softmax', 'logsumexp', 'log_softmax', 'gelu', 'gelu_tanh', 'tanh', 'softplus', 'mish', 'layer_norm', 'elu', 'silu', 'erf'):
        for scale in (64.0, 1e-3): yield f'{name}-{scale}', make_task(BODIES[name], (6, 257), scale=scale)
    for name, body in IMAGES.items(): yield name, make_task(body, (2, 8, 5, 6))


def number(candidate, i):
    "Text of the kernel and of model_new.py with functions renamed, so that many candidates share one library."
    files = dict(candidate.files)
    kernel = next(t for p, t in files.items() if p.startswith('kernels/'))
    return re.sub(r'\bfused', f'k{i}_fused', kernel), re.sub(r'\bfused', f'k{i}_fused', files['model_new.py'])


def load(library):
    spec = importlib.util.spec_from_file_location('cuda_extension', sandbox_dir()/'workspace'/'cuda_extension.py')
    sys.modules['cuda_extension'] = ext = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ext)
    ext.load(library)


def compare(task, model_text, device='cpu', special=False):
    "None, or what is wrong. Bound: four times eager's error plus 33 rounding steps of the output's scale."
    torch.manual_seed(0)
    space, module = {}, load_module(task)
    exec(model_text, space)
    ref, new = module.Model().eval().to(device), space['ModelNew']().eval().to(device)
    new.load_state_dict(ref.state_dict())
    x = [v.to(device) if isinstance(v, torch.Tensor) else v for v in module.get_inputs()]
    if special:
        for v in x[:2]:
            flat = v.view(-1)
            flat[0], flat[flat.numel() // 2], flat[-1] = float('nan'), float('inf'), float('-inf')
    with torch.no_grad():
        outs, eager = new(*x), ref(*x)
        exact = ref.double()(*[v.double() if isinstance(v, torch.Tensor) else v for v in x])
    for o, e, d in zip(*(v if isinstance(v, tuple) else (v,) for v in (outs, eager, exact))):
        if o.shape != e.shape or o.dtype != e.dtype: return f'shape {o.shape}, not {e.shape}'
        if not torch.equal(o.isnan(), e.isnan()): return f'{int(o.isnan().sum())} NaN, eager {int(e.isnan().sum())}'
        if not torch.equal(o.isinf(), e.isinf()): return f'{int(o.isinf().sum())} inf, eager {int(e.isinf().sum())}'
        ok = d.isfinite() & e.isfinite()
        if not ok.any(): continue
        bound = 4 * (e - d)[ok].abs().max() + 33 * EPS * d[ok].square().mean().sqrt()
        if (o - d)[ok].abs().max() > bound: return f'error {float((o - d)[ok].abs().max()):.3g} > {float(bound):.3g}'


def compile_all(texts, command, suffix, folder, head=''):
    "Several kernels in a few libraries, two compilers at a time; returns the library of each."
    folder.mkdir(parents=True, exist_ok=True)
    parts = [list(range(i, len(texts), 4)) for i in range(4)]
    jobs = []
    for n, part in enumerate(parts):
        includes = sorted({l for i in part for l in re.findall(r'^#include.*$', texts[i], re.M)}) if not head else [head]
        bodies = [re.sub(r'^#include.*$', '', texts[i], flags=re.M) for i in part]
        source = folder/f'part{n}{suffix}'
        source.write_text('\n'.join(includes) + '\n' + '\n'.join(f'namespace s{i} {{\n{b}\n}}' for i, b in zip(part, bodies)))
        jobs.append((source.with_suffix('.so'), [*command, '-o', str(source.with_suffix('.so')), str(source)]))
    for pair in (jobs[:2], jobs[2:]):
        running = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for _, c in pair]
        for p in running:
            error = p.communicate()[1]
            assert p.returncode == 0, error[:3000]
    return {i: jobs[n][0] for n, part in enumerate(parts) for i in part}


def write_all(templates, target, rng, only=None):
    "[(name, task, kernel text, model text)] with default knobs for every task, random knobs for every task."
    out = []
    for name, task in some_tasks():
        if only and not re.match(only, name): continue
        p = plan(task)
        for kind in ('default', 'random'):
            values = templates.default_knobs(p, target) if kind == 'default' else templates.random_knobs(p, target, rng)
            out.append((f'{name} {values}', task, *number(templates.write(p, values, target), len(out))))
    return out


def failures(cases, libraries, device='cpu'):
    wrong = []
    for i, (name, task, _, model) in enumerate(cases):
        load(libraries[i])
        for special in (False, True):
            # a row scaling does not spread NaN over columns; PyTorch's vectorised exact gelu gives NaN at infinity, its scalar one does not
            if special and re.match(r'diag|gelu-|linear-', name): continue
            problem = compare(task, model, device, special)
            if problem: wrong.append(f'{name}{" with NaN and inf" if special else ""}: {problem}')
    return wrong


@pytest.mark.slow
def test_cpu_templates(tmp_path):
    cases = write_all(templates_cpu, 'cpu', random.Random(1))
    libraries = compile_all([c[2] for c in cases], ['g++', '-O3', '-march=native', '-fopenmp', '-std=c++17', '-shared', '-fPIC'], '.cpp', tmp_path)
    assert not (wrong := failures(cases, libraries)), '\n'.join(wrong)


def emulated(text):
    "CUDA text whose launches go through the emulator."
    text = text.replace('extern __shared__ float keep[];', '')
    return re.sub(r'(\w+(?:<[\w, ]+>)?)<<<(?:dim3\((.*?)\)|(.*)), (\d+), (\w+), stream>>>\((.*?)\);',
                  lambda m: f'emulator::run(dim3({m[2] or m[3]}), {m[4]}, [&] {{ {m[1]}({m[6]}); }});', text)


@pytest.mark.slow
def test_cuda_text_on_the_emulator(tmp_path):
    cases = write_all(templates_cuda, 'cuda', random.Random(2))
    libraries = compile_all([emulated(c[2]) for c in cases], ['g++', '-O0', '-fopenmp', '-std=c++17', '-w', '-shared', '-fPIC'], '.cpp', tmp_path,
                            head=f'#include "{HERE}/cuda_on_cpu.h"')
    assert not (wrong := failures(cases, libraries)), '\n'.join(wrong)


@pytest.mark.skipif(not shutil.which('nvcc'), reason='nvcc is not installed')
def test_cuda_text_compiles(tmp_path):
    texts = [re.sub(r'#include <cublas_v2.h>\n', '', c[2]) for c in write_all(templates_cuda, 'cuda', random.Random(3), 'softmax|layer_norm|relu|column|sum_first|triu|gram|group|transpose|norm')]
    texts = [t for t in texts if 'cublas' not in t]                # its header comes with the toolkit's library package
    source = tmp_path/'all.cu'
    source.write_text('#include <cstdint>\n' + '\n'.join(f'namespace s{i} {{\n{re.sub("#include.*", "", t)}\n}}' for i, t in enumerate(texts)))
    done = subprocess.run(['nvcc', '-O1', '-std=c++17', '-arch=sm_90', '-cubin', '-o', str(tmp_path/'all.cubin'), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
def test_cuda_templates_on_the_device(tmp_path):
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = write_all(templates_cuda, 'cuda', random.Random(4))
    major, minor = torch.cuda.get_device_capability()
    command = ['nvcc', '-O3', '-std=c++17', f'-arch=sm_{major}{minor}', '-shared', '-Xcompiler', '-fPIC', '-lcublas']
    libraries = compile_all([c[2] for c in cases], command, '.cu', tmp_path)
    assert not (wrong := failures(cases, libraries, 'cuda')), '\n'.join(wrong)


def test_first_twenty_of_kernelbench_are_planned():
    folder = os.environ.get('KERNELBENCH_JSONL')
    if not folder: pytest.skip('set KERNELBENCH_JSONL to a file with ref_code lines')
    for task in load_tasks(folder, level=1, limit=20): plan(task)


def test_suite_plans_or_says_why():
    planned = 0
    for task in load_tasks('suite'):
        try: planned += bool(plan(task).stages)
        except NoTemplate as e: assert str(e).startswith('No template') and str(e).endswith('.'), e
    assert planned >= 30


def test_flawed_differs_and_is_deterministic():
    p = plan(make_task(BODIES['softmax'], (5, 1000)))
    for t, target in ((templates_cpu, 'cpu'), (templates_cuda, 'cuda')):
        good = t.write(p, t.default_knobs(p, target), target)
        for seed in range(20):
            bad = flawed(good, random.Random(seed))
            assert bad != good and bad == flawed(good, random.Random(seed))


def test_policy_keeps_inside_its_turns():
    task = make_task(BODIES['softmax'], (5, 1000))
    answer = 'correct: eager 2 ms, yours 1 ms: 2.00x eager, milestone 3'
    for mode in ('search', 'teacher'):
        for turns in (3, 4, 6):
            policy = TemplatePolicy(mode, budget=99, turns=99, flaw=0.5)
            c = Conversation('t', task, 'cpu', 0, [Message('user', task.source)], limits=replace(SMALL, max_turns=turns))
            for _ in range(turns):
                r = policy.act([c])[0]
                c.messages += [Message('assistant', r.content, r.calls)] + [Message('tool', answer) for _ in r.calls]
                if not r.calls: break
            assert not r.calls and r.content.startswith('Done'), (mode, turns, r.content)


def test_optimize_writes_the_best_candidate(tmp_path):
    from cuda_agent_lab.baseline import optimize
    from cuda_agent_lab.tasks import Task
    from cuda_agent_lab.workspace import read_candidate
    task = Task('demo', 1, """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return {}
def get_inputs(): return [torch.randn(256, 1024)]
def get_init_inputs(): return []
""".format('torch.relu(x) * 2 + 1'))
    said = []
    assert optimize(task, budget=2, out=tmp_path/'best', say=said.append) == 0, said
    assert read_candidate(tmp_path/'best').abi == 'c' and any('x eager' in s for s in said), said
    unknown = Task('demo', 1, task.source.replace('torch.relu(x) * 2 + 1', 'torch.sort(x)[0]'))
    assert optimize(unknown, budget=2, out=tmp_path/'none', say=said.append) == 1
    assert 'no template' in ' '.join(said) and not (tmp_path/'none').exists()
