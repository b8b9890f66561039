"""The tools that ask how long things take, on a few small tasks: what they keep is what was measured."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent/'tools'
TASK = '''import torch
class Model(torch.nn.Module):
    def forward(self, x): return {forward}
def get_inputs(): return [torch.randn(256, 300)]
def get_init_inputs(): return []
'''


def ran(tool: str, *args) -> subprocess.CompletedProcess: return subprocess.run([sys.executable, TOOLS/tool, *map(str, args)], capture_output=True, text=True, timeout=400)


def test_baselines(tmp_path):
    rows = [dict(code=TASK.format(forward=f), level=1, problem_id=i, name=n) for i, (n, f) in enumerate(dict(soft='torch.softmax(x*2, -1)', constant='x*0').items(), 1)]
    (tmp_path/'two.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    done = ran('baselines.py', tmp_path/'two.jsonl', '--out', tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads((tmp_path/'baselines_two_cpu.json').read_text())
    good, bad = sorted(kept['rows'], key=lambda r: r['status'])
    assert kept['statuses'] == dict(correct=1, task_invalid=1) and kept['compiled'] == 1 and bad['message']
    assert 0 < good['eager_ms'] < 100 and 0 < good['compiled_ms'] < 100 and good['speedup']['lo'] <= good['speedup']['median'] <= good['speedup']['hi'] and good['compile_seconds'] > .1
    assert kept['geomean'] == pytest.approx(good['speedup']['median'], rel=1e-3)


def test_throughput(tmp_path):
    done = ran('throughput.py', '--number', 10, '--tasks', 2, '--clients', 2, '--idle', 1, '--out', tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads((tmp_path/'throughput_cpu.json').read_text())
    assert kept['candidates'] == len(kept['rows']) == 10 and kept['statuses']['right'] == dict(correct=5) and kept['statuses']['broken'] == dict(build_error=3), kept['statuses']
    assert 'correct' not in kept['statuses']['wrong'] and all(r['latency'] > 0 for r in kept['rows'])
