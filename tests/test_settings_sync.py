"settings.ini (read by nbdev 2) and pyproject.toml (read by nbdev 3) must say the same."
import configparser, tomllib
from pathlib import Path

root = Path(__file__).resolve().parent.parent
ini = configparser.ConfigParser(interpolation=None)
ini.read(root/'settings.ini')
ini = ini['DEFAULT']
pyproject = tomllib.loads((root/'pyproject.toml').read_text())
nbdev, project = pyproject['tool']['nbdev'], pyproject['project']
NBDEV_3_ONLY = ('cell_timeout', 'doc_procs')


def test_nbdev_keys():
    for k, v in nbdev.items():
        if k not in NBDEV_3_ONLY: assert ini.get(k) == (' '.join(v) if isinstance(v, list) else str(v)), k


def test_project_keys():
    assert ini['lib_name'] == project['name'] and ini['description'] == project['description']
    assert project['requires-python'] == '>=' + ini['min_python']
    assert project['urls']['Repository'] == ini['git_url']
    assert project['urls']['Documentation'].rstrip('/') == ini['doc_host'] + ini['doc_baseurl']


def test_version():
    import cuda_agent_lab
    assert cuda_agent_lab.__version__ == ini['version']


def test_quarto_yml_is_shared(): assert (root/'nbs'/'_quarto.yml').resolve() == root/'_quarto.yml'
