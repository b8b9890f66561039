"""The referee against candidates of many kinds, honest and not, through a real pool (target cpu, c ABI)."""
import contextlib
import dataclasses
import random
import threading
import time
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from cuda_agent_lab import clocks, pool as pool_module, referee
from cuda_agent_lab.clocks import PATTERN, Clocks
from cuda_agent_lab.draws import Reference
from cuda_agent_lab.exchange import Gate, Side
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import Judge, JudgeOptions
from cuda_agent_lab.refusals import Failed, InfraFailed
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.verdict import Verdict
from cuda_agent_lab.wire import Arena, Channel, at, moved, open_arena, spec_from
from cuda_agent_lab.workspace import Candidate

QUICK = JudgeOptions(compile=False, max_pairs=9, timeout=60)
UNTIMED = JudgeOptions(compile=False, timing=False, timeout=60)


def task(forward, inputs='[torch.randn(96, 128)]', init='pass', args='', given='x'):
    return Task('t', None, f'''
import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__(); {init}
    def forward(self, {given}): {forward}
def get_inputs(): return {inputs}
def get_init_inputs(): return [{args}]
''')


RMS = task('return x*torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)')
MODEL = '''
import torch, cuda_extension
rms = cuda_extension.declare("void rms(float* out, const float* x, int64_t n, int64_t d)")
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        out = torch.empty_like(x)
        rms(out, x, x.shape[0], x.shape[1])
        return out
'''
CODE = '''
#include <cmath>
#include <cstdint>
extern "C" void rms(float* out, const float* x, int64_t n, int64_t d) {
  for (int64_t i = 0; i < n; ++i) {
    const float* p = x + i*d; float* q = out + i*d; double s = 0;
    for (int64_t j = 0; j < d; ++j) s += (double)p[j]*p[j];
    float r = 1/std::sqrt(s/d + 1e-6);
    for (int64_t j = 0; j < d; ++j) q[j] = p[j]*r;
  }
}'''


def candidate(model=MODEL, code=CODE): return Candidate((('model_new.py', model), ('kernels/rms.cpp', code)))


def simple(body, signature='void f(float* out, const float* x, int64_t n)', call='f(out, x, x.numel())', loop='for (int64_t i = 0; i < n; ++i) out[i] = x[i];', make='out = torch.empty_like(x)', ret='out', given='x', init='pass'):
    model = f'''
import torch, cuda_extension
f = cuda_extension.declare("{signature}")
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__(); {init}
    def forward(self, {given}):
        {make}
        {call}
        return {ret}
'''
    code = f'#include <cmath>\n#include <cstdint>\nextern "C" {signature} {{ {body or loop} }}'
    return Candidate((('model_new.py', model), ('kernels/f.cpp', code)))


@pytest.fixture(scope='module')
def pool(tmp_path_factory):
    with LocalPool(cache=tmp_path_factory.mktemp('cache')) as p: yield p


def test_honest_candidate_is_correct_and_timed(pool):
    v = pool.judge(RMS, candidate(), QUICK)
    assert v.correct and v.milestone in (1, 2, 3), v
    assert v.timing['eager'].median_ms > 0 and v.timing['candidate'].n >= 5 and v.timing['compiled'] is None
    assert v.speedup_eager['lo'] <= v.speedup_eager['median'] <= v.speedup_eager['hi'] and v.speedup_compile is None
    assert v.evidence['null_us'] < 5000 and len(v.evidence['draws']) >= 9 and v.errors[0]['paper_ok']
    assert Verdict.from_json(v.to_json()) == v


def test_one_wrong_column_is_located(pool):
    v = pool.judge(RMS, candidate(code=CODE.replace('j < d; ++j) q[j] = p[j]*r', 'j < d; ++j) q[j] = j == 77 ? 0 : p[j]*r')), UNTIMED)
    assert v.reason == 'wrong_result' and v.errors[0]['where'][1] == 77 and abs(v.errors[0]['share_wrong'] - 1/128) < 1e-3, v
    assert '77]' in v.message and '%' in v.message and v.milestone == -1


BAD = {
    'precision': dict(code=CODE.replace('double s = 0', 'float s = 0').replace('q[j] = p[j]*r', '{ union { float f; uint32_t u; } b; b.f = p[j]*r; b.u = (b.u + 0x1000u) & 0xffffe000u; q[j] = b.f; }')),
    'missing epsilon': dict(code=CODE.replace(' + 1e-6', ''), want='wrong_result'),
    'torch_fallback': dict(model=MODEL.replace('return out', 'return x*torch.rsqrt((x*x).mean(-1, keepdim=True) + 1e-6)')),
    'torch in a thread': dict(model='from concurrent.futures import ThreadPoolExecutor\nP = ThreadPoolExecutor(1)\n' + MODEL.replace('return out', 'return P.submit(lambda: x*torch.rsqrt((x*x).mean(-1, keepdim=True) + 1e-6)).result()'), want='torch_fallback'),
    'stale_output': dict(model=MODEL.replace('        out = torch.empty_like(x)', '        self.calls += 1\n        if self.calls > 7: return self.last\n        out = self.__dict__["last"] = torch.empty_like(x)')),
    'cache by address': dict(model=MODEL.replace('        rms(out', '        self.__dict__.setdefault("seen", {})\n        if x.data_ptr() in self.seen: return self.seen[x.data_ptr()]\n        self.seen[x.data_ptr()] = out\n        rms(out'), want='stale_output'),
    'input_mutated': dict(model=MODEL.replace('return out', 'x[0, 0] = 1.0; return out')),
    'output_dtype': dict(model=MODEL.replace('return out', 'return out.double()')),
    'output_type': dict(model='import torch\nclass T(torch.Tensor): pass\n' + MODEL.replace('return out', 'return out.as_subclass(T)')),
    'output_structure': dict(model=MODEL.replace('return out', 'return out, None')),
    'incomplete_output': dict(code=CODE.replace('j < d; ++j) q[j]', 'j < d - 1; ++j) q[j]')),
    'tamper': dict(model='import time, torch\ntime.perf_counter = lambda: 0.0\n' + MODEL),
    'no_result': dict(model='import os\nprint("PASS")\nos._exit(0)\n' + MODEL),
    'import of the lab': dict(model=MODEL.replace('import torch,', 'import cuda_agent_lab.worker, torch,'), want='tamper'),
    'blinded watch': dict(model='import sys\nsys.modules["cuda_agent_lab.watch"].OperatorWatch.__torch_dispatch__ = lambda s, f, t, a=(), k=None: f(*a, **(k or {}))\n'
                          + MODEL.replace('return out', 'return x*torch.rsqrt((x*x).mean(-1, keepdim=True) + 1e-6)'), want='torch_fallback'),
    'damaged report': dict(model='import sys\nsys.modules["cuda_agent_lab.worker"].Worker.collect = '
                           'lambda s, o: dict(tree={"tensor": 0}, kinds=["torch.Tensor"], tensors=[5], copied=True, orders=[[0]])\n' + MODEL, want='tamper'),
    'launch_error': dict(code=CODE + 'extern "C" const char* calab_last_error() { return "invalid configuration argument"; }'),      # as a CUDA library says it
    'reference_access': dict(model='import model\n' + MODEL),
    'path_escape': dict(model='open("../escaped.txt", "w").write("x")\n' + MODEL),
    'process_spawn': dict(model='import subprocess\nsubprocess.run(["true"])\n' + MODEL),
    'crash': dict(code=CODE.replace('q[j] = p[j]*r', '*(volatile float*)(j) = p[j]*r')),
    'crash by exception': dict(model=MODEL.replace('return out', 'return out.no_such_thing'), want='crash'),
    'no ModelNew': dict(model=MODEL.replace('ModelNew', 'Model'), want='crash'),
    'wrong weights': dict(model=MODEL.replace('self.calls = 0', 'self.calls = 0; self.extra = torch.nn.Parameter(torch.zeros(3))'), want='crash'),
    'out_of_memory': dict(model=MODEL.replace('return out', 'self.__dict__.setdefault("hog", []).append(bytearray(b"x")*(1 << 30)); return out')),
}


@pytest.mark.parametrize('kind', BAD)
def test_refused_for_the_right_reason(pool, kind):
    b = dict(BAD[kind])
    want = b.pop('want', kind)
    v = pool.judge(RMS, candidate(**b), UNTIMED)
    assert (v.status, v.reason) == ('rejected', want), v
    assert '/tmp/' not in v.message and len(v.message) < 1200
    what, _, change = v.message.rpartition('; ')
    assert what and len(change.split()) > 2 and 'Warning' not in what, v.message                     # what is wrong; what to change


def test_the_next_candidate_is_judged_as_if_nothing_had_happened(pool):
    assert pool.judge(RMS, candidate(), UNTIMED).correct


def test_hang_ends_in_time(pool):
    v = pool.judge(RMS, candidate(model=MODEL.replace('return out', 'self.calls += 1\n        while self.calls > 2: pass\n        return out')), JudgeOptions(compile=False, timeout=4))
    assert v.status == 'timeout' and v.milestone == -1, v


def test_stale_only_while_timed(pool):
    """Honest on the eleven checked calls and once more, stale from then on: found by the outputs of timed calls or the check after timing."""
    m = MODEL.replace('        out = torch.empty_like(x)', '        self.calls += 1\n        if self.calls > 12: return self.last\n        out = self.__dict__["last"] = torch.empty_like(x)')
    v = pool.judge(RMS, candidate(model=m), QUICK)
    assert v.status == 'rejected' and v.reason in ('stale_output', 'wrong_result'), v


HONEST = {
    'transposed input': (task('return x*2', '[torch.randn(40, 30).t()]'), simple('for (int64_t i = 0; i < n; ++i) out[i] = 2*x[i];', make='x = x.contiguous(); out = torch.empty_like(x)')),
    'expanded input': (task('return x*2', '[torch.randn(1, 30).expand(40, 30)]'), simple('for (int64_t i = 0; i < n; ++i) out[i] = 2*x[i];', make='x = x.contiguous(); out = torch.empty_like(x)')),
    'integer input': (task('return F.embedding(i, w)', '[torch.randint(0, 50, (64,)), torch.randn(50, 16)]', given='i, w'),
                      simple('for (int64_t r = 0; r < n; ++r) for (int64_t c = 0; c < d; ++c) out[r*d + c] = w[i[r]*d + c];', 'void f(float* out, const int64_t* i, const float* w, int64_t n, int64_t d)',
                             'f(out, i, w, i.shape[0], w.shape[1])', make='out = torch.empty(i.shape[0], w.shape[1])', given='i, w')),
    'dict output': (task('return {"y": x*2, "more": [x*2, None], "n": x.shape[0]}'), simple('for (int64_t i = 0; i < n; ++i) out[i] = 2*x[i];', ret='{"n": x.shape[0], "y": out, "more": [out.clone(), None]}')),
    'named tuple': (task('return torch.max(x, 1)'), simple('for (int64_t r = 0; r < n; ++r) { int64_t b = 0; for (int64_t c = 1; c < d; ++c) if (x[r*d + c] > x[r*d + b]) b = c; out[r] = x[r*d + b]; at[r] = b; }',
                    'void f(float* out, int64_t* at, const float* x, int64_t n, int64_t d)', 'f(out, at, x, x.shape[0], x.shape[1])', make='out = torch.empty(x.shape[0]); at = torch.empty(x.shape[0], dtype=torch.int64)', ret='(out, at)')),
    'in place by contract': (task('return x.mul_(3.0).add_(1.0)'), simple('for (int64_t i = 0; i < n; ++i) x[i] = 3*x[i] + 1;', 'void f(float* x, int64_t n)', 'f(x, x.numel())', make='pass', ret='x')),
    'state in a buffer': (task('self.avg.mul_(0.9).add_(x.mean(0), alpha=0.1); return x - self.avg', init='self.register_buffer("avg", torch.zeros(128))'),
                          simple('for (int64_t c = 0; c < d; ++c) { double m = 0; for (int64_t r = 0; r < n; ++r) m += x[r*d + c]; a[c] = 0.9f*a[c] + 0.1f*(float)(m/n); for (int64_t r = 0; r < n; ++r) out[r*d + c] = x[r*d + c] - a[c]; }',
                                 'void f(float* out, float* a, const float* x, int64_t n, int64_t d)', 'f(out, self.avg, x, x.shape[0], x.shape[1])', init='self.register_buffer("avg", torch.zeros(128))')),
    'NaN in the reference': (task('return torch.log(x)'), simple('for (int64_t i = 0; i < n; ++i) out[i] = std::log(x[i]);')),
    'long sum from left to right': (task('return x.sum(-1)', '[torch.randn(16, 100000) + 1]'), simple('for (int64_t r = 0; r < n; ++r) { float s = 0; for (int64_t c = 0; c < d; ++c) s += x[r*d + c]; out[r] = s; }',
                                    'void f(float* out, const float* x, int64_t n, int64_t d)', 'f(out, x, x.shape[0], x.shape[1])', make='out = torch.empty(x.shape[0])')),
    'better than eager': (task('return x.sum(-1) - 1e6*x.shape[-1]', '[torch.randn(64, 2048)*30 + 1e6]'), simple('for (int64_t r = 0; r < n; ++r) { float s = 0; for (int64_t c = 0; c < d; ++c) s += x[r*d + c] - 1e6f; out[r] = s; }',
                          'void f(float* out, const float* x, int64_t n, int64_t d)', 'f(out, x, x.shape[0], x.shape[1])', make='out = torch.empty(x.shape[0])')),
    'talks a lot': (task('return x + 1'), simple('for (int64_t i = 0; i < n; ++i) out[i] = x[i] + 1;', make='print("FAIL {}" * 100000); out = torch.empty_like(x)')),
    'no float64': (task('return x @ torch.ones(128, 4, dtype=torch.float32)'), simple('for (int64_t r = 0; r < n; ++r) { float s = 0; for (int64_t c = 0; c < d; ++c) s += x[r*d + c]; for (int k = 0; k < 4; ++k) out[r*4 + k] = s; }',
                   'void f(float* out, const float* x, int64_t n, int64_t d)', 'f(out, x, x.shape[0], x.shape[1])', make='out = torch.empty(x.shape[0], 4)')),
}


@pytest.mark.parametrize('name', HONEST)
def test_honest_work_is_not_wronged(pool, name):
    t, c = HONEST[name]
    v = pool.judge(t, c, QUICK)
    assert v.correct, v


@pytest.mark.parametrize('forward', ['return x*0 + 1', 'return F.dropout(x)', 'raise ValueError("broken")', 'return "text"', 'return F.layer_norm(x, (128,)).mean(-1) + 1'])
def test_a_task_that_cannot_judge_is_invalid(pool, forward):
    v = pool.judge(task(forward), candidate(), QUICK)
    assert v.status == 'task_invalid' and v.milestone is None and v.message, v


def test_a_seed_repeats_the_errors(pool):
    o = JudgeOptions(compile=False, timing=False, seed=11)
    a, b = (pool.judge(RMS, candidate(), o) for _ in range(2))
    assert a.seed == b.seed == 11 and a.errors == b.errors
    c, d = (pool.judge(RMS, candidate(), UNTIMED) for _ in range(2))
    assert c.seed != d.seed and c.errors != d.errors


def test_paper_tolerance_lets_more_through(pool):
    c = candidate(**BAD['precision'])
    v = pool.judge(RMS, c, JudgeOptions(compile=False, timing=False, tolerance='paper'))
    assert v.correct and v.evidence['tolerance'] == 'paper', v


MEMO = MODEL.replace('        out = torch', '        if x is self.__dict__.get("seen"): return self.last\n        time.sleep(.003)\n        out = torch').replace(
    'return out', 'self.__dict__.update(seen=x, last=out)\n        return out').replace('import torch', 'import time, torch')


def test_a_memo_by_identity_of_the_argument_gains_nothing(pool):
    """Checked and timed calls look alike: each has new tensor objects, so this candidate sleeps in every one of them."""
    v = pool.judge(RMS, candidate(model=MEMO), QUICK)
    assert v.correct and v.milestone == 1 and v.timing['candidate'].median_ms > 3, v


# Looks for a sign that this call will be checked: in the frames above it, and in the outbox behind its inputs.
PEEK = MODEL.replace('        out = torch', '''        told, f = None, sys._getframe()
        while f is not None:
            m = f.f_locals.get("m")
            if isinstance(m, dict) and "collect" in m: told = bool(m["collect"])
            f = f.f_back
        arena = x.untyped_storage()
        if told is None: told = ctypes.string_at(arena.data_ptr(), arena.nbytes()).count(255) > 60_000      # all of the outbox, not just its reserve
        if not told and "last" in self.__dict__: return self.last
        time.sleep(.003)
        out = torch''').replace('return out', 'self.__dict__.update(last=out)\n        return out').replace('import torch', 'import ctypes, sys, time, torch')


def test_no_call_tells_whether_it_will_be_checked(pool):
    v = pool.judge(RMS, candidate(model=PEEK), QUICK)
    assert v.correct and v.milestone == 1 and v.timing['candidate'].median_ms > 3, v


class Clocked:
    """A side whose forwards take `ms` by the judge's clock, and a call .02 more."""
    cuda, slots, gate, arena = True, 4, None, SimpleNamespace(via='memfd')
    def __init__(self, ms): self.ms = ms
    def write(self, *_): pass
    def apart(self): return nullcontext()
    def call(self, name, seconds, empty=False, collect=False, deliver=False, times=1, slot=0): return dict(ms=.02 + (0 if empty else times*self.ms[name]))


@pytest.mark.parametrize('events, wall, agree', [(.1, .12, True), (.005, .04, True), (.0005, .3, False), (.1, .4, False)])
def test_what_hides_from_the_events_shows_on_the_other_clock(events, wall, agree):
    looks = []
    judge = SimpleNamespace(rng=random.Random(0), ref=SimpleNamespace(eager_seconds=.001), kept=[None], factors=lambda: None, patience=lambda: 1, baseline=Clocked(dict(eager=.22, compiled=.2)), check_timed=lambda *a: looks.append(a))
    judge.left = lambda: 1
    judge.train, judge.second_clock, judge.turn = partial(Clocks.train, judge), partial(Clocks.second_clock, judge), partial(Clocks.turn, judge)
    device, evidence = dict(eager=[.2]*5, compiled=[.19]*5, candidate=[events]*5), {}
    ms = Clocks.confirm(judge, Clocked(dict(candidate=wall)), ['eager', 'candidate', 'compiled'], device, evidence)
    assert bool(ms) != agree and abs(evidence['wall_ms'] - wall) < 1e-6
    if agree: assert device['candidate'] == pytest.approx([max(events, wall/1.2 - .1 - .02)]*5)
    else: assert {k: round(x[0], 6) for k, x in ms.items()} == dict(eager=.22, compiled=.2, candidate=wall) and {len(x) for x in ms.values()} == {9} and len(looks) == 18


@pytest.mark.parametrize('forward, share', [('x.exp()', 1), ('x.amax(-1)', 1), ('x[:, :99].exp()', 0)])
def test_nobody_reads_faster_than_the_device(forward, share, monkeypatch):
    ref = Reference(f'import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return {forward}\ndef get_inputs(): return [torch.randn(2000, 1000)]\ndef get_init_inputs(): return []')
    ref.build(1)
    judge, least = SimpleNamespace(ref=ref, rng=random.Random(0), unpaid=lambda name: nullcontext()), 8e6/4.8e9          # 8 MB at 4.8 TB/s
    draw = ref.fill(ref.draw(1, 'last draw'))
    monkeypatch.setattr(clocks, 'device_name', lambda device: 'NVIDIA H200')
    for ms, possible in ((least, True), (.5*least, not share)):
        evidence = {}
        with nullcontext() if possible else pytest.raises(Failed, match='read all inputs'): Clocks.check_floor(judge, draw, ms, evidence)
        assert evidence['floor_ms'] == pytest.approx(least if ms == least else .83*share*least, rel=.01)
    monkeypatch.setattr(clocks, 'device_name', lambda device: 'a board that is in no table')
    Clocks.check_floor(judge, draw, 1e-9, {})


class Steady:
    "A side whose calls all take a millisecond."
    cuda, busy = False, []
    def write(self, *_): pass
    def call(self, *_, **__): return dict(ms=1., faults=0)


@pytest.mark.parametrize('slow, dropped', [(0, 0), (3, 2), (10**6, clocks.DROPPED)])
def test_pairs_of_a_slowed_device_are_taken_again(slow, dropped, monkeypatch):
    reads, evidence = [], {}
    def read():
        reads.append(0)
        return 1980 - 600*(len(reads) <= slow), ['power brake']*(len(reads) <= slow)
    monkeypatch.setattr(clocks, 'clock_reader', lambda device: read)
    draw = SimpleNamespace(tree=[], tensors=[torch.ones(2)])
    judge = SimpleNamespace(rng=random.Random(0), kept=[draw], uneven=False, baseline=Steady(), history=[], factors=lambda: torch.ones(1), patience=lambda: 1, left=lambda: 9,
                            turn=lambda *a: nullcontext(), check_timed=lambda *a: None, enough=lambda n, *a: n == 9)
    ms, _ = Clocks.sample(judge, Steady(), ['eager', 'candidate'], None, evidence)
    assert {k: len(v) for k, v in ms.items()} == {k: len(v) for k, v in judge.faults.items()} == dict(eager=9, candidate=9) and len(reads) == 2*(9 + dropped)
    assert evidence['clocks']['dropped'] == dropped and evidence['clocks']['slowed'] == ['power brake']*bool(slow) and evidence['clocks']['lowest'] == 1980 - 600*bool(slow)


@pytest.mark.parametrize('says', [True, False])
def test_inputs_come_when_the_worker_has_enqueued_what_needs_them(says):
    """A thread plays a worker that looks at its inputs before the word is set and after it; one that says nothing gets them after a while."""
    ref = Reference(RMS.source)
    ref.build(1)
    draw, before, after, (here, there) = ref.fill(ref.draw(1, 'draw 0')), [], [], Channel.pair()
    def play():
        worker, spec = Channel(there), None
        while True:
            m, fds = worker.recv(10, keep=2)
            if m['op'] == 'open': arena, word = open_arena(m['arena'], fds), open_arena(m['gate'], fds[1:]).view(torch.int32)
            if m['op'] == 'args': spec, stride = spec_from(m['specs'][0]), m['stride']
            worker.send({'ready': True} if m['op'] == 'call' else {})
            if m['op'] == 'call': break
        nonce, x = worker.sock.recv(8), [at(arena, moved(spec, i*stride)) for i in range(m['times'])]
        before.extend(bool(v.isnan().all()) for v in x)
        if says: worker.sock.sendall(b'+')
        while word[0] < m['held']: time.sleep(.001)
        after.extend(v.clone() for v in x)
        worker.sock.sendall(nonce if says else b'+' + nonce)
        worker.send(dict(faults=0, handed=[dict(tree={'tensor': 0}, kinds=['torch.Tensor'], tensors=[['float32', [1]]], copied=True, orders=[[0]])]*m['times']))
    player = threading.Thread(target=play, daemon=True)
    player.start()
    child = SimpleNamespace(channel=here, role='candidate', kill=here.close)
    side = Gated(child, ref, draw, UNTIMED, 'forward')
    factors = [torch.full((1,), f) for f in (.5, .75)]
    for i, f in enumerate(factors): side.write(draw, f, i)
    a = side.call('candidate', 5, collect=True, deliver=True, times=2, slot=1)
    player.join(5)
    assert before == [True, True] and all(torch.equal(v, draw.tensors[0]*f) for v, f in zip(after, factors))
    assert a['copied'] and a['ms'] < 1e3 and side.gate.missed == (not says)
    side.close()
    assert side.gate is None and side.arena.fd is None


class Gated(Side):
    """A side on the CPU that holds inputs back as one on a GPU does."""
    def open(self, opts, memory):
        self.slots, self.gate, self.arena = 2, Gate(), Arena(self.inputs_at + 2*self.stride)
        (info, fds), (gate, page) = self.arena.share(), self.gate.page.share()
        self.send(dict(op='open', arena=info, gate=gate), fds + page)
        self.answer('start of the worker', 5)


COMPLEX = task('return torch.fft.rfft(x)', '[torch.randn(64, 256)]')
ZEROS = '''
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x): return torch.zeros(x.shape[0], x.shape[1]//2 + 1, dtype=torch.complex64)
'''
OF_COMPLEX = task('return x*x.flip(0).clone()', '[torch.randn(64, 64, dtype=torch.complex64)]')
PARTS = '''
import torch, cuda_extension
product = cuda_extension.declare("void product(float* out, const float* x, int64_t n, int64_t d)")
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        product(torch.view_as_real(out), torch.view_as_real(x), x.shape[0], x.shape[1])
        return out
'''
PARTS_CODE = '''
#include <cstdint>
extern "C" void product(float* out, const float* x, int64_t n, int64_t d) {
  for (int64_t i = 0; i < n; ++i) for (int64_t j = 0; j < d; ++j) {
    const float *a = x + 2*(i*d + j), *b = x + 2*((n - 1 - i)*d + j);
    float* o = out + 2*(i*d + j);
    o[0] = a[0]*b[0] - a[1]*b[1]; o[1] = a[0]*b[1] + a[1]*b[0];
  }
}
'''


def test_complex_outputs_are_numbers(pool):
    v = pool.judge(COMPLEX, Candidate((('model_new.py', ZEROS),)), UNTIMED)
    assert v.reason == 'wrong_result', v
    right = Candidate((('kernels/product.cpp', PARTS_CODE), ('model_new.py', PARTS)))
    assert (v := pool.judge(OF_COMPLEX, right, QUICK)).correct, v
    wrong = Candidate((('kernels/product.cpp', PARTS_CODE.replace('a[0]*b[1] +', 'a[0]*b[1] -')), ('model_new.py', PARTS)))
    assert (v := pool.judge(OF_COMPLEX, wrong, UNTIMED)).reason == 'wrong_result' and v.errors[0]['where'][-1] == 1, v


CHOLESKY = task('return torch.linalg.cholesky(x)', '[(lambda a: a@a.T/64 + .01*torch.eye(64))(torch.randn(64, 64))]')


@pytest.mark.parametrize('t, uneven', [(RMS, True), (CHOLESKY, False)])
def test_each_element_gets_a_factor_where_the_task_takes_it(t, uneven):
    judge = Judge(t.source, UNTIMED, None)
    judge.rng, judge.kept = random.Random(0), [judge.ref.draw(1, 'draw 0')]
    judge.uneven = judge.takes_factors()
    assert judge.uneven == uneven and len(judge.factors()) == (PATTERN if uneven else 1)


UNGUARDED = 'from torch.utils._python_dispatch import _get_current_dispatch_mode as mode\n' + MODEL.replace(
    '        out = torch', '        if mode() is None and "last" in self.__dict__: return self.last\n        out = self.__dict__["last"] = torch')


@pytest.mark.parametrize('tolerance', ['strict', 'paper'])
def test_outputs_of_timed_calls_count(pool, tolerance):
    """Stale only where nobody watches the operators: in timed calls."""
    v = pool.judge(RMS, candidate(model=UNGUARDED), JudgeOptions(compile=False, max_pairs=9, tolerance=tolerance))
    assert v.status == 'rejected' and v.reason in ('stale_output', 'wrong_result'), v


def test_little_time_is_no_milestone(pool):
    """The limit leaves no time for pairs: five are taken all the same, and they decide only what is far away."""
    v = pool.judge(RMS, candidate(), JudgeOptions(compile=False, timeout=4.9))
    assert v.correct and v.timing['candidate'].n >= 5, v
    s = v.speedup_eager
    assert s['n'] >= 9 or s['lo'] <= 1 or s['lo'] > 1.8, v


def test_a_worker_that_dies_before_the_candidate_is_loaded_is_our_fault():
    class Dead:
        role = 'candidate'
        def __init__(self):
            self.channel, other = Channel.pair()
            other.close()
        def exit(self, wait=0): return -9
        def output(self): return ''
        def kill(self): self.channel.close()
    ref = Reference(RMS.source)
    ref.build(1)
    with pytest.raises(InfraFailed, match='SIGKILL'): Side(Dead(), ref, ref.fill(ref.draw(1, 'draw')), UNTIMED, 'forward')


def test_waiting_is_not_the_candidates_time():
    j = Judge(RMS.source, UNTIMED, None)
    j.start, j.seconds, j.unpaid_seconds, j.opts_now = time.monotonic(), {}, 0.0, JudgeOptions(timeout=10)
    with j.unpaid('wait'): time.sleep(.3)
    assert j.left() > 9.9 and j.seconds['wait'] >= .3


def test_a_seed_repeats_the_gate_and_the_weights():
    linear = task('return self.f(x)', init='self.f = nn.Linear(128, 8)').source
    a, b, c = (Judge(linear, JudgeOptions(seed=s), None).ref for s in (5, 5, 6))
    assert a.varies == b.varies != c.varies and a.init_seed == b.init_seed and not a.rotate


# --- the declared precision, the same for both sides

PRODUCT = '''
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.w = torch.nn.Parameter({w}(24, 8192)*.1)
    def forward(self, x): return x @ self.w.t()
def get_inputs(): return [{x}(16, 8192)]
def get_init_inputs(): return []
'''
PRODUCT_NEW = '''
import torch, cuda_extension
wide = cuda_extension.declare("void wide(float* out, const float* x, const float* w, int64_t m, int64_t n, int64_t k)")
half = cuda_extension.declare("void half(uint16_t* out, const uint16_t* x, const uint16_t* w, int64_t m, int64_t n, int64_t k)")
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.w = torch.nn.Parameter(torch.zeros(24, 8192))
    def forward(self, x):
        out = torch.empty(x.shape[0], 24, dtype=x.dtype)
        (wide if x.dtype == torch.float32 else half)(out, x, self.w, x.shape[0], 24, x.shape[1])
        return out
'''
PRODUCT_CODE = '''
#include <cstdint>
#include <cstring>
static float bits(uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }
static uint32_t raw(float f) { uint32_t u; std::memcpy(&u, &f, 4); return u; }
static float low(float f) { uint32_t u = raw(f); return bits(LOW); }
static float load(float f) { return low(f); }
static float load(uint16_t h) { return low(bits((uint32_t)h << 16)); }
static void store(float* p, float f) { *p = f; }
static void store(uint16_t* p, float f) { uint32_t u = raw(f); *p = (u + 0x7fff + (u >> 16 & 1)) >> 16; }
template <class T> void product(T* out, const T* x, const T* w, int64_t m, int64_t n, int64_t k) {
  for (int64_t i = 0; i < m; ++i) for (int64_t j = 0; j < n; ++j) {
    float s = 0;
    for (int64_t l = 0; l < k; ++l) s += load(x[i*k + l])*load(w[j*k + l]);
    store(out + i*n + j, s);
  }
}
extern "C" void wide(float* out, const float* x, const float* w, int64_t m, int64_t n, int64_t k) { product(out, x, w, m, n, k); }
extern "C" void half(uint16_t* out, const uint16_t* x, const uint16_t* w, int64_t m, int64_t n, int64_t k) { product(out, x, w, m, n, k); }
'''
FACTORS = {'fp32': 'u', 'tf32': '(u + 0x1000u) & 0xffffe000u', 'tf32 cut off': 'u & 0xffffe000u', 'bf16': '(u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u', 'fp8': '(u + 0x80000u) & 0xfff00000u'}
STEPS = ['fp32', 'tf32', 'bf16', 'fp8']


@pytest.mark.parametrize('declared', STEPS[:3])
@pytest.mark.parametrize('inside', FACTORS)
@pytest.mark.parametrize('numbers', ['rand', 'randn'])
def test_a_product_is_held_to_the_declared_precision(pool, numbers, inside, declared):
    """A real kernel that rounds what it multiplies. With factors in [0, 1) the roundings of 8,192 addends cancel: only the draw with random signs shows TF32."""
    c = Candidate((('model_new.py', PRODUCT_NEW), ('kernels/product.cpp', PRODUCT_CODE.replace('LOW', FACTORS[inside]))))
    v = pool.judge(Task('t', None, PRODUCT.format(w=f'torch.{numbers}', x=f'torch.{numbers}')), c, JudgeOptions(compile=False, timing=False, precision=declared))
    assert v.evidence['precision'] == declared
    if STEPS.index(inside.split()[0]) <= STEPS.index(declared): assert v.correct and v.rules == f'{declared} strict', v
    else: assert v.reason == 'precision' and f'below the declared {declared}' in v.message, v


# --- without the operator rule

FREE = JudgeOptions(compile=False, timing=False, allow_torch=True)
TORCH = 'import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return {}\n'
RIGHT = 'x*torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)'
FREED = {
    'operators': TORCH.format(RIGHT),
    'NumPy': 'import numpy as np\n' + TORCH.format('torch.from_numpy(x.numpy()/np.sqrt((x.numpy()**2).mean(-1, keepdims=True) + 1e-6))'),
    'a thread': 'from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n' + TORCH.format(f'pool.submit(lambda: {RIGHT}).result()'),
    'symbols of torch in the library': MODEL,
}
HELD = {
    'wrong_result': TORCH.format(RIGHT.replace('1e-6', '1e-1')),          # far from what a lower precision would explain
    'input_mutated': TORCH.format(RIGHT.replace('x*', 'x.mul_(1.5)*')),
    'tamper': 'import time\ntime.perf_counter = lambda: 0.0\n' + TORCH.format(RIGHT),
    'import of the lab': 'import cuda_agent_lab\n' + TORCH.format(RIGHT),
    'reference_access': 'import model\n' + TORCH.format(RIGHT),
    'output_dtype': TORCH.format(f'({RIGHT}).double()'),
    'process_spawn': 'import os\nos.system("true")\n' + TORCH.format(RIGHT),
    'stale_output': TORCH.format('self.__dict__.setdefault("y", ' + RIGHT + ')'),
    'no_result': 'import os\n' + TORCH.format('os._exit(77)'),
}


@pytest.mark.parametrize('name', FREED)
def test_allow_torch_drops_the_operator_rule(pool, name):
    code = CODE + ('extern "C" void _ZN2at4_ops3mulEv() {}\n' if 'symbols' in name else '')
    c = candidate(FREED[name], code) if 'symbols' in name else Candidate((('model_new.py', FREED[name]),))
    strict, v = pool.judge(RMS, c, UNTIMED), pool.judge(RMS, c, FREE)
    assert strict.reason in ('torch_fallback', 'foreign_library') and not strict.evidence['allow_torch'], strict
    assert v.correct and v.evidence['allow_torch'] and v.rules == 'fp32 strict, torch allowed' and Verdict.from_json(v.to_json()).rules == v.rules, v
    assert ('aten::rsqrt' in v.evidence['operators']) == (name == 'operators' or name == 'a thread'), v


@pytest.mark.parametrize('name', HELD)
def test_allow_torch_drops_nothing_else(pool, name):
    v = pool.judge(RMS, Candidate((('model_new.py', HELD[name]),)), FREE)
    assert (v.status, v.reason) == ('rejected', 'tamper' if name == 'import of the lab' else name), v


def test_a_verdict_with_torch_is_another_verdict(tmp_path):
    assert pool_module.verdict_key(RMS, candidate(), FREE) != pool_module.verdict_key(RMS, candidate(), UNTIMED)


# --- counters

def test_without_a_gpu_counters_are_a_note(pool):
    v = pool.judge(RMS, candidate(), JudgeOptions(compile=False, timing=False, counters=True))
    assert v.correct and v.evidence['counters']['note'].startswith('not counted'), v


def test_what_the_counters_find_turns_an_accepted_verdict(monkeypatch):
    j = Judge(RMS.source, UNTIMED, SimpleNamespace(quiet=contextlib.nullcontext, level='process'))
    def checks(*a):
        j.side, j.kept = SimpleNamespace(close=lambda: None), [j.ref.draw(1, 'draw 0')]
        return j.side
    j.run_checks, j.time = checks, lambda *a: dict(milestone=3, speedup_eager=dict(median=2., lo=2., hi=2., n=9))
    def found(*args): raise referee.rejected('precision', 'the tensor cores multiply in tf32', counters=dict(operations={'tf32 tensor': 9}))
    packed, opts = dict(files=[], hash='x', abi='c', library=''), dataclasses.replace(QUICK, counters=True)
    monkeypatch.setattr(referee, 'count', found)
    v = j.judge(packed, opts)
    assert v.reason == 'precision' and v.milestone == -1 and v.speedup_eager is None and v.evidence['counters']['operations'] and 'counters' in v.evidence['seconds']
    monkeypatch.setattr(referee, 'count', lambda *a: dict(operations={'fp32': 9}))
    assert j.judge(packed, opts).milestone == 3 and 'counters' not in j.judge(packed, QUICK).evidence


def test_a_network_that_fades_is_judged_with_weights_that_keep_the_variance(pool):
    deep = task('return self.f(x)', '[torch.randn(8, 32)]', 'self.f = nn.Sequential(*(m for _ in range(40) for m in (nn.Linear(32, 32), nn.ReLU())))')
    same = deep.source.split('def get_inputs')[0].replace('class Model', 'class ModelNew')
    wrong = same.replace('self.f(x)', 'self.f(x.abs())')
    right, off = (pool.judge(deep, Candidate((('model_new.py', s),)), FREE) for s in (same, wrong))
    assert right.correct and 'variance' in right.evidence['weights'], right
    assert off.reason == 'wrong_result', off
