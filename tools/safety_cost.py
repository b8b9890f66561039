"""What each signal of honesty and each level of isolation costs: seconds per verdict with it and without it, in rounds of all of them in random order.

  python tools/safety_cost.py                         -> figures/safety_cost_cpu.json, about 7 minutes
  python tools/safety_cost.py --target cuda           -> figures/safety_cost_cuda.json, on a GPU

A signal is taken away in the processes of a pool of its own, by a module that their parents import; the package has no such switches. Two pools without any difference can still differ by a tenth, by where
their memory lies. So there are several sets of pools, one after the other, and the error is that between sets; the level `process` is such a second pool, and a control. --sets N, --rounds N in each, --out FOLDER."""
import argparse, datetime, json, math, os, random, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median, stdev
from unittest.mock import patch
import torch
from cuda_agent_lab.devices import device_name
from cuda_agent_lab.isolation import LEVELS, obstacle
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
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
    'fresh values in timed calls': 'fill = exchange.Side.write\nexchange.Side.write = lambda self, draw, factors=None, slot=0: None if factors is not None and slot in self.written else fill(self, draw, None, slot)\n'
                                   'clocks.Clocks.check_timed = lambda *a: None\nreferee.Judge.is_stale = lambda *a: False',
    'inputs held back': 'exchange.Side.hold = lambda self, times: None\nexchange.Side.write_late = lambda self: self.channel.sock.sendall(b"!")',
    'second clock': 'clocks.Clocks.confirm = lambda *a: {}',
}
ON_A_GPU = {                  # there it is done in another way, or only there
    'inputs held back': 'exchange.Gate, worker.DELAY = lambda: None, 1',
    'cache emptied by the judge as well': 'whole = exchange.Side.release\nexchange.Side.release = lambda self, times, cold: whole(self, times, False)',
    'stopped while others are timed': 'import contextlib\nexchange.Side.apart = lambda self: contextlib.nullcontext()\nclocks.IDLE_SECONDS = 0.'}


def pool_without(what: str, folder: Path, **more) -> LocalPool:
    "A pool without one of WITHOUT or ON_A_GPU ('' for none)."
    pool = LocalPool.__new__(LocalPool)
    if what:
        statements = (WITHOUT | ON_A_GPU)[what]
        name = 'without_' + ''.join(c if c.isalnum() else '_' for c in what)
        (folder/f'{name}.py').write_text('from cuda_agent_lab import clocks, draws, exchange, referee, worker\n' + statements + '\n')
        pool.preload = {role: (*modules, name) for role, modules in LocalPool.preload.items()}
    pool.__init__(keep=2, **more)
    return pool


def verdict_seconds(pool, task, candidate, opts) -> float:
    t = time.perf_counter()
    v = pool.judge(task, candidate, opts)
    if not v.correct: raise SystemExit(f'{task.id} was not judged: {v.status} {v.reason} {v.message}')
    return time.perf_counter() - t


def measure(pools: dict, job: tuple, rounds: int, say) -> dict:
    "{name: [seconds of a verdict in that pool, one of each round]}; the order within a round is random."
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads: list(threads.map(lambda p: [verdict_seconds(p, *job) for _ in range(2)], pools.values()))
    seconds = {name: [] for name in pools}
    for k in range(rounds):
        for name in random.sample(list(pools), len(pools)): seconds[name].append(verdict_seconds(pools[name], *job))
        say(f'round {k + 1} of {rounds}')
    return seconds


def difference(base: list, other: list) -> dict:
    "Of lists of seconds, one for each set of pools: means of their medians, the mean of what they differ by (the median of the differences within a round), and its standard error between sets."
    d = [median(a - b for a, b in zip(x, y)) for x, y in zip(base, other)]
    error = stdev(d)/len(d)**.5 if len(d) > 1 else math.nan
    return dict(base=round(mean(map(median, base)), 4), other=round(mean(map(median, other)), 4), difference=round(mean(d), 4), error=round(error, 4))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--target', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--sets', type=int, default=4)
    parser.add_argument('--rounds', type=int, default=4)
    parser.add_argument('--out', type=Path, default=FIGURES)
    args = parser.parse_args()
    opts = JudgeOptions(target=args.target, compile=False, max_pairs=17)
    job_name, job = '256 x 256 times 3', (TASK, candidate(True, args.target), opts)            # next to no work: what is left is the judge
    missing = {level: why for level in LEVELS if (why := obstacle(level))}
    seconds = {}
    for k in range(args.sets):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [folder, os.environ.get('PYTHONPATH', '')]))))
            made = lambda what, level: stack.enter_context(pool_without(what, Path(folder), target=args.target, isolation=level))
            pools = {'': made('', 'process')} | {what: made(what, 'process') for what in WITHOUT | (ON_A_GPU if args.target == 'cuda' else {})}
            pools |= {level: made('', level) for level in LEVELS[::-1] if level not in missing}
            found = measure(pools, job, args.rounds, lambda text: print(f'set {k + 1} of {args.sets}, {text}', file=sys.stderr, flush=True))
        for name, v in found.items(): seconds.setdefault(name, []).append(v)
    found = {what: {job_name: difference(seconds[''], v)} for what, v in seconds.items() if what}
    about = dict(command=f'python tools/safety_cost.py{" --target cuda" if args.target == "cuda" else ""}{f" --sets {args.sets}" if args.sets != 4 else ""}{f" --rounds {args.rounds}" if args.rounds != 4 else ""}', date=datetime.date.today().isoformat(), device=device_name(args.target), torch=torch.__version__,
                 jobs={job_name: dict(pairs=opts.max_pairs, draws=opts.draws)}, sets=args.sets, rounds=args.rounds)
    kept = about | dict(signals={k: v for k, v in found.items() if k not in LEVELS}, levels={k: dict(missing=missing[k]) if k in missing else found[k] for k in LEVELS[::-1]})
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out/f'safety_cost_{args.target}.json').write_text(json.dumps(kept, indent=1) + '\n')
    print('\n'.join(f'{k:45} {1e3*v[job_name]["difference"]:7.1f} +- {1e3*v[job_name]["error"]:.1f} ms of {v[job_name]["base"]:.3f} s' for k, v in found.items()))
    return 0


if __name__ == '__main__': sys.exit(main())
