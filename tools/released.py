"""The released workflow of the paper, written from its description: what a candidate costs there, and what ten calls in blocks make of its time.

Three scripts in three fresh processes, one after the other, as its SKILL.md tells the agent to call them:

  python tools/released.py compile FOLDER      nvcc for each .cu, g++ with torch's headers for the bindings, one shared object
  python tools/released.py verify FOLDER       five draws of get_inputs(), made on the CPU, candidate against reference, atol = rtol = 1e-2
  python tools/released.py profile FOLDER      5 calls to warm up and 10 under torch.profiler, of the candidate, of eager, of torch.compile; prints JSON: mean ms on the device of each

FOLDER holds model.py, model_new.py and kernels/ of a candidate with bindings. No seed, no cache that is emptied, no median, no look at what a timed call returned: that is how it was released."""
import importlib, importlib.util, json, subprocess, sys, time
from dataclasses import dataclass
from pathlib import Path

WARM, CALLS = 5, 10
SCRIPTS = ('compile', 'verify', 'profile')


@dataclass
class Outcome:
    "What one candidate took in the released workflow."
    seconds: dict          # script -> seconds, of those that ran
    status: str            # 'correct', or the script that failed
    times: dict            # mean ms on the device: candidate, eager, compiled
    says: str              # the end of what the script that failed printed


def workflow(folder: Path, scripts=SCRIPTS) -> Outcome:
    "All scripts, each in a process of its own, until one fails."
    seconds, times = {}, {}
    for name in scripts:
        start = time.perf_counter()
        p = subprocess.run([sys.executable, __file__, name, str(folder)], capture_output=True, text=True)
        seconds[name] = time.perf_counter() - start
        if p.returncode: return Outcome(seconds, name, {}, (p.stdout + p.stderr)[-500:])
        if name == 'profile': times = json.loads(p.stdout.splitlines()[-1])
    return Outcome(seconds, 'correct', times, '')


def build(folder: Path):
    "As utils/compile.py: every source in turn, then linked; no cache, no precompiled header. Raises SystemExit with the compiler's words."
    from cuda_agent_lab.compilers import recipe
    from cuda_agent_lab.workspace import read_candidate
    r, objects = recipe(read_candidate(folder), 'cuda'), []
    def run(*argv):
        p = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
        if p.returncode: raise SystemExit(p.stderr + p.stdout)
    for path, text in r.files.items():
        (folder/path).parent.mkdir(parents=True, exist_ok=True)
        (folder/path).write_text(text)
    for i, (source, argv) in enumerate(r.compile.items()):
        objects.append(str(folder/f'{i}.o'))
        run(*argv, '-o', objects[-1], source)
    run(*r.link, '-o', str(folder/'cuda_extension.so'), *objects, *r.libraries)


def load(folder: Path):
    "(model, model_new): the modules, with the extension that `build` has made."
    import torch
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location('cuda_extension', folder/'cuda_extension.so')
    sys.modules['cuda_extension'] = extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return importlib.import_module('model'), importlib.import_module('model_new')


def both(folder: Path):
    "(reference, candidate, get_inputs) with the same weights, on the device."
    model, new = load(folder)
    args = model.get_init_inputs()
    reference, candidate = model.Model(*args).eval().cuda(), new.ModelNew(*args).eval().cuda()
    candidate.load_state_dict(reference.state_dict())
    return reference, candidate, lambda: [x.cuda() for x in model.get_inputs()]


def verify(folder: Path):
    "Five draws; raises AssertionError."
    import torch
    reference, candidate, inputs = both(folder)
    with torch.no_grad():
        for _ in range(5):
            args = inputs()
            torch.testing.assert_close(candidate(*[a.clone() for a in args]), reference(*args), atol=1e-2, rtol=1e-2)


def mean_ms(model, args, calls: int = CALLS) -> float:
    "Mean over ten calls of the time of all kernels on the device, added up [ms]."
    import torch
    from torch.profiler import ProfilerActivity, profile
    with torch.no_grad():
        for _ in range(WARM): model(*args)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            for _ in range(calls): model(*args)
            torch.cuda.synchronize()
    return sum(e.device_time_total for e in p.key_averages())/calls/1e3


def times(folder: Path) -> dict:
    "Mean ms of each, in blocks: candidate, eager, compiled."
    import torch
    reference, candidate, inputs = both(folder)
    args = inputs()
    out = dict(candidate=mean_ms(candidate, [a.clone() for a in args]), eager=mean_ms(reference, args))
    return out | dict(compiled=mean_ms(torch.compile(reference), args))


if __name__ == '__main__':
    what, where = sys.argv[1], Path(sys.argv[2])
    done = dict(compile=build, verify=verify, profile=times)[what](where)
    if done: print(json.dumps(done))
