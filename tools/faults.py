"""Does the judge stay well? Its processes are killed, its disk is filled, its parent is interrupted, and one judge gets hundreds of candidates in a row.

  python tools/faults.py                              everything, about 15 minutes             -> figures/faults_cpu.json
  python tools/faults.py kills                        SIGKILL at a random moment of 200 judgements
  python tools/faults.py disk                         judgements while the disk of all temporary folders and of the cache is full
  python tools/faults.py interrupts                   Ctrl-C at a random moment of `calab judge`
  python tools/faults.py row                          500 candidates in a row for one judge: memory and file handles

A single one replaces its part of the file. --number N takes another number, and nothing is kept unless --out FOLDER says where; --target cuda runs them on a GPU (-> figures/faults_cuda.json), --seed N
chooses the moments. Exit status: 1 when something was wrong: a verdict that is not the candidate's,
a process or a file that stayed, a limit that was passed, memory that grew."""
import argparse, collections, datetime, json, os, random, shutil, signal, subprocess, sys, tempfile, threading, time
from pathlib import Path
import torch
from cuda_agent_lab.compilers import gpus
from cuda_agent_lab.devices import device_name
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.workspace import Candidate, make_workspace, write_candidate

FIGURES = Path(__file__).resolve().parent.parent/'figures'
TASK = Task('scale', 1, 'import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x*3.0\ndef get_inputs(): return [torch.randn(256, 256)]\ndef get_init_inputs(): return []\n')
MODEL = '''
import torch, cuda_extension
f = cuda_extension.declare("void f(float* out, const float* x, int64_t n, void* stream)")
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        f(out, x, x.numel())
        return out
'''
CODE = '''
#include <cstdint>
#ifdef __CUDACC__
__global__ static void all(float* out, const float* x, int64_t n) { int64_t i = blockIdx.x*256ll + threadIdx.x; if (i < n) out[i] = x[i]*FACTOR; }
extern "C" void f(float* out, const float* x, int64_t n, cudaStream_t stream) { all<<<(n + 255)/256, 256, 0, stream>>>(out, x, n); }
#else
extern "C" void f(float* out, const float* x, int64_t n, void*) { for (int64_t i = 0; i < n; ++i) out[i] = x[i]*FACTOR; }
#endif
'''
LIMIT = 120.                 # seconds for a judgement that was disturbed, all attempts and new processes included


def candidate(right: bool, target: str) -> Candidate:
    return Candidate((('model_new.py', MODEL), (f'kernels/f.{"cu" if target == "cuda" else "cpp"}', CODE.replace('FACTOR', '3.0f' if right else '2.9f'))))


def options(target: str, **more) -> JudgeOptions: return JudgeOptions(target=target, compile=False, max_pairs=9, timeout=60., **more)


# ---- what is there before and after

def descendants(pid: int) -> set:
    "Processes below this one, of any depth."
    parents = {}
    for p in filter(str.isdigit, os.listdir('/proc')):
        try: parents[int(p)] = int(Path(f'/proc/{p}/stat').read_text().rsplit(')', 1)[1].split()[1])
        except OSError: pass
    found, new = set(), {pid}
    while new:
        new = {p for p, q in parents.items() if q in new} - found
        found |= new
    return found


def survivors(marks: set) -> list:
    "Command lines of processes whose environment or folder names one of these folders."
    out = []
    for p in filter(str.isdigit, os.listdir('/proc')):
        if int(p) == os.getpid(): continue
        try: text = Path(f'/proc/{p}/environ').read_bytes() + os.readlink(f'/proc/{p}/cwd').encode()
        except OSError: continue
        if any(m.encode() in text for m in marks): out.append(Path(f'/proc/{p}/cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace')[:120])
    return out


def device_bytes() -> int:
    "Bytes of the first GPU that are in use, by NVML; 0 where there is none. Makes no context."
    if not gpus(): return 0
    out = subprocess.run(['nvidia-smi', '--query-gpu=memory.used', '--format=csv,noheader,nounits'], capture_output=True, text=True).stdout
    return int(out.split()[0]) << 20


class Watched:
    "Notes what is there, and tells what stayed. Temporary folders are made in one of its own meanwhile."
    def __enter__(self):
        self.folder, self.before, self.device = tempfile.mkdtemp(prefix='faults-'), tempfile.tempdir, device_bytes()
        self.shared, self.kept = set(os.listdir('/dev/shm')), os.environ.get('TMPDIR')
        tempfile.tempdir = os.environ['TMPDIR'] = self.folder
        return self

    def __exit__(self, *_):
        tempfile.tempdir = self.before
        if self.kept is None: del os.environ['TMPDIR']
        else: os.environ['TMPDIR'] = self.kept
        shutil.rmtree(self.folder, ignore_errors=True)

    def left(self, seconds: float = 10.) -> dict:
        "What stayed after the work has ended; waits a little for processes that are just ending."
        end = time.monotonic() + seconds
        while True:
            files = [str(p.relative_to(self.folder)) for p in Path(self.folder).rglob('*') if 'cache' not in p.relative_to(self.folder).parts and p.suffix != '.lock']      # a device's lock stays for others
            out = dict(processes=survivors({self.folder}), files=files[:20], shared=sorted(set(os.listdir('/dev/shm')) - self.shared), device_mib=max(0, device_bytes() - self.device) >> 20)
            if not any(out.values()) or time.monotonic() > end: return out
            time.sleep(.2)


# ---- kills

def kill_one(pool: LocalPool, who: str, rng, until: threading.Event, most: float) -> str:
    "SIGKILL for a process of the pool at a random moment within `most` seconds; what was hit, '' if there was nothing any more."
    if until.wait(rng.uniform(0, most)): return ''
    workers = [c for h in list(pool.judges.values()) for c in list(h.workers.values())]
    if who == 'judge': pids = [h.child.pid for h in list(pool.judges.values())]
    elif who == 'parent': pids = [pool.zygote(rng.choice(('trusted', 'candidate'))).pid]
    else: pids = [c.pid for c in workers if c.role == who]
    if not pids or not pids[-1]: return ''
    try: os.kill(pids[-1], signal.SIGKILL)
    except ProcessLookupError: return ''
    return who


def kills(number: int, target: str, seed: int, say=print) -> dict:
    "Judgements of a right and a wrong candidate in turn, until `number` kills have hit a process: the candidate's in two of three cases, else the baseline's, the judge's or their parents'."
    rng, hits, verdicts, wrong, slowest, n = random.Random(seed), collections.Counter(), collections.Counter(), [], 0., 0
    with Watched() as watched:
        with LocalPool(target=target, keep=2, cache=watched.folder + '/cache/builds') as pool:
            for right in (True, False): pool.judge(TASK, candidate(right, target), options(target))          # builds, and a judge that is warm
            took = max(.3, min(pool.judge(TASK, candidate(True, target), options(target)).evidence['total_seconds'] for _ in range(3)))
            while sum(hits.values()) < number:
                right, who, done, hit = n % 2 == 0, rng.choice(('candidate',)*6 + ('baseline', 'judge', 'parent')), threading.Event(), []
                n += 1
                t = threading.Thread(target=lambda: hit.append(kill_one(pool, who, rng, done, took)))
                start = time.monotonic(); t.start()
                v = pool.judge(TASK, candidate(right, target), options(target))
                done.set(); t.join()
                seconds = time.monotonic() - start
                slowest = max(slowest, seconds)
                hits[hit[0]] += bool(hit[0])
                told = 'as it is' if (v.correct if right else v.reason == 'wrong_result') else 'infra_error' if v.infra else 'WRONG'
                verdicts[told] += bool(hit[0]) or told != 'as it is'
                if told == 'WRONG' or seconds > LIMIT: wrong.append(dict(right=right, killed=hit[0], status=v.status, reason=v.reason, message=v.message, seconds=round(seconds, 1)))
                if n % 25 == 0: say(f'{sum(hits.values())} kills in {n} judgements, {dict(verdicts)}')
            after = [pool.judge(TASK, candidate(right, target), options(target)) for right in (True, False)]
            well = after[0].correct and after[1].reason == 'wrong_result'
        left = watched.left()
    hits.pop('', None)
    return dict(judgements=n, kills=dict(hits), verdicts={k: v for k, v in verdicts.items() if v}, wrong=wrong, well_afterwards=well, slowest_seconds=round(slowest, 1), left=left,
                ok=well and not wrong and not any(left.values()))


# ---- a full disk

FILL = '''
import sys; sys.path.insert(0, {tools!r})
import faults; faults.on_a_full_disk({folder!r}, {target!r})
'''


def disk(target: str, say=print) -> dict:
    "Judgements while the file system that holds the temporary folders and the cache is full, and after it has room again. Needs a private mount (user namespaces or root); says so where there is none."
    with Watched() as watched:
        folder = watched.folder + '/cache/small'
        os.makedirs(folder)
        text = FILL.format(tools=str(Path(__file__).resolve().parent), folder=folder, target=target)
        mount = f'mount -t tmpfs -o size=192m tmpfs {folder} && exec "$@"'
        for flags in (['-m'], ['-rm']):
            if subprocess.run(['unshare', *flags, 'sh', '-c', mount, 'sh', 'true'], capture_output=True).returncode == 0: break
        else: return dict(ok=True, skipped='no private mount is possible here')
        p = subprocess.run(['unshare', *flags, 'sh', '-c', mount, 'sh', sys.executable, '-c', text], capture_output=True, text=True, timeout=900)
        if p.returncode: return dict(ok=False, error=(p.stdout + p.stderr)[-2000:])
        out = json.loads(p.stdout.splitlines()[-1])
        left = watched.left()
    return dict(**out, left=left, ok=out['well_afterwards'] and not out['wrong'] and not any(left.values()))


def on_a_full_disk(folder: str, target: str):
    "In the private mount: prints a line of JSON."
    tempfile.tempdir = os.environ['TMPDIR'] = folder
    verdicts, wrong, slowest = [], [], 0.
    def judged(pool, when, right, extra=''):
        nonlocal slowest
        c = candidate(right, target)
        if extra: c = Candidate(tuple((p, t + extra) for p, t in c.files))                # has to be built
        t = time.monotonic()
        v = pool.judge(TASK, c, options(target))
        slowest = max(slowest, time.monotonic() - t)
        told = f'{v.status} {v.reason}'.strip()
        verdicts.append(f'{when}, {"right" if right else "wrong"}{", to be built" if extra else ""}: {told}')
        if not (v.infra or (v.correct if right else v.reason == 'wrong_result')): wrong.append(dict(when=when, right=right, status=v.status, reason=v.reason, message=v.message))
        return v
    with LocalPool(target=target, keep=2, cache=folder + '/builds', reuse=True) as pool:
        for right in (True, False): judged(pool, 'before', right)
        filler = Path(folder, 'filler')
        with open(filler, 'wb', buffering=0) as f:
            try:
                while True: f.write(bytes(1 << 16))
            except OSError: pass
        pool.reuse = False
        for right in (True, False): judged(pool, 'full', right)
        for right in (True, False): judged(pool, 'full', right, '\n')
        filler.unlink()
        well = judged(pool, 'after', True).correct and judged(pool, 'after', False).reason == 'wrong_result' and judged(pool, 'after', True, '\n\n').correct
    print(json.dumps(dict(verdicts=verdicts, wrong=wrong, well_afterwards=well, slowest_seconds=round(slowest, 1))))


# ---- interrupts

def interrupts(number: int, target: str, seed: int, say=print) -> dict:
    "`calab judge` on a folder, with Ctrl-C at a random moment: it ends, with its own exit status, and leaves nothing."
    rng, ends, slow, stayed = random.Random(seed), collections.Counter(), 0., []
    with Watched() as watched:
        home = Path(watched.folder, 'cache')
        folder = make_workspace(home/'work', TASK, target)
        write_candidate(folder, candidate(True, target))
        argv, env = [sys.executable, '-m', 'cuda_agent_lab.cli', 'judge', str(folder), '--target', target, '--no-compile'], os.environ | dict(CALAB_CACHE=str(home/'builds'))
        for _ in range(2):                                               # the second has its build
            t = time.monotonic()
            first = subprocess.run(argv, env=env, capture_output=True, text=True)
            whole = time.monotonic() - t
        if first.returncode: return dict(ok=False, error=(first.stdout + first.stderr)[-1000:])
        for k in range(number):
            p = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))        # a shell's background jobs ignore it
            time.sleep(rng.uniform(0, .9*whole))
            start = time.monotonic()
            os.killpg(p.pid, signal.SIGINT)                          # as a terminal sends it: to all in the foreground
            try: said = p.communicate(timeout=LIMIT)[1]
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL); said = p.communicate()[1]
                stayed.append('it did not end')
            slow = max(slow, time.monotonic() - start)
            ends[p.returncode] += 1
            left = watched.left()
            if any(left.values()): stayed.append(dict(at=k, said=said[-300:], **left))
            if (k + 1) % 5 == 0: say(f'{k + 1} interrupts, exit statuses {dict(ends)}')
    return dict(interrupts=number, exit_statuses={str(k): v for k, v in ends.items()}, slowest_seconds=round(slow, 1), left=stayed, ok=not stayed)


# ---- many in a row

def usage(pid: int) -> dict:
    "Memory of a process that it shares with nobody, in MiB, and its open files."
    try:
        pages = {l.split(':')[0]: int(l.split()[1]) for l in Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()[1:]}
        return dict(mib=round((pages['Private_Clean'] + pages['Private_Dirty'])/1024, 1), files=len(os.listdir(f'/proc/{pid}/fd')))
    except OSError: return {}


def row(number: int, target: str, seed: int, say=print) -> dict:
    "Right and wrong candidates in turn for one judge: memory and files of all processes that live through it, at a tenth and at the end."
    wrong, points = [], []
    with Watched() as watched:
        with LocalPool(target=target, keep=2, cache=watched.folder + '/cache/builds') as pool:
            judge = None
            for k in range(number):
                right = k % 3 != 0
                v = pool.judge(TASK, candidate(right, target), options(target))
                if not (v.correct if right else v.reason == 'wrong_result'): wrong.append(dict(at=k, status=v.status, reason=v.reason, message=v.message))
                handle = next(iter(pool.judges.values()))
                judge = judge or handle.child.pid
                if k + 1 in (max(10, number//10), number//2, number):
                    who = dict(judge=handle.child.pid, driver=os.getpid(), trusted_parent=pool.zygote().pid, candidates_parent=pool.zygote('candidate').pid)
                    who |= {c.role: c.pid for c in handle.workers.values() if c.role == 'baseline'}
                    points.append(dict(after=k + 1, one_judge=handle.child.pid == judge, homes=len(list(Path(watched.folder).rglob('homes/*'))), device_mib=device_bytes() >> 20, **{n: usage(p) for n, p in who.items()}))
                    say(json.dumps(points[-1]))
        left = watched.left()
    grown = {n: dict(mib=round(points[-1][n]['mib'] - points[0][n]['mib'], 1), files=points[-1][n]['files'] - points[0][n]['files']) for n in points[-1] if isinstance(points[-1][n], dict) and points[-1][n] and points[0].get(n)}
    drift = [n for n, g in grown.items() if g['mib'] > 16 or g['files'] > 2]
    return dict(candidates=number, points=points, grown=grown, drift=drift, wrong=wrong, left=left, ok=not drift and not wrong and not any(left.values()) and all(p['one_judge'] for p in points))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', nargs='*', choices=[[], 'kills', 'disk', 'interrupts', 'row'], default=[])
    parser.add_argument('--number', type=int)
    parser.add_argument('--target', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', type=Path)
    args = parser.parse_args()
    say = lambda text: print(text, file=sys.stderr, flush=True)
    todo = dict(kills=lambda: kills(args.number or 200, args.target, args.seed, say), disk=lambda: disk(args.target, say),
                interrupts=lambda: interrupts(args.number or 20, args.target, args.seed, say), row=lambda: row(args.number or 500, args.target, args.seed, say))
    found = {}
    for name in args.what or todo:
        t = time.monotonic()
        found[name] = todo[name]() | dict(seconds=round(time.monotonic() - t)) | ({'number': args.number} if args.number else {})
        print(name, json.dumps(found[name]), flush=True)
    if args.number is None or args.out:
        path = (args.out or FIGURES)/f'faults_{args.target}.json'
        kept = json.loads(path.read_text()) if args.what and path.exists() else {}
        about = dict(command=f'python tools/faults.py{" --target cuda" if args.target == "cuda" else ""}', date=datetime.date.today().isoformat(), device=device_name(args.target), torch=torch.__version__)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept | about | found, indent=1) + '\n')
    return int(not all(f['ok'] for f in found.values()))


if __name__ == '__main__': sys.exit(main())
