"""The stages against a pool whose verdict is a function of the candidate's text: what is rewarded is learned, what is shuffled is not, and the books are kept."""
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cuda_agent_lab import run as run_module
from cuda_agent_lab.build import Build
from cuda_agent_lab.episodes import Episode, Message, ToolCall
from cuda_agent_lab.model import ModelConfig
from cuda_agent_lab.run import Metrics, Preset, Run, draw, outcome
from cuda_agent_lab.stages import accepted, objection, shuffled, train_all
from cuda_agent_lab.tasks import load_tasks
from cuda_agent_lab.verdict import Timing, Verdict

TASKS = ("suite/level1/rms_norm", "suite/level2/residual_rms_norm")


class TextPool:
    """Builds nothing and measures nothing: the verdict is a function of the task and the candidate's text. A fifth of all texts is wrong, the others have speed-ups from 0.6 to 2.6."""
    target, reuse = "cpu", True

    def build(self, candidate, *args, **kw):
        return Build(status="ok", library=None, log="", seconds=0.0, cached=True, key=candidate.hash, abi=candidate.abi, target="cpu")

    def judge(self, task, candidate, options=None, **kw):
        u = int(hashlib.sha256((task.hash + candidate.hash).encode()).hexdigest()[:8], 16) / 2**32
        if u < 0.2:
            return Verdict("rejected", "wrong_result", "output 0 differs", milestone=-1, task=task.hash, candidate=candidate.hash)
        s = 0.6 + 2 * (u - 0.2) / 0.8
        t = lambda ms: Timing(ms, ms, ms, 9, "made up")
        ratio = lambda r: dict(median=r, lo=r, hi=r, n=9)
        return Verdict("correct", timing=dict(eager=t(2.0), compiled=t(1.5), candidate=t(2.0 / s)), speedup_eager=ratio(s), speedup_compile=ratio(0.75 * s),
                       milestone=3 if 0.75 * s > 1.06 else 2 if s > 1.06 else 1, task=task.hash, candidate=candidate.hash)

    def close(self): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass


TINY = Preset(tasks=TASKS, model=ModelConfig(vocab=1024, hidden=48, layers=2, heads=2, kv_heads=1, ff=96, context=2048),
              teacher=12, sft_steps=160, sft_batch=8, sft_lr=1e-2, collect=8, rft_steps=2, value_steps=2, ppo_steps=2, batch=8, max_new_tokens=60, every=30)


def make_run(out, preset=TINY, **kw):
    return Run(out, preset, load_tasks("suite", level=(1, 2)), TextPool(), say=kw.pop("say", lambda line: None), **kw)


def episode(i, reward, calls=(), task="t", exit_status="submitted"):
    calls = calls or [(ToolCall("Bash", {"command": f"ls {i}"}),)]
    status = "drop" if reward is None else "train"
    return Episode(f"e{i}", task, "h", "p", i, [Message("user", "ask")] + [Message("assistant", "", tuple(c)) for c in calls], reward=reward, status=status,
                   exit_status="infra_error" if reward is None else exit_status)


# -- small parts -----------------------------------------------------------------------------------------------------------------------------------------

def test_filter_of_rejection_finetuning():
    ls, bad = (ToolCall("Bash", {"command": "ls"}),), (ToolCall("", {}, "not valid JSON."),)
    assert objection(episode(0, 1.0)) == ""
    assert objection(episode(1, 0.0)) == objection(episode(2, None)) == "reward not above 0"
    assert objection(episode(3, 2.0, [bad])) == objection(episode(4, 2.0, exit_status="reply_limit")) == "malformed call"
    assert objection(episode(5, 2.0, [ls, ls])) == "redundant loop" and objection(episode(6, 2.0, [ls, bad[:0], ls])) == ""
    many = [episode(i, float(r), task=t) for i, (t, r) in enumerate([("a", 1), ("a", 2), ("a", 3), ("a", -1), ("b", 1), ("b", 1)])]
    assert [e.id for e in accepted(many)] == ["e0", "e1", "e2", "e4", "e5"]
    assert [e.id for e in accepted(many, top=0.3)] == ["e2", "e4", "e5"]               # best third of each task, ties kept


def test_shuffling_keeps_the_rewards_and_moves_them():
    es = [episode(i, float(i)) for i in range(20)]
    a, b = shuffled(es, 0, 1), shuffled(es, 0, 1)
    assert [e.id for e in a] == [e.id for e in es] and [e.reward for e in a] == [e.reward for e in b]
    assert sorted(e.reward for e in a) == sorted(e.reward for e in es) and [e.reward for e in a] != [e.reward for e in es]
    assert [e.reward for e in es] == list(map(float, range(20)))                        # the stored episodes are not touched


def test_dropped_episodes_count_nowhere():
    es = [episode(0, 1.0), episode(1, 3.0, task="u")]
    full = outcome(es + [episode(2, None)])
    assert {k: v for k, v in outcome(es).items() if k not in ("dropped", "exits")} == {k: v for k, v in full.items() if k not in ("dropped", "exits")}
    assert full["dropped"] == 1 and full["reward_mean"] == 2.0 and full["reward_tasks"] == {"t": 1.0, "u": 3.0}


def test_metrics_survive_a_cut_anywhere(tmp_path):
    rows = [dict(stage="ppo", step=s, reward=s / 7) for s in range(4)]
    whole = "".join(json.dumps(r) + "\n" for r in rows)
    for cut in range(len(whole) + 1):
        (tmp_path / "m.jsonl").write_text(whole[:cut])
        m = Metrics(tmp_path / "m.jsonl")
        done = whole[:cut].count("\n")
        m.repair("ppo", 4, rows[done:])                                                 # the checkpoint holds what the file lost
        assert (tmp_path / "m.jsonl").read_text() == whole


def test_draw_visits_everything_equally():
    for n, size in ((7, 3), (5, 8), (4, 4)):
        seen = np.bincount(sum((draw(n, size, s, 0, "x") for s in range(n)), []), minlength=n)
        assert (seen == size).all()


# -- the whole recipe ------------------------------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    return out, train_all(make_run(out), control=True)


def test_every_stage_leaves_its_rows_episodes_and_checkpoints(trained):
    out, _ = trained
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = {stage: [r["step"] for r in rows if r["stage"] == stage] for stage in dict.fromkeys(r["stage"] for r in rows)}
    assert steps == dict(sft=list(range(TINY.sft_steps)), rft=[0, 1], value=[0, 1], control=[0, 1], ppo=[0, 1])
    run = make_run(out)
    ids = run.store.ids()
    assert len(ids) == len(set(ids)) == 12 + 8 + 8 * 2 * 2
    last = [r for r in rows if r["stage"] == "ppo"][-1]
    assert {"reward_mean", "reward_tasks", "distinct", "invalid", "faster_eager", "entropy", "ev", "rho_max", "seconds"} <= set(last)
    assert set(last["seconds"]) == {"sample", "judge", "train"} and last["rho_first_spread"] == 0
    assert (out / "model" / "critic.safetensors").exists() and (out / "config.json").exists()


def test_control_plays_the_same_first_batch(trained):
    run = make_run(trained[0])
    ppo, control = (run.store.read([f"{s}-0000-{i:03d}" for i in range(8)]) for s in ("ppo", "control"))
    assert [e.ids.tolist() for e in ppo] == [e.ids.tolist() for e in control] and [e.reward for e in ppo] == [e.reward for e in control]


def test_a_finished_run_is_only_loaded(trained, monkeypatch):
    out, nets = trained
    before = (out / "metrics.jsonl").read_bytes(), (out / "episodes" / "episodes.jsonl").read_bytes()
    monkeypatch.setattr(run_module, "run_episodes", lambda *a, **k: pytest.fail("played again"))
    again = train_all(make_run(out), control=True)
    assert all(torch.equal(a, b) for k in ("actor", "critic", "control_actor") for a, b in zip(nets[k].state_dict().values(), again[k].state_dict().values()))
    assert before == ((out / "metrics.jsonl").read_bytes(), (out / "episodes" / "episodes.jsonl").read_bytes())


def test_other_parameters_are_refused(trained):
    for kw in (dict(seed=1), dict(preset=replace(TINY, batch=6))):
        with pytest.raises(ValueError, match="holds a run with another (seed|preset)"):
            make_run(trained[0], **kw)


def test_unknown_tasks_are_named():
    with pytest.raises(ValueError, match="suite/level9/x"):
        make_run(Path("/nonexistent"), replace(TINY, tasks=("suite/level9/x",)))
