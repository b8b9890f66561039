"""The generators of tools/survey.py at work on a few tasks: honest candidates pass, near misses do not, and what is counted is what happened."""
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent_lab.pool import LocalPool

sys.path.insert(0, str(Path(__file__).resolve().parent.parent/'tools'))
import honest
import mutants
import survey

NAMES = ('row_softmax', 'layer_norm', 'linear_bias_leaky_scale', 'row_max')
SMALL = dict(rows=67, cols=130, inner=70, outer=33)


@pytest.fixture(scope='module')
def small():
    "A maker of honest candidates for four tasks of small, odd shapes."
    maker = honest.Honest('cpu', 3, names=NAMES)
    for n, t in maker.tasks.items():
        maker.tasks[n] = honest.shaped(t, {k: v for k, v in SMALL.items() if k in honest.SIZES.search(t.source)[1].split(', ')})
    return maker


@pytest.fixture(scope='module')
def judged():
    with LocalPool(keep=2) as pool: yield lambda cases: survey.judge_all(cases, pool, 'cpu', 5, say=lambda text: None)


def test_honest_candidates_pass(small, judged):
    cases = [*list(small.of_knobs(2))[:2], *list(small.of_orders(1))[::5], *list(small.of_dtypes(2))[::3], *list(small.of_inputs(1))[:2], *list(small.of_outputs(1))[3:9:3], *list(small.of_kept(1))[:1]]
    assert len({c.kind for c in cases}) >= 6 and len({(c.task.hash, c.candidate.hash) for c in cases}) == len(cases) >= 10
    r = survey.honest_record(judged(cases))
    assert r['refused'] == r['not_judged'] == [] and r['candidates'] == len(cases), survey.honest_text(r)
    assert r['draws'] >= 9*len(cases) == 9*sum(k['candidates'] for k in r['kinds'].values())


def test_what_is_refused_is_told(small, judged):
    small.kernels.clear()
    good = next(small.of_knobs(2))
    text = good.candidate.sources['kernels/kernel.cpp']
    bad = replace(good, candidate=honest.candidate(text.replace('out[', 'out[0*', 1), good.candidate.model_new, 'cpu'))
    results = judged([bad, replace(good, task=replace(good.task, source=good.task.source.replace('forward(self, x)', 'forward(self, y)').replace('return ', 'return 0 *', 1)))])
    r = survey.honest_record(results)
    assert len(r['refused']) == 1 and r['refused'][0]['reason'] in survey.honest_text(r) and len(r['not_judged']) == 1


def near_misses(task):
    right = mutants.Right(task, *honest.texts(task, honest.templates_cpu.default_knobs(honest.planned(task)) | dict(simd=0, math='libm', store='plain'), 'cpu'), 'cpu')
    return mutants.of_text(right, mutants.FAULTS) + mutants.of_loops(right) + mutants.of_rounding(right) + mutants.of_approximations(right) + mutants.of_output(right)


def test_near_misses_are_caught(small, judged):
    wanted = {'row_softmax': ('maximum: not subtracted', 'truncated sum: one too early', 'calibrated: one row by 0.01', 'index: in float'),
              'layer_norm': ('epsilon: missing', 'denominator: n - 1', 'broadcast: by the row', 'last element: one too early', 'calibrated: one element by 1e-06'),
              'linear_bias_leaky_scale': ('rounding: factors of the product in TF32', 'rounding: factors of the product in bf16'), 'row_max': ('maximum: starts at 0', 'maximum: loses NaN')}
    cases = []
    for name, hows in wanted.items():
        found = {f'{c.kind}: {c.how.split(" (")[0]}': c for c in near_misses(small.tasks[name])}
        assert not set(hows) - set(found), set(hows) - set(found)
        cases += [found[h] for h in hows]
    results = judged(cases)
    got = {f'{r.case.kind}: {r.case.how.split(" (")[0]}': survey.outcome(r) for r in results}
    missed = {k for k, v in got.items() if v != 'caught'}
    assert missed == {'index: in float', 'calibrated: one element by 1e-06', 'maximum: loses NaN'}, got
    assert got['index: in float'] == 'equal' and got['maximum: loses NaN'] == 'escaped'
    record = survey.mutants_record(results)
    nan = next(e for e in record['escaped'] if e['how'].startswith('loses NaN'))
    assert nan['rms'] == 0 and list(nan['worse_on']) == ['a NaN']
    assert survey.share(record['kinds']['rounding']) == 1 and 'escaped: maximum, loses NaN' in survey.mutants_text(record)
    json.dumps(record)
    survey.picture(record | dict(device='a test'))


def test_a_crash_while_measuring_is_told(small, judged):
    right = near_misses(small.tasks['row_max'])[0]
    broken = right.candidate.sources['kernels/kernel.cpp'].replace('out[r] = ', '*(volatile int*)8 = 1; out[r] = ')
    case = replace(right, candidate=honest.candidate(broken, right.candidate.model_new, 'cpu'))
    result, = judged([case])
    assert survey.outcome(result) == 'caught' and result.verdict.reason == 'crash' and 'crash' in result.errors


def test_the_lists_are_long_enough_and_repeat():
    "Without judging: what a full survey would judge, for two seeds."
    a, b = ([c.candidate.hash for c in mutants.mutants('cpu', s, names=NAMES)] for s in (0, 0))
    assert a == b != [c.candidate.hash for c in mutants.mutants('cpu', 1, names=NAMES)]
    kinds = Counter(c.kind for c in mutants.mutants('cpu', 0, names=NAMES))
    assert len(kinds) >= 15 and sum(kinds.values()) >= 100
    cuda = honest.Honest('cuda', 0, names=NAMES)
    cases = [*cuda.of_knobs(2), *cuda.of_orders(1), *cuda.of_dtypes(2), *mutants.mutants('cuda', 0, 40, names=NAMES)]
    assert len(cases) >= 50 and all('kernels/kernel.cu' in c.candidate.sources for c in cases)
