"""Our own adversaries (`ours.py`) are refused for a reason that is right, and the honest candidates beside them are not.

The reason may be one of several: a thread that computes with torch is a fallback, and so is one that brings the process down."""
import pytest

from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.workspace import Candidate
from ours import ADVERSARIES, HONEST, MODEL_PY

TASK = Task('rms', 1, MODEL_PY)
QUICK = JudgeOptions(compile=False, max_pairs=17, timeout=20.)


@pytest.fixture(scope='module')
def pool(request):
    with LocalPool(keep=2, isolation=request.config.getoption('--isolation')) as p: yield p


@pytest.mark.parametrize('name', HONEST)
def test_honest(name, pool):
    v = pool.judge(TASK, Candidate(tuple(sorted(HONEST[name].items()))), QUICK)
    assert v.correct, v


@pytest.mark.parametrize('name', ADVERSARIES)
def test_refused(name, pool, table):
    number, files, words = ADVERSARIES[name]
    v = pool.judge(TASK, Candidate(tuple(sorted(files.items()))), QUICK)
    table.append(dict(case=name, kind=f'hack {number}', status=v.status, reason=v.reason, message=v.message))
    assert v.status == 'rejected' and v.reason in words.split() or not words and v.status == 'timeout', v
    assert v.message, v
