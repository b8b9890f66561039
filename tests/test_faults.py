"""The faults of tools/faults.py, a few of each: the pool tells the truth or says that it cannot, and leaves nothing behind."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cuda_agent_lab.zygote import Zygote

sys.path.insert(0, str(Path(__file__).resolve().parent.parent/'tools'))
import faults


def quiet(text): pass


def test_kills_at_random_moments():
    f = faults.kills(6, 'cpu', 1, quiet)
    assert f['ok'] and sum(f['kills'].values()) == 6 and sum(f['verdicts'].values()) >= 6, f


def test_a_full_disk():
    f = faults.disk('cpu', quiet)
    assert f['ok'] and (f.get('skipped') or len(f['verdicts']) == 9), f


def test_interrupts_leave_nothing():
    f = faults.interrupts(2, 'cpu', 1, quiet)
    assert f['ok'] and f['interrupts'] == sum(f['exit_statuses'].values()) == 2 and set(f['exit_statuses']) <= {'130', '-2', '0'} and set(f['exit_statuses']) != {'0'}, f


def test_many_candidates_for_one_judge():
    f = faults.row(40, 'cpu', 1, quiet)
    assert f['ok'] and [p['after'] for p in f['points']] == [10, 20, 40], f


def test_what_stays_is_seen(tmp_path):
    """The negative control: a process, a file and a wrong verdict are told."""
    with faults.Watched() as watched:
        p = subprocess.Popen(['sleep', '60'], env=os.environ | dict(TMPDIR=watched.folder))
        Path(watched.folder, 'litter').touch()
        left = watched.left(.5)
        p.kill(); p.wait()
        assert any('sleep' in s for s in left['processes']) and left['files'] == ['litter']
        Path(watched.folder, 'litter').unlink()
        assert not any(watched.left().values())
    assert not Path(watched.folder).exists()
    grown = faults.usage(os.getpid())
    kept = [open(os.devnull) for _ in range(5)], bytearray(os.urandom(1 << 20)*32)
    time.sleep(.01)
    now = faults.usage(os.getpid())
    assert now['files'] == grown['files'] + 5 and now['mib'] > grown['mib'] + 24 and kept


def test_what_killed_processes_shared_is_removed():
    """Files by the names that CUDA and torch give them, as no GPU is needed: of a child that is killed, and of one whose parent is killed. Those of others and older ones stay."""
    files = lambda pid: [Path(f'/dev/shm/cuda.shm.0.{pid:x}.1'), Path(f'/dev/shm/torch_{pid}_123_1')]
    zygote = Zygote(preload=())
    other = files(4000000000)
    try:
        a, b = zygote.spawn('baseline'), zygote.spawn('baseline')
        for p in (*files(a.pid), *files(b.pid), *other): p.touch()
        os.utime(files(b.pid)[0], (0, 0))
        a.kill()
        assert not any(p.exists() for p in files(a.pid)) and all(p.exists() for p in (*files(b.pid), *other)) and zygote.children == {b.pid}
        os.kill(zygote.process.pid, signal.SIGKILL)
        zygote.close()
        assert [p.exists() for p in (*files(b.pid), *other)] == [True, False, True, True]
    finally:
        zygote.close()
        for p in (files(b.pid)[0], *other): p.unlink(missing_ok=True)


def test_a_wrong_verdict_is_told(monkeypatch):
    monkeypatch.setattr(faults, 'candidate', lambda right, target, real=faults.candidate: real(not right, target))
    f = faults.row(10, 'cpu', 1, quiet)
    assert not f['ok'] and len(f['wrong']) == 10, f
