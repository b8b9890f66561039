"The notebooks are the source: what is generated from them is up to date, and they are clean."
import filecmp, json, re, shutil, subprocess, sys
from pathlib import Path
import pytest

root = Path(__file__).resolve().parent.parent
pytest.importorskip('nbdev', reason="nbdev is not installed: pip install -e '.[dev]'")
notebooks = sorted((root/'nbs').glob('*.ipynb'))


@pytest.fixture(scope='module')
def regenerated(tmp_path_factory):
    "A copy of the tree after nbdev_clean and nbdev_export."
    to = tmp_path_factory.mktemp('regenerated')
    for d in ('nbs', 'cuda_agent_lab'):
        shutil.copytree(root/d, to/d, symlinks=True, ignore=shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints'))
    for f in ('pyproject.toml', 'settings.ini', '_quarto.yml', 'README.md'): shutil.copy2(root/f, to/f)
    for f in (to/'cuda_agent_lab').glob('*.py'):
        if f.name != '__init__.py': f.unlink()
    for call in ('nbdev.clean:nbdev_clean', 'nbdev.doclinks:nbdev_export'):
        module, name = call.split(':')
        subprocess.run([sys.executable, '-c', f'from {module} import {name} as f; f()'], cwd=to, check=True, capture_output=True)
    return to


def test_modules_match_notebooks(regenerated):
    here, there = ({p.name for p in (d/'cuda_agent_lab').glob('*.py')} for d in (root, regenerated))
    assert here == there, f'modules without a notebook, or not exported: {here ^ there}; run nbdev_export'
    differ = [n for n in here if not filecmp.cmp(root/'cuda_agent_lab'/n, regenerated/'cuda_agent_lab'/n, shallow=False)]
    assert not differ, f'out of date: {differ}; run nbdev_export'


@pytest.mark.parametrize('path', notebooks, ids=lambda p: p.name)
def test_clean(regenerated, path):
    assert path.read_text() == (regenerated/'nbs'/path.name).read_text(), f'{path.name} is not clean: run nbdev_clean'


@pytest.mark.parametrize('path', notebooks, ids=lambda p: p.name)
def test_reads_as_a_course(path):
    cells = json.loads(path.read_text())['cells']
    code = [''.join(c['source']) for c in cells if c['cell_type'] == 'code']
    # A class with one job fits a screen; what is longer is cut into cells of functions that the class takes as methods.
    limits = [(len(c.splitlines()), 75 if re.search(r'^class ', c, re.M) else 60) for c in code]
    too_long = [n for n, most in limits if n > most]
    assert not too_long, f'{path.name}: cells of {too_long} lines do not fit a screen'
    assert len(cells) - len(code) >= len(code)/3, f'{path.name}: {len(code)} code cells, too little prose'


@pytest.mark.parametrize('name', ['train.ipynb', 'evaluate.ipynb'])
def test_papermill_finds_parameters(name):
    "nbdev_clean removes cell tags unless it is told not to; papermill needs this one."
    cells = json.loads((root/'nbs'/name).read_text())['cells']
    assert any('parameters' in c['metadata'].get('tags', []) for c in cells)


def test_train_offers_the_rewards_that_there_are():
    from cuda_agent_lab.reward import REWARDS
    cells = json.loads((root/'nbs'/'train.ipynb').read_text())['cells']
    parameters = next(''.join(c['source']) for c in cells if 'parameters' in c['metadata'].get('tags', []))
    offered = next(l for l in parameters.splitlines() if l.startswith('reward'))
    assert set(re.findall(r"'(\w+)'", offered)) == set(REWARDS)


def test_readme_is_the_index():
    subprocess.run([sys.executable, root/'tools'/'build_readme.py', '--check'], check=True)


def test_sidebar_names_every_notebook():
    sidebar = (root/'nbs'/'sidebar.yml').read_text()
    missing = [p.name for p in notebooks if p.name not in sidebar]
    assert not missing, f'not in nbs/sidebar.yml: {missing}'
