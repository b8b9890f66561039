"""Honest candidates: every template and knob, other shapes and dtypes, other orders of summation, every way to take an input and to hand over a result.

`honest(target, seed)` gives the list of cases that `tools/survey.py honest` judges; none of them may be refused. Kernels come from the templates of
`TemplatePolicy` and, where there is none (integers, scans, windows), from `hand_kernels.py`."""
import functools, math, random, re
from dataclasses import dataclass, replace
from cuda_agent_lab import templates_cpu, templates_cuda
from cuda_agent_lab.nodes import NoTemplate
from cuda_agent_lab.plan import plan
from cuda_agent_lab.tasks import Task, load_tasks
from cuda_agent_lab.workspace import Candidate
from hand_kernels import HAND


@dataclass(frozen=True)
class Case:
    "One candidate for one task."
    task: Task
    candidate: Candidate
    kind: str                          # what was varied
    how: str                           # in detail
    precision: str = 'fp32'            # declared
    base: Candidate | None = None      # of a mutant: the right candidate that it was made from


def short(task: Task) -> str: return task.id.rsplit('/', 1)[-1]


@functools.lru_cache
def suite(size: str = 'cpu') -> dict:
    "Name -> task of the bundled suite."
    return {short(t): t for t in load_tasks('suite', size=size)}


@functools.lru_cache
def planned(task: Task):
    "The plan of a task, or None where the templates have none."
    try: return plan(task)
    except NoTemplate: return None


TEMPLATES = dict(cpu=templates_cpu, cuda=templates_cuda)
SUFFIX = dict(cpu='cpp', cuda='cu')


def candidate(kernel: str, model: str, target: str) -> Candidate:
    return Candidate(((f'kernels/kernel.{SUFFIX[target]}', kernel), ('model_new.py', model)))


def texts(task: Task, values: dict, target: str) -> tuple[str, str]:
    "(kernel, model_new.py) of the templates with these knobs."
    c = TEMPLATES[target].write(planned(task), values, target)
    return next(iter(c.sources.values())), c.model_new


def with_prelude(kernel: str, prelude: str) -> str:
    "`prelude` behind the last #include."
    at = max(m.end() for m in re.finditer(r'^#include.*\n', kernel, re.M))
    return kernel[:at] + prelude + kernel[at:]


# ---- shapes

SIZES = re.compile(r'^([\w, ]+) = (?:\{"cpu": )?\(([\d, ]+)\)(?:, "gpu": .*\[SIZE\])?$', re.M)
CHOICES = dict(rows=(1, 3, 127, 1021, 4099), batch=(1, 3, 17), cols=(2, 31, 257, 1000, 1023, 4097, 65537), classes=(2, 31, 1000, 4001), length=(7, 64, 1031),
               features=(16, 40, 127, 384), channels=(16, 48), side=(5, 7, 16, 33), inner=(1, 37, 129, 384), outer=(1, 30, 257), hidden=(33, 130, 384), n=(1, 5, 16, 33),
               tokens=(3, 17, 64), members=(1, 5, 67), squeezed=(1, 7, 16))


def shaped(task: Task, sizes: dict) -> Task:
    "The task with other sizes: name of a dimension -> size."
    m = SIZES.search(task.source)
    now = dict(zip(m[1].split(', '), map(int, m[2].split(',')))) | sizes
    line = f'{m[1]} = {tuple(now.values())}'
    return replace(task, id=f'{task.id}{list(now.values())}', source=task.source[:m.start()] + line + task.source[m.end():])


def random_shape(task: Task, rng, most: int = 1 << 21) -> Task:
    "Odd, prime, one, large: one value for each dimension, with at most `most` elements in an input."
    names = SIZES.search(task.source)[1].split(', ')
    while True:
        sizes = {n: rng.choice(CHOICES[n]) for n in names}
        area = math.prod(s**(2 if n in ('side', 'n') else 1) for n, s in sizes.items())
        if area <= most: return shaped(task, sizes)


# ---- orders of summation and of the arithmetic around it

HD = '#ifdef __CUDACC__\n#define HD __host__ __device__\n#else\n#define HD\n#endif\n'
SUMS = {
    'one float from left to right': 'typedef float acc_t;\n',
    'double': 'typedef double acc_t;\n',
    'Kahan': '''struct acc_t {
  float s, e;
  HD acc_t(float v = 0) : s(v), e(0) {}
  HD void operator+=(float v) { float y = v - e, t = s + y; e = (t - s) - y; s = t; }
  HD operator float() const { return s; }
};
''',
    'pairwise': '''struct acc_t {
  float part[24]; unsigned n;
  HD acc_t(float v = 0) : n(0) { if (v != 0) *this += v; }
  HD void operator+=(float v) { int l = 0; for (unsigned m = n++; m & 1; m >>= 1) v = part[l++] + v; part[l] = v; }
  HD operator float() const { float v = 0; for (int l = 0; l < 24; ++l) if (n >> l & 1) v = part[l] + v; return v; }
};
''',
    'blocks of 64': '''struct acc_t {
  float total, part; int n;
  HD acc_t(float v = 0) : total(v), part(0), n(0) {}
  HD void operator+=(float v) { part += v; if (++n == 64) { total += part; part = 0; n = 0; } }
  HD operator float() const { return total + part; }
};
''',
    'eight lanes': '''struct acc_t {
  float lane[8] = {}; int n = 0;
  HD acc_t(float v = 0) { lane[0] = v; }
  HD void operator+=(float v) { lane[n++ & 7] += v; }
  HD operator float() const { return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7])); }
};
'''}
ROOTS = {   # 1/sqrt(x) in another way
    'root in double': 'static HD inline float root(float x) { return (float)(1. / sqrt((double)x)); }\n',
    'root by Newton': 'static inline float root(float x) { float y = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(x)));\n'
                      '  for (int i = 0; i < 2; ++i) y = y * (1.5f - 0.5f * x * y * y);\n  return x > 1e-37f && x < 1e37f ? y : 1.f / sqrtf(x); }\n'}
LOOP = re.compile(r'for \(int64_t (\w+) = (\w+); \1 < (\w+); \+\+\1\)')


def sums(kernel: str, how: str) -> str:
    "Sums by another accumulator (the kernel has none with a reduction clause, so simd must be 0)."
    out = re.sub(r'\b(?:double|float) ((?:sum\d* = 0(?:\.f)?(?:, )?)+);', r'acc_t \1;', kernel)
    out = re.sub(r'\b(?:double|float) (sum\d*\[\d+\]);', r'acc_t \1;', out)
    return with_prelude(out, HD + SUMS[how]) if out != kernel else kernel


def backwards(kernel: str) -> str:
    "Loops from the end to the start; also the inner loop of a product."
    return LOOP.sub(r'for (int64_t \1 = \3 - 1; \1 >= \2; --\1)', kernel)


def optimize(*flags): return lambda kernel: f'#pragma GCC optimize({", ".join(chr(34) + f + chr(34) for f in flags)})\n' + kernel


def one_pass(kernel: str) -> str:
    "Variance as the mean of squares less the square of the mean."
    out = re.sub(r'float v = (\S.*) - w;(\s+sum1 \+= v \* v;)', r'float v = \1;\2', kernel)
    return re.sub(r'sqrtf\(sum1 / ([\d.]+f) \+', r'sqrtf(fmaxf(sum1 / \1 - w * w, 0.f) +', out) if out != kernel else kernel


def roots(kernel: str, how: str) -> str:
    out = re.sub(r'1\.f / sqrtf\(|\brsqrtf\(', 'root(', kernel)
    return '#include <immintrin.h>\n' * ('_mm' in ROOTS[how]) + with_prelude(out, HD + ROOTS[how]) if out != kernel else kernel


ORDERS = {
    **{f'sum: {k}': functools.partial(sums, how=k) for k in SUMS}, **{k: functools.partial(roots, how=k) for k in ROOTS},
    'backwards': backwards,
    'backwards, one float': lambda k: backwards(sums(k, 'one float from left to right')),
    'no fused multiply-add': optimize('fp-contract=off'),
    'reassociation': optimize('associative-math', 'no-signed-zeros', 'no-trapping-math', 'reciprocal-math'),
    'three threads, dynamic': lambda k: k.replace('#pragma omp parallel for', '#pragma omp parallel for num_threads(3) schedule(dynamic, 1)'),
    'seven threads': lambda k: k.replace('#pragma omp parallel for', '#pragma omp parallel for num_threads(7)'),
    'one-pass variance': one_pass,
    'exp by exp2': lambda k: with_prelude(re.sub(r'\bexpf\(', 'exp_2(', k), HD + 'static HD inline float exp_2(float x) { return exp2f(x * 1.442695041f); }\n') if 'expf(' in k else k,
    'times the reciprocal': lambda k: re.sub(r' / (sum\d*|\d+\.f)\b', r' * (1.f / \1)', k)}
CUDA_ORDERS = [k for k in ORDERS if k.startswith('sum: ')] + ['root in double', 'exp by exp2', 'times the reciprocal', 'one-pass variance']


# ---- dtypes

TO_DTYPE = '''
_inputs, _Plain = get_inputs, Model
class Model(_Plain):
    def __init__(self, *args):
        super().__init__(*args)
        self.to(torch.{dtype})
def get_inputs(): return [x.to(torch.{dtype}) if x.is_floating_point() else x for x in _inputs()]
'''
NEW_TO_DTYPE = '''
_PlainNew = ModelNew
class ModelNew(_PlainNew):
    def __init__(self, *args):
        super().__init__(*args)
        self.to(torch.{dtype})
'''
STORED = '''struct stored {{ {raw} v;
  HD stored& operator=(float f) {{ v = to(f); return *this; }}
  HD operator float() const {{ return from(v); }}
  {conversions}
}};
'''
BITS = '''static HD uint16_t to(float f) { union { float f; uint32_t u; } b = {f}; return f != f ? 0x7fc0 : (b.u + 0x7fff + (b.u >> 16 & 1)) >> 16; }
  static HD float from(uint16_t h) { union { uint32_t u; float f; } b = {(uint32_t)h << 16}; return b.f; }'''
CAST = 'static HD {raw} to(float f) {{ return ({raw})f; }}\n  static HD float from({raw} h) {{ return (float)h; }}'
HALVES = dict(bfloat16=('__bf16', STORED.format(raw='uint16_t', conversions=BITS)), float16=('_Float16', STORED.format(raw='_Float16', conversions=CAST.format(raw='_Float16'))))
CUDA_HALVES = dict(bfloat16=('__nv_bfloat16', HALVES['bfloat16'][1]), float16=('__half', '#include <cuda_fp16.h>\n' + STORED.format(raw='__half', conversions=CAST.format(raw='__half'))))


def in_double(kernel: str, model: str) -> tuple[str, str]:
    "The kernel of a float64 task: all of it in double."
    k = re.sub(r'\b(\d+\.\d*(?:e-?\d+)?|\d+e-?\d+)f\b', r'\1', kernel).replace('0.7978846', '0.7978845608028654')
    k = re.sub(r'\b(exp|log|tanh|sqrt|fabs|fmax|floor|rsqrt)f\(', r'\1(', re.sub(r'\bfloat\b', 'double', k))
    k = re.sub(r'vector_size\((\d+)\)', lambda m: f'vector_size({2*int(m[1])})', k).replace('alignas(4 * V) pack', 'alignas(8 * V) pack')
    return k, re.sub(r'\bfloat\*', 'double*', model).replace('device=', 'dtype=torch.float64, device=')


def in_half(kernel: str, model: str, dtype: str, target: str) -> tuple[str, str]:
    "The kernel of a task in half precision: tensors in `dtype`, arithmetic in float."
    name, struct = (HALVES if target == 'cpu' else CUDA_HALVES)[dtype]
    k = re.sub(r'\bfloat\*', 'stored*', kernel).replace('struct alignas(4 * V) pack { float v[V]; }', 'struct alignas(2 * V) pack { stored v[V]; }')
    k = re.sub(r'(\? )(\(?\w[^?:;]*\])( : 0)(?:\.f)?(?=[;)])', r'\1(float)\2\3.f', k)
    return with_prelude(k, HD + struct), re.sub(r'\bfloat\*', f'{name}*', model).replace('device=', f'dtype=torch.{dtype}, device=')


# ---- inputs and outputs

INPUTS = {   # what get_inputs() makes of each float tensor x
    'transposed': 'x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() > 1 else x',
    'every second element': 'torch.stack([x, x.flip(0)], -1)[..., 0]',
    'a slice of a larger one': 'torch.cat([x[:1], x, x[:1]])[1:-1]',
    'columns of a wider one': 'torch.cat([x, x], -1)[..., :x.shape[-1]]',
    'odd offset': 'torch.cat([x.flatten()[:3], x.flatten()])[3:].view(x.shape)',
    'rows expanded': 'x[:1].expand(x.shape) if x.dim() > 1 else x'}
TAKE = '\n_inputs = get_inputs\ndef get_inputs(): return [{how} if x.is_floating_point() else x for x in _inputs()]\n'
GAPS = 'torch.zeros(*y.shape, 2, dtype=y.dtype, device=y.device)[..., 1].copy_(y)'
OUTPUTS = {   # how forward hands over: (of the task, of the candidate) given y
    'tuple of one': ('(y,)', '(y,)'), 'list': ('[y, y.shape[0]]', '[y, y.shape[0]]'), 'dict': ("{'y': y, 'n': 3, 'none': None}", "{'n': 3, 'y': y, 'none': None}"),
    'nested': ("{'a': [y, (y[:1], 0.5)], 1: 'text'}", "{'a': [y, (y[:1].clone(), 0.5)], 1: 'text'}"), 'named tuple': ('Both(y, y.unsqueeze(0))', '(y, y.unsqueeze(0))'),
    'the same twice': ('(y, y)', '(y, y)'), 'view': ('y.unsqueeze(-1)', 'y.view(*y.shape, 1)'),
    'copied': ('y', 'y.clone()'), 'by copy_': ('y', 'torch.empty_like(y).copy_(y)'), 'with gaps': ('y', GAPS),
    'into a kept buffer': ('y', 'self.kept(y)'), 'at an odd address': ('y', 'torch.zeros(y.numel() + 3, dtype=y.dtype, device=y.device)[3:].view(y.shape).copy_(y)'),
    'other strides': ('y', 'y.transpose(0, -1).contiguous().transpose(0, -1)')}
GIVE = '''
from collections import namedtuple
Both = namedtuple('Both', 'y z')
_PlainOut = {cls}
class {cls}(_PlainOut):
    def forward(self, *args):
        y = super().forward(*args)
        return {how}
    def kept(self, y):
        if '_kept' not in self.__dict__: self.__dict__['_kept'] = torch.empty_like(y)
        return self._kept.copy_(y)
'''


def handed_over(task: Task, model: str, how: str) -> tuple[Task, str]:
    "The task and model_new.py with another way to return the result."
    old, new = OUTPUTS[how]
    changed = replace(task, id=f'{task.id} -> {how}', source=task.source + GIVE.format(cls='Model', how=old)) if old != 'y' else task
    return changed, model + GIVE.format(cls='ModelNew', how=new)


def kept_buffers(model: str) -> str:
    "Outputs and intermediate results in buffers that are allocated once."
    return re.sub(r'^( +)(\w+) = (torch\.empty.*)$', r"\1if '_\2' not in self.__dict__: self.__dict__['_\2'] = \3\n\1\2 = self._\2", model, flags=re.M)


def kept_weights(model: str) -> str:
    "Parameters copied once, at the first call."
    def copied(m):
        names = list(dict.fromkeys(re.findall(r'self\.[\w.\[\]]*(?:weight|bias|gain|beta|scale)\b', m[0])))
        text = m[0]
        for n in names: text = text.replace(n, f"self.once('{n}', {n})")
        return text
    out = re.sub(r'^ +fused\d*\(.*\)$', copied, model, flags=re.M)
    once = "\n    def once(self, name, t):\n        if name not in self.__dict__: self.__dict__[name] = t.detach().clone()\n        return self.__dict__[name]\n"
    return out + once if out != model else model


# ---- the pybind ABI

TYPES = {'float': 'double', 'int64_t': 'int64_t'}


def as_pybind(kernel: str, model: str, target: str) -> Candidate:
    "The same launchers behind bindings that take tensors."
    head, functions, adds = [], [], []
    for name, parameters in re.findall(r'declare\("void (\w+)\((.*)\)"\)', model):
        parts = [p.rsplit(' ', 1) for p in parameters.split(', ') if 'stream' not in p]
        takes = ', '.join(f'torch::Tensor {n}' if '*' in t else f'{TYPES[t]} {n}' for t, n in parts)
        gives = ', '.join(f'{n}.data_ptr<float>()' if '*' in t else n for t, n in parts) + ', c10::cuda::getCurrentCUDAStream().stream()'*(target == 'cuda')
        head.append(f'extern "C" void {name}({parameters});')
        functions.append(f'static void {name}_py({takes}) {{ {name}({gives}); }}')
        adds.append(f'm.def("{name}", &{name}_py);')
        model = re.sub(rf'^{name} = .*$', f'{name} = cuda_extension.{name}', model, flags=re.M)
    binding = '\n'.join(['#include <torch/types.h>', '#include <torch/csrc/utils/pybind.h>', *['#include <c10/cuda/CUDAStream.h>']*(target == 'cuda'),
                         '#include "../binding_registry.h"', *head, *functions,
                         f'static void add_kernels(pybind11::module& m) {{ {" ".join(adds)} }}', 'REGISTER_BINDING(kernels, add_kernels);\n'])
    return Candidate(((f'kernels/kernel.{SUFFIX[target]}', kernel), ('kernels/kernel_binding.cpp', binding), ('model_new.py', model)))


# ---- the cases

class Honest:
    "Makes the cases of one survey; every part is a method that yields them."
    def __init__(self, target: str, seed: int, size: str = 'cpu', names=None):
        self.target, self.rng, self.templates = target, random.Random(f'honest {target} {seed}'), TEMPLATES[target]
        self.tasks = {n: t for n, t in suite(size).items() if (names is None or n in names) and planned(t)}
        self.kernels = {}          # to leave out what is the same text for the same task

    def knobs(self, task, **fixed):
        values = self.templates.random_knobs(planned(task), self.target, self.rng)
        return values | {k: v for k, v in fixed.items() if k in values}

    def case(self, task, kernel, model, kind, how, precision='fp32'):
        "The case, unless there is one of the same text."
        new = candidate(kernel, model, self.target)
        key = task.hash, new.hash, precision
        if key not in self.kernels:
            self.kernels[key] = True
            yield Case(task, new, kind, how, precision)

    def of_knobs(self, per_task=4):
        "The plainest and the default setting of each task, and random ones."
        for t in self.tasks.values():
            p = planned(t)
            plainest = {k: v[0] for k, v in self.templates.knobs(p, self.target).items()}
            tries = [plainest, self.templates.default_knobs(p, self.target)] + [self.knobs(t) for _ in range(per_task - 2)]
            for values in tries: yield from self.case(t, *texts(t, values, self.target), 'knobs', ' '.join(f'{k}={v}' for k, v in values.items()))

    def of_shapes(self, per_task=2):
        for t in self.tasks.values():
            for _ in range(per_task):
                other = random_shape(t, self.rng)
                if planned(other): yield from self.case(other, *texts(other, self.knobs(other), self.target), 'shape', other.id[len(t.id):])

    def of_orders(self, per_order=6):
        "Each order on a few tasks that it changes, at their own and at long, odd shapes."
        for how in ORDERS if self.target == 'cpu' else CUDA_ORDERS:
            names, n = self.rng.sample(sorted(self.tasks), len(self.tasks)), 0
            for i, name in enumerate(names):
                task = self.tasks[name] if i % 2 else random_shape(self.tasks[name], self.rng)
                if not planned(task) or n == per_order: continue
                if how == 'one-pass variance' and int(SIZES.search(task.source)[2].split(',')[-1]) < 16: continue        # of a few numbers it cancels to nothing: not honest work
                kernel, model = texts(task, self.knobs(task, simd=0, math='libm', threads='all', store='plain'), self.target)
                if (new := ORDERS[how](kernel)) != kernel:
                    n += 1
                    yield from self.case(task, new, model, 'order', how)

    def of_long_sums(self):
        "Rows of up to a million elements, summed by each accumulator. One float for a row is honest up to 65,536 of them: beyond, small addends are lost."
        for name, sizes in dict(row_sum=dict(rows=2, cols=1 << 20), rms_norm=dict(rows=3, cols=262147), layer_norm=dict(rows=2, cols=500009), matrix_vector=dict(rows=5, cols=400000),
                                row_softmax=dict(rows=2, cols=300007), row_logsumexp=dict(rows=3, cols=200003), sum_middle=dict(batch=1, length=100003, features=16)).items():
            task = shaped(self.tasks[name], sizes)
            kernel, model = texts(task, self.knobs(task, simd=0, math='libm', store='plain'), self.target)
            for how in list(SUMS)[1:]:
                if (new := sums(kernel, how)) != kernel: yield from self.case(task, new, model, 'long sum', f'{how} over {max(sizes.values())}')

    def of_blocks(self, number=14):
        "Products in blocks that no knob offers (CPU)."
        names = [n for n, t in self.tasks.items() if any(s.kind == 'gemm' for s in planned(t).stages)]
        for _ in range(number):
            task = random_shape(self.tasks[self.rng.choice(names)], self.rng)
            if not planned(task): continue
            values = self.knobs(task) | dict(kc=self.rng.choice((1, 7, 16, 33, 100)), mb=self.rng.choice((1, 5, 50)), mr=self.rng.choice((1, 3, 5)), nr=self.rng.choice((8, 16, 64)))
            yield from self.case(task, *texts(task, values, self.target), 'blocks', ' '.join(f'{k}={values[k]}' for k in ('kc', 'mb', 'mr', 'nr')))

    def of_dtypes(self, per_dtype=12):
        "float64, bfloat16 and float16 tasks, and bf16 as the declared precision of a float32 task."
        plain = dict(store='plain', math='libm', keep=0 if self.target == 'cpu' else 'no', kc=512, gemm='tiled')
        for dtype in ('float64', 'bfloat16', 'float16', 'bf16 declared'):
            for name in self.rng.sample(sorted(self.tasks), per_dtype):
                task = self.tasks[name] if self.rng.random() < .5 else random_shape(self.tasks[name], self.rng)
                if not planned(task) or any(s.k > 512 for s in planned(task).stages): continue
                kernel, model = texts(task, self.knobs(task, **plain), self.target)
                half = dtype.replace('bf16 declared', 'bfloat16')
                new = in_double(kernel, model) if dtype == 'float64' else in_half(kernel, model, half, self.target)
                if dtype != 'bf16 declared':
                    task = replace(task, id=f'{task.id} {dtype}', source=task.source + TO_DTYPE.format(dtype=dtype))
                    new = new[0], new[1] + NEW_TO_DTYPE.format(dtype=dtype)
                yield from self.case(task, *new, 'dtype', dtype, 'bf16' if dtype == 'bf16 declared' else 'fp32')

    def of_inputs(self, per_way=5):
        for how, text in INPUTS.items():
            for name in self.rng.sample(sorted(self.tasks), per_way):
                small = random_shape(self.tasks[name], self.rng)
                task = replace(small, id=f'{small.id} {how}', source=small.source + TAKE.format(how=text))
                if planned(task): yield from self.case(task, *texts(task, self.knobs(task), self.target), 'input', how)

    def of_outputs(self, per_way=3):
        for how in OUTPUTS:
            for name in self.rng.sample(sorted(self.tasks), per_way):
                small = random_shape(self.tasks[name], self.rng)
                if not planned(small): continue
                kernel, model = texts(small, self.knobs(small), self.target)
                task, model = handed_over(small, model, how)
                yield from self.case(task, kernel, model, 'output', how)

    def of_kept(self, per_way=6):
        for how, change in (('buffers allocated once', kept_buffers), ('weights copied at the first call', kept_weights)):
            for name in self.rng.sample(sorted(self.tasks), len(self.tasks))[:4*per_way]:
                kernel, model = texts(self.tasks[name], self.knobs(self.tasks[name]), self.target)
                if (new := change(model)) != model: yield from self.case(self.tasks[name], kernel, new, 'kept', how)

    def of_hand(self):
        "Kernels written by hand (CPU): integers, scans, windows, online softmax, Welford, folded weights."
        for name, task, kernel, model in HAND(suite(), shaped, SUMS, HD): yield from self.case(task, kernel, model, 'by hand', name)

    def of_pybind(self, number=12):
        "Each build takes many times as long as one of the C ABI, so only a few."
        for name in self.rng.sample(sorted(self.tasks), number):
            task = self.tasks[name]
            yield Case(task, as_pybind(*texts(task, self.knobs(task), self.target), self.target), 'pybind', 'the same launchers behind pybind11')


CPU_PARTS = ('knobs', 'shapes', 'orders', 'long_sums', 'blocks', 'dtypes', 'inputs', 'outputs', 'kept', 'hand', 'pybind')
CUDA_PARTS = tuple(p for p in CPU_PARTS if p not in ('blocks', 'hand'))


def honest(target: str = 'cpu', seed: int = 0, number: int | None = None, size: str = 'cpu') -> list[Case]:
    "The cases, or a sample of `number` of them."
    maker = Honest(target, seed, size)
    cases = [c for part in (CPU_PARTS if target == 'cpu' else CUDA_PARTS) for c in getattr(maker, f'of_{part}')()]
    if number is not None and number < len(cases): cases = random.Random(seed).sample(cases, number)
    return cases
