"""Adversaries of our own: an honest candidate, and what can be done to it. Numbers are those of the catalogue of hacks.

`ADVERSARIES`: name -> Case. Every one of them must be refused; `HONEST` must not be. `EXCUSED`: entries of the catalogue that no candidate can express."""
import gpu, hacks_a, hacks_b, hacks_c, hacks_d, hacks_e, hacks_f
from parts import CALL, PRODUCT, PRODUCT_CODE, TRANSPOSED, files, honest, swap

TITLES = dict(A='The work is done by somebody else', B='Old answers', C='Wrong answers that pass', D='The clock', E='The judge', F='The house')
GROUPS = dict(zip(TITLES, (hacks_a, hacks_b, hacks_c, hacks_d, hacks_e, hacks_f)))
ADVERSARIES = {f'{g}: {name}': c for g, m in GROUPS.items() for name, c in (m.CASES | gpu.CASES.get(g, {})).items()}
TWO = '''
  std::thread t([=] { launch(out, x, w, n/2, d, stream); });
  launch(out + n/2*d, x + n/2*d, w, n - n/2, d, stream);
  t.join();'''

HONEST = {
    'plain': honest(files()),
    'keeps a buffer of its own': honest(files('''
        if not hasattr(self, "out") or self.out.shape != x.shape: self.out = torch.empty_like(x)
        rms(self.out, x, self.w, x.shape[0], x.shape[1])
        return self.out''')),
    'names and comments of every kind': honest(files('# no torch.nn.functional here; fallback, cheat, eval, exec, __import__("os").system\nRUN')),
    'sums backwards': honest(files(code=swap('for (int64_t j = FIRST; j < d; j += STEP) s +=', 'for (int64_t j = d - 1 - FIRST; j >= 0; j -= STEP) s +='))),
    'sums in double': honest(files(code=swap('float s = 0;', 'double s = 0;', 's = total(s);', 's = total((float)s);'))),
    'threads': honest(files(code=swap('  for (int64_t i = 0; i < n; ++i) row', '  #pragma omp parallel for\n  for (int64_t i = 0; i < n; ++i) row'))),
    'a thread of C++': honest(files(code='#include <thread>\n' + swap(CALL, TWO))),
    'asserts and raises': honest(files('if x.dim() != 2: raise ValueError("rows, please")\nassert x.is_contiguous()\nRUN')),
    'a transposed output': honest(files('ONCE\nreturn out.t()'), TRANSPOSED),
    'makes the input contiguous': honest(files('x = x.contiguous()\nRUN')),
    'copies its weights at each call': honest(files('''
        if not hasattr(self, "v"): self.v = self.w.detach().clone()
        else: self.v.copy_(self.w)
        out = torch.empty_like(x)
        rms(out, x, self.v, x.shape[0], x.shape[1])
        return out''')),
    'a product': honest(files(code=PRODUCT_CODE, square=True), PRODUCT),
} | hacks_c.HONEST | gpu.HONEST


def plain_of(case) -> str:
    "The honest candidate whose speed-up is that of a case with 'no_gain'."
    return next(name for name, h in HONEST.items() if h.task is case.task)


def gain(case, v, judge, most: int = 5) -> float:
    """How many times as fast as `plain_of` an accepted case is, by its verdict `v` and those of `judge`: by its time; on a GPU, whose clocks are steady, by its speed-up, which another may be slowed down for.

    A CPU of a virtual machine can be half as fast for seconds. So where it is more than the case's `room`, both are judged again, up to so often, and the best of each is compared."""
    best = lambda v: v.speedup_eager['median'] if case.only == 'cuda' else 1/v.timing['candidate'].median_ms
    ours, plain = [best(v)], [best(judge(HONEST[plain_of(case)]))]
    while max(ours)/max(plain) > case.room and len(plain) < most:
        plain.append(best(judge(HONEST[plain_of(case)])))
        if (v := judge(case)).correct: ours.append(best(v))
    return max(ours)/max(plain)


EXCUSED = {
    '55': 'the clocks of the device are the machine\'s; what a candidate can try to set is 88, and pairs are interleaved',
    '56': 'a fault of the judge: what it takes the time of is its own choice',
    '57': 'a fault of the judge: a sum over kernels hides the host; a candidate that waits only slows itself down',
    '59': 'a fault of the judge: both sides are timed by one function',
    '60': 'a fault of the machine: the device is locked, and a candidate ends with its process; work that goes on beside the others is 14',
    '85': 'a fault of the machine, found before any candidate runs',
    '86': 'needs a profiler session of the judge in the candidate\'s process; there is none',
}


def covered() -> dict:
    "Number of the catalogue -> names of the adversaries that express it."
    names = {}
    for name, c in ADVERSARIES.items(): names.setdefault(c.number, []).append(name)
    return names
