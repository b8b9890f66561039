"""The pool under load, after faults, and when it ends."""
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuda_agent_lab.pool import JudgeServer, LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import Task
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


def test_a_candidate_that_is_killed_from_outside_is_tried_again(pool, tmp_path):
    """The marker makes the first process kill itself without a trace, as the kernel's memory killer would; the second attempt is honest."""
    slow = candidate(4, body=f'import os; os.path.exists({str(tmp_path/"go")!r}) and os.kill(os.getpid(), 9)')
    (tmp_path/'go').touch()
    threading.Timer(1.0, lambda: (tmp_path/'go').unlink()).start()
    v = pool.judge(task(4), slow, UNTIMED)
    assert v.correct or v.evidence['maybe'] and v.evidence['attempts'] == 2, v


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
        server.close(root)
        assert run('verify.py').returncode == 2
    finally: server.close()
