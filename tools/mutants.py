"""Near misses: right kernels with one small fault each.

`mutants(target, seed)` gives the list of cases that `tools/survey.py mutants` judges. A fault is made in the text of a kernel of the templates (FAULTS, loops, roundings),
in the task that the templates are given (TASK_FAULTS: a right kernel for a slightly wrong function), in kernels by hand, or in the finished output (SPOIL)."""
import functools, random, re
from collections import defaultdict
from dataclasses import dataclass, replace
from cuda_agent_lab.workspace import Candidate
from hand_kernels import HAND
from honest import HD, SUMS, TEMPLATES, Case, candidate, in_double, planned, random_shape, shaped, short, suite, texts, with_prelude, NEW_TO_DTYPE, TO_DTYPE


@dataclass(frozen=True)
class Right:
    "A right candidate as texts."
    task: object
    kernel: str
    model: str
    target: str

    def mutant(self, kind: str, how: str, kernel: str | None = None, model: str | None = None) -> Case:
        new = candidate(kernel or self.kernel, model or self.model, self.target)
        return Case(self.task, new, kind, how, base=candidate(self.kernel, self.model, self.target))


# ---- faults of the text: (kind, how, pattern, replacement); each place that matches is a mutant
EPS = r'1e-0([56])f'
FAULTS = [
    ('epsilon', 'missing', rf' \+ {EPS}', ''),
    ('epsilon', 'ten times larger', EPS, lambda m: f'1e-0{int(m[1]) - 1}f'),
    ('epsilon', 'ten times smaller', EPS, lambda m: f'1e-0{int(m[1]) + 1}f'),
    ('epsilon', 'a per cent larger', EPS, r'1.01e-0\1f'),
    ('epsilon', 'outside of the root', rf'1\.f / sqrtf\((.*) \+ ({EPS})\)', r'1.f / (sqrtf(\1) + \2)'),
    ('epsilon', 'as a maximum', rf'sqrtf\((.*) \+ ({EPS})\)', r'sqrtf(fmaxf(\1, \2))'),
    ('denominator', 'n - 1', r'(sum\d* / )(\d+)\.f', lambda m: f'{m[1]}{int(m[2]) - 1}.f'),
    ('denominator', 'n + 1', r'(sum\d* / )(\d+)\.f', lambda m: f'{m[1]}{int(m[2]) + 1}.f'),
    *[('constant', f'off by {by:g}', r'(?<!e-)(?<![\w.])(\d*\.?\d+)f\b', functools.partial(lambda m, by: m[0] if float(m[1]) in (0, 1) else f'{float(m[1])*(1 + by):.9g}f', by=by)) for by in (1e-2, 1e-3, 1e-4, 1e-5)],
    ('missing term', 'no addend', r' \+ \w*(?:bias|residual|skip|shift|mask)\[[^\]]+\]', ''),
    ('missing term', 'no factor', r' \* \w*(?:gain|scale|weight|gate|beta)\[[^\]]+\]', ''),
    ('missing term', 'no mean', r' - w(?=;|\))', ''),
    ('broadcast', 'always the first', r'(\w*(?:bias|gain|weight|scale|beta|mask|shift))\[[cj]\]', r'\1[0]'),
    ('broadcast', 'by the row', r'(\w*(?:bias|gain|weight|scale|beta|mask|shift))\[c\]', r'\1[r % cols]'),
    ('broadcast', 'the neighbour', r'(\w*(?:bias|gain|weight|scale|beta|mask|shift))\[c\]', r'\1[c + 1 < cols ? c + 1 : 0]'),
    ('broadcast', 'the last one twice', r'(\w*(?:bias|gain|weight|scale|beta|mask|shift))\[c\]', r'\1[c < cols - 1 ? c : cols - 2]'),
    ('swapped axis', 'columns for rows', r'(?<!const )(\b(?!out)\w+)\[r \* cols \+ c\]', r'\1[c * rows + r]'),
    ('swapped axis', 'transposed matrix', r'(\w*weight)\[p \+ \(j0 \+ j\) \* \d+\]', r'\1[p * n + j0 + j]'),
    ('swapped axis', 'mirrored', r'(\b(?!out)\w+)\[r \* cols \+ c\]', r'\1[r * cols + cols - 1 - c]'),
    ('index', '16 bits', r'(\b(?!out)\w+)\[((?:r \* cols|i \* \d+) \+ [^\]]+)\]', r'\1[(uint16_t)(\2)]'),
    ('index', 'in float', r'(\b(?!out)\w+)\[((?:r \* cols|i \* \d+) \+ [^\]]+)\]', r'\1[(int64_t)(float)(\2)]'),
    ('index', 'one too far', r'(\b(?!out)\w+)\[((?:r \* cols|i \* \d+) \+ [^\]]+)\]', r'\1[\2 + 1]'),
    ('maximum', 'starts at 0', r'= -INFINITY', '= 0'),
    ('maximum', 'starts at the smallest positive number', r'= -INFINITY', '= 1.17549435e-38f'),
    ('maximum', 'starts at -1e4', r'= -INFINITY', '= -1e4f'),
    ('maximum', 'loses NaN', r'  if \(nan\d*\) (?:top|low)\d* = NAN;\n', ''),
    ('maximum', 'loses NaN', r'\b(\w+) > (top) \|\| \1 != \1 \?', r'\1 > \2 ?'),
    ('maximum', 'not subtracted', r'top = v > top (?:\|\| v != v )?\? v : top;', 'top = 0;'),
    ('maximum', 'the smallest instead', r'top = v > top ', 'top = v < top || top == -INFINITY '),
    ('start value', '1e-3', r'(sum\d*) = 0(?:\.f)?;', r'\1 = 1e-3f;'),
    ('start value', '1e-6', r'(sum\d*) = 0(?:\.f)?;', r'\1 = 1e-6f;'),
    ('start value', 'none', r'(double|float) (sum\d*) = 0(?:\.f)?;', r'\1 \2;'),
    ('race', 'shared sum', r'(double|float) (sum\d*|w\d*) = ([^;]*);', r'static \1 \2; \2 = \3;'),
    ('race', 'shared tile', r'alignas\(64\) float pack', 'static float pack'),
    ('race', 'shared sums of columns', r'(double|float) (sum\d*\[\d+\]);', r'static \1 \2;'),
    ('sign', 'of a difference', r'(\]|\bv\d*|\bsum) - (?=[a-z])', r'\1 + '),
    ('sign', 'of an exponent', r'expf\(-', 'expf('),
    ('last block', 'of the columns', r'(p|c) < (\d{3,}|cols); \1 \+= (\d+)', r'\1 < \2 - \3; \1 += \3'),
    ('last block', 'of the product', r'(p0) < k; p0 \+= (\d+)', r'p0 + \2 <= k; p0 += \2'),
    ('last block', 'of rows', r'(i0) < m; i0 \+= (\d+)', r'i0 + \2 <= m; i0 += \2'),
    ('last block', 'not added', r' \+ \(p0 \? \w+\[[^\]]+\] : 0\)', ''),
    ('last element', 'of a tile', r'je = (j0 \+ \d+ < n \? j0 \+ \d+ : n)', r'je = (\1) - 1'),
    ('last row', 'of a tile', r'ie = (i0 \+ \d+ < m \? i0 \+ \d+ : m)', r'ie = (\1) - 1'),
    ('truncated sum', 'k - 1', r'pe = (p0 \+ \d+ < k \? p0 \+ \d+ : k)', r'pe = (\1) - 1'),
]
CUDA_FAULTS = [f for f in FAULTS if f[0] in ('epsilon', 'denominator', 'constant', 'maximum', 'start value', 'sign')] + [
    ('epsilon', 'missing', rf'(?<=rsqrtf\()(.*) \+ {EPS}', r'\1'),
    ('last element', 'of a row or of all', r'if \((\w+) >= ([^)]+)\) (return|break);', r'if (\1 >= \2 - 1) \3;'),
    ('last block', 'of the grid', r'\((\w+|\d+(?: \* \d+)*) \+ \d+\) / (\d+)>>>', r'\1 / \2>>>'),
    ('last block', 'of the grid', r'<<<\((rows|n|rows \* cols|\d+(?: \* \d+)*) \+ \d+\) / (\d+),', r'<<<\1 / \2 > 0 ? \1 / \2 : 1,'),
    ('race', 'no barrier', r'  __syncthreads\(\);\n', ''),
    ('race', 'one shuffle too few', r's = 16; s;', 's = 8; s;'),
    ('race', 'the last warp is left out', r'threadIdx\.x % 32 < (\d+) \?', lambda m: f'threadIdx.x % 32 < {int(m[1]) - 1} ?'),
    ('truncated sum', 'k - 1', r'p0 < k; p0 \+= 16', 'p0 < k - 1; p0 += 16'),
    ('truncated sum', 'k - 1', r'p0 \+ ap < k', 'p0 + ap < k - 1'),
    ('swapped axis', 'transposed operand', r'CUBLAS_OP_T, CUBLAS_OP_N', 'CUBLAS_OP_N, CUBLAS_OP_N'),
    ('rounding', 'TF32 by cuBLAS', r'(cublasSetStream\(handle, stream\);)', r'\1 cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);'),
    ('rounding', 'bf16 by cuBLAS', r'cublasSgemm\(handle, (\w+), (\w+), (.*?), &one, ([^,]+), (\d+), ([^,]+), (\d+), &zero, (\w+), (\d+)\);',
     r'cublasGemmEx(handle, \1, \2, \3, &one, \4, CUDA_R_32F, \5, \6, CUDA_R_32F, \7, &zero, \8, CUDA_R_32F, \9, CUBLAS_COMPUTE_32F_FAST_16BF, CUBLAS_GEMM_DEFAULT);'),
    ('approximation', '__expf', r'(?<!_)\bexpf\(', '__expf('),
    ('approximation', 'tanh.approx', r'\btanhf\(', 'tanh_('),
    ('approximation', 'division', r' / (sum|\d+\.f)', r' * __frcp_rz(\1)'),
]
PRELUDES = {'tanh_(': '__device__ float tanh_(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }\n', 'fmaxf(': '', 'uint16_t': ''}


def of_text(right: Right, faults) -> list[Case]:
    "One mutant for each place where a pattern matches and changes something."
    out, start = [], right.kernel.index('fused')
    for kind, how, pattern, repl in faults:
        for m in re.finditer(pattern, right.kernel):
            new = repl(m) if callable(repl) else m.expand(repl)
            if m.start() < start or new == m[0] or kind == 'constant' and '__launch' in right.kernel[m.start() - 40:m.start()]: continue
            text = right.kernel[:m.start()] + new + right.kernel[m.end():]
            for name, prelude in PRELUDES.items():
                if name in new and prelude: text = with_prelude(text, prelude)
            out.append(right.mutant(kind, f'{how} ({m[0].strip()[:40]})', text))
    return out


# ---- loops of the CPU kernels
HEAD = re.compile(r'for \(int64_t (\w+) = (\w+); \1 < ([\w ?:<+()]+); \+\+\1\)')


def body_end(text: str, at: int) -> int:
    "Where the statement that starts at `at` ends."
    depth = 0
    for i in range(at, len(text)):
        depth += {'{': 1, '(': 1, '}': -1, ')': -1}.get(text[i], 0)
        if depth == 0 and text[i] in ';}': return i + 1
    return len(text)


def of_loops(right: Right) -> list[Case]:
    "Wrong ends and starts: of sums, of rows, of what is written."
    out = []
    for m in HEAD.finditer(right.kernel):
        var, start, end = m.groups()
        body = right.kernel[m.end():body_end(right.kernel, m.end())]
        bound = end if re.fullmatch(r'\w+', end) else f'({end})'
        inner, adds, writes = 'for (' not in body, re.search(r'[+]=|top\d* = ', body), re.search(r'\b(out\d*|t\d)\[[^\]]+\] = ', body)
        last = 'last row' if not inner else 'truncated sum' if adds else 'last element' if writes else None
        if last is None: continue
        ends = [(last, 'one too early', f'{start}', f'{bound} - 1'), (last, 'one too late', f'{int(start) + 1 if start.isdigit() else start + " + 1"}', bound)]
        if inner: ends += [('tail', 'only whole groups of 16', start, f'{bound} / 16 * 16' if start == '0' else None), ('tail', 'the second half is left out', start, f'{bound} / 2' if start == '0' and adds else None)]
        if adds and inner: ends += [('truncated sum', 'one beyond', start, f'{bound} + 1')]
        for kind, how, first, limit in ends:
            if limit is None: continue
            head = f'for (int64_t {var} = {first}; {var} < {limit}; ++{var})'
            out.append(right.mutant(kind, f'{how} ({var} < {end})', right.kernel[:m.start()] + head + right.kernel[m.end():]))
    return out


# ---- lower precision and poor approximations
LOW = '''static {qualifier}inline float low(float x) {{
  union {{ float f; uint32_t u; }} b = {{x}};
  b.u = (b.u{nearest}) & ~{mask}u;
  return b.f;
}}
'''


def low(bits: int, nearest: bool, target: str) -> str:
    "A function that keeps `bits` bits of the mantissa."
    n = 23 - bits
    round_up = f' + {(1 << n - 1) - 1}u + (b.u >> {n} & 1)' if nearest else ''
    return LOW.format(qualifier='__device__ ' if target == 'cuda' else '', nearest=round_up, mask=(1 << n) - 1)


FORMATS = [   # (name, bits of the mantissa, to nearest)
    ('bf16', 7, True), ('TF32', 10, True), ('TF32, truncated', 10, False), ('13 bits', 13, True), ('16 bits', 16, True), ('18 bits', 18, True), ('20 bits', 20, True), ('21 bits, truncated', 21, False)]


def of_rounding(right: Right) -> list[Case]:
    "Inputs of a product or of everything, sums, or the output with fewer bits."
    out, k, names = [], right.kernel, '|'.join(sorted(set(re.findall(r'const float\* (?:__restrict__ )?(\w+)', right.kernel)) - {'row'}))
    places = {}
    if right.target == 'cpu' and 'float u = row[r][p' in k:
        places['factors of the product'] = re.sub(r'(float u = )(row\[r\]\[p[^;]*\]);', r'\1low(\2);', re.sub(r'(\] = j0 \+ j < n \? )([^:]+)( : 0;)', r'\1low(\2)\3', k))
    elif right.target == 'cuda' and 'as[ap][ai]' in k:
        places['factors of the product'] = re.sub(r'(< k \? )(\S+\[[^\]]+\])( : 0\.f;)', r'\1low(\2)\3', k)
    if right.target == 'cpu': places['inputs'] = re.sub(rf'(?<![&\w])({names})\[([^\]]+)\](?! =)', r'low(\1[\2])', k)
    else: places['inputs'] = re.sub(r'\b(a\d*\.v\[z\]|keep\d\[t\]\.v\[z\])(?! =)', r'low(\1)', k)
    places['output'] = re.sub(r'(\bout\[[^\]]+\] = |o\.v\[z\] = )(.*);', r'\1low(\2);', k)
    places['sum'] = re.sub(r'\b(sum\d*) \+= (.*?);', r'\1 = low(\1 + (\2));', k)
    for place, text in places.items():
        if text == k: continue
        for name, bits, nearest in FORMATS:
            out.append(right.mutant('rounding' if bits <= 10 else 'calibrated rounding', f'{place} in {name}', with_prelude(text, low(bits, nearest, right.target))))
    return out


EXP = '''static inline float exp_(float x) {{
  x = x < -87.f ? -87.f : x > 88.f ? 88.f : x;
  float n = rintf(x * 1.442695041f), r = fmaf(n, -0.693145752f, x);
  r = fmaf(n, -1.42860677e-06f, r);
  return ({series}) * __builtin_bit_cast(float, ((int)n + 127) << 23);
}}
'''
SERIES = {3: '1.f + r * (1.f + r * (0.5f + r * 0.16666667f))', 4: '1.f + r * (1.f + r * (0.5f + r * (0.16666667f + r * 0.041666667f)))',
          5: '1.f + r * (1.f + r * (0.5f + r * (0.16666667f + r * (0.041666667f + r * 0.0083333333f))))'}
APPROXIMATIONS = [   # (how, pattern, replacement, function)
    ('rsqrtss', r'1\.f / sqrtf\(', 'root(', '#include <immintrin.h>\nstatic inline float root(float x) { return _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(x))); }\n'),
    *[(f'0x5f3759df, {n} steps', r'1\.f / sqrtf\(', 'root(', f'static inline float root(float x) {{ union {{ float f; uint32_t u; }} b = {{x}}; b.u = 0x5f3759df - (b.u >> 1);\n'
       f'  for (int i = 0; i < {n}; ++i) b.f = b.f * (1.5f - 0.5f * x * b.f * b.f);\n  return b.f; }}\n') for n in (1, 2, 3)],
    ('exp by bits', r'\bexpf\(', 'exp_(', 'static inline float exp_(float x) { x = x < -80.f ? -80.f : x > 80.f ? 80.f : x; return __builtin_bit_cast(float, (int)(12102203.f * x + 1064866805.f)); }\n'),
    ('exp as a power', r'\bexpf\(', 'exp_(', 'static inline float exp_(float x) { float y = 1.f + x / 4096.f; if (y < 0) return 0; for (int i = 0; i < 12; ++i) y *= y; return y; }\n'),
    *[(f'exp by {n} terms', r'\bexpf\(', 'exp_(', EXP.format(series=s)) for n, s in SERIES.items()],
    ('tanh by a fraction', r'\btanhf\(', 'tanh_(', 'static inline float tanh_(float x) { x = x < -4.97f ? -4.97f : x > 4.97f ? 4.97f : x; float y = x * x;\n  return x * (135135.f + y * (17325.f + y * (378.f + y))) / (135135.f + y * (62370.f + y * (3150.f + y * 28.f))); }\n'),
    ('tanh by a short fraction', r'\btanhf\(', 'tanh_(', 'static inline float tanh_(float x) { x = x < -3.f ? -3.f : x > 3.f ? 3.f : x; return x * (27.f + x * x) / (27.f + 9.f * x * x); }\n'),
    ('log by bits', r'\blogf\(', 'log_(', 'static inline float log_(float x) { return (__builtin_bit_cast(int, x) - 1064866805) * 8.2629582e-8f; }\n'),
    ('rcpss', r' / sum\b', ' * rcp(sum)', '#include <immintrin.h>\nstatic inline float rcp(float x) { return _mm_cvtss_f32(_mm_rcp_ss(_mm_set_ss(x))); }\n'),
]


def of_approximations(right: Right) -> list[Case]:
    return [right.mutant('approximation', how, with_prelude(re.sub(pattern, new, right.kernel), function)) for how, pattern, new, function in APPROXIMATIONS if re.search(pattern, right.kernel)]


# ---- a right kernel for a slightly wrong task: (kind, how, text of its source, replacement)
TASK_FAULTS = [
    ('activation', 'erf GELU', 'approximate="tanh"', 'approximate="none"'), ('activation', 'quick GELU', 'F.gelu(x, approximate="tanh")', 'x * torch.sigmoid(1.702 * x)'),
    ('activation', 'ReLU for leaky ReLU', 'F.leaky_relu(self.linear(x), 0.1)', 'torch.relu(self.linear(x))'), ('activation', 'hard sigmoid', 'torch.sigmoid(', 'F.hardsigmoid('),
    ('activation', 'SiLU for hard swish', 'F.hardswish(y)', 'F.silu(y)'), ('activation', 'softsign for tanh', 'torch.tanh(', 'F.softsign('), ('activation', 'hard swish for SiLU', 'F.silu(', 'F.hardswish('),
    ('activation', 'mish for SiLU', 'F.silu(', 'F.mish('), ('activation', 'GELU for SiLU', 'F.silu(', 'F.gelu('), ('activation', 'softplus for ReLU', 'torch.relu(', 'F.softplus('),
    ('activation', 'ReLU6 for ReLU', 'torch.relu(', 'F.relu6('), ('activation', 'ELU for leaky ReLU', 'F.leaky_relu(self.linear(x), 0.1)', 'F.elu(self.linear(x), 0.1)'),
    ('bound', 'of a clamp', 'max=2.0', 'max=2.01'), ('bound', 'of a clamp, by little', 'max=2.0', 'max=2.0001'), ('bound', 'one side', '-1.5, 1.5', '-1.5, 1.499'),
    ('bound', 'one side missing', '-1.5, 1.5', 'max=1.5'), ('bound', 'margin', '[60.0]', '[59.99]'), ('bound', 'no hinge', 'torch.relu(near - far + self.margin)', '(near - far + self.margin)'),
    ('bound', 'temperature', '[0.25]', '[0.2501]'), ('bound', 'no upper one', 'torch.clamp(F.hardswish(y), max=2.0)', 'F.hardswish(y)'),
    ('missing term', 'no bias of a layer', 'self.linear(', 'torch.nn.functional.linear(weight=self.linear.weight, input='), ('missing term', 'no residual', 'residual + F.silu', 'F.silu'),
    ('missing term', 'no residual', 'return x + ', 'return '), ('missing term', 'no skip', ' + skip', ''), ('missing term', 'no bias', ' + self.bias', ''), ('missing term', 'no gain', ' * self.gain', ''),
    ('missing term', 'no scale', ' * self.scale', ''), ('missing term', 'no shift', ' + self.shift', ''), ('missing term', 'no gate', ' * gate[:, :, None, None]', ''),
    ('swapped axis', 'over the rows', 'softmax(x, dim=1)', 'softmax(x, dim=0)'), ('swapped axis', 'over the rows', '+ mask, dim=-1)', '+ mask, dim=0)'),
    ('swapped axis', 'factors exchanged', 'torch.bmm(a, b)', 'torch.bmm(b, a)'), ('swapped axis', 'second factor transposed', 'torch.bmm(a, b)', 'torch.bmm(a, b.transpose(1, 2))'),
    ('swapped axis', 'reshape for transpose', 'x.transpose(1, 2).contiguous()', 'x.reshape(x.shape[0], x.shape[2], x.shape[1]) + 0'),
    ('swapped axis', 'reshape for transpose', 'x.t()', 'x.reshape(x.shape[1], x.shape[0])'), ('swapped axis', 'first factor transposed', 'torch.bmm(a, b)', 'torch.bmm(a.transpose(1, 2), b)'),
    ('wrong weights', 'the first norm twice', 'self.norm2(x)', 'self.norm1(x)'), ('wrong weights', 'the first layer twice', 'self.tokens2(', 'self.tokens1('),
    ('wrong weights', 'an earlier layer', 'self.whole1(h)', 'self.each2(h)'), ('wrong weights', 'gate and value exchanged', 'F.silu(self.gate(h)) * self.up(h)', 'F.silu(self.up(h)) * self.gate(h)'),
    ('wrong weights', 'one layer four times', 'self.layers(x)', 'self.layers[0](self.layers[0](self.layers[0](self.layers[0](x))))'), ('wrong weights', 'two layers exchanged', 'self.layers(x)', 'self.layers[3](self.layers[1](self.layers[2](self.layers[0](x))))'),
    ('wrong weights', 'bias of another layer', 'self.second(h)', 'F.linear(h, self.second.weight, self.first.bias)'), ('wrong weights', 'mean and variance exchanged', re.compile(r'(nn\.BatchNorm.*)return self\.norm\(x\)', re.S), r'\1return F.batch_norm(x, self.norm.running_var, self.norm.running_mean.abs() + 0.5, self.norm.weight, self.norm.bias)'),
    ('order', 'scale before the activation', 'F.leaky_relu(self.linear(x), 0.1) * self.scale', 'F.leaky_relu(self.linear(x) * self.scale, 0.1)'), ('order', 'skip before ReLU', 'torch.relu(x.t() + self.bias) + skip', 'torch.relu(x.t() + self.bias + skip)'),
    ('order', 'clamp before skip', 'torch.clamp(self.conv(x) + skip, -1.5, 1.5)', 'torch.clamp(self.conv(x), -1.5, 1.5) + skip'), ('order', 'gain before the norm', 'h * torch.rsqrt(torch.mean(h * h, dim=-1, keepdim=True) + self.eps) * self.gain', 'h * self.gain * torch.rsqrt(torch.mean(h * h * self.gain * self.gain, dim=-1, keepdim=True) + self.eps)'),
    ('order', 'mask before the scale', 'x * self.scale + mask', '(x + mask) * self.scale'), ('order', 'norm of the sum', 'x + torch.relu(self.norm(x))', 'self.norm(x + torch.relu(x))'),
    ('statistics', 'half the group', '[8, channels]', '[16, channels]'), ('statistics', 'half the group', '[16, channels]', '[32, channels]'), ('statistics', 'n - 1', 'torch.mean(centred * centred, dim=-1, keepdim=True)', 'x.var(dim=-1, keepdim=True)'),
    ('statistics', 'not centred', re.compile(r'(nn\.LayerNorm.*)return self\.norm\(x\)', re.S), r'\1return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm.weight + self.norm.bias'), ('statistics', 'mean of magnitudes', 'x.pow(2).mean(dim=-1, keepdim=True)', 'x.abs().mean(dim=-1, keepdim=True).pow(2)'),
    ('statistics', 'the maximum for log-sum-exp', 'torch.logsumexp(x, dim=1)', 'torch.amax(x, dim=1)'), ('statistics', 'sum of magnitudes', 'torch.sum((anchor - positive) ** 2, dim=-1)', 'torch.sum((anchor - positive).abs(), dim=-1)'),
    ('statistics', 'entropy in bits', 'torch.exp(logp) * logp', 'torch.exp(logp) * logp * 1.442695'), ('statistics', 'mean for sum', 'torch.sum(x, dim=1)', 'x.mean(dim=1)'), ('statistics', 'maximum of magnitudes', 'torch.amax(x, dim=1, keepdim=True)', 'torch.amax(x.abs(), dim=1, keepdim=True)'),
    ('sign', 'near and far exchanged', 'near - far', 'far - near'), ('sign', 'of an offset', ' - 2.5', ' + 2.5'), ('sign', 'of an offset', ' - 3', ' + 3'),
]


def of_tasks(right: Right, values: dict) -> list[Case]:
    "Kernels of the same templates for a changed source."
    out = []
    for kind, how, old, new in TASK_FAULTS:
        source = old.sub(new, right.task.source) if isinstance(old, re.Pattern) else right.task.source.replace(old, new)
        wrong = replace(right.task, source='import torch.nn.functional as F\n' + source)
        if source == right.task.source or not planned(wrong): continue
        own = TEMPLATES[right.target].default_knobs(planned(wrong), right.target)
        out.append(right.mutant(kind, how, *texts(wrong, own | {k: v for k, v in values.items() if k in own}, right.target)))
    return out


def of_arguments(right: Right) -> list[Case]:
    "Two arguments of a launcher exchanged."
    out = []
    for m in re.finditer(r'^ +fused\d*\((.*)\)$', right.model, re.M):
        parts = m[1].split(', ')
        names = [i for i, p in enumerate(parts) if re.search(r'weight|bias|gain|scale|mean|var|shift|gate|value|residual|positive|negative', p)]
        for i, j in zip(names, names[1:]):
            new = list(parts)
            new[i], new[j] = new[j], new[i]
            if shapes_agree(right, parts[i], parts[j]):
                out.append(right.mutant('wrong weights', f'{parts[i]} and {parts[j]} exchanged', model=right.model[:m.start(1)] + ', '.join(new) + right.model[m.end(1):]))
    return out


def shapes_agree(right: Right, a: str, b: str) -> bool:
    p = planned(right.task)
    shapes = {source: p.shapes.get(name) for name, source in p.sources.items()}
    return shapes.get(a) is not None and shapes.get(a) == shapes.get(b)


# ---- a fault of known size in the finished output
PLACES = {'one element': 'out[n / 3] *= 1 + d;', 'the last element': 'out[n - 1] *= 1 + d;', 'one row': 'for (int64_t i = 0; i < w; ++i) out[n / w / 2 * w + i] *= 1 + d;',
          'every element': 'for (int64_t i = 0; i < n; ++i) out[i] *= 1 + d;', 'one element by a share of the largest': '{ float m = 0; for (int64_t i = 0; i < n; ++i) m = fmaxf(m, fabsf(out[i])); out[n / 3] += d * m; }',
          'two rows exchanged': 'for (int64_t i = 0; i < w; ++i) { float v = out[i]; out[i] = out[n - w + i]; out[n - w + i] = v; }',
          'two neighbours exchanged': '{ float v = out[n / 3]; out[n / 3] = out[n / 3 + 1]; out[n / 3 + 1] = v; }'}
SPOIL = 'extern "C" void spoil(float* out, int64_t n, int64_t w, float d) {{ {} }}\n'
CUDA_SPOIL = '__global__ void spoil_(float* out, int64_t n, int64_t w, float d) {{ {} }}\nextern "C" void spoil(float* out, int64_t n, int64_t w, float d, cudaStream_t stream) {{ spoil_<<<1, 1, 0, stream>>>(out, n, w, d); }}\n'
STEPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def of_output(right: Right) -> list[Case]:
    "The output multiplied by 1 + d in one place."
    out, stream = [], ', cudaStream_t stream'*(right.target == 'cuda')
    declared = right.model.replace('\n\nclass ModelNew', f'\nspoil = cuda_extension.declare("void spoil(float* out, int64_t n, int64_t w, float d{stream})")\n\nclass ModelNew', 1)
    for place, statement in PLACES.items():
        for d in STEPS if 'exchanged' not in place else (0.,):
            if right.target == 'cuda' and place == 'every element': continue
            kernel = right.kernel + (SPOIL if right.target == 'cpu' else CUDA_SPOIL).format(statement)
            model = re.sub(r'( +)return out\b', rf'\1spoil(out, out.numel(), out.shape[-1], {d})\n\1return out', declared)
            out.append(right.mutant('calibrated', f'{place}{f" by {d:g}"*(d > 0)}', kernel, model))
    return out


# ---- kernels by hand
HAND_FAULTS = [
    ('window', 'last row of it', 'u <= 2 * y + 1', 'u < 2 * y + 1'), ('window', 'first row of the image', 'u >= 0', 'u > 0'), ('window', 'last column of the image', 'v < side', 'v < side - 1'), ('maximum', 'starts at 0', '= -INFINITY', '= 0'),
    ('window', 'mean over what is inside', 'sum / 9.f', 'sum / (float)((j + 4 < length ? j + 4 : length - 1) - (j > 4 ? j - 4 : 0) + 1)'), ('window', 'one to the right', 'k = j - 4; k <= j + 4', 'k = j - 3; k <= j + 5'), ('window', 'eight for nine', 'k <= j + 4', 'k < j + 4'),
    ('window', 'drops one late', 'if (j > 4) sum -= x[i * length + j - 5];', 'if (j > 5) sum -= x[i * length + j - 6];'), ('window', 'turned', 'c * 9 + u * 3 + v', 'c * 9 + 8 - u * 3 - v'), ('window', 'transposed', 'c * 9 + u * 3 + v', 'c * 9 + v * 3 + u'),
    ('window', 'no border', 'i >= 0 && i < side', 'i > 0 && i < side'), ('missing term', 'no bias', 'sum + bias[c]', 'sum'), ('broadcast', 'the neighbour', 'sum + bias[c]', 'sum + bias[c ? c - 1 : 0]'),
    ('scan', 'exclusive', 'sum += x[r * cols + c]; out[r * cols + c] = sum;', 'out[r * cols + c] = sum; sum += x[r * cols + c];'), ('scan', 'carry of the last block only', 'before += sum', 'before = sum'), ('scan', 'no carry', 'before + sum', 'sum'),
    ('scan', 'over all rows', 'acc_t sum = 0;\n    for (int64_t c = 0; c < cols; ++c) { sum +=', 'static acc_t sum = 0;\n    for (int64_t c = 0; c < cols; ++c) { sum +='), ('scan', 'weights one late', 'below += w;\n      out[r * cols + c] = above / below;', 'out[r * cols + c] = above / (below + 1e-30f);\n      below += w;'),
    ('integers', 'the last class', 'target[r]', 'target[r] % (cols - 1)'), ('integers', 'class one too low', 'p[target[r]]', 'p[target[r] ? target[r] - 1 : 0]'), ('integers', 'sum in 32 bits', 'int64_t sum = 0', 'int32_t sum = 0'), ('integers', 'maximum in float', 'int32_t top', 'float top'),
    ('integers', 'first of two equal ones', '> x[r * cols + best]', '>= x[r * cols + best]'), ('integers', 'the last column', 'int64_t best = 0;\n    for (int64_t c = 1; c < cols', 'int64_t best = 0;\n    for (int64_t c = 1; c < cols - 1'), ('integers', 'maximum of magnitudes', 'top = x[r * cols + c] > top ? x[r * cols + c] : top', 'top = abs(x[r * cols + c]) > top ? abs(x[r * cols + c]) : top'),
    ('integers', '16 bits', 'int32_t top', 'int16_t top'), ('epsilon', 'missing', ' + 1e-5f', ''), ('epsilon', 'ten times smaller', '1e-5f', '1e-6f'), ('denominator', 'n - 1', 'square / cols', 'square / (cols - 1)'), ('statistics', 'the mean before the last value', 'square += d * (p[c] - mean)', 'square += d * d'),
    ('maximum', 'not subtracted', 'top = fmaxf(top, p[c])', 'top = 0'), ('constant', 'of the slope', '0.1f', '0.1001f'), ('truncated sum', 'k - 1', 'p < k; ++p', 'p < k - 1; ++p'), ('truncated sum', 'k - 1', 'p < n; ++p', 'p < n - 1; ++p'), ('missing term', 'rescaling', 'sum = sum * expf(top - m) + expf(p[c] - m)', 'sum = sum + expf(p[c] - m)'),
    ('missing term', 'rescaling', 'sum = sum * expf(top - p[c]) + 1', 'sum = sum + 1'), ('wrong weights', 'mean not folded', 'beta[c] - mean[c] * s', 'beta[c]'), ('order', 'ReLU before the offset', 'float s = sum;\n    out[((b * outer + c) * side + y) * side + z] = s > 0 ? s : 0;', 'float s = sum - w[outer * inner * 9 + c];\n    out[((b * outer + c) * side + y) * side + z] = (s > 0 ? s : 0) + w[outer * inner * 9 + c];'),
]


def of_hand() -> list[Case]:
    out, seen = [], set()
    for what, task, kernel, model in HAND(suite(), shaped, SUMS, HD):
        if (what.split(',')[0], task.id) in seen: continue
        seen.add((what.split(',')[0], task.id))
        for kind, how, old, new in HAND_FAULTS:
            if old in kernel: out.append(Right(task, kernel, model, 'cpu').mutant(kind, f'{how} ({what.split(",")[0]})', kernel.replace(old, new)))
    return out


def of_double(tasks: dict, rng) -> list[Case]:
    "float64 tasks computed in float32."
    out = []
    for name in ('row_sum', 'layer_norm', 'linear_bias_leaky_scale', 'gelu', 'row_softmax', 'residual_rms_norm'):
        task = tasks[name]
        kernel, model = in_double(*texts(task, TEMPLATES['cpu'].default_knobs(planned(task)) | dict(math='libm', store='plain', simd=0), 'cpu'))
        task, model = replace(task, id=f'{task.id} float64', source=task.source + TO_DTYPE.format(dtype='float64')), model + NEW_TO_DTYPE.format(dtype='float64')
        names = '|'.join(sorted(set(re.findall(r'const double\* (\w+)', kernel)) - {'row'}))
        cut = re.sub(rf'(?<![&\w])({names})\[([^\]]+)\](?! =)', r'(double)(float)\1[\2]', kernel)
        out.append(Right(task, kernel, model, 'cpu').mutant('float64', 'inputs in float32', cut))
        inner = re.sub(r'\b(exp|tanh|sqrt)\(', r'\1f(', re.sub(r'\bdouble (?=sum|v|w|u|acc)', 'float ', kernel))
        out.append(Right(task, kernel, model, 'cpu').mutant('float64', 'arithmetic in float32', inner))
    return out


# ---- which of them
MOST = {'rounding': 24, 'maximum': 24, 'calibrated': 60, 'calibrated rounding': 24, 'constant': 16}          # others: 12


def mutants(target: str = 'cpu', seed: int = 0, number: int | None = None, size: str = 'cpu', names=None) -> list[Case]:
    "About the same number of each kind, spread over tasks and ways; or a sample of `number` of them."
    rng, found = random.Random(f'mutants {target} {seed}'), []
    tasks = {n: t for n, t in suite(size).items() if (names is None or n in names) and planned(t)}
    for name, own in tasks.items():
        for task in (own, random_shape(own, rng, 1 << 19)):
            if not planned(task): continue
            values = TEMPLATES[target].random_knobs(planned(task), target, rng)
            values |= {k: v for k, v in dict(threads='all', math='libm', store='plain', simd=rng.choice((0, 0, 8)), keep=0 if target == 'cpu' else values.get('keep')).items() if k in values}
            right = Right(task, *texts(task, values, target), target)
            found += of_text(right, FAULTS if target == 'cpu' else CUDA_FAULTS) + of_rounding(right) + of_tasks(right, values) + of_arguments(right)
            if target == 'cpu': found += of_loops(right) + of_approximations(right)
            if name in ('row_softmax', 'layer_norm', 'linear_bias_leaky_scale', 'row_sum', 'bias_gelu_scale', 'pointwise_conv_add_clamp', 'token_mixer', 'group_norm') and task is own: found += of_output(right)
    if target == 'cpu' and names is None: found += of_hand() + of_double(tasks, rng)
    chosen = spread(found, rng)
    return rng.sample(chosen, number) if number is not None and number < len(chosen) else chosen


def spread(cases: list[Case], rng) -> list[Case]:
    "Of each kind at most MOST, in turn from every way to do it, the tasks in random order; no text twice."
    kinds, texts_seen, out = defaultdict(lambda: defaultdict(list)), set(), []
    for c in cases: kinds[c.kind][re.sub(r' \(.*', '', c.how)].append(c)
    for kind, ways in kinds.items():
        for w in ways.values(): rng.shuffle(w)
        left, n = sorted(ways), 0
        while left and n < MOST.get(kind, 12):
            for way in list(left):
                if not ways[way]: left.remove(way); continue
                c = ways[way].pop()
                key = c.task.hash, c.candidate.hash
                if key in texts_seen or c.candidate == c.base: continue
                texts_seen.add(key); out.append(c); n += 1
                if n >= MOST.get(kind, 12): break
    return out
