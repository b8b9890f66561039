import json
import os

import pytest


def pytest_addoption(parser):
    parser.addoption('--target', default='cpu', choices=('cpu', 'cuda'), help='what the adversaries are judged on')
    parser.addoption('--isolation', help='level of the adversaries: process, landlock, bwrap or container; the strongest that works here if not given')
    parser.addoption('--table', help='write what the referee said about the adversaries into this JSON file')


@pytest.fixture(scope='session')
def table(request):
    rows = []
    yield rows
    if path := request.config.getoption('--table'):
        with open(path, 'w') as f: json.dump(rows, f, indent=1)
