"""Does the referee wrong honest work, and what does it miss? Generated honest candidates and generated near misses, each judged for real.

  python tools/survey.py honest                        all honest candidates on the CPU            -> figures/honest_cpu.json
  python tools/survey.py mutants                       all near misses on the CPU                  -> figures/mutants_cpu.json, .svg, .png
  python tools/survey.py honest --target cuda --number 100 --builders 12      a sample on a GPU    -> figures/honest_cuda.json
  python tools/survey.py mutants --target cuda --number 100 --builders 12                          -> figures/mutants_cuda.json, .svg, .png
  python tools/survey.py picture figures/mutants_cpu.json                      draws the picture of a kept file again

--seed N chooses the candidates and the referee's draws; --out FOLDER writes elsewhere than figures/; --size gpu takes the suite's large shapes.
Exit status: 1 when an honest candidate was refused."""
import argparse, collections, datetime, json, platform, sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
import torch
from cuda_agent_lab.compilers import compiler_version, find_gxx, find_nvcc
from cuda_agent_lab.devices import device_name
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from honest import honest
from measure import PLAIN, measured
from mutants import mutants

FIGURES = Path(__file__).resolve().parent.parent/'figures'


@dataclass
class Result:
    "A judged case."
    case: object
    verdict: object
    errors: dict          # of a mutant: see measure.measured

    @property
    def draws(self) -> int: return len(self.verdict.evidence.get('draws', ()))

    @property
    def refused(self) -> bool: return self.verdict.status in ('rejected', 'timeout', 'build_error', 'build_timeout')


def judge_all(cases, pool: LocalPool, target: str, seed: int, threads: int = 2, say=print) -> list[Result]:
    "Verdicts of all cases, several at a time; mutants are measured as well."
    cases, start, done = sorted(cases, key=lambda c: c.task.hash), time.monotonic(), []
    def one(i, case):
        opts = JudgeOptions(target=target, precision=case.precision, timing=False, compile=False, timeout=120., seed=seed*100003 + i)
        v = pool.judge(case.task, case.candidate, opts)
        errors = {}
        if case.base:
            built = [pool.build(c, target) for c in (case.candidate, case.base)]
            if all(b.ok for b in built): errors = measured(case, [b.library for b in built], target, seed, plain_only=not v.correct)
        done.append(Result(case, v, errors))
        if len(done) % 25 == 0 or len(done) == len(cases): say(f'{len(done)} of {len(cases)} judged, {time.monotonic() - start:.0f} s')
        return done[-1]
    with ThreadPoolExecutor(threads) as executor: return list(executor.map(one, range(len(cases)), cases))


# ---- honest

def honest_record(results: list[Result]) -> dict:
    kinds = collections.defaultdict(lambda: dict(candidates=0, draws=0, refused=0, not_judged=0))
    for r in results:
        k = kinds[r.case.kind]
        k['candidates'] += 1; k['draws'] += r.draws
        k['refused'] += r.refused; k['not_judged'] += not (r.refused or r.verdict.correct)
    tell = lambda r: dict(kind=r.case.kind, how=r.case.how, task=r.case.task.id, status=r.verdict.status, reason=r.verdict.reason, message=r.verdict.message, seed=r.verdict.seed)
    return dict(candidates=len(results), draws=sum(r.draws for r in results), tasks=len({base_name(r) for r in results}), abi=dict(collections.Counter(r.case.candidate.abi for r in results)),
                refused=[tell(r) for r in results if r.refused], not_judged=[tell(r) for r in results if not (r.refused or r.verdict.correct)], kinds=dict(sorted(kinds.items())),
                margin=margins(results))


def base_name(r: Result) -> str: return r.case.task.id.split('[')[0].split(' ')[0]


def margins(results: list[Result]) -> dict:
    "How many times worse than eager the honest ones were, in rms over the worst draw: quantiles."
    ratios = sorted(e['rms_rel']/e['eager_rms_rel'] for r in results if r.verdict.correct for e in r.verdict.errors
                    if isinstance(e.get('rms_rel'), float) and isinstance(e.get('eager_rms_rel'), float) and e['eager_rms_rel'] > 0)
    return {f'{q:g}': round(ratios[min(int(q*len(ratios)), len(ratios) - 1)], 2) for q in (.1, .5, .9, .99, 1)} if ratios else {}


def honest_text(record: dict) -> str:
    rows = [f"{k:10} {v['candidates']:5} candidates {v['draws']:6} draws {v['refused']:4} refused {v['not_judged']:4} not judged" for k, v in record['kinds'].items()]
    lost = [f"refused: {r['kind']}, {r['how']}, {r['task']}: {r['reason'] or r['status']}: {r['message']}" for r in record['refused']]
    lost += [f"not judged: {r['kind']}, {r['how']}, {r['task']}: {r['status']}: {r['message']}" for r in record['not_judged']]
    return '\n'.join([*rows, *lost, f"{record['candidates']} honest candidates for {record['tasks']} tasks, {record['draws']} draws, {len(record['refused'])} refused, {len(record['not_judged'])} not judged"])


# ---- mutants

def outcome(r: Result) -> str:
    """'caught' (one that does not compile is no near miss: not judged); 'equal': bit for bit what the right kernel gives on every measured draw; 'rounding': as exact as the right kernel; 'escaped'; or 'not judged'."""
    if r.verdict.status.startswith('build_'): return 'not judged'
    if r.refused: return 'caught'
    if not r.verdict.correct: return 'not judged'
    if 'crash' in r.errors or not r.errors: return 'escaped'
    e = r.errors.values()
    if not any(x['differs'] for x in e): return 'equal'
    return 'rounding' if all(m <= 2*max(a, b, 1e-12) for x in e for m, a, b in zip(x['mutant'], x['right'], x['eager'])) else 'escaped'


def size(r: Result) -> dict:
    "The largest error on plain draws, as shares of the output's rms, beside eager's, and where it is worst of all."
    plain = [v for k, v in r.errors.items() if k.startswith('draw')]
    if not plain: return {}
    worst = lambda who, i: max(x[who][i] for x in plain)
    others = {k: v['mutant'][0] for k, v in r.errors.items() if k != 'crash' and v['mutant'][0] > 2*max(v['right'][0], v['eager'][0], 1e-12)}
    return dict(rms=worst('mutant', 0), largest=worst('mutant', 1), eager_rms=worst('eager', 0), eager_largest=worst('eager', 1), worse_on=others)


def mutants_record(results: list[Result]) -> dict:
    kinds = collections.defaultdict(collections.Counter)
    for r in results: kinds[r.case.kind][outcome(r)] += 1
    tell = lambda r: dict(kind=r.case.kind, how=r.case.how, task=r.case.task.id, outcome=outcome(r), reason=r.verdict.reason or r.verdict.status, message=r.verdict.message,
                          caught_on=next((e['draw'] for e in r.verdict.errors if 'draw' in e), ''), **size(r))
    return dict(mutants=len(results), tasks=len({base_name(r) for r in results}), kinds={k: dict(v) for k, v in sorted(kinds.items())},
                caught_on=dict(collections.Counter(draw_kind(r) for r in results if outcome(r) == 'caught')), equal=[f'{r.case.kind}, {r.case.how}, {r.case.task.id}' for r in results if outcome(r) == 'equal'],
                escaped=sorted((tell(r) for r in results if outcome(r) == 'escaped'), key=lambda e: -e.get('rms', 0)), not_judged=[tell(r) for r in results if outcome(r) == 'not judged'],
                calibrated=[tell(r) for r in results if r.case.kind.startswith('calibrated')], rounding=[tell(r) for r in results if outcome(r) == 'rounding'])


def draw_kind(r: Result) -> str:
    "On what a mutant was caught: 'plain draws', a variant's name, or the reason."
    name = next((e['draw'] for e in r.verdict.errors if 'draw' in e), r.verdict.reason or r.verdict.status)
    return 'plain draws' if name.startswith('draw ') else name


def share(counts: dict) -> float:
    "Of those that are not equal to the right kernel bit for bit, the share caught; NaN where there is none."
    n = sum(counts.values()) - counts.get('equal', 0) - counts.get('not judged', 0)
    return counts.get('caught', 0)/n if n else float('nan')


def mutants_text(record: dict) -> str:
    rows = [f"{k:20} {sum(v.values()):4} mutants {v.get('caught', 0):4} caught {v.get('equal', 0):4} equal {v.get('rounding', 0):4} as exact {v.get('escaped', 0):4} escaped   {100*share(v):6.1f} % caught" for k, v in record['kinds'].items()]
    lost = [f"escaped: {e['kind']}, {e['how']}, {e['task']}: rms {e.get('rms', 0):.2g}, largest {e.get('largest', 0):.2g} of the output's rms (eager {e.get('eager_rms', 0):.2g}, {e.get('eager_largest', 0):.2g}); "
            f"worse on {', '.join(f'{k} {v:.2g}' for k, v in e.get('worse_on', {}).items()) or 'single elements'}" for e in record['escaped']]
    total = collections.Counter()
    for k, v in record['kinds'].items():
        if not k.startswith('calibrated'): total.update(v)
    return '\n'.join([*rows, *lost, f"{record['mutants']} mutants of {len(record['kinds'])} kinds for {record['tasks']} tasks; without the calibrated ones {sum(total.values())}: {total['caught']} caught, "
                                    f"{total['equal']} equal, {total['rounding']} as exact as the right kernel, {total['escaped']} escaped: {100*share(total):.1f} % caught"])


def picture(record: dict):
    "Share of each kind that is caught."
    from cuda_agent_lab.figures import BLUE, GREY, ORANGE, STYLE, VERMILLION, _axes, _done
    import matplotlib.pyplot as plt
    kinds = sorted((k for k in record['kinds'] if share(record['kinds'][k]) == share(record['kinds'][k])), key=lambda k: share(record['kinds'][k]))
    with plt.rc_context(STYLE):
        fig, axes = _axes(size=(7.5, .27*len(kinds) + 1.2))
        ax, left = axes[0][0], [0]*len(kinds)
        for name, label, colour in (('caught', 'caught', BLUE), ('rounding', 'as exact as the right kernel', GREY), ('escaped', 'escaped', VERMILLION), ('equal', 'equal bit for bit', ORANGE)):
            n = [record['kinds'][k].get(name, 0) for k in kinds]
            ax.barh(kinds, n, left=left, color=colour, label=label)
            left = [a + b for a, b in zip(left, n)]
        for y, k in enumerate(kinds): ax.text(left[y] + .3, y, f'{100*share(record["kinds"][k]):.0f} %', va='center', fontsize=8)
        ax.set_xlabel('mutants'); ax.set_title(f"{record['mutants']} near misses, {record['device']}")
        ax.legend(loc='upper center', bbox_to_anchor=(.4, -.07), ncols=4, fontsize=8, frameon=False); ax.grid(axis='y', visible=False)
    return _done(fig)


# ---- command line

def about(args) -> dict:
    "What a kept file says about how it came to be."
    chosen = ''.join(f' --{k} {v}' for k, v in vars(args).items() if k in ('target', 'seed', 'number', 'size', 'builders') and v not in (None, dict(target='cpu', seed=0, size='cpu', builders=2).get(k)))
    compiler = find_gxx() if args.target == 'cpu' else find_nvcc()
    return dict(command=f'python tools/survey.py {args.what}{chosen}', date=datetime.date.today().isoformat(), device=device_name(args.target), target=args.target, seed=args.seed,
                versions=dict(python=platform.python_version(), torch=torch.__version__, compiler=compiler_version(compiler).splitlines()[0 if args.target == 'cpu' else -1]))


def draw(path: Path):
    from cuda_agent_lab.figures import save
    for p in save(picture(json.loads(path.read_text())), path.with_suffix('')): print(p)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', choices=('honest', 'mutants', 'picture'))
    parser.add_argument('file', nargs='?', type=Path)
    parser.add_argument('--target', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--number', type=int, help='a sample of so many')
    parser.add_argument('--size', default='cpu', choices=('cpu', 'gpu'))
    parser.add_argument('--builders', type=int, default=2, help='builds and judgements at a time')
    parser.add_argument('--out', type=Path, default=FIGURES)
    args = parser.parse_args()
    if args.what == 'picture': draw(args.file); return 0
    say = lambda text: print(text, file=sys.stderr, flush=True)
    cases = dict(honest=honest, mutants=mutants)[args.what](args.target, args.seed, args.number, args.size)
    say(f'{len(cases)} candidates')
    with LocalPool(target=args.target, builders=args.builders, keep=2) as pool: results = judge_all(cases, pool, args.target, args.seed, args.builders, say)
    record = about(args) | (honest_record if args.what == 'honest' else mutants_record)(results)
    print((honest_text if args.what == 'honest' else mutants_text)(record))
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out/f'{args.what}_{args.target}.json'
    path.write_text(json.dumps(record, indent=1) + '\n')
    if args.what == 'mutants': draw(path)
    return int(args.what == 'honest' and bool(record['refused']))


if __name__ == '__main__': sys.exit(main())
