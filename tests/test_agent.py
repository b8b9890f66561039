"The loop: every way to end, which snapshot counts, failures of the machine, resume, determinism, cost."
import json
import os
import shutil
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from cuda_agent_lab.agent import InfraError, InfraMonitor, InfraStop, Limits, Reply, SMALL, run_episodes
from cuda_agent_lab.episodes import EpisodeStore, ToolCall, same
from cuda_agent_lab.quiet import Quiet
from cuda_agent_lab.tasks import load_tasks
from cuda_agent_lab.verdict import Verdict, milestone
from cuda_agent_lab.workspace import read_candidate

TASKS = load_tasks('suite', limit=4)
REWARD = lambda v: float(milestone(v.speedup_eager, v.speedup_compile, v.correct))


class Pool:
    "Verdicts from what the candidate says: `speed X` in a kernel, `wrong`, `invalid`, `infra`"
    def __init__(self): self.judged = []
    def judge(self, task, candidate, options=None):
        text = ''.join(t for _, t in candidate.files)
        self.judged.append((task.id, candidate.hash))
        if 'infra' in text: raise InfraError('the worker was lost')
        if 'invalid' in text: return Verdict('task_invalid', message='the reference fails')
        if 'wrong' in text: return Verdict('rejected', 'wrong_result', milestone=-1)
        x = float(text.split('speed ')[1].split()[0])
        s = dict(median=x, lo=x, hi=x, n=9)
        return Verdict('correct', speedup_eager=s, speedup_compile=s, milestone=3 if x > 1.053 else 1, candidate=candidate.hash)


class Server:
    "The agent profiles by copying its work to .snap/N, which needs no socket"
    def __init__(self, pool): self.pool, self.seen, self.closed = pool, {}, []
    def open(self, workspace, task): self.seen[str(workspace)] = (task, []); return dict(CALAB_TOKEN='t')
    def verdicts(self, workspace):
        task, seen = self.seen[str(workspace)]
        for d in sorted(Path(workspace, '.snap').glob('*'))[len(seen):]:
            c = read_candidate(d)
            try: v = self.pool.judge(task, c)
            except InfraError as e: v = Verdict('infra_error', message=str(e))
            seen.append((c, v))
        return seen
    def close(self, workspace=None): self.closed.append(str(workspace))


def call(name, **args): return ToolCall(name, args)
def kernel(text): return call('Bash', command=f"mkdir -p kernels; echo '// {text}' > kernels/k.cpp; echo 'class ModelNew: ...' > model_new.py")
SNAP = call('Bash', command='mkdir -p .snap; n=.snap/$(ls .snap | wc -l); mkdir $n; cp -r kernels model_new.py $n')
END = Reply('done', 'done')
def say(*calls, content='', **kw): return Reply('text', content, calls, **kw)


class Script:
    "Plays one list of replies per episode, by its id; with tokens if asked"
    name = 'script'
    def __init__(self, plays, tokens=False): self.plays, self.tokens, self.batches = plays, tokens, []
    def act(self, conversations):
        self.batches.append([c.id for c in conversations])
        return [self.one(c) for c in conversations]
    def one(self, c):
        turn = sum(m.role == 'assistant' for m in c.messages)
        r = self.plays[c.id][min(turn, len(self.plays[c.id]) - 1)]
        if self.tokens:
            for m in c.messages[c.rendered:]: self.add(c, [len(m.content) % 100, 7], False, turn)
            self.add(c, np.random.default_rng((c.seed, turn)).integers(0, 99, 5), True, turn)
            c.rendered = len(c.messages) + 1
        return r
    def add(self, c, ids, sampled, turn):
        for i in ids: c.ids.append(int(i)); c.mask.append(sampled); c.logp.append(-float(i) / 7 if sampled else 0.); c.version.append(0 if sampled else -1); c.turn.append(turn)


def go(plays, pool=None, server=None, tokens=False, limits=SMALL, tasks=None, policy=None, **kw):
    pool = pool or Pool()
    ids = list(plays)
    return run_episodes(tasks or [TASKS[i % len(TASKS)] for i in range(len(ids))], policy or Script(plays, tokens), pool, limits=limits, ids=ids,
                        seeds=list(range(len(ids))), reward=REWARD, server=server or Server(pool), prompt='short', **kw)


# ---- how it ends -------------------------------------------------------------------------------------------------

def test_submitted_with_final_and_best():
    pool = Pool()
    (e,) = go(dict(a=[say(kernel('speed 1.5')), say(SNAP), say(kernel('speed 2.5')), say(SNAP), say(kernel('speed 1.2')), END]), pool)
    assert (e.exit_status, e.status, e.reward) == ('submitted', 'train', 3.)
    assert e.verdicts['final']['speedup_compile']['median'] == 1.2 and e.verdicts['best']['speedup_compile']['median'] == 2.5
    assert [(t['turn'], t['verdict']['speedup_compile']['median']) for t in e.verdicts['turns']] == [(1, 1.5), (3, 2.5)]
    assert 'speed 1.2' in e.meta['files']['kernels/k.cpp'] and 'speed 2.5' in e.meta['best_files']['kernels/k.cpp'] and e.meta['best_turn'] == 3
    assert len(pool.judged) == 4, 'two by the agent, final, best again'
    assert [m.role for m in e.messages] == ['user'] + ['assistant', 'tool'] * 5 + ['assistant']


def test_best_that_is_final_is_not_judged_twice():
    pool = Pool()
    (e,) = go(dict(a=[say(kernel('speed 1.5')), say(SNAP), END]), pool)
    assert e.verdicts['best'] == e.verdicts['final'] and len(pool.judged) == 2


def test_wrong_candidate_is_scored():
    (e,) = go(dict(a=[say(kernel('wrong')), END]))
    assert (e.status, e.reward, e.verdicts['final']['reason']) == ('train', -1., 'wrong_result')


def test_no_submission_is_scored_without_judging():
    pool = Pool()
    (e,) = go(dict(a=[END]), pool)
    assert (e.exit_status, e.status, e.reward) == ('no_submission', 'train', -1.) and not pool.judged
    assert 'model_new.py' in e.verdicts['final']['message'] and '/tmp' not in e.verdicts['final']['message']


def test_limits_score_the_state_reached():
    plays = dict(a=[say(kernel('speed 2')), say(call('Bash', command='true'))])
    (e,) = go(plays, limits=Limits(max_turns=4))
    assert (e.exit_status, e.reward, e.turns) == ('turn_limit', 3., 4)
    (e,) = go(plays, tokens=True, limits=Limits(max_tokens=20))
    assert (e.exit_status, e.reward) == ('context_limit', 3.) and len(e.ids) >= 20
    (e,) = go(dict(a=[say(kernel('speed 2')), say(call('Bash', command='sleep .3'))]), limits=Limits(max_seconds=.2))
    assert (e.exit_status, e.reward, e.turns) == ('time_limit', 3., 2)
    (e,) = go(dict(a=[say(kernel('speed 2')), say(stop='length')]))
    assert (e.exit_status, e.reward) == ('reply_limit', 3.)
    (e,) = go(dict(a=[say(stop='length', tokens=9999)]))
    assert (e.exit_status, e.reward) == ('context_limit', -1.)


def test_malformed_calls_cost_a_turn_and_are_explained():
    bad = ToolCall('', {}, 'The tool call is not valid JSON: it ends early.')
    (e,) = go(dict(a=[say(bad), say(call('Bush', command='ls')), say(kernel('speed 2')), say(bad), END]))
    assert (e.exit_status, e.reward, e.turns) == ('submitted', 3., 5)
    tools = [m.content for m in e.messages if m.role == 'tool']
    assert tools[0] == 'error: The tool call is not valid JSON: it ends early.' and "did you mean 'Bash'" in tools[1]
    assert e.messages[1].calls[0].error == bad.error
    (e,) = go(dict(a=[say(kernel('speed 2')), say(bad), say(bad, bad), say(bad)]))
    assert (e.exit_status, e.status, e.turns) == ('unparsable_call', 'train', 4), 'three turns in a row'


def test_several_calls_in_one_turn_run_in_order():
    (e,) = go(dict(a=[say(call('Bash', command='x=1'), ToolCall('', {}, 'bad'), call('Bash', command='echo $x')), END]))
    assert [m.content for m in e.messages if m.role == 'tool'] == ['(no output)', 'error: bad', '1']
    (e,) = go(dict(a=[say(*[call('Bash', command='echo x')] * 20), END]))
    out = [m.content for m in e.messages if m.role == 'tool']
    assert len(out) == 20 and out[15] == 'x' and out[16].startswith('error: Only the first 16')


def test_done_ends_after_its_calls():
    (e,) = go(dict(a=[say(kernel('speed 2'), stop='done')]))
    assert (e.exit_status, e.reward, e.turns) == ('submitted', 3., 1)


def test_changed_fixed_files_are_put_back_before_judging():
    (e,) = go(dict(a=[say(kernel('speed 2'), call('Bash', command='rm -f model.py; echo cheat > model.py; echo "exit 0" > utils/more.sh')), END]))
    assert set(e.meta['changed']) == {'model.py', 'utils/more.sh'} and e.reward == 3.


def test_an_agent_that_destroys_its_workspace_is_scored():
    for cmd in ('rm -rf "$HOME"', 'cd /; rm -rf "$HOME"; ln -s /etc "$HOME"', 'rm -rf kernels; ln -s /etc kernels; touch model_new.py', 'mkfifo model_new.py', 'mkdir model_new.py', 'chmod 000 .'):
        (e,) = go(dict(a=[say(call('Bash', command=cmd)), say(call('Bash', command='echo on')), say(call('Read', file_path='model.py')), END]))
        assert (e.status, e.reward) == ('train', -1.), (cmd, e.exit_status, e.meta['note'])
    assert os.path.exists('/etc/passwd')


# ---- failures of the machine ----------------------------------------------------------------------------------------

def test_infra_is_dropped_alone():
    es = go(dict(a=[say(kernel('speed 2')), END], b=[say(kernel('infra')), END], c=[say(kernel('infra')), say(SNAP), END], d=[say(kernel('invalid')), END]))
    assert [(e.status, e.exit_status, e.reward) for e in es] == [('train', 'submitted', 3.), ('drop', 'infra_error', None), ('drop', 'infra_error', None), ('drop', 'task_invalid', None)]
    assert 'the worker was lost' in es[1].meta['note'] and es[2].turns == 2, 'the third ended at the turn in which it was seen'


def test_best_lost_is_not_the_episode_lost():
    class Once(Pool):
        def judge(self, task, candidate, options=None):
            if len(self.judged) == 2: raise InfraError('lost')
            return super().judge(task, candidate, options)
    (e,) = go(dict(a=[say(kernel('speed 2')), say(SNAP), say(kernel('speed 1.2')), END]), Once())
    assert e.reward == 3. and e.verdicts['best'] is None and 'lost' in e.meta['note']


def test_policy_down():
    class Down(Script):
        def act(self, cs): raise InfraError('server 503')
    es = go(dict(a=[END], b=[END]), policy=Down({}))
    assert {(e.status, e.exit_status) for e in es} == {('drop', 'policy_error')} and '503' in es[0].meta['note']


def test_no_workspace_to_be_had(monkeypatch):
    class Broken(Server):
        def open(self, workspace, task): raise OSError(28, 'No space left on device')
    es = go(dict(a=[END]), server=Broken(Pool()))
    assert (es[0].status, es[0].exit_status, es[0].turns) == ('drop', 'infra_error', 0)


def test_too_many_failures_stop_loudly(tmp_path):
    plays, done = {f'e{i}': [say(kernel('infra')), END] for i in range(15)}, []
    with pytest.raises(InfraStop, match='10 of the last 10 .* in a row'): go(plays, on_done=done.append, root=tmp_path)
    assert len(done) == 10 and not os.listdir(tmp_path)
    monitor = InfraMonitor()
    with pytest.raises(InfraStop):
        for k in range(30): go({f'{k}a': [END], f'{k}b': [END], f'{k}c': [say(kernel('infra')), END]}, monitor=monitor)
    assert sum(monitor.last) == 11, 'more than 5 % of 200, counted over calls'


def test_nothing_is_left(tmp_path):
    from cuda_agent_lab.shell import _processes
    server = Server(Pool())
    go(dict(a=[say(call('Bash', command='sleep 777 & setsid -f sleep 778; sleep 779', timeout=300)), say(call('Bash', command='sleep 776', run_in_background=True)), END]), server=server, root=tmp_path)
    assert not os.listdir(tmp_path) and len(server.closed) == 1
    left = [p for p in _processes() if b'sleep\x0077' in open(f'/proc/{p}/cmdline', 'rb').read()]
    assert not left
    class Broken(Script):
        def act(self, cs):
            if self.batches: raise RuntimeError('bug')
            return super().act(cs)
    with pytest.raises(RuntimeError, match='bug'): go(dict(a=[say(call('Bash', command='sleep 775', run_in_background=True))]), policy=Broken(dict(a=[say(call('Bash', command='sleep 775', run_in_background=True))])), root=tmp_path)
    assert not os.listdir(tmp_path)
    go(dict(a=[say(kernel('speed 2')), END]), root=tmp_path, keep=True)
    assert (tmp_path/'workspace-0000'/'kernels'/'k.cpp').exists()


# ---- whose time it is -----------------------------------------------------------------------------------------------------

class Measuring(Pool):
    "A pool with the lock of the real one: a judgement measures for .3 s, and notes who was busy meanwhile"
    target = 'cpu'
    def __init__(self): super().__init__(); self.q, self.working, self.overlap = Quiet('test-agent'), 0, []
    def quiet(self, target): return self.q
    def judge(self, task, candidate, options=None):
        self.q.quiet()
        try: self.overlap.append(self.working); time.sleep(.3); self.overlap.append(self.working)
        finally: self.q.loud()
        return super().judge(task, candidate, options)


PROFILE = call('Bash', command='python3 utils/profile.py; echo went on')


def test_measurements_and_our_work_keep_apart():
    "The policy acts while others are judged at the end, commands compute, and a command that asks the judge does not wait for itself"
    pool, ends = Measuring(), [f'end{i}' for i in range(4)]
    class Busy(Script):
        def act(self, cs):
            pool.working += 1; time.sleep(.1); pool.working -= 1
            return super().act(cs)
    plays = {i: [say(kernel('speed 2')), END] for i in ends} | dict(asks=[say(kernel('speed 2')), say(PROFILE), say(PROFILE), END])
    t = time.monotonic()
    es = run_episodes([TASKS[0]] * 5, Busy(plays), pool, limits=SMALL, ids=list(plays), seeds=[0] * 5, reward=REWARD, prompt='short', workers=3)
    assert time.monotonic() - t < 30 and all(e.reward == 3. for e in es) and len(es[-1].verdicts['turns']) == 2
    assert len(pool.overlap) == 14 and not any(pool.overlap) and pool.q.sharing == 0
    assert all('went on' in m.content and 'killed' not in m.content for m in es[-1].messages if m.role == 'tool' and 'correct' in m.content)


def test_a_measurement_waits_for_a_command(tmp_path):
    "A command marks the time in which it computes; no judgement of another episode begins in it"
    flag, seen = tmp_path/'computes', []
    class Watched(Measuring):
        def judge(self, *a):
            self.q.quiet()
            try: seen.append(flag.exists()); time.sleep(.05); seen.append(flag.exists())
            finally: self.q.loud()
            return Pool.judge(self, *a)
    compute = call('Bash', command=f'touch {flag}; sleep .4; rm {flag}')
    plays = dict(a=[say(kernel('speed 2')), say(compute), say(compute), END], b=[say(kernel('speed 2')), say(PROFILE), say(PROFILE), END], c=[say(kernel('speed 2')), END])
    run_episodes([TASKS[0]] * 3, Script(plays), Watched(), limits=SMALL, ids=list(plays), seeds=[0] * 3, reward=REWARD, prompt='short', workers=3)
    assert len(seen) == 10 and not any(seen)


def test_the_queue_is_not_the_commands_time():
    "12 episodes profile at once, one measurement after the other: longer than any command may take"
    plays = {f'{i}': [say(kernel('speed 2')), say(PROFILE), END] for i in range(12)}
    es = run_episodes([TASKS[0]] * 12, Script(plays), Measuring(), limits=Limits(max_turns=4, max_seconds=3., bash_timeout=1.5), ids=list(plays), seeds=[0] * 12,
                      reward=REWARD, prompt='short', workers=12)
    assert all(e.exit_status == 'submitted' and len(e.verdicts['turns']) == 1 and 'killed' not in e.messages[4].content for e in es)


def test_a_batch_is_shared():
    class Slow(Script):
        def act(self, cs): time.sleep(.5); return super().act(cs)
    plays = {f'{i}': [say(kernel('speed 2')), END] for i in range(5)}
    es = go(plays, policy=Slow(plays), limits=Limits(max_turns=4, max_seconds=.6))
    assert {e.exit_status for e in es} == {'submitted'} and all(.09 < t['act_s'] < .4 for e in es for t in e.meta['turns'])
    (e,) = go(dict(a=[say(kernel('speed 2')), END]), policy=Slow(dict(a=[say(kernel('speed 2')), END])), limits=Limits(max_turns=4, max_seconds=.4))
    assert e.exit_status == 'time_limit'


def test_half_of_a_surrogate_pair_ends_nothing(tmp_path):
    store = EpisodeStore(tmp_path)
    (e,) = go(dict(a=[say(call('Read', file_path='\ud800'), content='\ud800'), say(kernel('speed 2')), END]), on_done=store.append)
    assert 'surrogate' in e.messages[2].content and e.reward == 3. and same(store.read()[0], e)


# ---- resume and determinism --------------------------------------------------------------------------------------------

PLAYS = {f'run/{i}': [say(kernel(f'speed 1.{i}')), say(SNAP), say(call('Bash', command=f'sleep .0{i % 3}; echo {i}'))][:1 + i % 3] + [END] for i in range(8)}


def test_results_do_not_depend_on_threads():
    a, b = go(PLAYS, tokens=True, workers=1), go(PLAYS, tokens=True, workers=6)
    strip = lambda e: {k: v for k, v in e.__dict__.items() if k not in ('meta', 'ids', 'mask', 'logp', 'version', 'turn')}
    assert [strip(x) for x in a] == [strip(x) for x in b] and all(x.logp.tobytes() == y.logp.tobytes() and x.ids.tobytes() == y.ids.tobytes() for x, y in zip(a, b))
    order = []
    go(PLAYS, on_done=lambda e: order.append(e.id), workers=6)
    assert order == sorted(PLAYS, key=lambda i: (len(PLAYS[i]), i)), 'by the turn of the end, then by place'


def test_resume_executes_nothing_twice(tmp_path):
    store = EpisodeStore(tmp_path/'s')
    class Killed(Exception): pass
    def until_three(e):
        store.append(e)
        if len(store.ids()) == 3: raise Killed
    with pytest.raises(Killed): go(PLAYS, tokens=True, on_done=until_three)
    known, pool, policy = {e.id: e for e in store.read()}, Pool(), Script(PLAYS, True)
    again = []
    es = go(PLAYS, pool, policy=policy, known=known, on_done=lambda e: (again.append(e.id), store.append(e)))
    assert len(known) == 3 and len(again) == 5 and set(store.ids()) == set(PLAYS)
    assert all(es[list(PLAYS).index(i)] is e for i, e in known.items())
    full_policy = Script(PLAYS, True)
    full = go(PLAYS, policy=full_policy)
    assert policy.batches == full_policy.batches, 'known episodes take part in their batches'
    assert all(a.reward == b.reward and a.ids.tobytes() == b.ids.tobytes() and a.logp.tobytes() == b.logp.tobytes() and a.messages == b.messages for a, b in zip(es, full))
    assert all(same(a, b) for a, b in zip(EpisodeStore(tmp_path/'s').read(list(PLAYS)), es))
    stored_ids = {i for i in known}
    assert len(pool.judged) == sum(1 + any(c is SNAP for r in PLAYS[i] for c in r.calls) for i in PLAYS if i not in stored_ids)


def test_replay_that_differs_is_reported():
    (e,) = go(dict(a=[say(kernel('speed 2')), END]))
    pool = Pool()
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter('always')
        (f,) = go(dict(a=[say(kernel('speed 3')), END]), pool, known=dict(a=e))
    assert f is e and 'differs' in str(w[0].message) and not pool.judged
    with pytest.raises(ValueError, match='another task'): go(dict(a=[END]), known=dict(a=e), tasks=[TASKS[1]])


def test_ids_are_unique():
    with pytest.raises(ValueError, match='1 of them different'):
        run_episodes(TASKS[:2], Script({}), Pool(), limits=SMALL, ids=['a', 'a'], seeds=[0, 1], reward=REWARD, server=Server(Pool()))


def test_progress():
    seen = []
    go(PLAYS, progress=seen.append)
    assert seen[-1] == dict(done=8, total=8, live=0, turn=4) and [s['turn'] for s in seen] == [1, 2, 3, 4, 4] and all(s['done'] + s['live'] <= 8 for s in seen)


def test_cost_of_a_turn():
    "32 episodes: what the loop adds to the policy and the build is below 20 ms per episode and turn"
    read = say(call('Read', file_path='model.py', limit=5))
    write = say(call('Write', file_path='model_new.py', content='# speed 2'))
    def seconds(turns):
        t = time.perf_counter(); go({f'{i}': [write] + [read] * turns + [END] for i in range(32)}, limits=Limits(max_turns=99), tokens=True); return time.perf_counter() - t
    a, b = min(seconds(2) for _ in range(2)), min(seconds(12) for _ in range(2))
    per_turn = (b - a) / 10 / 32 * 1e3
    print(f'per turn {per_turn:.2f} ms; per episode (workspace, judge stand-in, record) {a / 32 * 1e3:.1f} ms')
    assert per_turn < 20


# ---- the real thing -----------------------------------------------------------------------------------------------------

@pytest.mark.skipif(not shutil.which('g++'), reason='no compiler')
def test_real_kernel_is_compiled_verified_and_judged(tmp_path):
    from cuda_agent_lab.pool import LocalPool
    from cuda_agent_lab.referee import JudgeOptions
    from cuda_agent_lab.tasks import Task
    task = Task('test/relu', 1, 'import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return torch.relu(x) * 2\n'
                'def get_inputs(): return [torch.randn(1024, 1024)]\ndef get_init_inputs(): return []\n')
    cpp = '#include <cstdint>\nextern "C" void relu2(float* out, const float* x, int64_t n) {\n#pragma omp parallel for\n  for (int64_t i = 0; i < n; i++) out[i] = x[i] > 0 ? 2 * x[i] : 0;\n}\n'
    py = ('import torch, cuda_extension\nrelu2 = cuda_extension.declare("void relu2(float* out, const float* x, int64_t n)")\n'
          'class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        out = torch.empty_like(x); relu2(out, x, x.numel()); return out\n')
    w = lambda n, t: call('Write', file_path=n, content=t)
    tools = [call('Bash', command=c) for c in ('bash utils/compile.sh', 'python3 utils/verify.py', 'python3 utils/profile.py')]
    plays = dict(good=[say(w('kernels/relu2.cpp', cpp), w('model_new.py', py))] + [say(t) for t in tools] + [END],
                 bad=[say(w('kernels/relu2.cpp', cpp.replace('2 *', '3 *')), w('model_new.py', py)), say(tools[1]), END],
                 broken=[say(w('kernels/relu2.cpp', cpp.replace('int64_t i', 'int65_t i')), w('model_new.py', py)), say(tools[0]), END])
    options = JudgeOptions(compile=False, max_pairs=9)
    with LocalPool(cache=tmp_path/'cache') as pool:
        es = run_episodes([task] * 3, Script(plays), pool, limits=Limits(max_turns=9), ids=list(plays), seeds=[0, 1, 2], reward=REWARD, options=options,
                          server=None, prompt='short', root=tmp_path/'ws')
    for e in es: print(e.id, e.exit_status, e.reward, [m.content for m in e.messages if m.role == 'tool'])
    good, bad, broken = es
    assert [e.exit_status for e in es] == ['submitted'] * 3 and good.reward >= 1 and bad.reward == broken.reward == -1
    assert good.verdicts['final']['status'] == 'correct' and bad.verdicts['final']['reason'] == 'wrong_result' and broken.verdicts['final']['status'] == 'build_error'
    out = [m.content for m in good.messages if m.role == 'tool']
    assert out[2].startswith('ok') and 'correct' in out[3] and out[4].startswith('correct: eager')
    assert 'wrong_result' in bad.messages[-2].content and 'int65_t' in broken.messages[-2].content
    assert good.verdicts['best'] == good.verdicts['final'], 'the profiled candidate is the final one'
    assert str(tmp_path) not in json.dumps([m.content for m in broken.messages]), 'no path of the judge in what the agent sees'
