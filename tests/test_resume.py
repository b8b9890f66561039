"""`kill -9` at any moment, start again: the interrupted run ends bit-equal to the uninterrupted one, and no episode is lost or counted twice.

A real process is really killed: while it writes (at the n-th fsync, which lies in the episode store, a checkpoint or the metrics), between a gradient and its update, while it plays, and at times that nobody chose."""
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from cuda_agent_lab.episodes import EpisodeStore
from cuda_agent_lab.stages import train_all
from cuda_agent_lab.checkpoint import load_checkpoint

STAGES = ("sft", "rft", "value", "control", "ppo")


def _kill_at(module, name, n):
    "Replace module.name by itself, killing the process at the start of its n-th call."
    real, calls = getattr(module, name), iter(range(1, 10**9))

    def wrapper(*a, **kw):
        if next(calls) == n: os.kill(os.getpid(), signal.SIGKILL)
        return real(*a, **kw)
    setattr(module, name, wrapper)


def child(out, where, n, seed):
    "Train in this process; die at the n-th call of `where`."
    from cuda_agent_lab import train
    from test_stages import TextPool, make_run
    torch.set_num_threads(1)
    if where == "write": _kill_at(os, "fsync", n)                       # nothing is durable before its fsync
    if where == "rename": _kill_at(os, "replace", n)
    if where == "update": _kill_at(train.Learner, "apply_gradient", n)
    if where == "judge": _kill_at(TextPool, "judge", n)
    train_all(make_run(out, seed=seed), control=True)


def start(out, where="", n=0, after=None, seed=0):
    "Exit code of a child that trains in `out`; killed from outside after `after` seconds if it still runs then."
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cuda_agent_lab.stages", "cuda_agent_lab.tasks"])           # the slow imports once, before any thread exists
    process = context.Process(target=child, args=(str(out), where, n, seed))
    process.start()
    process.join(after)
    if process.is_alive():
        process.kill(); process.join()
    return process.exitcode


def rows(out):
    "Rows of the metrics without what the clock says."
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def by_step(rs): return sorted(rs, key=lambda r: (STAGES.index(r["stage"]), r["step"]))


def assert_equal(a, b):
    for stage in STAGES:
        if not (Path(a) / "checkpoints" / stage).exists():
            assert stage == "rft" and not (Path(b) / "checkpoints" / stage).exists()     # no good episode, so no such stage, in both
            continue
        (step_a, x), (step_b, y) = load_checkpoint(Path(a) / "checkpoints" / stage), load_checkpoint(Path(b) / "checkpoints" / stage)
        assert step_a == step_b and x["weights"].keys() == y["weights"].keys()
        for name in x["weights"]:
            assert all(torch.equal(v, y["weights"][name][k]) for k, v in x["weights"][name].items()), f"{stage}: weights of the {name} differ"
        moments = lambda s: [v for o in s["torch"]["optimizers"].values() for p in o["state"].values() for v in p.values()]
        assert all(torch.equal(v, w) for v, w in zip(moments(x), moments(y), strict=True)), f"{stage}: the optimizer's state differs"
    assert by_step(rows(a)) == by_step(rows(b))
    ids = [(r["stage"], r["step"]) for r in rows(b)]
    assert len(ids) == len(set(ids))
    ea, eb = ({e.id: e for e in EpisodeStore(Path(p) / "episodes").read()} for p in (a, b))
    assert ea.keys() == eb.keys() and len(eb) == len((Path(b) / "episodes" / "episodes.jsonl").read_text().splitlines())
    for i in ea:
        assert [ea[i].ids.tolist(), ea[i].reward, ea[i].exit_status] == [eb[i].ids.tolist(), eb[i].reward, eb[i].exit_status]
        assert ea[i].logp.tobytes() == eb[i].logp.tobytes() and ea[i].mask.tobytes() == eb[i].mask.tobytes()


def test_killed_at_any_moment(tmp_path):
    begin, out = time.perf_counter(), tmp_path / "run"
    assert start(out) == 0
    whole, rng = time.perf_counter() - begin, random.Random(0)
    out.rename(tmp_path / "straight")                                   # both run in one place: its path may occur in what tools print
    plans = [("judge", 3), ("write", 5), ("update", 3), ("rename", 4), ("write", 23), ("update", 9), ("judge", 6), ("write", 41), ("rename", 9)]
    codes = [start(out, where, n) for where, n in plans]
    codes += [start(out, after=rng.uniform(0.3, 0.6) * whole) for _ in range(2)]
    assert codes.count(-signal.SIGKILL) >= 6, codes                   # most plans must really have killed something
    assert start(out) == 0
    assert_equal(tmp_path / "straight", out)

    # Negative controls: the comparison sees another seed, a lost row and an episode that was counted twice.
    assert start(tmp_path / "other", seed=1) == 0
    for spoil in (lambda: tmp_path / "other", lambda: edited(out, "metrics.jsonl", lambda lines: lines[:-1]),
                  lambda: edited(out, "episodes/episodes.jsonl", lambda lines: lines + lines[-1:])):
        with pytest.raises(AssertionError): assert_equal(tmp_path / "straight", spoil())


def edited(out, name, change):
    "The folder with one file's lines changed."
    path = out / name
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    return out
