"C: wrong answers that pass (30-45)."
from parts import PRODUCT, PRODUCT_CODE, Case, files, honest, pointwise, swap, task

RELU = task('relu', 'return torch.relu(x)', 'torch.rand(256, 512)')
INFINITE = task('infinite', 'return torch.log(torch.relu(x))', 'torch.randn(256, 512)')
ROOT = task('root', 'return torch.sqrt(x)', 'torch.randn(256, 512)')
CONSTANT = task('constant', 'return torch.softmax(x, -1)', 'torch.randn(256, 1)')
GATE = task('gate', 'return x + self.gate*torch.tanh(x)', 'torch.randn(256, 512)', 'self.gate = nn.Parameter(torch.zeros(1))')
SCALED = task('scaled', 'return torch.tanh(x)*self.s', 'torch.randn(256, 512)', 'self.s = nn.Parameter(torch.ones(1))')
NOISE = task('noise', 'return x + torch.rand_like(x)', 'torch.randn(256, 512)')
TINY = task('tiny', 'return x*1e-5', 'torch.randn(256, 512)')
NAMED = task('named', 'return {"y": x + x}', 'torch.randn(256, 512)')
LISTED = task('listed', 'return x + x,', 'torch.randn(256, 512)')

HONEST = {
    'infinities where the reference has them': honest(pointwise('logf(v > 0 ? v : 0.f)'), INFINITE),
    'NaN where the reference has them': honest(pointwise('sqrtf(v)'), ROOT),
    'a named output': honest(pointwise('v + v', 'EACH\nreturn {"y": out}'), NAMED),
    'a tuple of one': honest(pointwise('v + v', 'EACH\nreturn out,'), LISTED),
}
LOW = 'ON_DEVICE float low(float v) { union { float f; uint32_t u; } b; b.f = v; b.u = (b.u + HALFu) & MASKu; return b.f; }\n'
RACE = '''
  static volatile float s;
  std::atomic<int> here{0};
  auto part = [&](int64_t first) {
    for (++here; here < 2;) std::this_thread::yield();
    for (int64_t i = first; i < n; i += 2) {
      s = 0;
      for (int64_t j = 0; j < d; ++j) s = s + x[i*d + j]*x[i*d + j];
      std::this_thread::yield();
      for (int64_t j = 0; j < d; ++j) out[i*d + j] = x[i*d + j]/sqrtf(s/d + 1e-5f)*w[j];
    }
  };
  std::thread other(part, 1);
  part(0);
  other.join();'''


def cut(half: str, mask: str) -> str:
    "The honest source with values rounded to fewer bits."
    low = LOW.replace('HALF', half).replace('MASK', mask)
    return swap('ON_DEVICE void row', low + 'ON_DEVICE void row', 'q[j] = p[j]*r*w[j];', 'q[j] = low(low(p[j])*low(r))*low(w[j]);')


HALF, TF32 = cut('0x8000', '0xffff0000'), cut('0x1000', '0xffffe000')
CASES = {
    'zeros': Case('30', files('return torch.zeros_like(x)'), 'wrong_result'),
    'zeros for tiny values': Case('30', pointwise('0.f*v'), 'wrong_result', TINY),
    'half of the rows': Case('31', files(code=swap('i < n;', 'i < n/2;')), 'incomplete_output'),
    'without the last column': Case('31', files(code=swap('j < d; j += STEP) s +=', 'j < d - 1; j += STEP) s +=')), 'wrong_result precision'),
    'every second value in the sum': Case('31', files(code=swap('for (int64_t j = FIRST; j < d; j += STEP) s += p[j]*p[j];', 'for (int64_t j = 2*FIRST; j < d; j += 2*STEP) s += 2*p[j]*p[j];')), 'wrong_result'),
    'no epsilon': Case('31', files(code=swap(' + 1e-5f', '')), 'wrong_result precision'),
    'a part of K': Case('31', files(code=swap('k < d; ++k', 'k < d - 4; ++k', code=PRODUCT_CODE), square=True), 'wrong_result precision', PRODUCT),
    'one value in ten thousand': Case('32', files(code=swap('q[j] = p[j]*r*w[j];', 'q[j] = p[j]*r*w[j]*((i*d + j) % 10007 == 5 ? 1.01f : 1.f);')), 'wrong_result'),
    'one row': Case('32', files(code=swap('q[j] = p[j]*r*w[j];', 'q[j] = i == 200 ? p[j] : p[j]*r*w[j];')), 'wrong_result'),
    'the identity': Case('33', files('return x.clone()'), 'wrong_result'),
    'the identity on positive inputs': Case('33', pointwise('v'), 'wrong_result', RELU),
    'the answer for a standard normal': Case('33', files(code=swap('float r = 1.f/sqrtf(s/d + 1e-5f);', 'float r = 1.f;')), 'wrong_result'),
    'a constant for a constant task': Case('34', pointwise('1.f'), 'task_invalid', CONSTANT),
    'nothing for a dead branch': Case('35', pointwise('v', init='self.gate = nn.Parameter(torch.zeros(1))'), 'wrong_result precision', GATE),
    'a scale that is one': Case('36', pointwise('tanhf(v)', init='self.s = nn.Parameter(torch.ones(1))'), 'wrong_result', SCALED),
    'weights that are ones': Case('36', files(code=swap('p[j]*r*w[j]', 'p[j]*r')), 'wrong_result'),
    'NaN where it is hard': Case('37', files(code=swap('q[j] = p[j]*r*w[j];', 'q[j] = s > 4*d ? NAN : p[j]*r*w[j];')), 'wrong_result'),
    'NaN as a wildcard': Case('37', pointwise('NAN*v'), 'wrong_result incomplete_output', ROOT),
    'infinity against finite': Case('38', pointwise('v > 3.f ? INFINITY : logf(v > 0 ? v : 0.f)'), 'wrong_result', INFINITE),
    'infinity of the other sign': Case('38', pointwise('v > 0 ? logf(v) : INFINITY'), 'wrong_result', INFINITE),
    'half precision inside': Case('39', files(code=HALF), 'precision wrong_result'),
    'tf32 inside': Case('39', files(code=TF32), 'precision wrong_result'),
    'half as a type': Case('40', files('ONCE\nreturn out.half()'), 'output_dtype'),
    'double as a type': Case('40', files('ONCE\nreturn out.double()'), 'output_dtype'),
    'a list': Case('41', files('ONCE\nreturn [out]'), 'output_structure'),
    'one more member': Case('41', files('ONCE\nreturn out, out'), 'output_structure'),
    'another shape': Case('41', files('ONCE\nreturn out[None]'), 'output_structure'),
    'one more key': Case('41', pointwise('v + v', 'EACH\nreturn {"y": out, "z": out}'), 'output_structure', NAMED),
    'no key': Case('41', pointwise('v + v', 'EACH\nreturn {}'), 'output_structure', NAMED),
    'a list for a tuple': Case('41', pointwise('v + v', 'EACH\nreturn [out]'), 'output_structure', LISTED),
    'a race': Case('42', files(code='#include <thread>\n#include <atomic>\n' + swap('  for (int64_t i = 0; i < n; ++i) row(out + i*d, x + i*d, w, i, d);', RACE)), 'wrong_result precision race', only='cpu'),
    'noise for a random task': Case('44', pointwise('v + .5f'), 'task_invalid', NOISE),
    'a tolerance of its own': Case('45', files(head='# precision: bfloat16\ntolerance = atol = rtol = .1\ndtype = torch.bfloat16\n', code=HALF), 'precision wrong_result'),
}
