"""Invariants of the PPO mathematics, each beside the mistake that it must catch (a negative control)."""
import numpy as np
import pytest
import torch

from cuda_agent_lab import math as M


def loop_gae(v, r, gamma, lam):
    "The recursion as written in the paper, for comparison with the filter."
    out, after, v_next = np.zeros(len(v)), 0.0, 0.0
    for k in reversed(range(len(v))):
        after = r[k] + gamma * v_next - v[k] + gamma * lam * after
        out[k], v_next = after, v[k]
    return out


def case(seed=0, B=4, T=9, dtype=torch.float64):
    "Random log-probabilities, advantages and an uneven mask whose rows all hold at least one action."
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(B, T, generator=g) < .6
    mask[:, 0], mask[:, 1] = False, True
    logp, step, adv = -2 * torch.rand(B, T, generator=g, dtype=dtype), torch.randn(B, T, generator=g, dtype=dtype), torch.randn(B, T, generator=g, dtype=dtype)
    return logp, logp + .5 * step, adv, mask


# 1, 2: generalised advantage estimation

def test_hand_gae():
    v, r = [.5, .2, .1], [0, 0, 1]
    assert np.allclose(M.gae(v, r, lam=.5), [-.125, .35, .9])
    assert np.allclose(M.gae(v, r, lam=0), [-.3, -.1, .9])
    assert np.allclose(M.gae(v, r, lam=1) + v, 1)
    assert not np.allclose(M.gae(v, r, lam=.95) + v, 1)                 # control: other lambdas do not telescope
    assert np.allclose(M.gae(v, r, lam=.5, last=1.)[-1], 1.9)
    assert M.gae([], []).shape == (0,)
    with pytest.raises(ValueError, match='one length'): M.gae([1., 2.], [1.])


@pytest.mark.parametrize('gamma,lam', [(1, .95), (.99, .97), (1, 1), (1, 0), (1, .9999)])
def test_filter_is_the_loop(gamma, lam):
    rng = np.random.default_rng(0)
    v, r = rng.normal(size=5000), rng.normal(size=5000)
    assert np.abs(M.gae(v, r, gamma, lam) - loop_gae(v, r, gamma, lam)).max() < 1e-9
    single = loop_gae(v.astype(np.float32), r.astype(np.float32), np.float32(gamma), np.float32(lam)).astype(np.float32)
    if lam == 1: assert np.abs(single - M.gae(v, r, gamma, lam)).max() > 1e-9      # control: float32 would not pass this bar


# 3: observation invariance

def test_observations_change_nothing():
    rng = np.random.default_rng(1)
    broken = expected = 0
    for _ in range(50):
        n = rng.integers(1, 30)
        v, R, lam = rng.normal(size=n), rng.normal(), rng.choice([.9, .95, 1.])
        plain, target = M.advantages(v, np.ones(n, bool), R, lam, rng.choice([.95, 1.]))
        # Between and after the actions, also before the first: any number of observations with any values.
        where = np.sort(rng.choice(3 * n + 5, n, replace=False))
        mask, values = np.zeros(3 * n + 6, bool), rng.normal(size=3 * n + 6) * 100
        mask[where], values[where] = True, v
        adv, ret = M.advantages(values, mask, R, lam, 1.)
        assert np.array_equal(adv[mask], plain) and not adv[~mask].any() and not ret[~mask].any()
        r = np.zeros(len(mask)); r[-1] = R
        # Control: GAE over every token is wrong whenever lambda < 1; with lambda = 1 the mistake cannot be seen.
        broken += not np.allclose(M.gae(values, r, 1, lam)[mask], plain)
        expected += lam < 1
    assert broken == expected > 20


def test_published_table_and_reward_on_the_last_action():
    adv, ret = M.advantages([.2, .3, 9, 9, 9, .5, .6, 9], [1, 1, 0, 0, 0, 1, 1, 0], 1., .95, 1.)
    assert np.allclose(adv, [.7232, .656, 0, 0, 0, .48, .4, 0]) and np.allclose(ret, [1, 1, 0, 0, 0, 1, 1, 0])
    assert not np.allclose(M.advantages([.2, .3, .5, .6], [1] * 4, 1., .95, .95)[1], 1)     # control: lam_v < 1 is not R
    assert M.advantages([1., 2.], [0, 0], 5.)[0].tolist() == [0, 0]                         # no action: nothing to learn


def test_adaptive_lambda():
    assert [round(M.adaptive_lambda(n), 4) for n in (0, 1, 20, 100, 2000, 8000)] == [0, 0, 0, .8, .99, .9975]
    v, one = np.linspace(0, 1, 100), np.ones(100, bool)
    assert np.array_equal(M.advantages(v, one, 1., 'adaptive')[0], M.advantages(v, one, 1., .8)[0])
    assert not np.array_equal(M.advantages(v, one, 1., 'adaptive')[0], M.advantages(v, one, 1., .95)[0])
    long = np.r_[np.ones(100, bool), np.zeros(1900, bool)]                                  # n counts actions only
    assert np.array_equal(M.advantages(np.r_[v, np.ones(1900)], long, 1., 'adaptive')[0][:100], M.advantages(v, one, 1., .8)[0])


def test_whiten():
    _, _, adv, mask = case()
    w, mean, std = M.whiten(adv, mask)
    assert abs(w[mask].mean()) < 1e-12 and abs(w[mask].std(correction=0) - 1) < 1e-7 and not w[~mask].any()
    assert mean == pytest.approx(adv[mask].mean().item()) and std == pytest.approx(adv[mask].std(correction=0).item())
    assert torch.equal(M.whiten(torch.full_like(adv, .1), mask)[0][mask], adv.new_full((mask.sum(),), .1))
    assert M.whiten(torch.full_like(adv, float('nan')), torch.zeros_like(mask))[1:] == (0., 0.)


# 4, 5, 6, 7: the losses

def test_gradient_at_ratio_one():
    logp, _, adv, mask = case()
    logp.requires_grad_()
    n = M.mean_total(mask)
    M.policy_loss(logp, logp.detach(), adv, mask, n).backward()
    assert torch.allclose(logp.grad, torch.where(mask, -adv / n, 0.)) and torch.equal(logp.grad[~mask], torch.zeros((~mask).sum()).double())


@pytest.mark.parametrize('adv', [1.5, -1.5])
@pytest.mark.parametrize('rho', [.5, 1.1, 2., 5.])
@pytest.mark.parametrize('dual', [3., None])
def test_eight_cells(adv, rho, dual):
    logp = torch.tensor([[np.log(rho)]], requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.bool)
    loss = M.policy_loss(logp, torch.zeros(1, 1).double(), torch.full((1, 1), adv).double(), one, 1, dual_clip=dual)
    loss.backward()
    if adv > 0: value, slope = -min(rho, 1.28) * adv, -rho * adv if rho < 1.28 else 0
    else:
        bound = dual or np.inf
        value, slope = -min(max(rho, .8), bound) * adv, -rho * adv if .8 <= rho <= bound else 0
    assert loss.item() == pytest.approx(value) and logp.grad.item() == pytest.approx(slope)


def test_clip_is_asymmetric_and_ratio_is_bounded():
    one, A = torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 1)
    at = lambda x, **kw: M.policy_loss(torch.tensor([[x]]), torch.zeros(1, 1), A, one, 1, **kw).item()
    assert at(np.log(1.25)) == pytest.approx(-1.25) and at(np.log(1.25), clip_high=.2) == pytest.approx(-1.2)
    worst = M.policy_loss(torch.tensor([[500.]]), torch.zeros(1, 1), -A, one, 1, dual_clip=None)
    assert torch.isfinite(worst) and worst == pytest.approx(np.exp(20), rel=1e-4)           # clamped, yet huge:
    assert M.policy_loss(torch.tensor([[500.]]), torch.zeros(1, 1), -A, one, 1) == 3        # what the dual clip is for


@pytest.mark.parametrize('mean', ['token', 'trajectory'])
def test_gradcheck(mean):
    logp, old, adv, mask = case()
    total = M.mean_total(mask, mean)
    weights = M.importance_weights(old, logp, mask)
    for w in (None, weights):
        assert torch.autograd.gradcheck(lambda x: M.policy_loss(x, old, adv, mask, total, weights=w, mean=mean), logp.clone().requires_grad_())
    for clip in (None, .3):
        assert torch.autograd.gradcheck(lambda x: M.value_loss(x, adv, mask, total, old, clip, mean), logp.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda x: M.nll_loss(x, mask, total, mean), logp.clone().requires_grad_())


@pytest.mark.parametrize('poison', [float('nan'), float('inf'), -float('inf')])
def test_poison_under_the_mask(poison):
    logp, old, adv, mask = case()
    clean = M.policy_loss(logp.requires_grad_(), old, adv, mask, 7, weights=M.importance_weights(old, logp, mask))
    clean_grad, = torch.autograd.grad(clean, logp)
    bad = [torch.where(mask, x.detach(), poison) for x in (logp, old, adv)]
    x = bad[0].requires_grad_()
    loss = M.policy_loss(x, bad[1], bad[2], mask, 7, weights=torch.where(mask, M.importance_weights(bad[1], x, mask), poison))
    grad, = torch.autograd.grad(loss, x)
    assert loss == clean and torch.equal(grad, clean_grad)
    value = M.value_loss(x, bad[1], mask, 7, bad[2], .3)
    assert torch.isfinite(value) and torch.isfinite(torch.autograd.grad(value, x)[0]).all()
    nll = M.nll_loss(x, mask, 7)
    assert torch.isfinite(nll) and torch.isfinite(torch.autograd.grad(nll, x)[0]).all()
    assert torch.isfinite(M.whiten(bad[2], mask)[0]).all()
    # control: the usual product with the mask is not finite
    assert not torch.isfinite(-(((x - bad[1]).exp() * bad[2]) * mask).sum())


# 8: token log-probabilities in chunks

@pytest.mark.parametrize('steps', [(1, 1), (7, 13), (10, 37), (3, 8192), (1024, 36), (1024, 8192)])
@pytest.mark.parametrize('temperature', [1., .7])
def test_chunked_logp(steps, temperature):
    g = torch.Generator().manual_seed(0)
    h, W = torch.randn(23, 6, generator=g) * 3, torch.randn(37, 6, generator=g)
    y, a, b = torch.randint(37, (23,), generator=g), torch.randn(23, generator=g), torch.randn(23, generator=g)
    z = lambda h, W: (h @ W.T / temperature).log_softmax(-1)
    naive = lambda h, W: (z(h, W).gather(-1, y[:, None])[:, 0], -(z(h, W).exp() * z(h, W)).sum(-1))
    results = []
    for f in (naive, lambda h, W: M.token_logp(h, W, y, temperature, *steps)):
        h_, W_ = h.clone().requires_grad_(), W.clone().requires_grad_()
        logp, ent = f(h_, W_)
        ((a * logp).sum() + (b * ent).sum()).backward()
        results.append((logp.detach(), ent.detach(), h_.grad, W_.grad))
    for want, got in zip(*results): assert torch.allclose(want, got, atol=3e-5, rtol=1e-5)
    h_ = h.clone().requires_grad_()
    M.token_logp(h_, W, y, temperature, *steps)[0].sum().backward()                # entropy unused, weight without gradient
    assert torch.isfinite(h_.grad).all()


def test_chunked_logp_gradcheck_and_extremes():
    torch.manual_seed(0)
    h, W, y = torch.randn(5, 3).double().requires_grad_(), torch.randn(11, 3).double().requires_grad_(), torch.randint(11, (5,))
    assert torch.autograd.gradcheck(lambda h, W: M.token_logp(h, W, y, .8, 2, 4), (h, W))
    big = M.token_logp(1e4 * torch.ones(2, 1), torch.tensor([[1.], [-1.], [.5]]), torch.tensor([0, 1]), vocab_step=1)
    assert torch.equal(big[0], torch.tensor([0., -2e4])) and torch.equal(big[1], torch.zeros(2))      # no inf, no NaN
    h0 = torch.zeros(0, 3, requires_grad=True)
    logp, ent = M.token_logp(h0, torch.randn(11, 3, requires_grad=True), torch.zeros(0, dtype=torch.long))
    (logp.sum() + ent.sum()).backward()                                            # 22: nothing to do, still a graph
    assert h0.grad.shape == (0, 3)


def test_head_is_float32_whatever_comes_in():
    torch.manual_seed(0)
    h, W, y = torch.randn(200, 64).bfloat16() * 4, torch.randn(300, 64).bfloat16(), torch.randint(300, (200,))
    exact = (h.double() @ W.double().T).log_softmax(-1).gather(-1, y[:, None])[:, 0]
    with torch.autocast('cpu', torch.bfloat16): ours, _ = M.token_logp(h, W, y, vocab_step=77)
    bf16 = (h @ W.T).float().log_softmax(-1).gather(-1, y[:, None])[:, 0]
    assert ours.dtype == torch.float32 and (ours - exact).abs().max() < 1e-4
    assert (bf16 - exact).abs().max() > .05                                        # control: bf16 logits, fp32 softmax
    x = h.clone().requires_grad_()
    M.token_logp(x, W, y)[0].sum().backward()
    assert x.grad.dtype == torch.bfloat16


def test_entropy():
    assert M.entropy(torch.zeros(3, 8)).tolist() == pytest.approx([np.log(8)] * 3)
    assert M.entropy(torch.tensor([1000., 0., 0.])).item() == 0
    z = torch.randn(4, 9)
    assert torch.allclose(M.entropy(z), torch.distributions.Categorical(logits=z).entropy(), atol=1e-6)


# 9, 25: the mean

@pytest.mark.parametrize('mean', ['token', 'trajectory'])
def test_any_split_gives_the_same_gradient(mean):
    logp, old, adv, mask = case(B=6)
    def gradient(cuts, local=False):
        x = logp.clone().requires_grad_()
        for rows in cuts:
            total = M.mean_total(mask[rows] if local else mask, mean)
            (M.policy_loss(x[rows], old[rows], adv[rows], mask[rows], total, mean=mean) / (len(cuts) if local else 1)).backward()
        return x.grad
    whole = gradient([list(range(6))])
    splits = [[0], [1, 2, 3, 4, 5]], [[0, 1, 2], [3, 4, 5]], [[i] for i in range(6)]
    for cuts in splits: assert torch.allclose(gradient(cuts), whole, atol=1e-15)
    assert not torch.allclose(gradient(splits[0], local=True), whole, rtol=1e-3)    # control: means of micro-batches


def test_token_and_trajectory_mean_agree_iff_lengths_are_equal():
    logp, old, adv, mask = case()
    both = lambda mask: [M.policy_loss(logp, old, adv, mask, M.mean_total(mask, m), mean=m).item() for m in ('token', 'trajectory')]
    equal = torch.zeros_like(mask)
    equal[:, [2, 5, 6]] = True
    assert len(set(mask.sum(-1).tolist())) > 1
    assert np.isclose(*both(equal)) and not np.isclose(*both(mask))
    with pytest.raises(ValueError, match='trajectory'): M.masked_mean(logp, mask, 1, 'sequence')


# 20, 21: importance weights

def test_weights_are_constants():
    logp, old, adv, mask = case()
    w = (logp.detach() - old).exp()
    plain, weighted, leaking = logp.clone().requires_grad_(), logp.clone().requires_grad_(), logp.clone().requires_grad_()
    M.policy_loss(plain, logp, adv, mask, 5).backward()
    M.policy_loss(weighted, logp, adv, mask, 5, weights=(weighted - old).exp()).backward()
    assert torch.allclose(weighted.grad, w * plain.grad)
    loss = -(torch.where(mask, (leaking - logp).exp() * (leaking - old).exp() * adv, 0.)).sum() / 5      # control: not detached
    loss.backward()
    assert not torch.allclose(leaking.grad, weighted.grad)
    assert not M.importance_weights(plain, old, mask).requires_grad


def test_decoupled_reduces_to_plain():
    logp, old, adv, mask = case()
    plain = M.policy_loss(logp, old, adv, mask, 5)
    same = M.importance_weights(old, old, mask, cap=float('inf'))
    assert torch.equal(M.policy_loss(logp, old, adv, mask, 5, weights=same), plain)
    other = M.importance_weights(old, old - 1, mask, cap=float('inf'))                       # control: mu is another policy
    assert torch.allclose(other[mask], other.new_tensor(np.e)) and not torch.allclose(M.policy_loss(logp, old, adv, mask, 5, weights=other), plain)
    assert M.importance_weights(old, old - 1, mask).max() == 2                               # truncated at C


# 22: nothing to train on

def test_empty_mask_still_runs_backward():
    logp, old, adv, mask = case()
    for mean in ('token', 'trajectory'):
        x = logp.clone().requires_grad_()
        loss = M.policy_loss(x, old, adv, mask & False, 0, mean=mean) + M.value_loss(x, old, mask & False, 0, mean=mean)
        loss.backward()
        assert loss == 0 and torch.equal(x.grad, torch.zeros_like(x))


# 23: explained variance

def test_explained_variance():
    G = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert M.explained_variance(G, G) == 1 and M.explained_variance(G.mean().expand(1000), G) == pytest.approx(0, abs=1e-12)
    assert M.explained_variance(-G, G) == pytest.approx(-3, abs=1e-6)
    for constant in (.1, 0., -1., 1e6):                                             # also those whose mean rounds
        assert np.isnan(M.explained_variance(G, torch.full((1000,), constant)))
    assert np.isnan(M.explained_variance(G[:0], G[:0]))
    assert M.explained_variance(G + 5, G) == pytest.approx(1, abs=1e-6)             # a constant offset is not its business
    w = torch.zeros(1000); w[:10] = 1
    assert M.explained_variance(G / 2, G, w) == pytest.approx(M.explained_variance(G[:10] / 2, G[:10]))
    flat = torch.full((1000,), .1)
    assert 1 - (flat - G).var() / flat.var() < -1e3                                 # control: the bare formula says minus a lot, or -inf


def test_kl_estimators():
    torch.manual_seed(0)
    p, q = (torch.randn(200).double().log_softmax(0) for _ in range(2))
    kl = (p.exp() * (p - q)).sum()
    for k in (M.k1, M.k3): assert torch.allclose((p.exp() * k(p, q)).sum(), kl)
    assert (M.k3(p, q) >= 0).all() and (M.k1(p, q) < 0).any()
    # k2's expected gradient is the KL's gradient; k1's is zero.
    z = p.clone().requires_grad_()
    logp = z.log_softmax(0)
    want, = torch.autograd.grad((logp.exp() * (logp - q)).sum(), z, retain_graph=True)
    got2, = torch.autograd.grad((p.exp() * M.k2(logp, q)).sum(), z, retain_graph=True)
    got1, = torch.autograd.grad((p.exp() * M.k1(logp, q)).sum(), z)
    assert torch.allclose(got2, want, atol=1e-12) and got1.abs().max() < 1e-12


def test_value_clip():
    one = torch.ones(1, 3, dtype=torch.bool)
    v, old, ret = torch.tensor([[0., 2., 5.]], requires_grad=True), torch.tensor([[0., 3., 1.]]), torch.ones(1, 3)
    M.value_loss(v, ret, one, 3, old, .5).backward()
    # first: inside; second: moved towards the target by more than .5, so no gradient; third: moved away, error stays its own
    assert torch.allclose(v.grad, torch.tensor([[-1., 0., 4.]]) / 3)


def test_metrics_count_cells_and_survive_emptiness():
    one = torch.ones(1, 4, dtype=torch.bool)
    m = M.policy_metrics(torch.tensor([[0., .5, -.5, 1.5]]), torch.zeros(1, 4), torch.tensor([[1., 1., -1., -1.]]), one)
    assert m['clip_high'] == m['clip_low'] == m['clip_dual'] == .25 and m['rho_outside'] == .75
    assert m['rho_max'] == pytest.approx(np.exp(1.5)) and m['rho_p999'] == m['rho_max'] and 0 < m['ess'] < 1
    assert np.isnan(M.policy_metrics(torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(1, 4), one & False)['rho_max'])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
def test_cuda_head_is_float32_and_small():
    torch.manual_seed(0)
    h, W = (4 * torch.randn(3000, 128)).bfloat16().cuda(), torch.randn(50_000, 128).bfloat16().cuda()
    y = torch.randint(50_000, (3000,)).cuda()
    exact = (h.double() @ W.double().T).log_softmax(-1).gather(-1, y[:, None])[:, 0]
    torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = h.clone().requires_grad_()
    logp, ent = M.token_logp(x, W.requires_grad_(), y)
    (logp.sum() + ent.sum()).backward()
    assert (logp - exact).abs().max() < 1e-3 and torch.isfinite(x.grad).all()
    assert torch.cuda.max_memory_allocated() - before < 400e6          # the logits alone would be 600 MB, with gradients 1.8 GB
