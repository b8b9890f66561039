"""What each signal of honesty and each level of isolation costs: seconds per verdict with it and without it, taken in turn.

  python tools/safety_cost.py                         -> figures/safety_cost_cpu.json, about 5 minutes
  python tools/safety_cost.py --target cuda           -> figures/safety_cost_cuda.json, on a GPU

A signal is taken away in the processes of a pool of its own, by a module that their parents import; the package has no such switches. --rounds N, --out FOLDER."""
import argparse, datetime, json, os, sys, tempfile, time
from pathlib import Path
from statistics import median
import torch
from cuda_agent_lab.isolation import LEVELS, obstacle
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions, device_name
from cuda_agent_lab.zygote import Zygote
from faults import TASK, candidate

FIGURES = Path(__file__).resolve().parent.parent/'figures'
# What is taken away -> statements for the processes of judges and workers.
WITHOUT = {
    'operators watched in checked calls': 'whole = exchange.Side.call\nexchange.Side.call = lambda *a, guard=False, **k: whole(*a, **k)\nreferee.check_honest = lambda *a: {}',
    'operators forbidden in the process': 'worker.forbid_operators = lambda *a: None',
    'other libraries hidden': 'worker.hide_libraries = lambda users=(): lambda: None',
    'files, processes, sockets noted': 'worker.watch_events = lambda *a: None',
    'replaced functions noticed': 'worker.callables = dict',
    'symbols of the library read': 'referee.forbidden_symbols = lambda *a: []',
    'variants of the draws': 'draws.VARIANTS = ()',
    'outputs poisoned': 'exchange.Side.poison = lambda self, times=1: None',
    'fresh values in timed calls': 'fill = exchange.Side.write\nexchange.Side.write = lambda self, draw, factors=None, slot=0: None if factors is not None and self.draw is not None else fill(self, draw)\n'
                                   'referee.Judge.check_timed = lambda *a: None\nreferee.Judge.is_stale = lambda *a: False',
    'inputs held back': 'exchange.Side.hold = lambda self, times: None\nexchange.Side.write_late = lambda self: self.channel.sock.sendall(b"!")',
    'second clock': 'referee.Judge.confirm = lambda *a: {}',
}
ON_A_GPU = {                  # there it is done in another way
    'inputs held back': 'exchange.Gate, worker.DELAY = lambda: None, 1'}


class Stripped(LocalPool):
    "A pool whose processes import a module first."
    extra: tuple = ()

    def _new_zygote(self, role):
        preload = () if role == 'candidate' else ('torch._inductor.compile_fx', 'torch._inductor.codegen.cpp', 'cuda_agent_lab.judge')
        return Zygote(self.root if role == 'trusted' else None, preload=('torch._dynamo', *preload, *self.extra), level=self.isolation if role == 'candidate' else 'process')


def pool_without(what: str, folder: Path, **more) -> LocalPool:
    "A pool without one of WITHOUT or ON_A_GPU ('' for none)."
    pool = Stripped.__new__(Stripped)
    if what:
        statements = (WITHOUT | ON_A_GPU)[what]
        name = 'without_' + ''.join(c if c.isalnum() else '_' for c in what)
        (folder/f'{name}.py').write_text('from cuda_agent_lab import draws, exchange, referee, worker\n' + statements + '\n')
        pool.extra = (name,)
    pool.__init__(keep=2, **more)
    return pool


def verdict_seconds(pool, task, candidate, opts) -> float:
    t = time.perf_counter()
    v = pool.judge(task, candidate, opts)
    if not v.correct: raise SystemExit(f'{task.id} was not judged: {v.status} {v.reason} {v.message}')
    return time.perf_counter() - t


def compare(base, other, jobs, rounds: int) -> dict:
    "Of each job the median seconds per verdict in both pools, and the median of the paired differences."
    for pool in (base, other):
        for job in jobs.values():
            for _ in range(2): verdict_seconds(pool, *job)
    out = {}
    for name, job in jobs.items():
        pairs = []
        for k in range(rounds):
            took = {p: verdict_seconds(p, *job) for p in ((base, other) if k % 2 else (other, base))}
            pairs.append((took[base], took[other]))
        out[name] = dict(base=round(median(a for a, _ in pairs), 4), other=round(median(b for _, b in pairs), 4), difference=round(median(a - b for a, b in pairs), 4))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--target', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--out', type=Path, default=FIGURES)
    args = parser.parse_args()
    say = lambda text: print(text, file=sys.stderr, flush=True)
    opts = JudgeOptions(target=args.target, compile=False, max_pairs=17)
    jobs = {'256 x 256 times 3': (TASK, candidate(True, args.target), opts)}               # next to no work: what is left is the judge
    signals, levels = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [folder, os.environ.get('PYTHONPATH', '')]))
        weakest = dict(target=args.target, isolation='process')
        with pool_without('', Path(folder), **weakest) as base:
            for what in WITHOUT | (ON_A_GPU if args.target == 'cuda' else {}):
                with pool_without(what, Path(folder), **weakest) as other: signals[what] = compare(base, other, jobs, args.rounds)
                say(f'without {what}: {signals[what]}')
            for level in LEVELS[::-1]:
                if why := obstacle(level): levels[level] = dict(missing=why); continue
                with pool_without('', Path(folder), target=args.target, isolation=level) as other: levels[level] = compare(base, other, jobs, args.rounds)
                say(f'at level {level}: {levels[level]}')
    about = dict(command=f'python tools/safety_cost.py{" --target cuda" if args.target == "cuda" else ""}{f" --rounds {args.rounds}" if args.rounds != 15 else ""}', date=datetime.date.today().isoformat(), device=device_name(args.target), torch=torch.__version__,
                 jobs={n: dict(pairs=opts.max_pairs, draws=opts.draws) for n in jobs}, rounds=args.rounds)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out/f'safety_cost_{args.target}.json').write_text(json.dumps(about | dict(signals=signals, levels=levels), indent=1) + '\n')
    return 0


if __name__ == '__main__': sys.exit(main())
