"""The bundled suite keeps its promises (no degenerate task, sizes that can be measured), and the loader its contract."""
import json, sys, warnings
from pathlib import Path

import pytest, torch
from torch.utils._pytree import tree_leaves
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cuda_agent_lab.tasks import TaskError, check_source, load_module, load_tasks, safe_id

SUITE = load_tasks('suite')
GOOD = 'import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x\ndef get_inputs(): return [torch.ones(1)]\ndef get_init_inputs(): return []\n'


def build(m, seed): torch.manual_seed(seed); return m.Model(*m.get_init_inputs()).eval()
def draw(m, seed): torch.manual_seed(seed); return m.get_inputs()
def close(a, b): return torch.allclose(a, b, atol=1e-2, rtol=1e-2)
def change(a, b): return float((a - b).norm() / a.norm())


# ---------------------------------------------------------------- the suite
def test_counts():
    n = {level: sum(t.level == level for t in SUITE) for level in (1, 2, 3)}
    assert n[1] >= 14 and n[2] >= 12 and n[3] >= 6 and sum(n.values()) >= 32
    assert len({t.id for t in SUITE}) == len({t.hash for t in SUITE}) == len(SUITE)
    assert all(t.source.count('SIZE = "cpu"') == 1 for t in SUITE)


@torch.no_grad()
@pytest.mark.parametrize('task', SUITE, ids=lambda t: t.id)
def test_not_degenerate(task):
    "A replayed, constant or zero output must not pass at 1e-2, and every input and every weight must matter."
    m = load_module(task)
    model, x = build(m, 0), draw(m, 1)
    kept = [t.clone() for t in x]
    assert any((a < 0).any() for a in x), 'no negative input'
    y = model(*x)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float32 and y.isfinite().all()
    assert torch.equal(y, model(*x)), 'not repeatable'
    assert all(torch.equal(a, b) for a, b in zip(x, kept)), 'changes its input'
    z = model(*draw(m, 2))
    assert change(y, z) > 0.1 and not close(y, z), 'replaying the output of another input passes'
    assert not close(y, torch.zeros_like(y)) and not close(y, y.mean().expand_as(y)), 'a constant passes'
    for i in range(len(x)):
        mixed = list(x); mixed[i] = draw(m, 3)[i]
        w = model(*mixed)
        assert change(y, w) > 0.02 and not close(y, w), f'input {i} hardly matters'
    other = build(m, 7).state_dict()
    for name, value in model.state_dict().items():
        if 'num_batches' in name: continue
        old = value.clone(); value.copy_(other[name])
        w = model(*x); value.copy_(old)
        assert change(y, w) > 0.01 and not close(y, w), f'{name} hardly matters'
    assert torch.equal(y, model(*x))


def test_gate_has_power():
    "Negative control: the checks above do find a degenerate task (KernelBench's 'mean of a softmax' kind)."
    t = load_tasks('suite', level=1, limit=1)[0]
    from dataclasses import replace
    flat = replace(t, source=GOOD.replace('return x\n', 'return torch.softmax(x, -1).mean(-1)\n').replace('torch.ones(1)', 'torch.randn(64, 128)'))
    with pytest.raises(AssertionError): test_not_degenerate(flat)


class Traffic(TorchDispatchMode):
    "Bytes that eager reads and writes: inputs and outputs of every operator that is not a view."
    def __init__(self): super().__init__(); self.bytes, self.largest = 0, 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
            size = lambda tree: [t.nbytes for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]
            self.bytes += sum(size((args, kwargs, out))); self.largest = max(self.largest, *size(out))
        return out


@torch.no_grad()
@pytest.mark.parametrize('task', load_tasks('suite', size='gpu'), ids=lambda t: t.id)
def test_gpu_size(task):
    "0.1-10 ms on an H200 by its achievable rates (4.3 TB/s, 50 TFLOP/s in fp32), in less than 4 GB; nothing is allocated here."
    m = load_module(task)
    with torch.device('meta'): model, x = m.Model(*m.get_init_inputs()).eval(), m.get_inputs()
    with Traffic() as traffic, FlopCounterMode(display=False) as flops: y = model(*x)
    ms = 1e3 * max(traffic.bytes / 4.3e12, flops.get_total_flops() / 50e12)
    held = sum(t.numel() * t.element_size() for t in [*x, *model.parameters(), y]) + 2 * traffic.largest
    assert 0.1 < ms < 10 and held < 4e9, f'{ms:.2f} ms, {held/1e9:.1f} GB'


# ---------------------------------------------------------------- the loader
def test_kernelbench_checkout(tmp_path):
    for name in ('level1/2_b.py', 'level1/11_c.py', 'level2/1_x.py', 'level4/1_net.py', 'level1/__init__.py'):
        f = tmp_path/'KernelBench'/name; f.parent.mkdir(parents=True, exist_ok=True); f.write_text(GOOD)
    assert [t.id for t in load_tasks(tmp_path)] == ['kernelbench/1/2', 'kernelbench/1/11', 'kernelbench/2/1', 'kernelbench/4/1']
    assert [t.level for t in load_tasks(tmp_path/'KernelBench', level=(2, 4))] == [2, 4]
    assert [t.id for t in load_tasks(str(tmp_path/'KernelBench/level1'), limit=1)] == ['kernelbench/1/2']


def test_folder_with_bad_files(tmp_path):
    (tmp_path/'good.py').write_text(GOOD)
    (tmp_path/'Good.PY').write_text('not read: another ending')
    (tmp_path/'syntax.py').write_text('import torch\n\nclass Model(\n')
    (tmp_path/'empty.py').write_text('')
    (tmp_path/'binary.py').write_bytes(b'\xff\xfe\x00')
    (tmp_path/'case').mkdir(); (tmp_path/'case/model.py').write_text(GOOD.replace('get_init_inputs', 'get_init'))
    bad = []
    assert [t.id for t in load_tasks(tmp_path, bad=bad)] == ['good']
    assert len(bad) == 4
    for part in ('syntax.py: not valid Python, line 3', 'empty.py', 'binary.py: cannot be read', 'model.py: function get_init_inputs() missing'):
        assert any(part in b for b in bad), (part, bad)
    with pytest.warns(UserWarning, match='4 of 5 tasks cannot be used'): load_tasks(tmp_path)
    with pytest.raises(TaskError): load_tasks(tmp_path, on_error='raise')


def test_single_file(tmp_path):
    f = tmp_path/'model.py'; f.write_text(GOOD)
    assert load_tasks(f)[0].id == tmp_path.name == load_tasks(tmp_path)[0].id
    f.write_text('x = 1\n')
    with pytest.raises(TaskError, match='model.py: class Model'): load_tasks(f)
    (tmp_path/'model.txt').write_text(GOOD)
    with pytest.raises(TaskError, match='.txt is not known'): load_tasks(tmp_path/'model.txt')


def test_rows_of_every_layout(tmp_path):
    rows = [dict(level_id=1, task_id=3, ref_code=GOOD), dict(level='level_2', problem_id=4, name='n', code=GOOD),
            dict(ops="['a', 'b']", data_source='torch#2', code=GOOD), dict(id='../x y', source=GOOD), dict(level_id=1, task_id=3, ref_code=GOOD)]
    f = tmp_path/'t.jsonl'; f.write_text('\n\n'.join(map(json.dumps, rows)) + '\n[1]\n{"other": 1}\n{"level_id": 1, "task_id": 9, "ref_code": null}\n')
    bad = []; tasks = load_tasks(f, bad=bad)
    assert [t.id for t in tasks] == ['kernelbench/1/3', 'kernelbench/2/4', 'ops6k/00004', 'x_y', 'kernelbench/1/3-2']
    assert tasks[2].ops == ('a', 'b') and tasks[0].origin.endswith('t.jsonl:1') and len(bad) == 3
    assert 't.jsonl:10' in bad[0] and 'columns other' in bad[1] and 'no source text' in bad[2]


def test_broken_files(tmp_path):
    (tmp_path/'a.parquet').write_bytes(b'PAR1 no')
    with pytest.raises(TaskError, match='a.parquet: not a Parquet file'): load_tasks(tmp_path/'a.parquet')
    (tmp_path/'a.jsonl').write_bytes(b'\xff\xfe{}\n')
    with pytest.raises(TaskError, match='a.jsonl:1'): load_tasks(tmp_path/'a.jsonl')
    (tmp_path/'void').mkdir()
    with pytest.raises(TaskError, match='no usable task'): load_tasks(tmp_path/'void')


def test_hub(monkeypatch):
    from types import SimpleNamespace
    monkeypatch.setitem(sys.modules, 'datasets', None)
    with pytest.raises(TaskError, match='pip install'): load_tasks('hf:a/b')
    def offline(name): raise ConnectionError('no route')
    monkeypatch.setitem(sys.modules, 'datasets', SimpleNamespace(load_dataset=offline))
    with pytest.raises(TaskError, match='cannot be loaded .*no route.*network'): load_tasks('hf:a/b')
    splits = {'level_1': [dict(level=1, problem_id=1, name='a', code=GOOD)], 'level_2': [dict(level=2, problem_id=1, name='b', code='')]}
    monkeypatch.setitem(sys.modules, 'datasets', SimpleNamespace(load_dataset=lambda name: splits))
    bad = []
    assert [t.id for t in load_tasks('hf:a/b', bad=bad)] == ['kernelbench/1/1'] and 'hf:a/b/level_2 row 0' in bad[0]


@pytest.mark.parametrize('text', ['..', '/etc/passwd', 'a/../../b', '.hidden/x', 'a\x00b', 'a\\b', ' ', '-'])
def test_ids_are_safe(text):
    parts = safe_id(text).split('/')
    assert all(p and not p.startswith('.') and p.isprintable() and '\\' not in p for p in parts)


def test_check_executes_nothing(tmp_path):
    flag = tmp_path/'ran'
    check_source(f'open({str(flag)!r}, "w")\n' + GOOD)
    assert not flag.exists()


def test_compile_captures_the_graph():
    "The name under which a task is executed must not make torch.compile skip it."
    import torch._dynamo
    graphs = []
    def count(gm, _): graphs.append(gm); return gm.forward
    from cuda_agent_lab.tasks import Task
    m = load_module(Task('t', None, GOOD.replace('return x\n', 'return torch.relu(x) + 1\n')))
    assert torch.equal(torch.compile(m.Model(), backend=count)(torch.ones(2)), torch.full((2,), 2.))
    assert len(graphs) == 1


KERNELBENCH = Path(__file__).resolve().parents[2]/'shared/data/cuda_l1_h20.jsonl'
@pytest.mark.skipif(not KERNELBENCH.exists(), reason='the KernelBench rows are not on this machine')
def test_all_of_kernelbench():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        tasks = load_tasks(KERNELBENCH)
    assert len(tasks) == len({t.id for t in tasks}) == 250
    assert [t.id for t in load_tasks(KERNELBENCH, level=1, limit=20)] == [f'kernelbench/1/{i}' for i in range(1, 21)]
