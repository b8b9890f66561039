"""How many candidates a minute, and what limits it: 300 different candidates of a training step through one pool, and some of them through the released workflow.

  python tools/throughput.py --target cuda            -> figures/throughput_cuda.json, on a GPU: about 6 minutes
  python tools/throughput.py --number 40 --tasks 4    -> figures/throughput_cpu.json

30 % do not compile, 20 % are wrong, 50 % are right; the cache is empty, and nothing is known about any task. So many clients (--clients) each wait for a verdict before they send the next candidate; a latency
is what one of them waits. Afterwards some of the right ones are judged again while nothing else runs: what the compilers did to the spread of the times. --released N candidates go through `released.py`."""
import argparse, collections, datetime, json, os, random, re, sys, tempfile, threading, time
from pathlib import Path
from statistics import median
import torch
from cuda_agent_lab.compilers import gpus
from cuda_agent_lab.devices import device_name
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.quiet import InfraError
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.verdict import Verdict
from cuda_agent_lab.workspace import write_candidate
from honest import TEMPLATES, Case, as_pybind, candidate, planned, suite, texts
from mutants import CUDA_FAULTS, FAULTS, Right, of_text

FIGURES = Path(__file__).resolve().parent.parent/'figures'
SHARES = dict(broken=.3, wrong=.2, right=.5)
SURE = ('denominator', 'sign', 'last element', 'last block', 'truncated sum', 'start value', 'missing term', 'constant')      # faults that most draws show
BREAKS = {
    'a semicolon': lambda k, rng: without(k, rng.choice([m.end() - 1 for m in re.finditer(r'[\w)\]];(?=\n)', k)])), 'a closing brace': lambda k, rng: without(k, k.rindex('}')),
    'a name that is not declared': lambda k, rng: k + 'static int rows_of_a_block = rows_of_a_tile;\n',
    'a type that does not exist': lambda k, rng: k.replace('float*', 'float4x*', 1), 'a missing include': lambda k, rng: '#include "tile.cuh"\n' + k}


def without(text: str, at: int) -> str: return text[:at] + text[at + 1:]


def cases(target: str, number: int, tasks: int, size: str, seed: int) -> list[Case]:
    "So many different candidates for so many tasks of all levels, in random order."
    rng = random.Random(f'throughput {target} {seed}')
    usable = [t for t in suite(size).values() if planned(t)]
    by_level = [rng.sample(ts, len(ts)) for level in (1, 2, 3) if (ts := [t for t in usable if t.level == level])]
    chosen = [t for row in zip(*by_level) for t in row][:tasks]
    chosen += [t for t in usable if t not in chosen][:tasks - len(chosen)]
    out, seen = [], set()
    for kind, share in SHARES.items():
        n = 0
        while n < round(share*number):
            task = rng.choice(chosen)
            kernel, model = texts(task, TEMPLATES[target].random_knobs(planned(task), target, rng), target)
            if kind == 'broken':
                how = rng.choice(sorted(BREAKS))
                kernel = BREAKS[how](kernel, rng)
                case = Case(task, candidate(kernel, model, target), kind, how)
            elif kind == 'wrong':
                mutants = of_text(Right(task, kernel, model, target), [f for f in (CUDA_FAULTS if target == 'cuda' else FAULTS) if f[0] in SURE and not re.search('e-|0.0|none', f[1])])
                if not mutants: continue
                m = rng.choice(mutants)
                case = Case(task, m.candidate, kind, f'{m.kind}: {m.how}')
            else: case = Case(task, candidate(kernel, model, target), kind, '')
            if (key := (task.hash, case.candidate.hash)) in seen: continue
            seen.add(key)
            out.append(case)
            n += 1
    return rng.sample(out, len(out))


def through_pool(pool, cases, opts, clients: int, say, keep) -> tuple[float, list[dict]]:
    "(seconds, a row for each case): `clients` threads take one case after the other; what is there is kept now and then."
    start, rows, left, lock = time.perf_counter(), [], list(reversed(cases)), threading.Lock()
    def client():
        while True:
            with lock:
                if not left: return
                case = left.pop()
            t = time.perf_counter()
            try: v = pool.judge(case.task, case.candidate, opts)
            except InfraError as e: v = Verdict('infra_error', message=str(e))
            row = dict(task=case.task.id, kind=case.kind, how=case.how, status=v.status, reason=v.reason, latency=round(time.perf_counter() - t, 3), at=round(t - start, 2),
                       build=v.evidence.get('build_seconds'), queued=v.evidence.get('queued_seconds'), seconds=v.evidence.get('seconds', {}), pairs=v.evidence.get('pairs'), message=v.message[:120],
                       spread={k: t.spread for k, t in v.timing.items() if t}, ms={k: t.median_ms for k, t in v.timing.items() if t})
            with lock:
                rows.append(row)
                if len(rows) % 25 == 0:
                    say(f'{len(rows)} of {len(cases)}, {time.perf_counter() - start:.0f} s')
                    keep(summary(time.perf_counter() - start, rows, clients), rows)
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for t in threads: t.start()
    for t in threads: t.join()
    return time.perf_counter() - start, rows


def quantile(x, q): return sorted(x)[min(int(q*len(x)), len(x) - 1)] if x else float('nan')


def summary(seconds: float, rows: list, clients: int) -> dict:
    "What people ask: how many a minute, how long one waits, where the time goes."
    lat, booked = [r['latency'] for r in rows], collections.Counter()
    for r in rows:
        for k, v in r['seconds'].items(): booked[k] += v
        booked['build'] += r['build'] or 0
        booked['queued'] += r['queued'] or 0
    right = [r for r in rows if r['kind'] == 'right']
    middle = lambda of: round(median([of(r) or 0 for r in right] or [0]), 3)
    return dict(candidates=len(rows), seconds=round(seconds, 1), per_minute=round(60*len(rows)/seconds, 1), clients=clients, median_latency=round(median(lat), 2), p95_latency=round(quantile(lat, .95), 2),
                largest_latency=max(lat), statuses={k: dict(collections.Counter(r['status'] for r in rows if r['kind'] == k)) for k in SHARES}, booked={k: round(v, 1) for k, v in booked.most_common()},
                time_of_a_right_one=dict(build=middle(lambda r: r['build']), queued=middle(lambda r: r['queued']), **{k: middle(lambda r: r['seconds'].get(k)) for k in ('draw', 'open', 'load', 'check', 'baseline', 'wait', 'time', 'last', 'close')}),
                pairs=round(sum(r['pairs'] or 0 for r in right)/max(1, len(right)), 1))


def again_alone(pool, cases, rows, opts, number: int) -> dict:
    "The spread of the times of some right ones, then and now that nothing else runs."
    then = {(r['task'], r['how'], r['at']): r for r in rows if r['kind'] == 'right' and r['status'] == 'correct'}
    by_task = {}
    for c in cases:
        if c.kind == 'right': by_task.setdefault(c.task.id, c)
    chosen = list(by_task.values())[:number]
    alone = [dict(task=c.task.id, **{k: getattr(v.timing['eager'], k) for k in ('spread', 'median_ms')}) for c in chosen if (v := pool.judge(c.task, c.candidate, opts)).correct]
    busy = {a['task']: [r for r in then.values() if r['task'] == a['task']] for a in alone}
    pairs = [(median(r['spread']['eager'] for r in busy[a['task']]), a['spread'], median(r['ms']['eager'] for r in busy[a['task']])/a['median_ms']) for a in alone if busy[a['task']]]
    if not pairs: return {}
    return dict(tasks=len(pairs), spread_busy=round(100*median(b for b, _, _ in pairs), 3), spread_idle=round(100*median(i for _, i, _ in pairs), 3),
                difference=round(100*median(b - i for b, i, _ in pairs), 3), time_busy_by_idle=round(median(r for _, _, r in pairs), 4), worst=round(100*max(b - i for b, i, _ in pairs), 3))


def through_released(cases, number: int, say) -> dict:
    "Some of the candidates, in the same shares, one after the other as an agent calls the scripts; those that do not compile end there."
    from released import workflow
    rng, rows = random.Random(0), []
    for kind, share in SHARES.items():
        for c in rng.sample([c for c in cases if c.kind == kind], max(1, round(share*number))):
            kernel, model = dict(c.candidate.files)['kernels/kernel.cu'], c.candidate.model_new
            with tempfile.TemporaryDirectory() as folder:
                write_candidate(folder, as_pybind(kernel, model, 'cuda'))
                Path(folder, 'model.py').write_text(c.task.source)
                o = workflow(Path(folder))
            rows.append(dict(kind=kind, status=o.status, seconds=o.seconds, says=o.says[-200:]))
            say(f'released: {kind}, {o.status}, {sum(o.seconds.values()):.1f} s')
    of = lambda kind: [sum(r['seconds'].values()) for r in rows if r['kind'] == kind]
    each = {k: sum(of(k))/len(of(k)) for k in SHARES}
    mean = sum(SHARES[k]*v for k, v in each.items())
    return dict(candidates=len(rows), clients=1, seconds_each={k: round(v, 1) for k, v in each.items()}, mean_seconds=round(mean, 2), per_minute=round(60/mean, 2), rows=rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--target', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--number', type=int, default=300)
    parser.add_argument('--tasks', type=int, default=18)
    parser.add_argument('--clients', type=int, default=0, help='candidates in flight; 0: as many as there are cores')
    parser.add_argument('--builders', type=int, default=0, help='builds and judgements at a time; 0: as many as there are cores')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--released', type=int, default=0)
    parser.add_argument('--idle', type=int, default=8)
    parser.add_argument('--out', type=Path, default=FIGURES)
    args = parser.parse_args()
    say = lambda text: print(text, file=sys.stderr, flush=True)
    cores = len(os.sched_getaffinity(0))
    size = 'gpu' if args.target == 'cuda' else 'cpu'
    found = cases(args.target, args.number, args.tasks, size, args.seed)
    options = ''.join(f' --{k} {v}' for k, v in vars(args).items() if k != 'out' and v != parser.get_default(k))
    about = dict(command=f'python tools/throughput.py{options}', date=datetime.date.today().isoformat(), device=gpus()[0].name if args.target == 'cuda' else device_name('cpu'), cores=cores, torch=torch.__version__,
                 tasks=len({c.task.id for c in found}))
    args.out.mkdir(parents=True, exist_ok=True)
    keep = lambda record, rows: (args.out/f'throughput_{args.target}.json').write_text(json.dumps(about | record | dict(rows=rows)) + '\n')
    opts = JudgeOptions(target=args.target)
    with tempfile.TemporaryDirectory() as cache, LocalPool(target=args.target, cache=Path(cache)/'builds', builders=args.builders or cores, keep=2*args.tasks) as pool:
        seconds, rows = through_pool(pool, found, opts, args.clients or cores, say, keep)
        record = summary(seconds, rows, args.clients or cores)
        keep(record, rows)
        record |= dict(spread=again_alone(pool, found, rows, opts, args.idle))
    if args.released: record |= dict(released=through_released(found, args.released, say))
    keep(record, rows)
    print(json.dumps(record, indent=1))


if __name__ == '__main__': main()
