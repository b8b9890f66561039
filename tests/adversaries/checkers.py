"""Three checkers of other kinds beside ours, on all adversaries, given cases and honest candidates: the negative control.

  python tests/adversaries/checkers.py --out figures/adversaries_cpu.json
  python tests/adversaries/checkers.py --target cuda --out figures/adversaries_h200.json      (--part 1/3 ... 3/3: in three pieces, into one file)

Written from what is known of such systems, none of their code. Each judges in the candidate's own process, a fork of this one with a time limit:
  naive           model and candidate in one process, inputs cloned, exact types, allclose at 1e-2 on three seeded inputs; PASS on stdout decides
  kernelbench     both sources in one namespace, seed 42, five inputs from seeds that follow from it, equal shapes, allclose at 1e-4, one output tensor, no eval();
                  then the mean time of ten calls on one input; the result is pickled through a pipe. Its static check for forbidden words is optional there and left out here
  workspace       the paper's released verification: eval(), state dict copied, five inputs, names of torch.nn.functional blocked during forward, assert_close at 1e-2,
                  recursively; the exit status decides
Sources are compiled by our build, since neither system compiles a folder of kernels without torch's headers; where it refuses (a file from elsewhere), by the bare compiler."""
import argparse, atexit, contextlib, datetime, importlib, json, multiprocessing.connection, os, resource, signal, subprocess, sys, tempfile, time
from dataclasses import replace
from pathlib import Path

import torch

from cuda_agent_lab.build import build, install
from cuda_agent_lab.compilers import NotRunnable, recipe
from cuda_agent_lab.devices import device_name
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import Task, sandbox_dir
from cuda_agent_lab.workspace import Candidate, CandidateError, read_candidate
from ours import ADVERSARIES, HONEST, gain
from parts import for_target

CASES = Path(__file__).parent/'cases'
SECONDS = 20                 # for one checker and one candidate
BYTES = 6 << 30              # of memory, so that this machine survives; the systems themselves set no limit


def tree(f, v):
    "`f` over the tensors of nested lists, tuples and dicts."
    if isinstance(v, torch.Tensor): return f(v)
    if isinstance(v, (list, tuple)): return type(v)(tree(f, x) for x in v)
    return {k: tree(f, x) for k, x in v.items()} if isinstance(v, dict) else v


def naive(device: str):
    "Prints PASS or FAIL."
    model, new = importlib.import_module('model'), importlib.import_module('model_new')
    args, on = model.get_init_inputs(), lambda v: tree(lambda t: t.clone().to(device), v)
    reference, candidate = model.Model(*args).to(device).eval(), new.ModelNew(*args).to(device).eval()
    candidate.load_state_dict(reference.state_dict())
    def close(a, b):
        if type(a) is not type(b): return False
        if isinstance(a, torch.Tensor): return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, atol=1e-2, rtol=1e-2)
        if isinstance(a, (list, tuple)): return len(a) == len(b) and all(map(close, a, b))
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a) if isinstance(a, dict) else a == b
    good = True
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = model.get_inputs()
        with torch.no_grad(): expected, output = reference(*on(inputs)), candidate(*on(inputs))
        good = good and close(output, expected)
    print('PASS' if good else 'FAIL', flush=True)


def kernelbench(device: str, pipe, task: str, source: str):
    "Sends a pickled dict."
    def seeded(seed): torch.manual_seed(seed)
    def measured(f):
        for _ in range(3): f()
        if device == 'cuda': torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10): f()
        if device == 'cuda': torch.cuda.synchronize()
        return 100*(time.perf_counter() - start)
    space = {}
    exec(compile(task, 'task', 'exec'), space)
    Model, get_inputs, get_init_inputs = (space[k] for k in ('Model', 'get_inputs', 'get_init_inputs'))
    on = lambda v: [x.to(device) if isinstance(x, torch.Tensor) else x for x in v]
    seeded(42); args = on(get_init_inputs())
    with torch.no_grad():
        seeded(42); reference = Model(*args).to(device)
        exec(compile(source, 'candidate', 'exec'), space)
        seeded(42); candidate = space['ModelNew'](*args).to(device)
        seeded(42)
        good = True
        for seed in [int(torch.randint(0, 2**32 - 1, (1,))) for _ in range(5)]:
            seeded(seed); inputs = on(get_inputs())
            expected, output = reference(*inputs), candidate(*inputs)
            good = good and expected.shape == output.shape and torch.allclose(expected, output, atol=1e-4, rtol=1e-4)
        result = dict(correct=good)
        if good:
            seeded(42); inputs = on(get_inputs())
            result['ms'] = measured(lambda: candidate(*inputs))
    pipe.send(result)


@contextlib.contextmanager
def blocked():
    "The names of torch.nn.functional raise."
    F, kept = torch.nn.functional, {}
    def refuse(*args, **kwargs): raise RuntimeError('torch.nn.functional is not allowed here')
    for name in [n for n in dir(F) if not n.startswith('_') and callable(getattr(F, n))]:
        kept[name] = getattr(F, name)
        setattr(F, name, refuse)
    try: yield
    finally:
        for name, f in kept.items(): setattr(F, name, f)


def workspace(device: str):
    "Raises unless all is right."
    model, new = importlib.import_module('model'), importlib.import_module('model_new')
    args, on = model.get_init_inputs(), lambda v: tree(lambda t: t.to(device), v)
    reference, candidate = model.Model(*args).eval().to(device), new.ModelNew(*args).eval().to(device)
    candidate.load_state_dict(reference.state_dict())
    def equal(a, b):
        assert type(a) is type(b), f'{type(a)} is not {type(b)}'
        if isinstance(b, torch.Tensor): torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)
        elif isinstance(b, dict):
            for k in b: equal(a[k], b[k])
        elif isinstance(b, (list, tuple)):
            assert len(a) == len(b)
            for x, y in zip(a, b): equal(x, y)
        else: assert a == b
    torch.seed()
    for _ in range(5):
        with torch.no_grad():
            inputs = on(model.get_inputs())
            expected, clones = reference(*inputs), tree(torch.clone, inputs)
            with blocked(): output = candidate(*clones)
        equal(output, expected)
    print('[PASS] verified', flush=True)


def inside(check, folder: Path, keep: tuple = ()):
    "Life of a forked checker: its folder, its output in a file, no descriptors but `keep`, and exit status 1 for any exception."
    os.setsid()
    atexit._clear()                                                  # what this process has registered is not the child's to do
    os.chdir(folder)
    out = os.open('output.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0); os.dup2(out, 1); os.dup2(out, 2)
    for fd in range(3, 256):
        if fd not in keep:
            with contextlib.suppress(OSError): os.close(fd)
    sys.stdout, sys.stderr = os.fdopen(1, 'w', closefd=False), os.fdopen(2, 'w', closefd=False)
    if not torch.version.cuda: resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    os.environ.update(TMPDIR=str(folder), HOME=str(folder), CALAB_LIBRARY=str(folder/'build/cuda_extension.so'))
    sys.path.insert(0, str(folder))
    status = 1
    try:
        check()
        status = 0
    except SystemExit as e: status = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException as e: print(type(e).__name__, str(e)[:500], file=sys.stderr)
    atexit._run_exitfuncs()                                          # as the end of an ordinary process does
    sys.stdout.flush()
    os._exit(status)


def outcomes(task: Task, candidate: Candidate, library, device: str) -> dict:
    "What each checker's user sees: {'naive': accepted, 'kernelbench': ..., 'workspace': ...}."
    with tempfile.TemporaryDirectory(prefix='checkers-', ignore_cleanup_errors=True) as root:
        here, there = multiprocessing.connection.Pipe(duplex=False)
        checks = dict(naive=lambda: naive(device), workspace=lambda: workspace(device), kernelbench=lambda: kernelbench(device, there, task.source, candidate.model_new))
        pids, said = {}, {}
        for name, check in checks.items():
            folder = Path(root, name)
            files = dict(candidate.files) | {'cuda_extension.py': (sandbox_dir()/'workspace'/'cuda_extension.py').read_text()}
            if name != 'kernelbench': files['model.py'] = task.source
            for path, text in files.items():
                Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, path).write_text(text)
            (folder/'build').mkdir()
            if library: (folder/'build/cuda_extension.so').write_bytes(Path(library).read_bytes())
            if (pid := os.fork()) == 0: inside(check, folder, (there.fileno(),) if name == 'kernelbench' else ())
            pids[name] = pid
        there.close()
        end = time.monotonic() + SECONDS
        for name, pid in pids.items():
            while (done := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end: time.sleep(.01)
            with contextlib.suppress(OSError): os.killpg(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(done[1] if done[0] else os.waitpid(pid, 0)[1])
            text = Path(root, name, 'output.txt').read_text(errors='replace') if Path(root, name, 'output.txt').exists() else ''
            if name == 'workspace': said[name] = status == 0 and bool(done[0])
            elif name == 'naive': said[name] = 'PASS' in text
            else:
                try: result = here.recv() if here.poll() else {}
                except Exception: result = {}                        # not even a pickle
                said[name] = isinstance(result, dict) and bool(result.get('correct'))
        here.close()
    return said


def bare(candidate: Candidate, target: str, to: Path):
    "A library by the compiler alone, with its time limit and nothing else looked at; None if there is none."
    try: r = recipe(candidate, target)
    except NotRunnable: return None
    for path, text in r.files.items():
        (to/path).parent.mkdir(parents=True, exist_ok=True)
        (to/path).write_text(text)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    run = lambda argv: subprocess.run(argv, cwd=to, timeout=60, capture_output=True, preexec_fn=limit).returncode == 0
    try: good = all([run([*argv, '-o', f'{k}.o', source]) for k, (source, argv) in enumerate(r.compile.items())])
    except subprocess.TimeoutExpired: return None
    return to/'bare.so' if good and run([*r.link, '-o', 'bare.so', *(f'{k}.o' for k in range(len(r.compile))), *r.libraries]) else None


def candidates(target: str):
    "(group, number, name, honest, task, files or folder) of everything that the target can run; Case where it is ours."
    for name, c in HONEST.items(): yield 'honest', '', name, True, c
    for name, c in ADVERSARIES.items(): yield name[0], c.number, name[3:], False, c
    for i in json.loads((CASES/'index.json').read_text()):
        right = i['verdict_cpu' if target == 'cpu' else 'verdict_gpu']
        if not right.startswith('NOT_RUNNABLE'): yield 'given', '', i['id'], right == 'ACCEPT', i


def read(case, target: str) -> tuple:
    "(task, candidate) of a Case or of a line of the index."
    if isinstance(case, dict): return Task(case['id'], None, (CASES/case['id']/'model.py').read_text()), read_candidate(CASES/case['id'])
    return case.task, Candidate(tuple(for_target(case.files, target).items()))


def row(group, number, name, honest, case, pool: LocalPool, target: str) -> dict:
    "One line of the table. `held`: ours refuses it, or gives it no better a time than an honest kernel's."
    about = dict(group=group, number=number, name=name, honest=honest)
    try: read(case, target)
    except CandidateError as e: return about | dict(status='rejected' if e.reason else 'build_error', reason=e.reason, held=True, naive=None, kernelbench=None, workspace=None)
    words = getattr(case, 'words', '')
    pool.build_timeout = 15. if 'build_timeout' in words or '44_' in name else 120.
    judge = lambda case: pool.judge(*read(case, target), JudgeOptions(target=target, compile=False, max_pairs=17, timeout=60. if target == 'cuda' else 30.))
    v = judge(case)
    ms = v.timing['candidate'].median_ms if v.correct else None
    held = not v.correct or 'no_gain' in words and gain(case, v, judge) <= case.room
    return about | dict(status=v.status, reason=v.reason, ms=ms and round(ms, 4), isolation=v.isolation, held=honest is False and held)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument('--target', default='cpu', choices=('cpu', 'cuda'))
    a.add_argument('--out', type=Path, required=True)
    a.add_argument('--part', default='1/1', help='k/n: the k-th of n pieces; the other rows of the file are kept')
    a.add_argument('--only', default='', help='those that contain this in "group: name"; the other rows of the file are kept')
    opts = a.parse_args()
    k, n = map(int, opts.part.split('/'))
    wanted = lambda i, c: i % n == k - 1 and opts.only in f'{c[0]}: {c[2]}'
    these = [c for i, c in enumerate(candidates(opts.target)) if wanted(i, c) and getattr(c[4], 'only', '') in ('', opts.target)]
    said = {}
    for group, number, name, honest, case in these:          # before there are threads here: the checkers are forks of this process
        try: task, candidate = read(case, opts.target)
        except CandidateError: continue
        b = build(candidate, opts.target, timeout=15. if 'build_timeout' in getattr(case, 'words', '') or '44_' in name else 120.)
        with tempfile.TemporaryDirectory() as folder:
            library = b.library if b.ok else bare(candidate, opts.target, Path(folder)) if b.reason else None
            runs = b.ok or library is not None
            said[group, name] = outcomes(task, candidate, library, opts.target) if runs else dict(naive=False, kernelbench=False, workspace=False)
        print(group, name, said[group, name], flush=True)
    again = (n > 1 or opts.only) and opts.out.exists()
    rows = {(r['group'], r['name']): r for r in (json.loads(opts.out.read_text())['rows'] if again else [])}
    with LocalPool(target=opts.target, keep=4) as pool:
        for c in these:
            rows[c[0], c[2]] = row(*c, pool, opts.target) | said.get((c[0], c[2]), {})
            print(rows[c[0], c[2]], flush=True)
    Path('/dev/shm/calab-adversary').unlink(missing_ok=True)
    order = {(c[0], c[2]): i for i, c in enumerate(candidates(opts.target))}
    about = dict(command=f'python tests/adversaries/checkers.py --target {opts.target} --out {opts.out}', date=datetime.date.today().isoformat(), device=device_name(opts.target), torch=torch.__version__)
    lines = ',\n'.join(json.dumps(r) for r in sorted(rows.values(), key=lambda r: order.get((r['group'], r['name']), 0)))
    opts.out.write_text(json.dumps(about)[:-1] + ', "rows": [\n' + lines + '\n]}\n')


if __name__ == '__main__': main()
