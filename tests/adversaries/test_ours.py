"""Our own adversaries (`ours.py`) are refused for a reason that is right, and the honest candidates beside them are not.

The reason may be one of several: a thread that computes with torch is a fallback, and so is one that brings the process down. An adversary that only isolation can
stop is right where its act succeeds: that is expected below the level that it names, and nowhere else.

  python -m pytest tests/adversaries/test_ours.py [--target cuda] [--table FILE.json]
"""
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent_lab.build import build
from cuda_agent_lab.compilers import find_nvcc, gpus
from cuda_agent_lab.pool import LocalPool, overloaded
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.verdict import Verdict
from cuda_agent_lab.workspace import Candidate, CandidateError
from ours import ADVERSARIES, EXCUSED, HONEST, covered, gain
from parts import for_target

QUICK = JudgeOptions(compile=False, max_pairs=17, timeout=20.)
EVERY = range(1, 89)
LADDER = ('process', 'landlock', 'bwrap', 'container')


@pytest.fixture(scope='module')
def target(request):
    t = request.config.getoption('--target')
    if t == 'cuda' and not gpus(): pytest.skip('this machine has no NVIDIA GPU')
    return t


@pytest.fixture(scope='module')
def judge(target, request):
    "Case -> Verdict; what cannot be a candidate is a build error."
    with LocalPool(target=target, keep=4, builders=len(os.sched_getaffinity(0)), isolation=request.config.getoption('--isolation')) as pool:
        if target == 'cuda':                                       # nvcc takes seconds for each
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
                list(threads.map(lambda c: pool.build(c[1]), cuda_sources()))
        def judged(case):
            if case.only not in ('', target): pytest.skip(f'only for {case.only}')
            try: candidate = Candidate(tuple(for_target(case.files, target).items()))
            except CandidateError as e: return Verdict('rejected' if e.reason else 'build_error', e.reason, str(e))
            pool.build_timeout = 15. if 'build_timeout' in case.words else 120.
            v = pool.judge(case.task, candidate, replace(QUICK, target=target, timeout=60. if target == 'cuda' else QUICK.timeout))
            if v.infra and 'come to rest' in v.message: pytest.skip(v.message)                     # several workers on one GPU
            return v
        yield judged
    Path('/dev/shm/calab-adversary').unlink(missing_ok=True)


@pytest.mark.parametrize('name', HONEST)
def test_honest(name, judge, table):
    v = judge(HONEST[name])
    table.append(dict(case=name, kind='honest', status=v.status, reason=v.reason, message=v.message))
    assert v.correct, v


@pytest.mark.parametrize('name', ADVERSARIES)
def test_refused(name, judge, table):
    case = ADVERSARIES[name]
    v = judge(case)
    table.append(dict(case=name, kind=f'hack {case.number}', status=v.status, reason=v.reason, message=v.message))
    words = case.words.split()
    if v.infra and overloaded(): pytest.skip('the machine is overloaded')
    if case.needs and v.correct and LADDER.index(v.isolation) < LADDER.index(case.needs): pytest.xfail(f'needs isolation by {case.needs}')
    if v.correct and 'no_gain' in words: assert gain(case, v, judge) <= case.room, v
    else: assert v.reason in words or v.status in words, v
    assert v.correct or v.message, v


def test_every_entry_of_the_catalogue_is_expressed_or_excused():
    numbers = {int(n) for n in covered()} | {int(n) for n in EXCUSED}
    assert numbers == set(EVERY), f'neither expressed nor excused: {sorted(set(EVERY) - numbers)}; unknown: {sorted(numbers - set(EVERY))}'
    assert not set(covered()) & set(EXCUSED) and all(EXCUSED.values())


def cuda_sources() -> list:
    "(name, candidate), one for each text of CUDA sources that should compile."
    found = {}
    for name, c in (HONEST | ADVERSARIES).items():
        if c.only == 'cpu' or c.number in ('80', '81', '82') or 'cublas_v2.h' in str(c.files): continue
        try: candidate = Candidate(tuple(for_target(c.files, 'cuda').items()))
        except CandidateError: continue
        if any(p.endswith('.cu') for p in candidate.sources): found.setdefault(tuple(candidate.sources.values()), (name, candidate))
    return list(found.values())


@pytest.mark.skipif(not find_nvcc(), reason='no nvcc')
@pytest.mark.skipif(not os.environ.get('CALAB_NVCC') and not gpus(), reason='two minutes of nvcc: set CALAB_NVCC=1 to compile them where no GPU will run them')
@pytest.mark.parametrize('name, candidate', cuda_sources(), ids=lambda v: v if isinstance(v, str) else '')
def test_cuda_sources_compile(name, candidate):
    b = build(candidate, 'cuda', arch='sm_90')
    assert b.ok, b.log
