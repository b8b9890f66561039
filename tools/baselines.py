"""Times of eager and of torch.compile for a whole set of tasks, as the referee takes them: several tasks are compiled at a time, one at a time is measured.

  python tools/baselines.py KernelBench.jsonl --target cuda --name kernelbench     -> figures/baselines_kernelbench_cuda.json
  python tools/baselines.py suite                                                   -> figures/baselines_suite_cpu.json

--precision fp32, tf32 or bf16 for both. A task that cannot judge anything is in the file with the reason."""
import argparse, collections, datetime, json, math, os, sys, tempfile, threading, time
from pathlib import Path
from statistics import median
import torch
from cuda_agent_lab.compilers import gpus
from cuda_agent_lab.devices import device_name
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import load_tasks

FIGURES = Path(__file__).resolve().parent.parent/'figures'


def row(task, v, at: float) -> dict:
    "What is kept of a task."
    about = dict(task=task.id, level=task.level, status=v.status, at=round(at, 1))
    if not v.correct: return about | dict(message=v.message)
    t, compile, ratio = v.timing, v.evidence['compile'] or {}, v.evidence.get('speedup_of_compile')
    of = lambda k: {f'{k}_ms': round(t[k].median_ms, 5), f'{k}_spread': round(t[k].spread, 5)} if t.get(k) else {}
    return about | of('eager') | of('compiled') | (dict(speedup={k: round(ratio[k], 4) for k in ('median', 'lo', 'hi')}) if ratio else {}) | dict(compile_seconds=round(compile.get('seconds', 0), 1), **{k: compile[k] for k in ('error',) if k in compile})


def summary(rows: list, seconds: float) -> dict:
    "Of all rows: how many of each status, and torch.compile against eager."
    ratios = [r['speedup'] for r in rows if 'speedup' in r]
    of = lambda rs: round(math.exp(sum(math.log(r['median']) for r in rs)/len(rs)), 4) if rs else None
    levels = sorted({r['level'] for r in rows if r['level']})
    return dict(tasks=len(rows), seconds=round(seconds, 1), statuses=dict(collections.Counter(r['status'] for r in rows)), compiled=len(ratios), faster_than_eager=sum(r['lo'] > 1 for r in ratios),
                slower_than_eager=sum(r['hi'] < 1 for r in ratios), slower_by_5_per_cent=sum(r['hi'] < .95 for r in ratios), geomean=of(ratios),
                geomean_of_level={level: of([r['speedup'] for r in rows if 'speedup' in r and r['level'] == level]) for level in levels},
                spread=round(100*median(r['eager_spread'] for r in rows if 'eager_spread' in r), 3) if ratios else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('tasks')
    parser.add_argument('--target', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--precision', default='fp32', choices=('fp32', 'tf32', 'bf16'))
    parser.add_argument('--level', type=int)
    parser.add_argument('--limit', type=int)
    parser.add_argument('--name', default='')
    parser.add_argument('--out', type=Path, default=FIGURES)
    args = parser.parse_args()
    tasks = load_tasks(args.tasks, level=args.level, limit=args.limit, size='gpu' if args.target == 'cuda' else 'cpu')
    name = args.name or Path(args.tasks).stem
    options = ''.join(f' --{k} {v}' for k, v in vars(args).items() if k not in ('tasks', 'out') and v != parser.get_default(k))
    about = dict(command=f'python tools/baselines.py {Path(args.tasks).name}{options}', date=datetime.date.today().isoformat(), device=gpus()[0].name if args.target == 'cuda' else device_name('cpu'),
                 cores=len(os.sched_getaffinity(0)), torch=torch.__version__, precision=args.precision)
    args.out.mkdir(parents=True, exist_ok=True)
    rows, lock, start = [], threading.Lock(), time.monotonic()
    def keep(): (args.out/f'baselines_{name}_{args.target}.json').write_text(json.dumps(about | summary(rows, time.monotonic() - start) | dict(rows=sorted(rows, key=lambda r: r['task']))) + '\n')
    def each(task, v):
        with lock:
            rows.append(row(task, v, time.monotonic() - start))
            print(f"{len(rows)} of {len(tasks)}, {rows[-1]['at']:.0f} s: {task.id}: {v.status} {v.message if not v.correct else rows[-1].get('speedup', '')}", file=sys.stderr, flush=True)
            if len(rows) % 10 == 0: keep()
    with tempfile.TemporaryDirectory() as cache, LocalPool(target=args.target, cache=Path(cache)/'builds', builders=len(os.sched_getaffinity(0))) as pool:
        pool.prepare(tasks, JudgeOptions(target=args.target, precision=args.precision), each)
    keep()
    print(json.dumps(summary(rows, time.monotonic() - start), indent=1))


if __name__ == '__main__': main()
