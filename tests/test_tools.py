"The tools against real bash processes: order, state, limits, kills, and the ways in which a path leaves a workspace."
import errno
import json
import os
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cuda_agent_lab import shell, tools
from cuda_agent_lab.shell import MARK, family, kill_family
from cuda_agent_lab.schemas import tool_specs
from cuda_agent_lab.tools import Toolbox, ToolLimits


@pytest.fixture
def box(tmp_path):
    (tmp_path/'ws').mkdir()
    (tmp_path/'ws'/'model.py').write_text('class Model: ...\n')
    with Toolbox(tmp_path/'ws', dict(CALAB_JUDGE='/socket', CALAB_TOKEN='t'), ToolLimits(bash_timeout=20, output_chars=2000)) as b:
        yield b
    assert not family([], b.mark)


def ok(box, name, /, **args):
    r = box.run(name, args)
    assert not r.error, r.text
    return r.text


def no(box, name, /, **args):
    r = box.run(name, args)
    assert r.error and r.text and '\n' not in r.text, r
    assert box.root not in r.text, 'no absolute path in an answer'
    return r.text


def alive(pid): return os.path.exists(f'/proc/{pid}') and open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] not in 'ZX'


def gone(pid, seconds=3):
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end: time.sleep(.01)
    return not alive(pid)


# ---- bash ---------------------------------------------------------------------------------------------------

def test_state_survives(box):
    ok(box, 'Bash', command='mkdir -p a/b && cd a/b; export E=1; v=2; f() { echo "f$1"; }; shopt -s extglob')
    assert ok(box, 'Bash', command='echo $E$v; f 3; basename $PWD') == '12\nf3\nb'


def test_environment_is_an_allow_list(box, monkeypatch):
    monkeypatch.setenv('SECRET_KEY', 'hidden')
    with Toolbox(box.root, dict(CALAB_TOKEN='t')) as b:
        env = dict(l.split('=', 1) for l in ok(b, 'Bash', command='env').splitlines() if '=' in l)
    assert 'SECRET_KEY' not in env and env['CALAB_TOKEN'] == 't' and env['HOME'] == box.root
    assert set(env) <= {'PATH', 'HOME', 'TMPDIR', 'LANG', 'TERM', 'PWD', 'SHLVL', '_', 'OLDPWD', 'CALAB_TOKEN', MARK, 'PYTHONDONTWRITEBYTECODE', *tools.KEEP_ENV}


def test_order_of_output_and_status(box):
    assert ok(box, 'Bash', command='for i in 1 2 3; do echo o$i; echo e$i >&2; done; (exit 4)') == 'o1\ne1\no2\ne2\no3\ne3\n[exit status 4]'
    assert ok(box, 'Bash', command='printf no_newline') == 'no_newline' and ok(box, 'Bash', command=':') == '(no output)'
    assert ok(box, 'Bash', command='kill -SEGV $BASHPID | true; sh -c "kill -9 \\$\\$"').endswith('[exit status 137]')


def test_no_input_and_odd_text(box):
    assert ok(box, 'Bash', command='cat; read x; echo "got:$x"') == 'got:'
    assert ok(box, 'Bash', command="echo 'it''s' \"$((1+1))\" # comment") == 'its 2'
    assert ok(box, 'Bash', command='printf "\\xff\\xfe"; echo ü') == '\ufffd\ufffdü'
    assert 'syntax error' in ok(box, 'Bash', command='if then') and ok(box, 'Bash', command='echo on') == 'on'
    assert 'NUL' in no(box, 'Bash', command='echo \0')
    big = 'x' * 200_000
    assert ok(box, 'Bash', command=f'echo {big} | wc -c') == '200001', 'a command larger than a pipe'


def test_forged_end(box):
    "A command cannot write to the pipe that tells the end"
    out = ok(box, 'Bash', command="for fd in $(ls /proc/$BASHPID/fd); do [ $fd -gt 2 ] && [ $fd -lt 10 ] && printf '0 /\\0' >&$fd; done 2>/dev/null; sleep .2; echo real")
    assert out.endswith('real') and ok(box, 'Bash', command='pwd') == box.root


def test_what_a_command_writes_into_the_report_ends_the_session(box):
    for cmd in ('for f in /proc/$$/fd/*; do echo hi > $f; done', "for f in /proc/$$/fd/*; do printf '0 /etc\\0' > $f; done",
                'for f in /proc/$$/fd/*; do [ $f = ${f%/[012]} ] && timeout 1 head -c 1000000 /dev/zero | tr "\\0" x > $f & done 2>/dev/null; wait'):
        out = ok(box, 'Bash', command=cmd + ' 2>/dev/null')
        assert 'the session ended' in out and 'started again in the workspace' in out, out
        assert ok(box, 'Bash', command='echo on; (exit 3)') == 'on\n[exit status 3]' and ok(box, 'Bash', command='pwd') == box.root
    assert ok(box, 'Bash', command='PWD=') == ok(box, 'Bash', command='unset PWD') == '(no output)' and ok(box, 'Bash', command='echo on') == 'on'


def test_waiting_for_the_judge_is_not_the_commands_time(tmp_path):
    waiting = []
    waited = lambda: sum(time.monotonic() - t for t in waiting)
    with Toolbox(tmp_path, limits=ToolLimits(bash_timeout=.4), waited=waited) as b:
        waiting.append(time.monotonic())
        assert ok(b, 'Bash', command='sleep .8; echo judged') == 'judged'
        waiting.clear(); t = time.monotonic()
        assert 'killed after 0.4 s' in ok(b, 'Bash', command='sleep 60') and time.monotonic() - t < 3


def test_patience_has_an_end(tmp_path, monkeypatch):
    "A command that asks for one judgement after the other"
    monkeypatch.setattr(shell, 'PATIENCE', .3)
    with Toolbox(tmp_path, limits=ToolLimits(bash_timeout=.2), waited=time.monotonic) as b:
        t = time.monotonic(); assert 'killed' in ok(b, 'Bash', command='sleep 60'); assert .4 < time.monotonic() - t < 3


def test_timeout_leaves_nothing(box):
    t = time.monotonic()
    out = ok(box, 'Bash', command='v=1; mkdir d; cd d; sleep 300 & setsid sleep 301 & (setsid -f sleep 302); echo begun; sleep 303; touch after', timeout=500)
    assert time.monotonic() - t < 3 and out.startswith('begun\n[killed after 0.5 s') and 'variables and functions are lost' in out
    assert not family([], box.mark)
    assert ok(box, 'Bash', command='echo "v=$v"; basename $PWD; ls') == 'v=\nd', 'the same folder, and the rest of the command did not run'


def test_a_command_that_ignores_signals(box):
    out = ok(box, 'Bash', command="trap '' TERM INT HUP; while true; do :; done", timeout=300)
    assert 'killed after 0.3 s' in out and ok(box, 'Bash', command='echo on') == 'on'


def test_session_ends_and_comes_back(box):
    assert 'exit status 5' in ok(box, 'Bash', command='echo bye; exit 5')
    assert ok(box, 'Bash', command='echo on') == 'on'
    assert 'ended' in ok(box, 'Bash', command='kill -9 $$') and ok(box, 'Bash', command='echo on') == 'on'
    assert 'ended' in ok(box, 'Bash', command='set -e; false') and ok(box, 'Bash', command='false; echo on') == 'on'
    ok(box, 'Bash', command='mkdir gone; cd gone; rmdir ../gone')
    assert 'exit' in ok(box, 'Bash', command='exit 1') and ok(box, 'Bash', command='pwd') == box.root, 'its folder is gone: the workspace'


def test_output_is_bounded(box):
    out = ok(box, 'Bash', command='yes', timeout=600)
    assert 'killed' in out and len(out) < 2500
    rest = ok(box, 'Read', file_path='.outputs/1.txt', offset=3, limit=2)
    assert rest.startswith('   3\ty\n   4\ty\n')
    assert os.path.getsize(f'{box.root}/.outputs/1.txt') < 2 << 20
    out = ok(box, 'Bash', command='head -c 100000 /dev/zero | tr "\\0" x')
    assert len(out) < 2500, 'also without line ends'


def test_cut_points_to_the_first_hidden_line(box):
    out = ok(box, 'Bash', command='seq 5000')
    shown = [l for l in out.splitlines() if l.isdigit()]
    offset = int(out.split('offset=')[1].split()[0])
    assert ok(box, 'Read', file_path='.outputs/1.txt', offset=offset, limit=1).split('\n')[0].split('\t')[1] == str(offset) and str(offset) not in shown and str(offset - 1) in shown


def test_chatty_child_does_not_block(box):
    "A child left behind that prints without end neither hangs the next command nor fills memory"
    assert ok(box, 'Bash', command='yes & echo started').splitlines()[0] in ('started', 'y', '[1]')
    t = time.monotonic(); ok(box, 'Bash', command='true'); assert time.monotonic() - t < 2
    assert 'exit status' not in ok(box, 'Bash', command='kill %1 2>/dev/null || kill $!')


# ---- background ----------------------------------------------------------------------------------------------

def test_background(box):
    assert "bash_1" in ok(box, 'Bash', command='echo a; sleep 300', run_in_background=True)
    time.sleep(.3)
    out, pids = ok(box, 'BashOutput', bash_id='bash_1'), family([box.jobs['bash_1'].proc.pid])
    assert out.startswith('a\n') and out.endswith('[bash_1: running]') and ok(box, 'BashOutput', bash_id='bash_1').startswith('(no new output)')
    assert 'killed' in ok(box, 'KillBash', shell_id='bash_1') and pids and all(map(gone, pids)) and 'killed' in ok(box, 'BashOutput', bash_id='bash_1')
    assert "bash_1" in no(box, 'BashOutput', bash_id='bash_7') and 'none was started' in no(Toolbox(box.root), 'KillBash', shell_id='bash_1')


def test_background_ends_with_all_its_output(box):
    ok(box, 'Bash', command='seq 20000; printf tail; exit 3', run_in_background=True)
    box.jobs['bash_1'].proc.wait()
    assert ok(box, 'BashOutput', bash_id='bash_1', filter='^(1999.|tail)$').splitlines()[-2:] == ['tail', '[bash_1: ended with exit status 3]']
    assert 'regex' in no(box, 'BashOutput', bash_id='bash_1', filter='(').lower() or not shutil.which('rg')


def test_a_killed_child_is_seen(box):
    "kill -9 from outside, as an out-of-memory killer does"
    ok(box, 'Bash', command='exec sleep 300', run_in_background=True)
    os.kill(box.jobs['bash_1'].proc.pid, 9)
    box.jobs['bash_1'].proc.wait()
    assert 'ended with exit status -9' in ok(box, 'BashOutput', bash_id='bash_1')


def test_timeout_spares_background(box):
    ok(box, 'Bash', command='sleep 300', run_in_background=True)
    ok(box, 'Bash', command='sleep 300', timeout=200)
    assert box.jobs['bash_1'].proc.poll() is None
    assert 'running' in ok(box, 'BashOutput', bash_id='bash_1')


def test_background_limit(tmp_path):
    with Toolbox(tmp_path, limits=ToolLimits(background=2)) as b:
        for _ in range(2): ok(b, 'Bash', command='sleep 300', run_in_background=True)
        assert 'KillBash' in no(b, 'Bash', command='sleep 300', run_in_background=True)
    assert not family([], b.mark)


def test_close_finds_those_who_hide(tmp_path):
    b = Toolbox(tmp_path)
    ok(b, 'Bash', command='sleep 300 & (setsid -f nohup sleep 301 >/dev/null 2>&1); python3 -c "import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(300)"')
    ok(b, 'Bash', command='env -i sleep 302; true', run_in_background=True)
    deadline = time.monotonic() + 5
    while len(family([j.proc.pid for j in b.jobs.values()], b.mark)) < 5 and time.monotonic() < deadline: time.sleep(.02)
    mine = family([j.proc.pid for j in b.jobs.values()] + [b.shell.proc.pid], b.mark)
    assert len(mine) >= 5
    b.close(); b.close()
    assert all(gone(p) for p in mine)


def test_eight_sessions_at_once(tmp_path):
    def work(i):
        d = tmp_path/str(i); d.mkdir()
        with Toolbox(d, limits=ToolLimits(bash_timeout=20)) as b:
            ok(b, 'Bash', command=f'x={i}; cd /; cd -')
            outs = [ok(b, 'Bash', command=f'x=$((x + 1)); echo $x; seq 300 | tail -n 1') for _ in range(10)]
            assert 'killed' in ok(b, 'Bash', command='sleep 60', timeout=100)
            assert outs == [f'{i + k}\n300' for k in range(1, 11)] and ok(b, 'Bash', command='basename $PWD') == str(i)
        return b.mark
    before = threading.active_count()
    with ThreadPoolExecutor(8) as ex: marks = list(ex.map(work, range(8)))
    assert not any(family([], m) for m in marks) and threading.active_count() <= before + 1


def test_no_leak_of_file_handles(tmp_path):
    n = lambda: len(os.listdir('/proc/self/fd'))
    def once():
        with Toolbox(tmp_path) as b:
            ok(b, 'Bash', command='sleep 60', timeout=20); ok(b, 'Bash', command='exit 1'); ok(b, 'Bash', command='true', run_in_background=True)
    once(); before = n()
    for _ in range(5): once()
    assert n() <= before


def test_cost(tmp_path):
    t = time.perf_counter(); boxes = [Toolbox(tmp_path) for _ in range(50)]
    assert (time.perf_counter() - t) / 50 < .02 and not any(b.shell.proc for b in boxes), 'bash starts at the first command'


def test_disk_full_is_not_the_agents_fault(box, monkeypatch):
    def full(*a, **k): raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(os, 'replace', full)
    with pytest.raises(OSError): box.run('Write', dict(file_path='a.txt', content='a'))
    monkeypatch.undo()
    assert os.listdir(box.root) == ['model.py'], 'no temporary file is left'


# ---- files ---------------------------------------------------------------------------------------------------

def test_read(box):
    ok(box, 'Write', file_path='a.txt', content=''.join(f'line {i}\n' for i in range(1, 501)))
    assert ok(box, 'Read', file_path='a.txt', offset=499) == ' 499\tline 499\n 500\tline 500'
    cut = ok(box, 'Read', file_path='a.txt')
    nxt = int(cut.rsplit('offset=', 1)[1].rstrip(']'))
    assert len(cut) < 2200 and ok(box, 'Read', file_path=f'{box.root}/a.txt', offset=nxt, limit=1).startswith(f' {nxt}\tline {nxt}')
    assert '500 lines' in no(box, 'Read', file_path='a.txt', offset=501)
    assert 'folder' in no(box, 'Read', file_path='.') and 'did you mean' in no(box, 'Read', file_path='A.txt')
    os.mkfifo(f'{box.root}/pipe'); assert 'regular' in no(box, 'Read', file_path='pipe')
    open(f'{box.root}/b.bin', 'wb').write(b'a\0b'); assert 'text' in no(box, 'Read', file_path='b.bin')
    open(f'{box.root}/e.txt', 'w').close(); assert 'empty' in ok(box, 'Read', file_path='e.txt')
    open(f'{box.root}/w.txt', 'w').write('y' * 100_000); assert len(ok(box, 'Read', file_path='w.txt')) < 2200


@pytest.mark.parametrize('path', ['../x', '/etc/passwd', 'link/passwd', 'link', 'dangling', 'a/../../x', '', 'a\0b', '~/../../x/../../../etc/passwd'])
def test_paths_stay_inside(box, path):
    os.symlink('/etc', f'{box.root}/link'); os.symlink('/tmp/not_there_9', f'{box.root}/dangling')
    for name, args in dict(Read={}, Write=dict(content='x'), Edit=dict(old_string='a', new_string='b')).items(): no(box, name, file_path=path, **args)
    if path: no(box, 'Glob', pattern='*', path=path); no(box, 'Grep', pattern='root', path=path)
    assert not os.path.exists('/tmp/not_there_9')


def test_links_inside_are_fine_and_search_follows_none(box):
    os.symlink('model.py', f'{box.root}/m.py'); os.symlink('/etc', f'{box.root}/etc')
    assert 'class Model' in ok(box, 'Read', file_path='m.py')
    assert ok(box, 'Glob', pattern='**') == 'model.py' and 'fixed' in no(box, 'Write', file_path='m.py', content='')
    assert 'no match' in ok(box, 'Grep', pattern='root:')


@pytest.mark.parametrize('path', [*tools.FIXED, 'model.py', 'utils/'])
def test_fixed_files(box, path):
    path += 'verify.py' * path.endswith('/')
    os.makedirs(f'{box.root}/utils', exist_ok=True); open(f'{box.root}/{path}', 'w').write('original\n')
    assert 'original' in ok(box, 'Read', file_path=path)
    assert 'fixed' in no(box, 'Write', file_path=path, content='x') and 'fixed' in no(box, 'Edit', file_path=f'./kernels/../{path}', old_string='original', new_string='x')
    assert open(f'{box.root}/{path}').read() == 'original\n'


def test_read_before_write(box):
    ok(box, 'Bash', command='echo old > a.txt')
    assert 'Read it first' in no(box, 'Write', file_path='a.txt', content='new') and 'Read it first' in no(box, 'Edit', file_path='a.txt', old_string='old', new_string='new')
    ok(box, 'Read', file_path='a.txt'); ok(box, 'Write', file_path='a.txt', content='new\n'); ok(box, 'Write', file_path='a.txt', content='newer\n')
    ok(box, 'Bash', command='echo other > a.txt')
    assert 'has changed' in no(box, 'Edit', file_path='a.txt', old_string='newer', new_string='x')
    ok(box, 'Write', file_path='kernels/deep/k.cu', content='k'); assert open(f'{box.root}/kernels/deep/k.cu').read() == 'k'
    assert 'surrogate' in no(box, 'Write', file_path='s.txt', content='\ud800')


def test_text_that_is_no_text(box):
    "Half of a surrogate pair, NUL characters, names that are not UTF-8: one sentence or readable text, never an exception"
    for name, args in dict(Bash=dict(command='echo \ud800'), Read=dict(file_path='\ud800'), Write=dict(file_path='\udfff.txt', content=''), Glob=dict(pattern='\ud800'),
                           Grep=dict(pattern='a', glob='*\udc00'), BashOutput=dict(bash_id='\ud800'), TodoWrite=dict(todos=[dict(content='\ud800', status='pending')]),
                           Edit=dict(file_path='model.py', old_string='\ud800', new_string='')).items(): assert 'surrogate' in no(box, name, **args)
    for name, args in [('B\ud800', {}), ('Bash', {'\ud800': 1}), ('Grep', dict(pattern='a\0b'))]: no(box, name, **args).encode()
    assert ok(box, 'Bash', command="echo '\ud83d\ude00 ü'".encode('utf-16', 'surrogatepass').decode('utf-16')).encode()
    ok(box, 'Bash', command="printf 'two\n' > $'n\\xff.txt'; mkdir $'d\\xff'; cd $'d\\xff'")
    for name, args in [('Glob', dict(pattern='*')), ('Grep', dict(pattern='two')), ('Bash', dict(command='exit 1'))]: ok(box, name, **args).encode()
    assert ok(box, 'Bash', command='basename "$PWD" | od -An -tx1 | head -c 6') == ' 64 ff', 'the same folder'
    ok(box, 'Write', file_path='s.ipynb', content='{"cells": [{"id": 1, "source": "\\ud800"}]}')
    assert 'surrogate' in no(box, 'NotebookEdit', notebook_path='s.ipynb', cell_id='0', new_source='', edit_mode='insert')
    assert 'has no cell' in no(box, 'NotebookEdit', notebook_path='s.ipynb', cell_id='x', new_source='')
    ok(box, 'Write', file_path='deep.ipynb', content='[' * 100_000); no(box, 'NotebookEdit', notebook_path='deep.ipynb', cell_id='0', new_source='')


def test_a_command_line_that_is_too_long(box):
    "The agent's doing, so it is no failure of the machine"
    no(box, 'Grep', pattern='x' * 300_000); no(box, 'Bash', command='# ' + 'x' * 300_000, run_in_background=True)


def test_multi_edit_is_atomic(box):
    ok(box, 'Write', file_path='a.py', content='a\r\nb\r\nc\r\n')
    assert 'Nothing was changed' in no(box, 'MultiEdit', file_path='a.py', edits=[dict(old_string='a', new_string='A'), dict(old_string='zz', new_string='b')])
    assert open(f'{box.root}/a.py', newline='').read() == 'a\r\nb\r\nc\r\n'
    ok(box, 'MultiEdit', file_path='a.py', edits=[dict(old_string='a', new_string='b'), dict(old_string='b', new_string='x', replace_all=True)])
    assert open(f'{box.root}/a.py', newline='').read() == 'x\r\nx\r\nc\r\n', 'in order, and line ends are kept'


def test_edit_keeps_the_mode(box):
    ok(box, 'Bash', command='echo "echo 1" > r.sh; chmod 755 r.sh'); ok(box, 'Read', file_path='r.sh'); ok(box, 'Edit', file_path='r.sh', old_string='1', new_string='2')
    assert ok(box, 'Bash', command='./r.sh') == '2'


# ---- search ---------------------------------------------------------------------------------------------------

@pytest.fixture(params=['rg', 'grep'])
def engine(request, monkeypatch):
    if not shutil.which(request.param): pytest.skip(f'no {request.param}')
    if request.param == 'grep': monkeypatch.setattr(tools.shutil, 'which', lambda n: None)
    return request.param


def test_grep(box, engine):
    for n, t in {'kernels/a.cu': 'one\ntwo x1\nthree\nfour\nTWO x22\n', 'kernels/b.cpp': 'two\n', 'n.md': 'two\n', '-e.txt': 'two\n'}.items(): ok(box, 'Write', file_path=n, content=t)
    os.makedirs(f'{box.root}/.git'); open(f'{box.root}/.git/x', 'w').write('two'); open(f'{box.root}/o.bin', 'wb').write(b'two\0')
    g = lambda **k: ok(box, 'Grep', **{a.replace('_', '-', 1) if a.startswith('_') else a: v for a, v in k.items()})
    assert g(pattern='two') == '-e.txt\nn.md\nkernels/a.cu\nkernels/b.cpp'
    assert g(pattern='two', type='cuda', output_mode='content') == 'kernels/a.cu:2:two x1'
    assert g(pattern=r'two x\d+', _i=True, output_mode='content', _n=False) == 'kernels/a.cu:two x1\nkernels/a.cu:TWO x22'
    assert g(pattern='x1', output_mode='content', _B=1, _A=1) == 'kernels/a.cu-1-one\nkernels/a.cu:2:two x1\nkernels/a.cu-3-three'
    assert g(pattern='x', output_mode='content', _C=1).splitlines()[:2] == ['kernels/a.cu-1-one', 'kernels/a.cu:2:two x1']
    assert g(pattern='two', output_mode='count', glob='*.{cu,cpp}', _i=True) == 'kernels/a.cu:2\nkernels/b.cpp:1'
    assert g(pattern='two', path='kernels', head_limit=1).startswith('kernels/a.cu\n[1 more') and g(pattern='two', path='kernels/b.cpp', output_mode='content') == 'kernels/b.cpp:1:two'
    assert 'no match' in g(pattern='-nothing') and 'type' in no(box, 'Grep', pattern='a', type='rust')
    no(box, 'Grep', pattern='('); no(box, 'Grep', pattern='a', path='nowhere')


def test_a_pattern_that_explodes_is_no_hang(box, engine):
    ok(box, 'Write', file_path='a.txt', content='a' * 40 + '!\n')
    t = time.monotonic(); box.run('Grep', dict(pattern='^(a+)+$')); assert time.monotonic() - t < 21


def test_glob(box):
    for n in ('kernels/a.cu', 'kernels/d/b.cu', 'c.cu', '.hidden/e.cu'): ok(box, 'Write', file_path=n, content='')
    assert ok(box, 'Glob', pattern='*.cu').splitlines() == ['c.cu', 'kernels/a.cu', 'kernels/d/b.cu']
    assert ok(box, 'Glob', pattern='kernels/*.cu') == 'kernels/a.cu' and ok(box, 'Glob', pattern='*.cu', path='kernels/d') == 'kernels/d/b.cu'
    assert 'no file' in ok(box, 'Glob', pattern='*.rs') and 'no file' in ok(box, 'Glob', pattern='../*')


# ---- notebooks, todos, schemas -----------------------------------------------------------------------------------

def test_notebook(box):
    nb = dict(cells=[dict(cell_type='code', id='one', metadata={}, source=['a\n'], outputs=[dict(output_type='stream')], execution_count=3), dict(cell_type='markdown', id='two', metadata={}, source='t')], metadata={}, nbformat=4, nbformat_minor=5)
    ok(box, 'Write', file_path='n.ipynb', content=json.dumps(nb))
    e = lambda **k: ok(box, 'NotebookEdit', notebook_path='n.ipynb', **k)
    cells = lambda: json.load(open(f'{box.root}/n.ipynb'))['cells']
    e(cell_id='one', new_source='b\nc'); assert cells()[0] == dict(cell_type='code', id='one', metadata={}, source=['b\n', 'c'], outputs=[], execution_count=None)
    e(cell_id='one', new_source='new', edit_mode='insert', cell_type='markdown'); assert [c['source'] for c in cells()] == [['b\n', 'c'], ['new'], 't'] and len({c['id'] for c in cells()}) == 3
    e(edit_mode='insert', new_source='top'); assert cells()[0]['source'] == ['top'] and cells()[0]['cell_type'] == 'code'
    e(cell_id='two', edit_mode='delete'); e(cell_id='0', edit_mode='delete'); assert [c['id'] for c in cells()][0] == 'one'
    for bad in (dict(cell_id='nine', new_source=''), dict(cell_id='one'), dict(new_source='x')): no(box, 'NotebookEdit', notebook_path='n.ipynb', **bad)
    ok(box, 'Write', file_path='x.ipynb', content='[]'); assert 'not a Jupyter' in no(box, 'NotebookEdit', notebook_path='x.ipynb', cell_id='0', new_source='')


def test_every_tool_answers_bad_arguments(box):
    for spec in tool_specs():
        name, p = spec['function']['name'], spec['function']['parameters']
        for a in p['required']: assert a in no(box, name)if a == p['required'][0] else True
        assert 'no argument' in no(box, name, nonsense=1)
        for k, s in p['properties'].items():
            bad = 1 if s['type'] != 'integer' else 'one'
            assert k in no(box, name, **{r: 'x' for r in p['required']} | {k: bad}) or p['properties'][p['required'][0]]['type'] == 'array'
    assert 'array' in no(box, 'TodoWrite', todos='x') and 'status' in no(box, 'TodoWrite', todos=[dict(content='a')])
    assert ok(box, 'TodoWrite', todos=[dict(content='a', status='completed'), dict(content='b', status='pending', activeForm='b-ing')]) == '[x] a\n[ ] b'


def test_specs_render_in_a_chat_template():
    "The format that transformers' chat templates take"
    jinja2 = pytest.importorskip('jinja2')
    text = jinja2.Template("{% for t in tools %}{{ t.function.name }}:{{ t | tojson }}\n{% endfor %}").render(tools=tool_specs())
    assert [l.split(':')[0] for l in text.splitlines()] == list(tools.TOOLS)


def test_kill_family_of_a_dead_root():
    p = subprocess.Popen(['true'], start_new_session=True); p.wait()
    kill_family([p.pid], 'no-such-mark')
