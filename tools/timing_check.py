"""Can a time be believed? The same kernel on both sides, speed-ups that were planted, and one candidate in many processes.

  python tools/timing_check.py aa --target cuda          300 verdicts of a candidate that is the reference: how many see 5 %, how many doubt the clock  -> figures/timing_aa_cuda.json
  python tools/timing_check.py power --target cuda       candidates that are 0 to 20 % faster: who sees 5 %, beside the released ten calls             -> figures/timing_power_cuda.json, .svg, .png
  python tools/timing_check.py processes --target cuda   one candidate, judged by ten generations of processes                                          -> figures/timing_processes_cuda.json
  python tools/timing_check.py siblings                  a CPU, without a judge: eager in eight processes that know nothing of each other      -> figures/timing_siblings_cpu.json
  python tools/timing_check.py picture figures/timing_power_cuda.json                      draws the picture of a kept file again

--number N verdicts (of each planted speed-up), --clients N at a time, --out FOLDER. Everything is judged with --allow-torch: the candidate's kernels are eager's own."""
import argparse, datetime, json, math, os, random, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
import torch
from cuda_agent_lab.clocks import PLAIN_CLOCK, TRAIN_CLOCK
from cuda_agent_lab.devices import device_name
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.timing import summarise
from cuda_agent_lab.workspace import Candidate
from honest import suite

FIGURES = Path(__file__).resolve().parent.parent/'figures'
AA = ('rms_norm', 'gelu', 'row_softmax', 'linear_bias_leaky_scale', 'gated_silu', 'mlp', 'layer_norm_relu_residual', 'row_sum', 'token_mixer', 'squeeze_excite')
PLANTED = (0, 1, 3, 5, 7, 10, 20)         # per cent
FIVE = 1/.95                              # the paper's 5 %: of the baseline's time
# The reference does all rows and returns some; the candidate does only those. `rows` times 4 KB is what they share.
ROWS = '''
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x): return torch.nn.functional.gelu(x[:{did}])[:{rows}]
def get_inputs(): return [torch.randn({all}, 1024)]
def get_init_inputs(): return []
'''
SIZES = dict(cuda=dict(short=8192, long=131072), cpu=dict(short=512, long=4096))


def itself(task: Task) -> Candidate:
    "The reference as a candidate."
    return Candidate((('model_new.py', task.source.replace('class Model(', 'class ModelNew(').replace('super(Model,', 'super(ModelNew,')),))


def planted(rows: int, percent: float) -> tuple[Task, Candidate]:
    "A task, and the candidate that does `percent` less."
    most = rows*120//100
    text = lambda did: ROWS.format(did=did, rows=rows, all=most)
    return Task(f'{rows} rows and {percent} %', 1, text(round(rows*(1 + percent/100)))), Candidate((('model_new.py', text(rows).replace('class Model(', 'class ModelNew(')),))


def row(v, **about) -> dict:
    "What is kept of a verdict."
    if not v.correct: return about | dict(status=v.status, reason=v.reason, message=v.message)
    c, e = v.timing['candidate'], v.timing['eager']
    return about | dict(status='correct', speedup=v.speedup_eager['median'], lo=v.speedup_eager['lo'], hi=v.speedup_eager['hi'], n=c.n, ms=c.median_ms, eager_ms=e.median_ms, spread=e.spread,
                        milestone=v.milestone, second=c.method in (TRAIN_CLOCK, PLAIN_CLOCK))


def judged(pool, jobs: list, opts, clients: int, say) -> list[dict]:
    "A row for each (task, candidate, about), several at a time."
    done, start = [], time.monotonic()
    def one(job):
        task, candidate, about = job
        done.append(row(pool.judge(task, candidate, opts), **about))
        if len(done) % 50 == 0: say(f'{len(done)} of {len(jobs)}, {time.monotonic() - start:.0f} s')
    with ThreadPoolExecutor(clients) as threads: list(threads.map(one, jobs))
    return done


def aa(pool, opts, number: int, clients: int, target: str, say) -> dict:
    tasks = [suite('gpu' if target == 'cuda' else 'cpu')[n] for n in AA]
    jobs = [(t, itself(t), dict(task=t.id)) for _ in range(-(-number//len(tasks))) for t in tasks][:number]
    rows = judged(pool, jobs, opts, clients, say)
    right = [r for r in rows if r['status'] == 'correct']
    off = sorted(abs(math.log(r['speedup'])) for r in right)
    of = lambda t: [r for r in right if r['task'] == t.id]
    table = [dict(task=t.id, verdicts=len(of(t)), ms=round(median(r['ms'] for r in of(t)), 4), spread=round(100*median(r['spread'] for r in of(t)), 2), lowest=round(min(r['speedup'] for r in of(t)), 4),
                  highest=round(max(r['speedup'] for r in of(t)), 4), false=sum(r['lo'] > FIVE for r in of(t))) for t in tasks if of(t)]
    return dict(verdicts=len(right), not_judged=[r for r in rows if r['status'] != 'correct'], false_milestones=sum(r['lo'] > FIVE for r in right), false_slower=sum(r['hi'] < .95 for r in right),
                clock_doubted=sum(r['second'] for r in right), off_by_one_per_cent=sum(o > .01 for o in off), largest=round(100*off[-1], 2), ninetieth=round(100*off[int(.9*len(off))], 3),
                pairs=round(sum(r['n'] for r in right)/len(right), 1), table=table, rows=right)


def ten_calls(task: Task, candidate: Candidate, number: int) -> list[float]:
    "Speed-ups by the released protocol: the mean of ten calls of the candidate, then of eager, warm, kernel times added up."
    from released import mean_ms
    there, models = {}, []
    for text in (task.source, candidate.model_new): exec(compile(text, 'model.py', 'exec'), there)
    args = [x.cuda() for x in there['get_inputs']()]
    candidate, eager = there['ModelNew']().eval().cuda(), there['Model']().eval().cuda()
    out = []
    for _ in range(number):
        c = mean_ms(candidate, args)
        out.append(mean_ms(eager, args)/c)
    return out


def power(pool, opts, number: int, clients: int, target: str, say) -> dict:
    kinds = {(size, p): planted(rows, p) for size, rows in SIZES[target].items() for p in PLANTED}
    jobs = [(t, c, dict(size=k[0], planted=k[1])) for _ in range(number) for k, (t, c) in kinds.items()]
    rows, table = judged(pool, jobs, opts, clients, say), []
    for (size, p), (t, c) in kinds.items():
        mine = [r for r in rows if (r['size'], r['planted']) == (size, p) and r['status'] == 'correct']
        if not mine: continue
        true = median(r['speedup'] for r in mine)                       # over all of them: number times as many pairs
        sees = lambda x: round(sum(x)/len(x), 4)
        old = ten_calls(t, c, number) if target == 'cuda' else []
        table.append(dict(size=size, planted=p, verdicts=len(mine), ms=round(median(r['ms'] for r in mine), 4), true=round(true, 4), sees=sees([r['lo'] > FIVE for r in mine]), pairs=round(sum(r['n'] for r in mine)/len(mine), 1),
                          lowest=round(min(r['speedup'] for r in mine), 4), highest=round(max(r['speedup'] for r in mine), 4),
                          **(dict(ten_calls=sees([o > FIVE for o in old]), ten_lowest=round(min(old), 4), ten_highest=round(max(old), 4), ten_median=round(median(old), 4)) if old else {})))
        say(str(table[-1]))
    return dict(wrong=wrong(table, 'sees', 'true'), wrong_ten_calls=wrong(table, 'ten_calls', 'ten_median'), not_judged=[r for r in rows if r['status'] != 'correct'], table=table)


def wrong(table: list, sees: str, true: str) -> float|None:
    "Share of the runs of a protocol on the wrong side of 5 %, by its own truth: cold and warm are not the same. Where that lies within half a per cent of the threshold there is no right side."
    rows = [t for t in table if sees in t and abs(t[true] - FIVE) > .005]
    return round(sum(abs(t[sees] - (t[true] > FIVE)) for t in rows)/len(rows), 4) if rows else None


def processes(pool, opts, number: int, clients: int, target: str, say) -> dict:
    "The judge, its baseline and its candidate end after each verdict."
    table = []
    for name in ('rms_norm', 'gelu', 'squeeze_excite', 'row_softmax', 'mlp') if target == 'cpu' else ('small_matmuls', 'squeeze_excite', 'rms_norm', 'row_softmax', 'mlp'):
        task, found = suite('gpu' if target == 'cuda' else 'cpu')[name], []
        for _ in range(number):
            found.append(row(pool.judge(task, itself(task), opts)))
            for h in list(pool.judges.values()): h.kill()
        lost, found = [r for r in found if r['status'] != 'correct'], [r for r in found if r['status'] == 'correct']
        if lost: say(f'{task.id}: {len(lost)} not judged: {lost[0]}')
        if not found: continue
        ms = [r['ms'] for r in found]
        table.append(dict(task=task.id, processes=len(ms), ms=round(median(ms), 5), lowest=round(min(ms)/median(ms), 4), highest=round(max(ms)/median(ms), 4),
                          speedup_lowest=round(min(r['speedup'] for r in found), 4), speedup_highest=round(max(r['speedup'] for r in found), 4)))
        say(str(table[-1]))
    return dict(table=table)


def sibling(line, source: str):
    "Life of a process of `siblings`: one forward each time it is asked, its ms in answer; threads on cores of their own."
    cores, there = sorted(os.sched_getaffinity(0)), {}
    torch.set_num_threads(len(cores))
    torch.ones(1 << 17).neg_()
    for i, t in enumerate(sorted(map(int, os.listdir('/proc/self/task')))): os.sched_setaffinity(t, [cores[i % len(cores)]])
    exec(compile(source, 'model.py', 'exec'), there)
    model, args = there['Model'](*there['get_init_inputs']()).eval(), there['get_inputs']()
    with torch.no_grad():
        while line.recv():
            start = time.perf_counter()
            out = model(*args)
            line.send(1e3*(time.perf_counter() - start))
            del out


def siblings(pool, opts, number: int, clients: int, target: str, say) -> dict:
    "Eager in so many processes, in random order, one at a time; each process by its own median of 60 forwards."
    from multiprocessing import get_context
    from cuda_agent_lab.zygote import worker_env
    table, before = [], dict(os.environ)
    os.environ.update({k: v for k, v in worker_env().items() if k.startswith(('OMP', 'GOMP', 'MALLOC'))})
    context = get_context('spawn')
    for name in AA:
        task, lines, ms = suite('cpu')[name], [], []
        for _ in range(number):
            ours, theirs = context.Pipe()
            context.Process(target=sibling, args=(theirs, task.source), daemon=True).start()
            lines.append(ours)
            ms.append([])
        for turn in range(65):
            for i in random.sample(range(number), number):
                time.sleep(.002)                                   # others' threads fall asleep
                lines[i].send(True)
                ms[i].append(lines[i].recv())
        for line in lines: line.send(False)
        each = sorted(median(m[5:]) for m in ms)
        middle = median(each)
        table.append(dict(task=task.id, processes=number, ms=round(middle, 4), spread=round(100*summarise(sum((m[5:] for m in ms), []), '').spread, 2), lowest=round(each[0]/middle, 4), highest=round(each[-1]/middle, 4)))
        say(str(table[-1]))
    os.environ.clear(); os.environ.update(before)
    return dict(table=table)


def picture(record: dict):
    "Share of verdicts that see 5 %, over the true speed-up: ours and the ten calls."
    from cuda_agent_lab.figures import BLUE, GREY, STYLE, VERMILLION, _axes, _done
    import matplotlib.pyplot as plt
    with plt.rc_context(STYLE):
        fig, axes = _axes(size=(7.5, 3.6))
        ax = axes[0][0]
        for size, mark in (('short', 'o'), ('long', 's')):
            rows = [t for t in record['table'] if t['size'] == size]
            if not rows: continue
            us = 1e3*median(t['ms'] for t in rows)
            by = lambda true, sees: zip(*sorted((100*(t[true] - 1), 100*t[sees]) for t in rows))
            ax.plot(*by('true', 'sees'), mark + '-', color=BLUE, label=f'the referee, kernels of {us:.0f} µs')
            if 'ten_calls' in rows[0]:
                ax.plot(*by('ten_median', 'ten_calls'), mark + '--', color=VERMILLION, label=f'ten calls in blocks, {us:.0f} µs')
        ax.axvline(100*(FIVE - 1), color=GREY, lw=1)
        ax.text(100*(FIVE - 1) + .2, 50, '5 % of the\nbaseline\'s time', fontsize=8, color=GREY)
        ax.set_xlabel('true speed-up [%] (median over all runs of that protocol)'); ax.set_ylabel('runs that see 5 % [%]'); ax.set_title(f"Planted speed-ups, {record['device']}")
        ax.legend(loc='lower right', fontsize=8, frameon=False)
    return _done(fig)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', choices=('aa', 'power', 'processes', 'siblings', 'picture'))
    parser.add_argument('file', nargs='?', type=Path)
    parser.add_argument('--target', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--number', type=int)
    parser.add_argument('--clients', type=int, default=8)
    parser.add_argument('--out', type=Path, default=FIGURES)
    args = parser.parse_args()
    from cuda_agent_lab.figures import save
    if args.what == 'picture': return print(*save(picture(json.loads(args.file.read_text())), args.file.with_suffix('')))
    say = lambda text: print(text, file=sys.stderr, flush=True)
    number = args.number or dict(aa=300, power=40, processes=10, siblings=8)[args.what]
    opts = JudgeOptions(target=args.target, compile=False, allow_torch=True)
    clients = args.clients if args.target == 'cuda' else 1
    with LocalPool(target=args.target, builders=8, keep=40) as pool: found = dict(aa=aa, power=power, processes=processes, siblings=siblings)[args.what](pool, opts, number, clients, args.target, say)
    record = dict(command=f'python tools/timing_check.py {args.what} --target {args.target} --number {number}', date=datetime.date.today().isoformat(), device=device_name(args.target),
                  torch=torch.__version__) | found
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out/f'timing_{args.what}_{args.target}.json'
    path.write_text(json.dumps(record) + '\n')
    if args.what == 'power': save(picture(record), path.with_suffix(''))
    for t in found['table']: print(t)
    print({k: v for k, v in record.items() if k not in ('table', 'rows')})


if __name__ == '__main__': main()
