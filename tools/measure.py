"""The real error of a candidate, outside of the referee: a process of its own calls it on many draws and compares with float64 and with the right candidate.

No bound is used here. The draws are those of the task, the referee's variants, and special inputs that the referee does not draw."""
import importlib.util, math, multiprocessing, os, sys, types
os.environ.setdefault('OMP_WAIT_POLICY', 'passive')        # of the measuring processes: several of them share the cores
import torch
from cuda_agent_lab.compare import stats
from cuda_agent_lab.draws import VARIANTS, Draw, Reference, like, same, vary
from cuda_agent_lab.tasks import sandbox_dir
from cuda_agent_lab.wire import decode, encode, run

PLAIN = 2


def _special(f):
    def made(t):
        t = like(t)
        f(run(t))
        return t
    return made


SPECIAL = {'all negative': _special(lambda m: m.abs_().neg_()), 'all positive': _special(lambda m: m.abs_()), 'all zero': _special(lambda m: m.zero_()),
           'far from zero': _special(lambda m: m.add_(100)), 'a NaN': _special(lambda m: m[m.numel()//2].fill_(math.nan)), 'an infinity': _special(lambda m: m[m.numel()//2].fill_(math.inf))}


def load(model_new: str, library: str, ref: Reference) -> torch.nn.Module:
    "ModelNew with the weights of the reference, over its own copy of the extension module."
    path = sandbox_dir()/'workspace'/'cuda_extension.py'
    spec = importlib.util.spec_from_file_location('cuda_extension', path)
    extension = importlib.util.module_from_spec(spec)
    sys.modules['cuda_extension'] = extension
    spec.loader.exec_module(extension)
    extension.load(library)
    module = types.ModuleType('model_new')
    sys.modules['model_new'] = module
    exec(compile(model_new, 'model_new.py', 'exec'), module.__dict__)
    with torch.device(ref.device), torch.no_grad():
        model = module.ModelNew(*ref.init_args).eval().to(ref.device)
        if ref.dtype: model = model.to(ref.dtype)
        for k, v in model.state_dict().items(): v.copy_(ref.state[k])
    return model


def draws(ref: Reference, seed: int, plain_only: bool):
    "Filled draws, one at a time."
    base = ref.draw(seed, 'draw 0')
    yield ref.fill(base)
    if plain_only: return
    for i in range(1, PLAIN): yield ref.fill(ref.draw(seed + i, f'draw {i}'))
    for name in VARIANTS: yield ref.fill(vary(base, name, seed))
    for name, f in SPECIAL.items():
        yield ref.fill(Draw(name, base.tree, [f(t) if t.is_floating_point() and t.numel() else t for t in base.tensors]))


def error(outs: list, draw: Draw) -> list[float]:
    "[rms, largest] error over all outputs, as shares of the output's rms; infinite where NaN or infinity stand in other places than in the reference."
    rms = most = 0.0
    for o, e in zip(outs, draw.outs):
        if not e.floating:
            wrong = float(((o != e.ref) & (o != e.eager)).double().mean()) if o.numel() else 0.0
            rms, most = max(rms, wrong), max(most, float(wrong > 0))
            continue
        r, scale = e.ref, max(e.rms, 1e-300)
        off, _, square, _ = stats(o, r, e.group)
        if not (e.finite and math.isfinite(square)):
            odd = ~r.isfinite() | ~e.eager.isfinite()
            if bool((o.isfinite().logical_not() & ~odd).any()) or bool((o.isnan() != e.eager.isnan()).any()): return [math.inf, math.inf]
            off = torch.where(odd, 0.0, o.double() - r).abs()
            square = float(off.square().sum())
        rms, most = max(rms, math.sqrt(square/max(o.numel(), 1))/scale), max(most, float(off.max())/scale)
    return [rms, most]


@torch.no_grad()
def measure(task, files, bases, precision, device, seed, threads, plain_only, send):
    "Main function of the process: sends {draw: {'differs': bool, 'mutant': [rms, max], 'right': ..., 'eager': ...}} piece by piece. files, bases: (model_new.py, library)."
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    sys.stdout = sys.stderr = open(os.devnull, 'w')
    os.dup2(sys.stdout.fileno(), 1); os.dup2(sys.stdout.fileno(), 2)
    ref = Reference(task.source, device, precision, seed, rotate=False)
    ref.build(seed)
    models = [load(*f, ref) for f in (files, bases)]
    for d in draws(ref, seed, plain_only):
        outs = []
        for m in models:
            found = []
            encode(m(*decode(d.tree, [like(t) for t in d.tensors])), found)
            outs.append([t.contiguous() for t in found])
        differs = any(a.shape != b.shape or not same(a, b) for a, b in zip(*outs))
        send.send((d.name, dict(differs=differs, mutant=error(outs[0], d), right=error(outs[1], d), eager=error([e.eager for e in d.outs], d))))
    send.send(None)


def measured(case, libraries, target: str, seed: int, plain_only: bool = False, seconds: float = 300.0) -> dict:
    "`measure` of a mutant and the candidate it comes from: {draw: ...}, and 'crash' where the process ended by itself. plain_only: one draw of the task."
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['torch', 'cuda_agent_lab.draws'])
    receive, send = context.Pipe(False)
    pairs = [(c.model_new, str(b)) for c, b in zip((case.candidate, case.base), libraries)]
    device = 'cuda' if target == 'cuda' else 'cpu'
    p = context.Process(target=measure, args=(case.task, *pairs, case.precision, device, seed, len(os.sched_getaffinity(0)), plain_only, send), daemon=True)
    p.start()
    send.close()
    out = {}
    try:
        while receive.poll(seconds):
            message = receive.recv()
            if message is None: break
            out[message[0]] = message[1]
        else: out['crash'] = 'no answer'
    except EOFError:
        p.join(5)
        out['crash'] = f'exit status {p.exitcode}'
    p.kill()
    p.join()
    return out
