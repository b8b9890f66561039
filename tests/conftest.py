import json
import os
import sys

import pytest


def pytest_addoption(parser):
    parser.addoption('--target', default='cpu', choices=('cpu', 'cuda'), help='what the adversaries are judged on')
    parser.addoption('--isolation', help='level of the adversaries: process, landlock, bwrap or container; the strongest that works here if not given')
    parser.addoption('--table', help='write what the referee said about the adversaries into this JSON file (with pytest-xdist: one file for each worker, FILE.gw0 and so on)')


@pytest.fixture(scope='session')
def table(request):
    "Rows for --table."
    rows = []
    yield rows
    if path := request.config.getoption('--table'):
        import torch
        from cuda_agent_lab.devices import device_name
        about = dict(command='python -m pytest ' + ' '.join(sys.argv[1:]), device=device_name(request.config.getoption('--target')), torch=torch.__version__)
        worker = os.environ.get('PYTEST_XDIST_WORKER')
        with open(f'{path}.{worker}' if worker else path, 'w') as f: json.dump(about | dict(rows=rows), f, indent=1)
