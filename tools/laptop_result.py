"""Three seeds of `make train` become one small file and one picture.

  for s in 0 1 2; do make train SEED=$s; done
  python tools/laptop_result.py runs/laptop-0 runs/laptop-1 runs/laptop-2    -> figures/laptop_seeds.{json,svg,png}
  python tools/laptop_result.py                                              draws the picture of the kept file again
"""
import json, platform, sys
from pathlib import Path
import pandas as pd, torch
from cuda_agent_lab import figures

kept = Path(__file__).resolve().parent.parent/'figures'/'laptop_seeds.json'


def processor() -> str:
    names = [l.split(':', 1)[1].strip() for l in Path('/proc/cpuinfo').read_text().splitlines() if l.startswith('model name')]
    return f'{len(names)} cores of {names[0]}' if names else platform.processor()


def collect(folders) -> dict:
    runs = [json.loads((Path(f)/'summary.json').read_text()) for f in folders]
    return dict(command='; '.join(f"make train SEED={r['seed']}" for r in runs), device=processor(), versions=dict(python=platform.python_version(), torch=torch.__version__), runs=runs)


def picture(record: dict):
    "Both arms of all seeds on one pair of axes."
    arms = {}
    for r in record['runs']:
        for name, curve in r['curve'].items():
            arms.setdefault(name, []).append(pd.DataFrame(dict(step=range(1, len(curve) + 1), reward_mean=curve, seed=r['seed'])))
    return figures.learning_curve({name: pd.concat(dfs) for name, dfs in arms.items()}, title=f"laptop preset, {len(record['runs'])} seeds, {record['device']}")


def table(record: dict) -> str:
    "Markdown: one row a seed."
    mean = lambda x: sum(x)/len(x)
    rows = ['| seed | PPO: first three steps | last three | control: first three | last three | greedy, vs eager (vs compile): before PPO | after PPO | template search | minutes |', '|---'*9 + '|']
    for r in record['runs']:
        (ppo, control), e = r['curve'].values(), r['evaluation']
        geo = lambda name: next(f"{v['geo_eager_failures_as_1']:.2f}x ({v['geo_compile_failures_as_1']:.2f}x)" for k, v in e.items() if name in k)
        rows.append(f"| {r['seed']} | {mean(ppo[:3]):.2f} | {mean(ppo[-3:]):.2f} | {mean(control[:3]):.2f} | {mean(control[-3:]):.2f} "
                    f"| {geo('before')} | {geo('after PPO')} | {geo('template')} | {r['minutes'] or 'resumed'} |")
    return '\n'.join(rows)


if __name__ == '__main__':
    if any(not (Path(f)/'summary.json').is_file() for f in sys.argv[1:]): sys.exit(__doc__)
    if sys.argv[1:]: kept.write_text(json.dumps(collect(sys.argv[1:]), indent=1) + '\n')
    record = json.loads(kept.read_text())
    for p in figures.save(picture(record), kept.with_suffix('')): print(p.name)
    print(table(record))
