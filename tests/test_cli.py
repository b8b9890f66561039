"""The command line as a user calls it: exit statuses, JSON, sentences."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent_lab.tasks import Task
from cuda_agent_lab.verdict import STATUSES

MODEL = 'import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return torch.relu(x)*2\ndef get_inputs(): return [torch.randn(64, 64)]\ndef get_init_inputs(): return []\n'
NEW = '''import torch, cuda_extension
f = cuda_extension.declare("void f(float* out, const float* x, int64_t n)")
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        f(out, x, x.numel())
        return out
'''
CODE = '#include <cstdint>\nextern "C" void f(float* out, const float* x, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = x[i] > 0 ? 2*x[i] : 0; }\n'


def calab(*args, cwd=None): return subprocess.run([sys.executable, '-m', 'cuda_agent_lab.cli', *map(str, args)], capture_output=True, text=True, timeout=300, cwd=cwd)


@pytest.fixture
def folder(tmp_path):
    (tmp_path/'kernels').mkdir()
    (tmp_path/'model.py').write_text(MODEL); (tmp_path/'model_new.py').write_text(NEW); (tmp_path/'kernels'/'f.cpp').write_text(CODE)
    return tmp_path


def test_a_verdict_as_one_json_object(folder):
    p = calab('judge', folder, '--json', '--no-compile', '--roofline')
    assert p.returncode == 0, p.stderr
    v = json.loads(p.stdout)
    r = v['evidence']['roofline']
    assert not r['counted'] and r['work']['bytes'] == 2*4*64*64 and r['ideal'] < r['seconds'] and 'analytic' in r['text'], r
    assert v['status'] == 'correct' and v['task'] == Task('x', None, MODEL).hash and v['isolation'] and v['device'] and isinstance(v['seed'], int)
    assert {'status', 'reason', 'message', 'errors', 'timing', 'speedup_eager', 'speedup_compile', 'milestone', 'isolation', 'device', 'seed', 'versions', 'evidence'} <= set(v)


def test_a_bad_kernel_is_a_verdict_too(folder):
    (folder/'kernels'/'f.cpp').write_text(CODE.replace('2*x', '3*x'))
    p = calab('judge', folder, '--no-timing')
    assert p.returncode == 0 and p.stdout.startswith('rejected wrong_result'), p
    (folder/'kernels'/'f.cpp').write_text(CODE.replace('return', '').replace('int64_t n)', 'int64_t n'))
    p = calab('judge', folder, '--json')
    assert p.returncode == 0 and json.loads(p.stdout)['status'] == 'build_error'
    assert calab('verify', folder).returncode == 1


@pytest.mark.parametrize('case, want', [('60_plain_honest', ('correct', '')), ('88_true_wrong_result', ('rejected', 'wrong_result')), ('89_does_not_compile', ('build_error', ''))])
def test_cases(case, want):
    p = calab('judge', Path(__file__).parent/'adversaries'/'cases'/case, '--json')
    v = json.loads(p.stdout)
    assert p.returncode == 0 and (v['status'], v['reason']) == want, v


@pytest.mark.parametrize('args', [('judge', 'nowhere'), ('judge', '{}', '--task', 'nowhere.py'), ('judge', '{}', '--isolation', 'process', '--require', 'container'), ('judge', '{}', '--counters', '--require', 'bwrap'), ('tasks', 'nowhere'), ('judge', '{}', '--target', 'tpu')])
def test_unusable_input_is_one_sentence_and_status_2(folder, args):
    p = calab(*[a.format(folder) for a in args], cwd=folder)
    assert p.returncode == 2 and p.stdout == '' and 'Traceback' not in p.stderr and p.stderr.strip()


def test_a_workspace_of_ones_own(folder, tmp_path_factory):
    new = tmp_path_factory.mktemp('new')/'ws'
    assert calab('new', new, '--task', folder/'model.py').returncode == 0
    assert not [p for p in new.rglob('*') if p.is_file() and '{{' in p.read_text()] and (new/'SKILL.md').exists() and (new/'model.py').read_text() == MODEL
    again = calab('new', new, '--task', folder/'model.py')
    assert again.returncode == 2 and 'not empty' in again.stderr
    (new/'model_new.py').write_text(NEW); (new/'kernels'/'f.cpp').write_text(CODE)
    assert calab('judge', new, '--no-timing').stdout.startswith('correct')
    for script in (['verify.py'], ['profile.py', '--roofline']):           # what a person who works there calls; without a judge that listens
        p = subprocess.run([sys.executable, 'utils/' + script[0], *script[1:]], cwd=new, capture_output=True, text=True)
        assert p.returncode == 0 and p.stdout.startswith('correct') and ('the limit is' in p.stdout) == ('--roofline' in script), p
    (new/'kernels'/'f.cpp').write_text(CODE.replace('2*x', '3*x'))
    p = subprocess.run([sys.executable, 'utils/verify.py'], cwd=new, capture_output=True, text=True)
    assert p.returncode == 1 and p.stdout.startswith('rejected wrong_result'), p


def test_a_task_has_a_name(tmp_path):
    assert calab('new', tmp_path/'ws', '--task', 'suite/level1/row_max').returncode == 0 and 'class Model' in (tmp_path/'ws'/'model.py').read_text()
    assert 'calab tasks' in calab('new', tmp_path/'other', '--task', 'suite/level1/no_such').stderr


def test_a_file_that_is_no_result_is_told(tmp_path):
    (tmp_path/'a.json').write_text('{"rows": []}')
    p = calab('figure', tmp_path/'a.json')
    assert p.returncode == 2 and 'results.json' in p.stderr and 'Traceback' not in p.stderr


def test_targets_that_are_not_here(folder):
    p = calab('judge', folder, '--target', 'triton', '--json')
    assert p.returncode == 0 and json.loads(p.stdout)['status'] in STATUSES


def test_doctor_says_what_there_is():
    p = calab('doctor')
    assert p.returncode == 0 and 'isolation' in p.stdout and 'torch' in p.stdout and 'C++ compiler' in p.stdout


def test_a_set_of_tasks_is_checked_whatever_is_in_it(tmp_path):
    head, tail = 'import os, time, torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return ', '\ndef get_inputs(): return [torch.rand(8, 64)]\ndef get_init_inputs(): return []\n'
    bodies = dict(sound='x @ x.t() - 16', zeros='(x - .5)*1e-3', same='torch.relu(x)', constant='x*0 + 1', random='x*torch.rand(64)', sleeps='time.sleep(99)', leaves='os._exit(3)', raises='x.nothing', syntax='x +')
    for name, body in bodies.items(): (tmp_path/f'{name}.py').write_text(head + body + tail)
    p = calab('tasks', '--check', tmp_path, '--seconds', '10', '--json', tmp_path/'found.json')
    found = json.loads((tmp_path/'found.json').read_text())
    by = {Path(t['id']).name: t for t in found['tasks']}
    assert p.returncode == 1 and p.stdout.splitlines()[-1] == found['summary'] and len(found['tasks']) == 9, p
    assert {k: t['status'] for k, t in by.items()} == {'-': 'task_invalid', 'sound': 'ok', 'zeros': 'ok', 'same': 'ok', 'constant': 'task_invalid', 'random': 'task_invalid',
                                                       'sleeps': 'not_checked', 'leaves': 'task_invalid', 'raises': 'task_invalid'}
    assert set(by['zeros']['warnings']) == {'zeros', 'replay'} and set(by['same']['warnings']) == {'identity'} and not by['sound']['warnings']
    assert all(w in by[k]['message'] for k, w in dict(constant='does not depend', random='random', sleeps='within 10 s', leaves='exit status 3', raises='nothing').items())
    assert 'syntax.py' in by['-']['message'] and by['sound']['hash']
    (tmp_path/'only').mkdir()
    (tmp_path/'only'/'model.py').write_text(head + bodies['sound'] + tail)
    assert calab('tasks', tmp_path/'only', '--check').returncode == 0
    assert calab('tasks').returncode == 0
