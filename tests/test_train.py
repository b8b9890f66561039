"""Training steps and checkpoints: invariants with negative controls, exact resume, and `kill -9` in the middle of a save."""
import os
import random
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cuda_agent_lab import checkpoint as C, train as T

torch.set_num_threads(1)
CONFIG = replace(T.LAPTOP, epochs=1, critic_epochs=1, mini_batch=64, micro_tokens=40, entropy_bonus=0., kl_stop=None, warmup_steps=0)


class TinyLM(torch.nn.Module):
    "The interface of an actor (`hidden`, `head`) and of a critic (`forward`), as small as it gets; causal, with dropout."

    def __init__(self, vocab=12, dim=16, critic=False, dropout=0.1, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed, self.mix, self.out = torch.nn.Embedding(vocab, dim), torch.nn.Linear(2 * dim, dim), torch.nn.Linear(dim, dim)
            self.head = torch.nn.Parameter(torch.randn(1 if critic else vocab, dim) * .3)
        self.dropout = torch.nn.Dropout(dropout)

    def hidden(self, ids):
        x = self.embed(ids)
        past = x.cumsum(1) / torch.arange(1, ids.shape[1] + 1, device=ids.device)[:, None]
        return self.out(self.dropout(torch.tanh(self.mix(torch.cat([x, past], -1)))))

    def forward(self, ids): return (self.hidden(ids) @ self.head.T)[..., 0]


def episode(i, ids, mask, reward, logp=None, status='train'):
    logp = np.zeros(len(ids)) if logp is None else logp
    return SimpleNamespace(id=f'e{i}', ids=np.array(ids, np.int32), mask=np.array(mask, bool), logp=np.array(logp, np.float32),
                           reward=reward, status=status)


def episodes(n=8, seed=0):
    "Multi-turn episodes of uneven length, rewards of the paper."
    rng, out = np.random.default_rng(seed), []
    for i in range(n):
        size = rng.integers(4, 16)
        mask = rng.random(size) < .6
        mask[0], mask[1] = False, True
        out.append(episode(i, rng.integers(1, 12, size), mask, float(rng.choice([-1, 1, 2, 3])), -rng.random(size) * 3))
    return out


def trainer(config=CONFIG, kind=T.Trainer, dropout=0.1): return kind(TinyLM(dropout=dropout), TinyLM(critic=True, seed=1, dropout=dropout), config)


def weights(t): return torch.cat([x.flatten() for m in t.networks.values() for x in m.state_dict().values()])


def stepped(eps, config=CONFIG, kind=T.Trainer):
    "Weights after one PPO step, and its metrics."
    t = trainer(config, kind)
    metrics = t.ppo_step(T.make_batch(eps))
    return weights(t), metrics


# The Batch

def test_batch_pads_and_drops():
    eps = [episode(0, [5, 1, 2, 9], [0, 1, 1, 0], 1., [7, -1, -2, 7]), episode(1, [5, 6], [0, 1], -1., [0, -3]), episode(2, [5, 6], [0, 1], None, status='drop')]
    b = T.make_batch(eps, pad=11)
    assert b.ids.tolist() == [[5, 1, 2, 9], [5, 6, 11, 11]] and b.length.tolist() == [4, 2] and b.dropped == 1 and b.episodes == ('e0', 'e1')
    assert b.mu.tolist() == [[0, -1, -2, 0], [0, -3, 0, 0]] and b.reward.tolist() == [1, -1] and b.ids.dtype == torch.int64
    with pytest.raises(ValueError, match='e9 is empty or begins'): T.make_batch([episode(9, [1, 2], [1, 0], 0.)])
    with pytest.raises(ValueError, match='no reward'): T.make_batch([episode(9, [1, 2], [0, 1], None)])
    with pytest.raises(ValueError, match='nothing to train on'): T.make_batch(eps[2:])


def test_plan_covers_every_row_once_within_the_budget():
    length = torch.randint(1, 50, (40,), generator=torch.Generator().manual_seed(0))
    plan = T.make_plan(length, 16, 100, np.random.default_rng(0))
    assert [sum(map(len, mini)) for mini in plan] == [16, 16, 8]
    assert sorted(torch.cat([r for mini in plan for r in mini]).tolist()) == list(range(40))
    assert all(len(r) == 1 or len(r) * length[r].max() <= 100 for mini in plan for r in mini)
    with pytest.raises(ValueError, match="mode is 'offline'"): T.Learner(TinyLM(), None, replace(CONFIG, mode='offline'))


def test_shift_aligns_logp_and_values_with_their_token():
    b, actor, critic = T.make_batch(episodes()), TinyLM().eval(), TinyLM(critic=True).eval()
    logp, ent = T.policy_logp(actor, b.ids, b.mask)
    table, values, v = (actor.hidden(b.ids) @ actor.head.T).log_softmax(-1), critic(b.ids), T.values_before(critic, b.ids)
    for i, t in b.mask.nonzero().tolist():
        assert torch.allclose(logp[i, t], table[i, t - 1, b.ids[i, t]], atol=1e-6) and v[i, t] == values[i, t - 1]
        assert not torch.allclose(logp[i, t], table[i, t, b.ids[i, t]], atol=1e-6)          # control: unshifted
    assert not logp[~b.mask].any() and not ent[~b.mask].any()
    future = b.ids.clone(); future[:, -1] = 3                                                # nothing depends on the future
    assert torch.equal(T.values_before(critic, future)[:, :-1], v[:, :-1])


# 9: accumulation

@pytest.mark.parametrize('mean', ['token', 'trajectory'])
def test_micro_batches_do_not_change_the_step(mean):
    c = replace(CONFIG, loss_mean=mean, entropy_bonus=.05, max_grad_norm=float('inf'))
    def gradients(micro_tokens, mean_total=T.mean_total):
        t, b = trainer(replace(c, micro_tokens=micro_tokens)), T.make_batch(episodes())
        for m in t.networks.values(): m.eval()
        plan = t.plan(b)
        values, old = t.values(b, plan), t.logps(b, plan)
        adv, ret = t.advantages(b, values)
        T.policy_gradient(t, b, plan[0], old, adv, None)
        T.value_gradient(t, b, plan[0], values, ret, None)
        T.supervised_gradient(t, b, plan[0])
        return len(plan[0]), torch.cat([p.grad.flatten() for m in t.networks.values() for p in m.parameters()])
    (a, whole), (b, some), (c_, single) = gradients(10**6), gradients(40), gradients(1)
    assert (a, c_) == (1, 8) and 1 < b < 8
    assert torch.allclose(whole, some, atol=1e-6) and torch.allclose(whole, single, atol=1e-6)

    # Control: let every micro-batch divide by its own count, then average.
    original, counts = T.masked_mean, []
    def local(x, mask, total, mean='token'): return original(x, mask, int(mask.sum() if mean == 'token' else mask.any(-1).sum()), mean) / b
    from cuda_agent_lab import math
    math.masked_mean = T.masked_mean = local
    try: assert not torch.allclose(gradients(40)[1], whole, rtol=1e-2, atol=1e-3)
    finally: math.masked_mean = T.masked_mean = original


# 13: exact resume

def chaotic_batch():
    out = []
    for i in range(10):
        n = random.randint(3, 9)
        ids, mask = torch.randint(1, 12, (n,)).tolist(), [False] + (np.random.rand(n - 1) < .7).tolist()
        out.append(episode(i, ids, mask, float(np.random.randn()), -2.5 * np.random.rand(n)))
    return T.make_batch(out)


def run(t, n):
    log = []
    for _ in range(n): log += [t.supervised_step(chaotic_batch()), t.value_step(chaotic_batch()), t.ppo_step(chaotic_batch())]
    return log


def seeded(seed, config):
    random.seed(seed); np.random.seed(seed); torch.manual_seed(seed)
    return T.Trainer(TinyLM(seed=seed), TinyLM(critic=True, seed=seed + 1), config, seed)


def everything(t):
    moments = [s[k].flatten() for o in t.optimizers.values() for s in o.state.values() for k in ('exp_avg', 'exp_avg_sq')]
    return torch.cat([weights(t), *moments])


def test_five_and_five_steps_are_ten(tmp_path):
    config = replace(T.LAPTOP, mini_batch=4, micro_tokens=20, warmup_steps=7, decay_steps=60)
    straight = seeded(0, config)
    run(straight, 5)
    tail = run(straight, 5)
    first = seeded(0, config)
    run(first, 5)
    C.save_checkpoint(tmp_path, 5, first.state(best=1.5))
    run(first, 1)                                                    # what happens after the save must not matter
    second = seeded(99, config)
    step, state = C.load_checkpoint(tmp_path)
    assert step == 5 and second.load_state(state) == {'best': 1.5}
    again = run(second, 5)
    assert torch.equal(everything(second), everything(straight)) and second.steps == straight.steps
    np.testing.assert_equal(again, tail)                             # every figure of every step, NaN included

    def broken(change):
        t = seeded(99, config)
        _, state = C.load_checkpoint(tmp_path)
        t.load_state(state)
        change(t)
        run(t, 5)
        return torch.equal(everything(t), everything(straight))
    assert broken(lambda t: None)
    # Controls: each kind of state, forgotten alone, breaks the equality.
    assert not broken(lambda t: torch.manual_seed(1))
    assert not broken(lambda t: np.random.seed(1))
    assert not broken(lambda t: random.seed(1))
    assert not broken(lambda t: setattr(t, 'order', np.random.default_rng(99)))
    assert not broken(lambda t: t.steps.update(actor=0))
    assert not broken(lambda t: [o.state.clear() for o in t.optimizers.values()])


# 14: kill -9 in the middle of a save

KILLS = textwrap.dedent('''
    import os, random, signal, sys, time, warnings
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    from cuda_agent_lab import checkpoint as C, train as T

    def state(n): return {'weights': {'actor': {'w': torch.full((64, 64), float(n))}}, 'torch': {'m': torch.full((9,), float(n))}, 'json': {'n': n}}

    def check(folder, at_least):
        step, s = C.load_checkpoint(folder)
        assert step == s['json']['n'] >= at_least, (step, at_least)
        assert (s['weights']['actor']['w'] == step).all() and (s['torch']['m'] == step).all()
        return step

    def child(work):
        pid = os.fork()
        if pid == 0:
            try: work()
            finally: os._exit(0)
        return pid

    root = Path(sys.argv[1])
    warnings.simplefilter('error')          # a fall-back would warn: after a kill there must be none

    # A. Die just before or just after the n-th call that touches the disk, for every n, until a save gets through.
    folder = root / 'each'
    C.save_checkpoint(folder, 1, state(1), keep=2)
    C.save_checkpoint(folder, 2, state(2), keep=2)
    deaths, seen, n = 0, 2, 0
    while True:
        def work(n=n):
            left = [n // 2]
            def mortal(f, before):
                def g(*a, **k):
                    if before and left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1
                    out = f(*a, **k)
                    if not before and left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)
                    return out
                return g
            for owner, name in ((os, 'fsync'), (os, 'replace'), (C.shutil, 'rmtree'), (torch, 'save'), (Path, 'mkdir'), (Path, 'write_text'), (C, "save_file")):
                setattr(owner, name, mortal(getattr(owner, name), n % 2 == 0))
            C.save_checkpoint(folder, seen + 1, state(seen + 1), keep=2)
        killed = os.waitstatus_to_exitcode(os.waitpid(child(work), 0)[1]) == -signal.SIGKILL
        deaths += killed
        now = check(folder, seen)
        assert now == seen + 1 if not killed else now in (seen, seen + 1)
        seen, n = now, n + 1
        if not killed: break
    assert len(C._history(folder)) == 2 and sorted(p.name for p in folder.iterdir()) == sorted(['STABLE', *C._history(folder)]), list(folder.iterdir())

    # B. Die at random moments of a process that does nothing but save.
    folder, seen, rng = root / 'random', 0, random.Random(0)
    start = time.time()
    for i in range(5): C.save_checkpoint(root / 'warm', i, state(i))
    one = (time.time() - start) / 5
    for _ in range(20):
        def work():
            for i in range(seen + 1, seen + 10**6): C.save_checkpoint(folder, i, state(i), keep=2)
        pid = child(work)
        time.sleep(.01 + 4 * one * rng.random())
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        if C.load_checkpoint(folder) is not None: seen = check(folder, seen)

    # C. Control: the same kills on a process that overwrites one file in place.
    path, spoilt = root / 'in_place.pt', 0
    for _ in range(60):
        def work():
            while True: torch.save({str(i): torch.zeros(500) for i in range(40)}, path)
        pid = child(work)
        time.sleep(.01 + .02 * rng.random())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if path.exists():
            try: torch.load(path)
            except Exception: spoilt += 1
        if spoilt: break
    print(deaths, seen, spoilt)
''')


def test_kill_9_while_saving(tmp_path):
    done = subprocess.run([sys.executable, '-c', KILLS, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    deaths, saves, spoilt = map(int, done.stdout.split())
    assert deaths >= 30 and saves > 0
    assert spoilt                                                     # control: without the protocol a kill does spoil the file


def tiny_state(n): return {'weights': {'actor': {'w': torch.full((4,), float(n))}}, 'torch': {}, 'json': {}}


def test_damage_is_noticed(tmp_path):
    "A damaged newest checkpoint is reported, and the one before it is loaded."
    assert C.load_checkpoint(tmp_path / 'nothing') is None
    for n in (1, 2, 3): last = C.save_checkpoint(tmp_path, n, tiny_state(n))
    assert C.load_checkpoint(tmp_path)[0] == 3
    for spoil in (lambda p: p.write_bytes(p.read_bytes()[:-1]), lambda p: p.unlink()):
        last = C.save_checkpoint(tmp_path, 4, tiny_state(4))
        spoil(last / 'actor.safetensors')
        with pytest.warns(UserWarning, match='is damaged'): assert C.load_checkpoint(tmp_path)[0] == 3
        C.shutil.rmtree(last)
        with pytest.warns(UserWarning, match='is damaged'): assert C.load_checkpoint(tmp_path)[0] == 3      # gone altogether
        for n in (1, 2, 3): C.save_checkpoint(tmp_path, n, tiny_state(n))
    for p in tmp_path.glob('step_*'): (p / 'manifest.json').write_text('{"state.pt": "0"}')
    with pytest.warns(UserWarning), pytest.raises(C.CheckpointError, match='all 3 checkpoints'): C.load_checkpoint(tmp_path)


def test_same_step_twice_and_tied_weights(tmp_path):
    w = torch.randn(5, 3)
    state = {'weights': {'actor': {'embed': w, 'head': w}}, 'torch': {}, 'json': {'a': float('inf')}}
    first, second = C.save_checkpoint(tmp_path, 7, state), C.save_checkpoint(tmp_path, 7, state)
    assert first.name == 'step_00000007' and second.name == 'step_00000007-1' and first.exists()
    step, loaded = C.load_checkpoint(tmp_path)
    assert step == 7 and torch.equal(loaded['weights']['actor']['head'], w) and loaded['json'] == {'a': float('inf')}


# 16, 17: infrastructure failures are not there; the policy's failures are

def test_dropped_episode_changes_nothing():
    eps = episodes()
    lost = episode(99, [1, 2, 3, 4] * 9, [0, 1, 1, 1] * 9, None, status='drop')
    a, ma = stepped(eps)
    b, mb = stepped(eps[:3] + [lost] + eps[3:])
    assert torch.equal(a, b) and (ma.pop('dropped'), mb.pop('dropped')) == (0, 1)
    np.testing.assert_equal(ma, mb)                                   # N, whitening moments, value loss, everything
    failed = replace_status(lost, -1.)                                # control (17): the same episode as the policy's failure
    c, mc = stepped(eps[:3] + [failed] + eps[3:])
    assert not torch.equal(a, c)
    for key in ('tokens', 'adv_mean', 'adv_std', 'value_loss', 'reward_mean', 'grad_norm_actor'): assert mc[key] != ma[key], key


def replace_status(e, reward): return SimpleNamespace(**{**vars(e), 'status': 'train', 'reward': reward})


# 19: the first ratio is exactly one

def test_first_ratio_is_exactly_one():
    c = replace(CONFIG, epochs=3, lr_actor=3e-3)
    t = trainer(c, dropout=.5)                                        # dropout is there, and must be off
    for seed in range(3):
        m = t.ppo_step(T.make_batch(episodes(20, seed)))
        assert m['rho_first_spread'] == 0. and m['rho_max'] > 1.001 and m['kl_max'] > 0
    _, m = stepped(episodes(), replace(CONFIG, mode='bypass'))
    assert m['rho_first_spread'] > .1                                 # control: against a foreign sampler it is not

    class OtherCut(T.Trainer):
        "Control: old log-probabilities from one big micro-batch, in another precision, as an engine would give them."
        def logps(self, batch, plan): return super().logps(batch, [[torch.arange(len(batch))]]).bfloat16().float()
    assert stepped(episodes(), CONFIG, OtherCut)[1]['rho_first_spread'] > 1e-3


# 20, 21: modes

def test_modes():
    eps = episodes()
    with torch.no_grad():
        b = T.make_batch(eps)
        own = T.policy_logp(TinyLM().eval(), b.ids, b.mask)[0]
    honest = [episode(i, e.ids, e.mask, e.reward, own[i, :len(e.ids)].numpy()) for i, e in enumerate(eps)]
    exact = replace(CONFIG, micro_tokens=10**6)                       # one micro-batch, so that `own` has the trainer's bits
    local, decoupled, bypass = (stepped(honest, replace(exact, mode=m, tis_cap=float('inf')))[0] for m in ('local', 'decoupled', 'bypass'))
    assert torch.allclose(local, decoupled, atol=1e-6) and torch.allclose(local, bypass, atol=1e-6)
    foreign = [stepped(eps, replace(exact, mode=m))[0] for m in ('local', 'decoupled', 'bypass')]
    assert torch.equal(foreign[0], local)                             # mu plays no part in mode local
    assert not torch.allclose(foreign[0], foreign[1], atol=1e-4) and not torch.allclose(foreign[0], foreign[2], atol=1e-4)
    lost = [episode(i, e.ids, e.mask, e.reward, np.where(np.arange(len(e.ids)) == 1, np.nan, e.logp)) for i, e in enumerate(eps)]
    w, m = stepped(lost, replace(exact, mode='decoupled'))            # an engine's NaN costs its token, nothing else
    assert torch.isfinite(w).all() and m['tokens'] == b.mask.sum() - len(eps)


# 22: micro-batches without action tokens

def test_empty_micro_batch_takes_part():
    silent = [episode(50 + i, [1, 2, 3], [0, 0, 0], 1.) for i in range(3)]
    t, b = trainer(replace(CONFIG, micro_tokens=1)), T.make_batch(silent)
    adv = torch.zeros_like(b.mu)
    T.policy_gradient(t, b, [torch.tensor([0])], adv, adv, None)
    T.value_gradient(t, b, [torch.tensor([1])], adv, adv, None)
    for m in t.networks.values(): assert all(p.grad is not None and not p.grad.any() for p in m.parameters())
    m = t.ppo_step(b)
    assert m['tokens'] == 0 and np.isnan(m['ev']) and torch.isfinite(weights(t)).all()
    c = replace(CONFIG, micro_tokens=1, whiten=False)
    a, x = stepped(episodes(), c)[0], stepped(episodes() + silent, c)[0]
    assert torch.allclose(a, x, atol=1e-5)                            # N counts action tokens, so they change nothing


# 24: value pretraining recovers E[R|s]

def test_value_pretraining_two_states():
    rng, eps = np.random.default_rng(0), []
    for i in range(200):
        s = rng.integers(2)
        eps.append(episode(i, [1 + s, 5, 6], [0, 1, 1], float(rng.random() < (.2, .8)[s]) * 4 - 1))
    want = [np.mean([e.reward for e in eps if e.ids[0] == 1 + s]) for s in (0, 1)]
    t = trainer(replace(CONFIG, lr_critic=2e-2, micro_tokens=10**6))
    before = weights(SimpleNamespace(networks={'a': t.actor})).clone()
    for _ in range(80): m = t.value_step(T.make_batch(eps))
    got = T.values_before(t.critic, torch.tensor([[1, 5, 6], [2, 5, 6]])).detach()[:, 1:]
    assert torch.allclose(got, torch.tensor(want, dtype=torch.float32)[:, None].expand(2, 2), atol=.05)
    bound = 1 - np.mean([(e.reward - want[e.ids[0] - 1])**2 for e in eps]) / np.var([e.reward for e in eps])
    assert m['ev'] == pytest.approx(bound, abs=.02) and 0 < bound < .6
    assert torch.equal(before, weights(SimpleNamespace(networks={'a': t.actor})))            # the actor is frozen
    blind = [episode(i, [3, *e.ids[1:]], e.mask, e.reward) for i, e in enumerate(eps)]       # control: the state is hidden
    t = trainer(replace(CONFIG, lr_critic=2e-2, micro_tokens=10**6))
    for _ in range(80): m = t.value_step(T.make_batch(blind))
    assert abs(m['ev']) < .02


def test_value_step_paper_targets_bootstrap():
    "lam_v < 1: targets depend on the values; with lam_v = 1 they do not."
    b, t = T.make_batch(episodes()), trainer()
    zeros, ones = torch.zeros_like(b.mu), torch.ones_like(b.mu)
    at = lambda lam_v, v: T.batch_advantages(b, v, replace(CONFIG, lam_v=lam_v))[1]
    assert torch.allclose(at(1., zeros), at(1., ones)) and not torch.allclose(at(.95, zeros), at(.95, ones))
    assert np.isfinite(trainer(replace(CONFIG, lam_v=.95)).value_step(b)['value_loss'])


# 27: end to end

class Flipped(T.Trainer):
    def advantages(self, batch, values):
        adv, ret = super().advantages(batch, values)
        return -adv, ret


def bandit(kind, seed, steps=40):
    torch.manual_seed(seed)
    t = kind(TinyLM(seed=seed), TinyLM(critic=True, seed=seed + 1), replace(T.LAPTOP, lr_actor=5e-3, lr_critic=1e-2))
    probability = lambda: torch.softmax((t.actor.hidden(torch.zeros(1, 1, dtype=torch.long)) @ t.actor.head.T)[0, 0], -1).detach()
    for _ in range(steps):
        t.actor.eval()
        p = probability()
        arms = torch.multinomial(p, 128, replacement=True).tolist()
        t.ppo_step(T.make_batch([episode(i, [0, a, 9], [0, 1, 0], {2: 1., 1: 0.}.get(a, -1.), [0, p[a].log().item(), 0]) for i, a in enumerate(arms)]))
    return probability()[2].item()


@pytest.mark.parametrize('seed', [0, 1, 2])
def test_bandit(seed):
    start = time.process_time()
    assert bandit(T.Trainer, seed) > .95
    assert time.process_time() - start < 10
    assert bandit(Flipped, seed) < .2                                 # control: sign-flipped advantage


# The rest of the step

def test_early_stop_and_schedule():
    c = replace(CONFIG, epochs=50, lr_actor=.03, kl_stop=.02)
    _, m = stepped(episodes(), c)
    assert 0 < m['actor_updates'] < 50 and m['kl_max'] > .02
    assert stepped(episodes(), replace(c, kl_stop=None))[1]['actor_updates'] == 50
    assert [T.lr_factor(s, 2, 4) for s in range(8)] == [1 / 3, 2 / 3, 1, .75, .5, .25, 0, 0] and T.lr_factor(10**6, 2, 0) == 1


def test_not_finite_gradient_is_skipped():
    t = trainer()
    before = weights(t).clone()
    for p in t.actor.parameters(): p.grad = torch.full_like(p, float('nan'))
    with pytest.warns(UserWarning, match='not finite'): assert np.isnan(t.apply_gradient('actor'))
    assert torch.equal(weights(t), before) and all(p.grad is None for p in t.actor.parameters())


def test_supervised_step_learns_actions_only():
    t = T.Trainer(TinyLM(dropout=0), None, replace(CONFIG, lr_actor=1e-2))
    eps = [episode(i, [3, 4, 5, 6, 7, 8], [0, 1, 1, 0, 0, 1], 0.) for i in range(4)]
    log = [t.supervised_step(T.make_batch(eps))['nll'] for _ in range(60)]
    assert log[0] > 2 and log[-1] < .05
    b = T.make_batch([episode(0, [3, 4, 5, 6, 7, 8], [0, 1, 1, 1, 1, 1], 0.)])
    p = T.policy_logp(t.actor.eval(), b.ids, b.mask)[0].exp()[0]
    assert p[[1, 2, 5]].min() > .9 and p[[3, 4]].max() < .5           # control: tool output was not learnt


def test_real_model_first_ratio_and_resume(tmp_path):
    "The same with a Hugging Face Llama and its critic, tied embeddings included."
    model = pytest.importorskip('cuda_agent_lab.model')
    from transformers import LlamaConfig, LlamaForCausalLM
    def make(seed):
        torch.manual_seed(seed)
        actor = LlamaForCausalLM(LlamaConfig(vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                                             num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True)).eval()
        return T.Trainer(actor, model.make_critic(actor, bias=.5), replace(CONFIG, lr_actor=1e-3, lr_critic=1e-3))
    t, b = make(0), T.make_batch(episodes(20))
    want = t.actor(b.ids).logits.log_softmax(-1)[:, :-1].gather(-1, b.ids[:, 1:, None])[..., 0][b.mask[:, 1:]]
    assert torch.allclose(T.policy_logp(t.actor, b.ids, b.mask)[0][b.mask], want, atol=1e-5)
    m = t.ppo_step(b)
    assert m['rho_first_spread'] == 0. and m['grad_norm_actor'] > 0
    C.save_checkpoint(tmp_path, 1, t.state())
    t.ppo_step(b)
    again = make(5)
    again.load_state(C.load_checkpoint(tmp_path)[1])
    again.ppo_step(b)
    assert torch.equal(everything(again), everything(t))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
def test_cuda_step_equals_cpu(tmp_path):
    c = replace(CONFIG, epochs=2, lr_actor=1e-3, micro_tokens=60)
    cpu, gpu = trainer(c), T.Trainer(TinyLM().cuda(), TinyLM(critic=True, seed=1).cuda(), c)
    a, b = (t.ppo_step(T.make_batch(episodes(20))) for t in (cpu, gpu))
    assert b['rho_first_spread'] == 0. and set(a) == set(b)
    for key in ('entropy', 'value_loss', 'kl_max', 'adv_std', 'grad_norm_actor'): assert b[key] == pytest.approx(a[key], rel=1e-3, abs=1e-5), key
    C.save_checkpoint(tmp_path, 1, gpu.state())
    gpu.ppo_step(T.make_batch(episodes(20)))
    again = T.Trainer(TinyLM(seed=5).cuda(), TinyLM(critic=True, seed=6).cuda(), c)
    again.load_state(C.load_checkpoint(tmp_path)[1])
    again.ppo_step(T.make_batch(episodes(20)))
    assert torch.allclose(everything(again), everything(gpu), atol=1e-6)
