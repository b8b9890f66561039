"""The pool under load, after faults, and when it ends."""
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import cuda_agent_lab.pool as pool_module
from cuda_agent_lab.build import Build
from cuda_agent_lab.pool import LocalPool, verdict_key
from cuda_agent_lab.quiet import InfraError, Quiet
from cuda_agent_lab.server import JudgeServer
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.verdict import Verdict
from cuda_agent_lab.workspace import Candidate, make_workspace, write_candidate

UNTIMED = JudgeOptions(compile=False, timing=False, timeout=60)
QUICK = JudgeOptions(compile=False, max_pairs=9, timeout=60)


def task(k): return Task(f'scale{k}', 1, f'import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x*{k}.0\ndef get_inputs(): return [torch.randn(64, 64)]\ndef get_init_inputs(): return []\n')


def candidate(k, extra='', body=''):
    return Candidate((('model_new.py', f'''
import torch, cuda_extension
f = cuda_extension.declare("void f(float* out, const float* x, int64_t n)")
{extra}
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        {body or 'pass'}
        f(out, x, x.numel())
        return out
'''), ('kernels/f.cpp', f'#include <cstdint>\nextern "C" void f(float* out, const float* x, int64_t n) {{ for (int64_t i = 0; i < n; ++i) out[i] = x[i]*{k}.0f; }}')))


@pytest.fixture(scope='module')
def cache(tmp_path_factory): return tmp_path_factory.mktemp('cache')


@pytest.fixture(scope='module')
def pool(cache):
    with LocalPool(cache=cache, keep=3) as p: yield p


def children(pid):
    out = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(pid)], capture_output=True, text=True).stdout
    return [int(p) for p in out.split()]


def test_the_parent_of_all_workers_has_one_thread(pool): assert pool.zygote().threads == 1


def test_many_threads_many_tasks(pool):
    jobs = [(k % 5 + 2, k % 3 == 0) for k in range(12)]
    with ThreadPoolExecutor(6) as ex: got = list(ex.map(lambda j: pool.judge(task(j[0]), candidate(j[0] + j[1]), QUICK), jobs))
    assert [v.correct for v in got] == [not wrong for _, wrong in jobs]
    assert len(pool.judges) <= 3


def test_a_build_error_is_a_verdict_with_the_compilers_words(pool):
    c = candidate(2)
    v = pool.judge(task(2), Candidate((c.files[1], ('kernels/f.cpp', 'int broken( {'))), UNTIMED)
    assert v.status == 'build_error' and 'error' in v.message and str(pool.root) not in v.to_json()


def test_known_verdicts_are_given_again(cache):
    with LocalPool(cache=cache, reuse=True) as p:
        a = p.judge(task(2), candidate(2), UNTIMED)
        assert a.correct and not a.evidence.get('reused')
        b = p.judge(task(2), candidate(2), UNTIMED)
        assert b.evidence['reused'] and b.seed == a.seed
        assert not p.judge(task(2), candidate(2), QUICK).evidence.get('reused')            # other options
    with LocalPool(cache=cache, reuse=True) as p: assert p.judge(task(2), candidate(2), UNTIMED).evidence['reused']


def test_a_judge_that_is_killed_is_replaced(pool):
    assert pool.judge(task(3), candidate(3), UNTIMED).correct
    for h in pool.judges.values(): os.kill(h.child.pid, signal.SIGKILL)
    assert pool.judge(task(3), candidate(3), UNTIMED).correct


def test_a_candidate_that_is_killed_from_outside_is_tried_again(tmp_path):
    """The first process takes the marker away and kills itself without a trace, as the kernel's memory killer would; the second attempt is honest.
    The marker needs the weakest isolation, where a candidate reaches files outside of its folder."""
    with LocalPool(isolation='process') as pool:
        assert pool.judge(task(4), candidate(4), UNTIMED).correct      # a warm judge: the one retry is for the kill, not for a slow start
        go = tmp_path/'go'
        go.touch()
        v = pool.judge(task(4), candidate(4, body=f'import os\n        if os.path.exists({str(go)!r}): os.unlink({str(go)!r}); os.kill(os.getpid(), 9)'), UNTIMED)
    assert v.correct and v.evidence['attempts'] == 2, v


def test_a_dead_baseline_is_not_the_candidates_fault(pool):
    assert pool.judge(task(3), candidate(3), QUICK).correct
    baseline = [c for h in pool.judges.values() for c in h.workers.values() if c.role == 'baseline']
    assert baseline
    for c in baseline: os.kill(c.pid, signal.SIGKILL)
    v = pool.judge(task(3), candidate(3), QUICK)
    assert v.correct and v.evidence['attempts'] == 2, v                        # infra_error, a fresh judge, correct
    v = pool.judge(task(3), candidate(3), QUICK)
    assert v.correct and v.evidence['attempts'] == 1, v


@pytest.mark.parametrize('end, want', [("raise RuntimeError('cannot be compiled')", 'correct'), ('os.kill(os.getpid(), 9)', 'infra_error')])
def test_only_a_compiler_of_torch_that_says_so_leaves_eager(pool, end, want):
    """An exception is torch.compile's own; a process that dies may be the machine's doing, and a verdict without that baseline would pay more."""
    ends = Task('ends', 1, task(3).source.replace('return x*3.0', '\n        if torch.compiler.is_compiling(): end()\n        return x*3.0')
                + f'import os\n@torch.compiler.assume_constant_result\ndef end(): {end}\n')
    v = pool.judge(ends, candidate(3), JudgeOptions(max_pairs=9))
    assert v.status == want, v
    if want == 'correct': assert v.speedup_compile is None and v.evidence['compile']['ok'] is False and v.evidence['attempts'] == 1, v
    else: assert 'compile=False' in v.message and v.milestone is None and pool.judge(ends, candidate(3), QUICK).correct, v


@pytest.mark.parametrize('well, want', [(True, ('rejected', 'crash')), (False, ('infra_error', ''))])
def test_a_doubtful_failure_is_the_candidates_only_where_the_canary_lives(pool, monkeypatch, well, want):
    assert pool._well('cpu')
    monkeypatch.setattr(LocalPool, '_well', lambda *_: well)
    v = pool.judge(task(5), candidate(5, body='import os; os.kill(os.getpid(), 9)'), UNTIMED)
    assert (v.status, v.reason) == want and v.evidence['attempts'] == 2, v


def test_room_on_a_device(pool, monkeypatch):
    """Three unknown tasks fit side by side; a fourth waits; an idle judge gives way; somebody who must be alone waits for all."""
    monkeypatch.setattr(pool_module, 'gpus', lambda: [SimpleNamespace(memory=1000)])
    monkeypatch.setattr(pool, 'judges', {})
    class Handle(SimpleNamespace):
        def kill(self): log.append(f'{self.name} ends')
    def handle(name, **kw):
        pool.judges[name] = Handle(name=name, bytes=0, running=False, users=1, **kw)
        return pool.judges[name]
    log, hs = [], [handle(n) for n in 'abc']
    for k, h in enumerate(hs): pool._admit(h, task(k), False)
    assert [h.bytes for h in hs] == [266]*3 and log == []
    fourth = threading.Thread(target=lambda: (pool._admit(handle('d'), task(7), False), log.append('d runs')))
    fourth.start(); time.sleep(.1)
    assert log == []
    pool._leave(hs[0], task(0), dict(held=100, peak=500))
    time.sleep(.1)
    assert log == []                                   # what it holds while idle is still too much, and it is not idle yet
    pool.judges['a'].users = 0
    pool._leave(hs[1], task(1), dict(held=50, peak=60))
    fourth.join(5)
    assert log == ['d runs'] and pool.needs[task(0).hash] == 500      # b has made room
    e = threading.Thread(target=lambda: (pool._admit(handle('e'), task(8), True), log.append('e runs')))
    e.start(); time.sleep(.1)
    assert log[1:] == ['a ends']
    for h in (hs[2], pool.judges['d']): pool._leave(h, task(2), {})
    e.join(5)
    assert log[-1] == 'e runs'


@pytest.mark.parametrize('second, want', [('ok', 'ok'), ('killed', 'build_error'), ('other', 'infra_error')])
def test_builds_that_the_machine_may_have_killed_are_repeated(pool, monkeypatch, second, want):
    made = dict(ok=Build('ok', None, '', 0, False, '', 'c', 'cpu'), killed=Build('build_error', None, 'Killed', 0, False, '', 'c', 'cpu', sure=False),
                other=Build('build_timeout', None, 'stopped', 0, False, '', 'c', 'cpu', sure=False))
    turns = iter(['killed', second])
    monkeypatch.setattr(pool_module, 'build', lambda *a, **k: made[next(turns)])
    monkeypatch.setattr(pool_module, 'overloaded', lambda: False)
    assert pool.build(candidate(2)).status == want


def test_judges_share_the_pools_library(pool):
    assert pool.judge(task(2), candidate(2), UNTIMED).correct
    assert not any(Path(h.child.home, '.cache').exists() for h in pool.judges.values())


def test_what_a_remembered_verdict_depends_on(monkeypatch):
    key = verdict_key(task(2), candidate(2), UNTIMED)
    monkeypatch.setattr(pool_module, 'device_name', lambda target: 'another')
    other = verdict_key(task(2), candidate(2), UNTIMED)
    monkeypatch.setattr(pool_module.cuda_agent_lab, '__version__', '9')
    assert len({key, other, verdict_key(task(2), candidate(2), UNTIMED)}) == 3


@pytest.mark.parametrize('share, low, high', [(0., 0, 0), (.3, 20, 100), (1., 200, 200)])
def test_a_share_of_the_candidates_is_counted(pool, monkeypatch, share, low, high):
    asked = []
    monkeypatch.setattr(pool, 'counters', share)
    monkeypatch.setattr(pool_module, 'gpus', lambda: [SimpleNamespace(name='a GPU', uuid='x', memory=1)])
    monkeypatch.setattr(pool, 'build', lambda *a: Build('ok', None, '', 0., True, '', 'c', 'cuda'))
    monkeypatch.setattr(pool, '_once', lambda task, packed, opts, alone: asked.append(opts.counters) or Verdict('correct'))
    for _ in range(200): pool.judge(task(2), candidate(2), JudgeOptions(target='cuda'))
    assert low <= sum(asked) <= high and len(asked) == 200
    assert pool.judge(task(2), candidate(2), JudgeOptions(target='cuda', counters=True)).correct and asked[-1]


def test_an_interrupted_wait_blocks_nobody(monkeypatch):
    q = Quiet('test-interrupt')
    q.busy()
    def interrupt(*a): raise KeyboardInterrupt
    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(q.cond, 'wait', interrupt)
        q.quiet()
    assert q.waiting == 0 and not q.taken
    q.busy(); q.idle(); q.idle()


def test_an_episode_hears_of_a_broken_pool(tmp_path):
    class Broken:
        target = 'cpu'
        def judge(self, *a): raise InfraError('no worker')
    root = make_workspace(tmp_path/'ws', task(6))
    write_candidate(root, candidate(6))
    server = JudgeServer(Broken(), QUICK)
    try:
        token = server.open(root, task(6))['CALAB_TOKEN']
        assert server.answer(dict(op='profile', token=token))['exit'] == 3
        assert [v.status for _, v in server.verdicts(root)] == ['infra_error']
    finally: server.close()


def test_nothing_is_left_behind(cache):
    p = LocalPool(cache=cache)
    bad = candidate(5, extra='import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)')      # a daemon that leaves the group
    v = p.judge(task(5), bad, UNTIMED)
    assert v.reason == 'process_spawn', v
    z = p.zygote()
    root, pid = Path(z.root), z.process.pid
    h = next(iter(p.judges.values()))
    end = time.time() + 5
    while len(children(pid)) > 1 and time.time() < end:
        p.judge(task(5), candidate(5), UNTIMED); time.sleep(.1)                     # orphans are found when the next child is reaped
    assert children(pid) == [h.child.pid]
    assert [f.name for f in root.iterdir() if f.name.startswith('candidate-')] == []
    p.close()
    assert not root.exists() and not Path(f'/proc/{h.child.pid}').exists()


def test_no_growth_over_many_candidates(pool):
    fds = lambda: len(os.listdir('/proc/self/fd'))
    pool.judge(task(2), candidate(2), UNTIMED)
    before, threads = fds(), threading.active_count()
    for _ in range(10): assert pool.judge(task(2), candidate(2), UNTIMED).correct
    assert fds() <= before + 1 and threading.active_count() <= threads


def test_the_environment_of_a_candidate_is_clean(pool, monkeypatch):
    monkeypatch.setenv('A_SECRET', 'x')
    check = candidate(2, extra='import os\nassert "A_SECRET" not in os.environ and "CALAB" not in str(os.environ), list(os.environ)\nassert len(os.listdir("/proc/self/fd")) < 12, os.listdir("/proc/self/fd")\nassert os.getcwd() == os.environ["HOME"]')
    v = pool.judge(task(2), check, UNTIMED)
    assert v.correct, v


def test_scripts_in_a_workspace_reach_the_judge(pool, tmp_path):
    t = task(6)
    root = make_workspace(tmp_path/'ws', t)
    server = JudgeServer(pool, QUICK)
    try:
        env = {**os.environ, **server.open(root, t)}
        write_candidate(root, candidate(6))
        run = lambda s: subprocess.run(['python3', str(root/'utils'/s)], env=env, capture_output=True, text=True, timeout=120)
        assert subprocess.run(['bash', str(root/'utils'/'compile.sh')], env=env, capture_output=True, text=True).stdout.startswith('ok')
        assert run('verify.py').returncode == 0
        p = run('profile.py')
        assert p.returncode == 0 and 'milestone' in p.stdout and 'x eager' in p.stdout, p
        write_candidate(root, candidate(7))
        p = run('profile.py')
        assert p.returncode == 1 and p.stdout.startswith('rejected wrong_result'), p
        assert [v.correct for _, v in server.verdicts(root)] == [True, True, False]
        (root/'model_new.py').unlink()
        p = run('verify.py')
        assert p.returncode == 2 and p.stdout and str(tmp_path) not in p.stdout, p
        server.close(root)
        assert run('verify.py').returncode == 2
    finally: server.close()
