"""The cases in `cases/` (hacks, crashes, honest candidates) through one pool, each against the verdict that its index names.

  python -m pytest tests/adversaries                              the CPU's verdicts
  python -m pytest tests/adversaries --target cuda                the GPU's, where there is one
  ... --table FILE.json                                           also writes what was said, for figures/
"""
import json
from pathlib import Path

import pytest

from cuda_agent_lab.compilers import gpus
from cuda_agent_lab.pool import LocalPool, overloaded
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.workspace import read_candidate

CASES = Path(__file__).parent/'cases'
INDEX = json.loads((CASES/'index.json').read_text())
STATUS = dict(ACCEPT='correct', REJECT='rejected', TASK_INVALID='task_invalid', COMPILE_ERROR='build_error', COMPILE_TIMEOUT='build_timeout', TIMEOUT='timeout', NOT_RUNNABLE='not_runnable')


@pytest.fixture(scope='module')
def target(request):
    t = request.config.getoption('--target')
    if t == 'cuda' and not gpus(): pytest.skip('this machine has no NVIDIA GPU')
    return t


@pytest.fixture(scope='module')
def pool(target, request):
    with LocalPool(target=target, keep=2, isolation=request.config.getoption('--isolation')) as p: yield p


@pytest.mark.parametrize('case', INDEX, ids=lambda c: c['id'])
def test_case(case, pool, target, table):
    folder = CASES/case['id']
    pool.build_timeout = 30. if 'COMPILE_TIMEOUT' in str(case) else 120.
    task = Task(case['id'], None, (folder/'model.py').read_text())
    v = pool.judge(task, read_candidate(folder), JudgeOptions(target=target, compile=False, max_pairs=17, timeout=120.))
    table.append(dict(case=case['id'], kind=case['kind'], status=v.status, reason=v.reason, message=v.message))
    if v.infra and (overloaded() or 'come to rest' in v.message): pytest.skip(f'this machine is overloaded, and its verdicts on time limits say nothing: {v.message}')
    status, _, reason = case['verdict_gpu' if target == 'cuda' else 'verdict_cpu'].partition(' ')
    assert (v.status, v.reason) == (STATUS[status], reason), v
    assert v.correct or v.message, v                    # a refusal says why
