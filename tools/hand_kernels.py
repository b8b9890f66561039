"""C++ kernels by hand for bundled tasks that the templates do not know (integers, scans, windows), and for algorithms that they do not use.

Each entry: task, what is changed in its source, kernel over the accumulator `acc_t`, prototype, Python lines of forward, accumulators to try."""
from dataclasses import replace
from cuda_agent_lab.expressions import MODEL
from cuda_agent_lab.trace import class_body

HEAD = '#include <cmath>\n#include <cstdint>\n'
ROWS = 'x.shape[0], x.shape[1]'
FLOAT = ('one float from left to right',)
FEW = ('one float from left to right', 'double', 'Kahan')
ALL = FEW + ('pairwise', 'blocks of 64', 'eight lanes')

CROSS_ENTROPY = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x + r * cols;
    float top = p[0];
    for (int64_t c = 1; c < cols; ++c) top = fmaxf(top, p[c]);
    acc_t sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += expf(p[c] - top);
    out[r] = logf(sum) + top - p[target[r]];
  }
'''
ONLINE_CROSS_ENTROPY = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x + r * cols;
    float top = p[0], sum = 1;
    for (int64_t c = 1; c < cols; ++c) {
      float m = fmaxf(top, p[c]);
      sum = sum * expf(top - m) + expf(p[c] - m);
      top = m;
    }
    out[r] = (top - p[target[r]]) + logf(sum);
  }
'''
ONLINE_SOFTMAX = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x + r * cols;
    float top = p[0], sum = 1;
    for (int64_t c = 1; c < cols; ++c) {
      if (p[c] > top) { sum = sum * expf(top - p[c]) + 1; top = p[c]; }
      else sum += expf(p[c] - top);
    }
    for (int64_t c = 0; c < cols; ++c) out[r * cols + c] = expf(p[c] - top) * (1.f / sum);
  }
'''
LOG_SPACE_SOFTMAX = ONLINE_SOFTMAX.replace('expf(p[c] - top) * (1.f / sum)', 'expf(p[c] - (top + logf(sum)))')
SCAN = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    acc_t sum = 0;
    for (int64_t c = 0; c < cols; ++c) { sum += x[r * cols + c]; out[r * cols + c] = sum; }
  }
'''
BLOCKED_SCAN = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    float before = 0;
    for (int64_t b = 0; b < cols; b += 128) {
      float sum = 0;
      for (int64_t c = b; c < b + 128 && c < cols; ++c) { sum += x[r * cols + c]; out[r * cols + c] = before + sum; }
      before += sum;
    }
  }
'''
WEIGHTED_SCAN = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    acc_t above = 0, below = 0;
    for (int64_t c = 0; c < cols; ++c) {
      float w = expf(0.5f * x[r * cols + c]);
      above += w * value[r * cols + c];
      below += w;
      out[r * cols + c] = above / below;
    }
  }
'''
MAX_POOL = '''  #pragma omp parallel for collapse(2)
  for (int64_t i = 0; i < images; ++i) for (int64_t y = 0; y < (side + 1) / 2; ++y) for (int64_t z = 0; z < (side + 1) / 2; ++z) {
    float top = -INFINITY;
    for (int64_t u = 2 * y - 1; u <= 2 * y + 1; ++u) for (int64_t v = 2 * z - 1; v <= 2 * z + 1; ++v)
      if (u >= 0 && u < side && v >= 0 && v < side) top = fmaxf(top, x[(i * side + u) * side + v]);
    out[(i * ((side + 1) / 2) + y) * ((side + 1) / 2) + z] = top;
  }
'''
AVG_POOL = '''  #pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) for (int64_t j = 0; j < length; ++j) {
    acc_t sum = 0;
    for (int64_t k = j - 4; k <= j + 4; ++k) if (k >= 0 && k < length) sum += x[i * length + k];
    out[i * length + j] = sum / 9.f;
  }
'''
SLIDING_POOL = '''  #pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < 4 && k < length; ++k) sum += x[i * length + k];
    for (int64_t j = 0; j < length; ++j) {
      if (j + 4 < length) sum += x[i * length + j + 4];
      if (j > 4) sum -= x[i * length + j - 5];
      out[i * length + j] = sum * (1. / 9);
    }
  }
'''
DEPTHWISE = '''  #pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < batch; ++b) for (int64_t c = 0; c < channels; ++c) for (int64_t y = 0; y < side; ++y) for (int64_t z = 0; z < side; ++z) {
    acc_t sum = 0;
    for (int u = 0; u < 3; ++u) for (int v = 0; v < 3; ++v) {
      int64_t i = y + u - 1, j = z + v - 1;
      if (i >= 0 && i < side && j >= 0 && j < side) sum += x[((b * channels + c) * side + i) * side + j] * weight[c * 9 + u * 3 + v];
    }
    out[((b * channels + c) * side + y) * side + z] = sum + bias[c];
  }
'''
FOLD = '''  for (int64_t c = 0; c < outer; ++c) {
    float s = gamma[c] / sqrtf(var[c] + 1e-5f);
    for (int64_t k = 0; k < inner * 9; ++k) w[c * inner * 9 + k] = weight[c * inner * 9 + k] * s;
    w[outer * inner * 9 + c] = beta[c] - mean[c] * s;
  }
}
extern "C" void conv(float* out, const float* x, const float* w, int64_t batch, int64_t inner, int64_t outer, int64_t side) {
  #pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < batch; ++b) for (int64_t c = 0; c < outer; ++c) for (int64_t y = 0; y < side; ++y) for (int64_t z = 0; z < side; ++z) {
    acc_t sum = 0;
    sum += w[outer * inner * 9 + c];
    for (int64_t k = 0; k < inner; ++k) for (int u = 0; u < 3; ++u) for (int v = 0; v < 3; ++v) {
      int64_t i = y + u - 1, j = z + v - 1;
      if (i >= 0 && i < side && j >= 0 && j < side) sum += x[((b * inner + k) * side + i) * side + j] * w[((c * inner + k) * 3 + u) * 3 + v];
    }
    float s = sum;
    out[((b * outer + c) * side + y) * side + z] = s > 0 ? s : 0;
  }
'''
FOLD_PYTHON = '''        o, i = self.conv.weight.shape[:2]
        if 'w' not in self.__dict__:
            self.__dict__['w'] = torch.empty(o*i*9 + o)
            fold(self.w, self.conv.weight, self.norm.weight, self.norm.bias, self.norm.running_mean, self.norm.running_var, i, o)
        out = torch.empty(x.shape[0], o, *x.shape[2:])
        conv(out, x, self.w, x.shape[0], i, o, x.shape[-1])
'''
BATCH_NORM = '''  for (int64_t c = 0; c < channels; ++c) {
    w[c] = gamma[c] / sqrtf(var[c] + 1e-5f);
    w[channels + c] = beta[c] - mean[c] * w[c];
  }
}
extern "C" void scale(float* out, const float* x, const float* w, int64_t batch, int64_t channels, int64_t area) {
  #pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < batch; ++b) for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < area; ++i) out[(b * channels + c) * area + i] = x[(b * channels + c) * area + i] * w[c] + w[channels + c];
'''
BATCH_NORM_PYTHON = '''        n = x.shape[1]
        if 'w' not in self.__dict__:
            self.__dict__['w'] = torch.empty(2*n)
            fold(self.w, self.norm.weight, self.norm.bias, self.norm.running_mean, self.norm.running_var, n)
        out = torch.empty_like(x)
        scale(out, x, self.w, x.shape[0], n, x.shape[2]*x.shape[3])
'''
WELFORD = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x + r * cols;
    float mean = 0, square = 0;
    for (int64_t c = 0; c < cols; ++c) { float d = p[c] - mean; mean += d / (c + 1); square += d * (p[c] - mean); }
    float s = 1.f / sqrtf(square / cols + 1e-5f);
    for (int64_t c = 0; c < cols; ++c) out[r * cols + c] = (p[c] - mean) * s * weight[c] + bias[c];
  }
'''
LINEAR = '''  #pragma omp parallel for
  for (int64_t i = 0; i < m; ++i) for (int64_t j = 0; j < n; ++j) {
    acc_t sum = 0;
    for (int64_t p = 0; p < k; ++p) sum += x[i * k + p] * weight[j * k + p];
    float v = sum + bias[j];
    out[i * n + j] = (v > 0 ? v : 0.1f * v) * scale[j];
  }
'''
BMM = '''  #pragma omp parallel for
  for (int64_t g = 0; g < batch; ++g) for (int64_t i = 0; i < n; ++i) for (int64_t j = 0; j < n; ++j) {
    acc_t sum = 0;
    for (int64_t p = 0; p < n; ++p) sum += x[(g * n + i) * n + p] * b[(g * n + p) * n + j];
    out[(g * n + i) * n + j] = sum;
  }
'''
ARGMAX = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    int64_t best = 0;
    for (int64_t c = 1; c < cols; ++c) if (x[r * cols + c] > x[r * cols + best]) best = c;
    out[r] = best;
  }
'''
INTEGER_MAX = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    int32_t top = x[r * cols];
    for (int64_t c = 1; c < cols; ++c) top = x[r * cols + c] > top ? x[r * cols + c] : top;
    out[r] = top;
  }
'''
INTEGER_SUM = '''  #pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    int64_t sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += x[r * cols + c];
    out[r] = sum;
  }
'''
LIKE = '        out = torch.empty_like(x)\n'
LINE = '        out = torch.empty(x.shape[0])\n'
POOLED = '        s = x.shape[-1]\n        out = torch.empty(*x.shape[:2], (s + 1)//2, (s + 1)//2)\n        f(out, x, x.shape[0]*x.shape[1], s)\n'
INTEGERS = ('torch.randn(rows, cols)', 'torch.randint(-2**31, 2**31 - 1, (rows, cols), dtype=torch.int32)')
ROW = 'float* out, const float* x, int64_t rows, int64_t cols'
# (what, task, [(text of its source, replacement)], kernel, prototypes, inputs, forward, accumulators)
TABLE = [
    ('two passes', 'cross_entropy_rows', [], CROSS_ENTROPY, ['f(float* out, const float* x, const int64_t* target, int64_t rows, int64_t cols)'], 'x, target', LINE + f'        f(out, x, target, {ROWS})\n', ALL),
    ('online', 'cross_entropy_rows', [], ONLINE_CROSS_ENTROPY, ['f(float* out, const float* x, const int64_t* target, int64_t rows, int64_t cols)'], 'x, target', LINE + f'        f(out, x, target, {ROWS})\n', FLOAT),
    ('online', 'row_softmax', [], ONLINE_SOFTMAX, [f'f({ROW})'], 'x', LIKE + f'        f(out, x, {ROWS})\n', FLOAT),
    ('in log space', 'row_softmax', [], LOG_SPACE_SOFTMAX, [f'f({ROW})'], 'x', LIKE + f'        f(out, x, {ROWS})\n', FLOAT),
    ('scan', 'cumsum_rows', [], SCAN, [f'f({ROW})'], 'x', LIKE + f'        f(out, x, {ROWS})\n', ALL),
    ('scan in blocks', 'cumsum_rows', [], BLOCKED_SCAN, [f'f({ROW})'], 'x', LIKE + f'        f(out, x, {ROWS})\n', FLOAT),
    ('two scans', 'weighted_scan', [], WEIGHTED_SCAN, ['f(float* out, const float* x, const float* value, int64_t rows, int64_t cols)'], 'x, value', LIKE + f'        f(out, x, value, {ROWS})\n', ALL),
    ('window', 'max_pool', [], MAX_POOL, ['f(float* out, const float* x, int64_t images, int64_t side)'], 'x', POOLED, FLOAT),
    ('window', 'avg_pool_sequence', [], AVG_POOL, ['f(float* out, const float* x, int64_t rows, int64_t length)'], 'x', LIKE + '        f(out, x, x.shape[0]*x.shape[1], x.shape[2])\n', FEW),
    ('sliding sum in double', 'avg_pool_sequence', [], SLIDING_POOL, ['f(float* out, const float* x, int64_t rows, int64_t length)'], 'x', LIKE + '        f(out, x, x.shape[0]*x.shape[1], x.shape[2])\n', FLOAT),
    ('direct', 'depthwise_conv', [], DEPTHWISE, ['f(float* out, const float* x, const float* weight, const float* bias, int64_t batch, int64_t channels, int64_t side)'], 'x',
     LIKE + '        f(out, x, self.conv.weight, self.conv.bias, *x.shape[:3])\n', FEW),
    ('folded at the first call', 'conv_batch_norm_relu', [], FOLD,
     ['fold(float* w, const float* weight, const float* gamma, const float* beta, const float* mean, const float* var, int64_t inner, int64_t outer)',
      'conv(float* out, const float* x, const float* w, int64_t batch, int64_t inner, int64_t outer, int64_t side)'], 'x', FOLD_PYTHON, ALL),
    ('folded at the first call', 'batch_norm', [], BATCH_NORM,
     ['fold(float* w, const float* gamma, const float* beta, const float* mean, const float* var, int64_t channels)',
      'scale(float* out, const float* x, const float* w, int64_t batch, int64_t channels, int64_t area)'], 'x', BATCH_NORM_PYTHON, FLOAT),
    ('Welford', 'layer_norm', [], WELFORD, ['f(float* out, const float* x, const float* weight, const float* bias, int64_t rows, int64_t cols)'], 'x',
     LIKE + f'        f(out, x, self.norm.weight, self.norm.bias, {ROWS})\n', FLOAT),
    ('dot products', 'linear_bias_leaky_scale', [], LINEAR, ['f(float* out, const float* x, const float* weight, const float* bias, const float* scale, int64_t m, int64_t n, int64_t k)'], 'x',
     '        n, k = self.linear.weight.shape\n        out = torch.empty(x.shape[0], n)\n        f(out, x, self.linear.weight, self.linear.bias, self.scale, x.shape[0], n, k)\n', ALL),
    ('dot products', 'small_matmuls', [], BMM, ['f(float* out, const float* x, const float* b, int64_t batch, int64_t n)'], 'x, b', LIKE + f'        f(out, x, b, {ROWS})\n', ALL),
    ('argmax', 'row_max', [('torch.amax(x, dim=1, keepdim=True)', 'torch.argmax(x, dim=1)')], ARGMAX, ['f(int64_t* out, const float* x, int64_t rows, int64_t cols)'], 'x',
     f'        out = torch.empty(x.shape[0], dtype=torch.int64)\n        f(out, x, {ROWS})\n', FLOAT),
    ('integers', 'row_max', [INTEGERS], INTEGER_MAX, ['f(int32_t* out, const int32_t* x, int64_t rows, int64_t cols)'], 'x', f'        out = torch.empty(x.shape[0], 1, dtype=x.dtype)\n        f(out, x, {ROWS})\n', FLOAT),
    ('integers', 'row_sum', [INTEGERS], INTEGER_SUM, ['f(int64_t* out, const int32_t* x, int64_t rows, int64_t cols)'], 'x', f'        out = torch.empty(x.shape[0], dtype=torch.int64)\n        f(out, x, {ROWS})\n', FLOAT),
]
# other sizes for some of them: name -> sizes
OTHER = dict(cross_entropy_rows=dict(rows=3, classes=100003), cumsum_rows=dict(rows=5, cols=50021), weighted_scan=dict(rows=3, cols=20011), avg_pool_sequence=dict(batch=2, channels=3, length=4001),
             max_pool=dict(batch=1, channels=3, side=131), small_matmuls=dict(batch=3, n=127), linear_bias_leaky_scale=dict(rows=7, inner=8191, outer=33), conv_batch_norm_relu=dict(batch=2, inner=48, outer=7, side=13))


def HAND(tasks: dict, shaped, sums: dict, prelude: str):
    "Yields (what, task, kernel, model_new.py)."
    for what, name, changes, body, prototypes, inputs, forward, accumulators in TABLE:
        task = tasks[name]
        for old, new in changes: task = replace(task, id=f'{task.id} {what}', source=task.source.replace(old, new))
        before, _, init = class_body(task.source).rpartition('\x00')
        functions = ['void ' + p for p in prototypes]
        declared = '\n'.join(f'{p.split("(")[0]} = cuda_extension.declare("void {p}")' for p in prototypes)
        model = MODEL.format(declare=declared, before='', init=init + '\n\n' if init else '', inputs=inputs, body=forward, returns='out')
        for how in accumulators:
            kernel = HEAD + prelude + sums[how] + f'extern "C" {functions[0]} {{\n{body}}}\n'
            for t in [task] + [shaped(task, OTHER[n]) for n in OTHER if n == name]: yield f'{what}, {how}', t, kernel, model
