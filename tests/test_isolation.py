"""What each level of isolation keeps out, tried from inside: by a program in a room, by a candidate's C++ code, and by the agent's shell."""
import json, os, socket, subprocess, sys, time

import pytest

from cuda_agent_lab import isolation
from cuda_agent_lab.cli import main
from cuda_agent_lab.isolation import LEVELS, Room, choose, command, obstacle
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.shell import family
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.tools import Toolbox
from cuda_agent_lab.workspace import Candidate

STRONG = LEVELS[1:]


def works(level: str) -> str:
    if why := obstacle(level): pytest.skip(f'{level} does not work on this machine: {why}')
    return level


ATTEMPTS = '''
import ctypes, json, os, resource, socket, sys
pid, secret, port, folder, only = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:]
libc = ctypes.CDLL(None, use_errno=True)
def c(name, *args):
    if getattr(libc, name)(*args) < 0: raise OSError(ctypes.get_errno(), name)
def connect():
    s = socket.socket(); s.settimeout(1); s.connect(('127.0.0.1', port))
def shared():
    n = libc.shmget(0, 4096, 0o1600)
    if n < 0: raise OSError
    libc.shmctl(n, 0, None)
def send(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))
tries = dict(
    tcp=connect, udp=send, shared=shared, netlink=lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    read=lambda: open(secret).read(), listing=lambda: os.listdir(os.path.dirname(secret)).index('secret'), home=lambda: os.listdir(os.path.expanduser('~root')),
    environment=lambda: open(f'/proc/{pid}/environ').read(), memory=lambda: open(f'/proc/{pid}/mem', 'rb'), descriptors=lambda: os.readlink(f'/proc/{pid}/fd/0'),
    signal=lambda: os.kill(pid, 0), trace=lambda: c('ptrace', 0x4206, pid, 0, 0),
    namespaces=lambda: c('unshare', 0x10000000), mount=lambda: c('mount', b'none', folder.encode(), b'tmpfs', 0, None), keys=lambda: c('syscall', 250, 0, -3, 1),
    root=lambda: c('chroot', folder.encode()), clock=lambda: c('settimeofday', (ctypes.c_long*2)(0, 0), None), devices=lambda: open('/dev/mem', 'rb'), kernel=lambda: open('/proc/sys/kernel/hostname', 'w').write('x'))
done = []
for name, f in tries.items():
    if only and name not in only: continue
    try: f(); done.append(name)
    except (OSError, ValueError): pass
open(os.path.join(folder, 'mine'), 'w').write('x')
status = dict(l.split(':', 1) for l in open('/proc/self/status'))
print(json.dumps(dict(done=done, capabilities=status['CapEff'].strip() + status['CapBnd'].strip(), privileges=status['NoNewPrivs'].strip(), filters=status['Seccomp'].strip())))
'''


@pytest.mark.parametrize('level', STRONG)
def test_a_room_keeps_in(level, tmp_path):
    works(level)
    folder, secret = tmp_path/'room', tmp_path/'secret'
    folder.mkdir(); secret.write_text('secret')
    with socket.create_server(('127.0.0.1', 0)) as server:
        argv = [sys.executable, '-I', '-S', '-c', ATTEMPTS, str(os.getpid()), str(secret), str(server.getsockname()[1]), str(folder)]
        p = subprocess.run(command(level, Room(write=(str(folder),)), argv), cwd=folder, capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    said = json.loads(p.stdout)
    assert said['done'] == [] and set(said['capabilities']) == {'0'} and said['privileges'] == '1' and said['filters'] == '2', said
    assert (folder/'mine').exists() and secret.read_text() == 'secret'


def test_without_a_room_the_attempts_succeed(tmp_path):
    "The negative control: at the level `process` those that do no harm do what they say."
    harmless = ['tcp', 'udp', 'shared', 'read', 'listing', 'environment', 'signal']
    (tmp_path/'secret').write_text('secret')
    with socket.create_server(('127.0.0.1', 0)) as server:
        argv = [sys.executable, '-I', '-S', '-c', ATTEMPTS, str(os.getpid()), str(tmp_path/'secret'), str(server.getsockname()[1]), str(tmp_path), *harmless]
        p = subprocess.run(command('process', Room(write=(str(tmp_path),)), argv), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert json.loads(p.stdout)['done'] == harmless, p.stderr


MODEL = '''
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x*2
def get_inputs(): return [torch.randn(64, 64)]
def get_init_inputs(): return []
'''
MODEL_NEW = '''
import torch, cuda_extension
twice = cuda_extension.declare("void twice(float* out, const float* x, int64_t n)")
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        twice(out, x, x.numel())
        return out
'''
# A kernel that is wrong as soon as one of its attempts succeeds, so that `correct` says that all of them were refused.
KERNEL = r'''
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
static void* nothing(void*) { return nullptr; }
static int escaped() {
  pid_t p = fork();
  if (p == 0) _exit(0);
  if (p > 0) return 1;
  if (system("true") == 0) return 2;
  if (socket(AF_INET, SOCK_STREAM, 0) >= 0) return 3;
  if (open("mine", O_WRONLY | O_CREAT, 0600) >= 0) return 4;
  if (open("/tmp/calab-escape", O_WRONLY | O_CREAT, 0600) >= 0) return 5;
  if (open("/dev/shm/calab-escape", O_WRONLY | O_CREAT, 0600) >= 0) return 6;
  if (kill(getppid(), 0) == 0) return 7;
  struct rlimit none = {0, 0};
  if (prlimit(getppid(), RLIMIT_CORE, &none, nullptr) == 0) return 8;
  if (shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) >= 0) return 10;
  struct sockaddr_un near = {AF_UNIX, "/nowhere"};
  int s = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(s, (struct sockaddr*)&near, sizeof near) == 0 || errno != EPERM) return 12;
  close(s);
  if (setpriority(PRIO_PROCESS, getppid(), getpriority(PRIO_PROCESS, getppid())) == 0) return 11;
  char* const argv[] = {nullptr};
  execv("/bin/true", argv);
  pthread_t t;                                           // threads are allowed
  if (pthread_create(&t, nullptr, nothing, nullptr)) return 9;
  pthread_join(t, nullptr);
  return 0;
}
extern "C" void twice(float* out, const float* x, int64_t n) {
  float by = 2 + escaped();
  for (int64_t i = 0; i < n; ++i) out[i] = by*x[i];
}
'''


@pytest.fixture(scope='module', params=LEVELS)
def pool(request):
    with LocalPool(isolation=works(request.param)) as p: yield p


def judge(pool, kernel: str):
    v = pool.judge(Task('twice', 1, MODEL), Candidate((('kernels/twice.cpp', kernel), ('model_new.py', MODEL_NEW))), JudgeOptions(timing=False, compile=False))
    assert v.isolation == pool.isolation
    return v


def test_a_candidate_is_sealed(pool):
    "At the level `process`, the negative control, it is not."
    v = judge(pool, KERNEL)
    assert v.correct if pool.isolation != 'process' else v.reason == 'wrong_result', v


def test_what_runs_before_the_module_is_sealed_too(pool):
    "A constructor of the library runs when it is loaded."
    v = judge(pool, KERNEL.replace('static int escaped()', 'static int escaped_();\nstatic int early = escaped_();\nstatic int escaped() { return early; }\nstatic int escaped_()'))
    assert v.correct if pool.isolation != 'process' else v.reason == 'wrong_result', v


# An extension that is compiled inline keeps its folder while it is loaded.
AWAY = '''
import ctypes, os, torch
if False: from torch.utils.cpp_extension import load_inline
os.remove("output.txt")
{}
ctypes.string_at(0)
'''


@pytest.mark.parametrize('act', ['os.symlink({secret!r}, "output.txt")', 'os.mkfifo("output.txt")'])
def test_output_is_read_from_the_file_that_was_made(pool, act, tmp_path):
    "A name that comes to lead elsewhere neither shows a file of the host nor keeps the parent of all candidates waiting."
    (tmp_path/'secret').write_text('secret of the host')
    model = AWAY.format(act.format(secret=str(tmp_path/'secret')))
    start = time.monotonic()
    v = pool.judge(Task('twice', 1, MODEL), Candidate((('model_new.py', model),)), JudgeOptions(timing=False, compile=False))
    assert v.reason == 'crash' and 'secret of' not in str(v) and time.monotonic() - start < 60, v


@pytest.fixture
def secret_env(monkeypatch): monkeypatch.setenv('CALAB_TEST_SECRET', 'hunter2')


@pytest.mark.parametrize('level', [l for l in STRONG if l != 'container'])
def test_the_agents_shell(level, tmp_path, secret_env):
    works(level)
    other, mine = tmp_path/'other', tmp_path/'mine'
    other.mkdir(); mine.mkdir()
    (other/'kernel.cpp').write_text('secret')
    with Toolbox(mine, isolation=level) as box:
        def run(line): return box.run('Bash', dict(command=line)).text
        assert run('echo a > f && cat f && cd / && cd - > /dev/null && pwd').split() == ['a', str(mine)]
        assert 'secret' not in run(f'cat {other}/kernel.cpp; ls {other}; cat {other}/*')
        assert 'hunter2' not in run(f'env; cat /proc/{os.getpid()}/environ | tr "\\0" "\\n"; cat /proc/*/environ | tr "\\0" "\\n"')
        with socket.create_server(('127.0.0.1', 0)) as server:
            assert 'connected' not in run(f'exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo connected')
        assert run(f'kill -9 {os.getpid()}; echo still') .endswith('still')
        assert 'wrote' not in run(f'echo x > {other}/new && echo wrote; echo x > ~root/new && echo wrote')
        assert run('g++ --version >/dev/null && python3 -c "print(6*7)"') == '42'


@pytest.mark.parametrize('level', ['bwrap'])
def test_nothing_outlives_its_namespace(level, tmp_path):
    "A daemon that leaves its session, its parent and its environment ends with the shell."
    works(level)
    with Toolbox(tmp_path, isolation=level) as box:
        box.run('Bash', dict(command='(setsid env -i sleep 4321 >/dev/null 2>&1 &) ; sleep .2'))
        mine = family([box.shell.proc.pid])
        assert any(b'4321' in open(f'/proc/{p}/cmdline', 'rb').read() for p in mine)
    end = time.monotonic() + 10
    while (left := [p for p in mine if os.path.exists(f'/proc/{p}')]) and time.monotonic() < end: time.sleep(.02)
    assert not left


def test_private_folders_are_bounded(tmp_path, monkeypatch):
    works('bwrap')
    monkeypatch.setattr(isolation, 'TMP_BYTES', 1 << 20)
    p = subprocess.run(command('bwrap', Room(write=(str(tmp_path),), fork=True), ['sh', '-c', 'head -c 3000000 /dev/zero > /tmp/x; wc -c < /tmp/x']), capture_output=True, text=True)
    assert 'No space left' in p.stderr and int(p.stdout) <= 1 << 20


def test_large_files_are_refused(tmp_path):
    works('landlock')
    room = Room(write=(str(tmp_path),), fork=True, file_bytes=1 << 20)
    p = subprocess.run(command('landlock', room, ['sh', '-c', 'head -c 3000000 /dev/zero > x; wc -c < x']), cwd=tmp_path, capture_output=True, text=True)
    assert int(p.stdout) <= 1 << 20


def test_choose(monkeypatch):
    assert choose() == next(l for l in reversed(LEVELS) if not obstacle(l))
    monkeypatch.setattr(isolation, 'obstacle', lambda level: '' if level == 'process' else 'not here')
    assert choose() == 'process'
    with pytest.raises(OSError, match='landlock is required and this machine has only process'): choose(require='landlock')
    with pytest.raises(OSError, match='bwrap does not work here: not here; install bubblewrap'): choose('bwrap')
    with pytest.raises(ValueError, match='unknown'): choose('vault')


def test_require_on_the_command_line(tmp_path, capsys):
    (tmp_path/'model.py').write_text(MODEL)
    (tmp_path/'model_new.py').write_text('class ModelNew: pass\n')
    assert main(['judge', str(tmp_path), '--isolation', 'process', '--require', 'container']) == 2
    assert 'container is required' in capsys.readouterr().err
