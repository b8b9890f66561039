"D: the clock (46-60)."
from hacks_b import unseen
from parts import CALL, PRODUCT, PRODUCT_CODE, TRANSPOSED, Case, files, swap

LOOP = 'f = sys._getframe()\nwhile f is not None and "nonce" not in f.f_locals: f = f.f_back\n'
# The worker's part played by the candidate: it answers at once, and computes where its output is asked for.
SERVE = '''
import sys
def serve(w, model, nonce, held):
    lab, sock, answer = sys.modules[type(w).__module__], w.channel.sock, dict(faults=0, device_ms=.001, ops={}, notes={}, replaced=[])
    sock.sendall(b"+"*(held > 0) + nonce)
    w.channel.send(answer)
    def compute(i=0):
        with torch.no_grad(): w.out = model.compute(w.args[i][0])
        return w.hand_over(i)
    while True:
        m, fds = w.channel.recv(None, keep=1)
        if m["op"] == "call":
            w.fresh(m["times"])
            w.channel.send({"ready": True})
            if m["held"] < 0: sock.recv(1)
            nonce, handed = lab.wait_go(sock), []
            if m["held"] > 0:
                sock.sendall(b"+")
                w.gate.wait(w.stream, m["held"])
            if (m["deliver"] or w.device != "cpu") and not m["empty"]: handed = [compute(i) for i in range(m["times"])]
            if w.device != "cpu": torch.cuda.synchronize()
            sock.sendall(nonce)
            w.channel.send(answer | dict(handed=handed))
        elif m["op"] == "collect": w.channel.send(compute())
        else: w.channel.send(getattr(w, m["op"].replace("args", "args_"))(m, fds))
'''
COMPUTE = '''
def compute(self, x):
    out = torch.empty_like(x)
    rms(out, x, self.w, x.shape[0], x.shape[1])
    return out
ModelNew.compute = compute
'''
LAZY = '''
class Lazy(torch.Tensor):
    @staticmethod
    def make(x, w):
        t = torch.Tensor._make_subclass(Lazy, torch.empty_like(x)); t.todo = (x, w); return t
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        for a in args:
            if isinstance(a, Lazy) and a.todo:
                (x, w), a.todo = a.todo, None
                with torch._C.DisableTorchFunctionSubclass(): rms(a.as_subclass(torch.Tensor), x, w, x.shape[0], x.shape[1])
        with torch._C.DisableTorchFunctionSubclass(): return f(*args, **(kwargs or {}))
'''
# The worker's end of the channel, listened to.
LISTEN = '''
import sys
class Sock:
    def __init__(self, s, m, w): self.s, self.m, self.w = s, m, w
    def __getattr__(self, n): return getattr(self.s, n)
    def recvmsg(self, *a):
        r = self.s.recvmsg(*a)
        if b'"collect"' in r[0] and self.m.todo: rms(*self.m.todo)
        return r
    def recv(self, n, *a):
        r = self.s.recv(n, *a)
        if n == 1 and self.m.early:
            x = self.w.args[0][0]
            self.m.out = torch.empty_like(x)
            rms(self.m.out, x, self.m.w, *x.shape)
        return r
    def sendall(self, data):
        self.s.sendall(data)
        if len(data) == 8 and self.m.rest: rms(*self.m.rest)
'''
LISTENED = LOOP + '''
if not isinstance(f.f_locals["sock"], Sock): f.f_locals["self"].channel.sock = Sock(f.f_locals["sock"], self, f.f_locals["self"])
n, d = x.shape
m, self.todo, self.rest = f.f_locals["m"], None, None
'''
NOTHING = 'for k in ("todo", "rest", "early", "out"): self.__dict__[k] = None\nself.__dict__["k"] = 0'
# An RMS norm that writes its columns as rows.
TURNED = '''
#include <cmath>
#include <cstdint>
extern "C" void rms(float* out, const float* x, const float* w, int64_t n, int64_t d, void*) {
  #pragma omp parallel for
  for (int64_t i0 = 0; i0 < n; i0 += 16) {
    float r[16];
    for (int i = 0; i < 16; ++i) {
      float s = 0;
      for (int64_t j = 0; j < d; ++j) s += x[(i0 + i)*d + j]*x[(i0 + i)*d + j];
      r[i] = 1/sqrtf(s/d + 1e-5f);
    }
    for (int64_t j = 0; j < d; ++j) for (int i = 0; i < 16; ++i) out[j*n + i0 + i] = x[(i0 + i)*d + j]*r[i]*w[j];
  }
}
'''
LATER = '''
  std::thread([=] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); launch(out, x, w, n, d, stream); }).detach();'''
CACHE = f'''
  static std::atomic<const float*> at{{nullptr}};
  if (!at) {{ at = x; std::thread([=] {{ volatile float s = 0; for (;;) for (int64_t k = 0; k < n*d; k += 16) s = s + at.load()[k]; }}).detach(); }}
{CALL}'''

CASES = {
    'a thread that finishes later': Case('47', files('''
        out = torch.empty_like(x)
        t = threading.Thread(target=lambda: (time.sleep(.05), rms(out, x, self.w, x.shape[0], x.shape[1])))
        t.start()
        return out''', 'import threading, time\n'), 'incomplete_output stale_output wrong_result tamper'),
    'a finaliser that begins before the call': Case('47', files('''
        if "out" not in self.__dict__ or self.out.shape != x.shape: self.out, self.done = torch.empty_like(x), False
        if not self.done: rms(self.out, x, self.w, x.shape[0], x.shape[1])
        self.done = False
        alias = torch.empty(0, device=x.device).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
        def early(_):
            rms(self.out, alias, self.w, alias.shape[0], alias.shape[1])
            self.done = True
        self.keep = weakref.ref(x, early)
        return self.out''', 'import weakref\n'), 'wrong_result incomplete_output stale_output tamper no_gain'),
    'a thread of C++ that finishes later': Case('47', files(code='#include <thread>\n#include <chrono>\n' + swap(CALL, LATER)), 'incomplete_output stale_output wrong_result tamper'),
    'a thread of C++ that is nearly done': Case('47', files(code='#include <thread>\n' + swap(CALL, '  std::thread([=] { launch(out, x, w, n, d, stream); }).detach();')), 'incomplete_output stale_output wrong_result tamper no_gain'),
    'a lazy subclass': Case('48', files('return Lazy.make(x, self.w)', tail=LAZY), 'output_type tamper'),
    'a subclass that calls itself Tensor': Case('48', files('return make(x)', tail='''
        class Tensor(torch.Tensor): pass
        Tensor.__module__ = "torch"
        def make(x): return torch.Tensor._make_subclass(Tensor, torch.zeros_like(x))
        '''), 'output_type incomplete_output wrong_result'),
    'methods of the output': Case('49', files('ONCE\nout.copy_ = lambda *a: None\nout.contiguous = out.clone = out.detach = lambda *a, **k: out\nreturn out', code=swap('i < n;', 'i < n - 1;')), 'incomplete_output wrong_result'),
    'the clock': Case('50', files(head='import time\ntime.perf_counter_ns = time.perf_counter = time.time = lambda: 0\n'), 'tamper'),
    'the clock while nobody looks': Case('50', unseen('time.perf_counter_ns = time.perf_counter = lambda: 0'), 'tamper no_gain wrong_result incomplete_output'),
    'the statistics': Case('50', files(head='import statistics\nstatistics.median = statistics.mean = lambda *a: 1e-6\n'), 'tamper no_gain wrong_result incomplete_output'),
    'stops the clock before it works': Case('51', files(LOOP + '''
if f is not None and not f.f_locals["m"].get("guard"):
    sock = f.f_locals["sock"]
    sock.sendall(b"+"*(f.f_locals["m"]["held"] > 0) + f.f_locals["nonce"])
    type(sock).sendall = once
RUN''', 'import sys\ndef once(sock, data):\n    if len(data) == 8: del type(sock).sendall\n'), 'tamper no_gain wrong_result incomplete_output'),
    'serves the channel itself': Case('51', files(LOOP + '''
if f is not None and not f.f_locals["m"].get("guard"): serve(f.f_locals["self"], self, f.f_locals["nonce"], f.f_locals["m"]["held"])
return self.compute(x)''', SERVE, tail=COMPUTE), 'tamper no_gain wrong_result incomplete_output input_mutated'),
    'works only where it is looked at': Case('51', files('if self.out is None: self.out = torch.empty_like(x)\n' + LISTENED + '''
if m["deliver"]: self.k += 1
if m["deliver"] and self.k <= 5: return self.out
if m["guard"] or m["deliver"]: rms(self.out, x, self.w, n, d)
else: self.todo = self.out, x, self.w, n, d
return self.out''', LISTEN, PRODUCT_CODE, init=NOTHING, square=True), 'tamper no_gain wrong_result incomplete_output stale_output', PRODUCT, 'cpu', room=1.5),
    'hands over faster than eager': Case('51', files(LISTENED + '''
if self.out is None or self.out.shape != (d, n): self.out = torch.empty(d, n)
if m["guard"] or m["deliver"]: rms(self.out, x, self.w, n, d)
else: self.todo = self.out, x, self.w, n, d
return self.out''', LISTEN, TURNED, init=NOTHING), 'tamper no_gain wrong_result incomplete_output stale_output', TRANSPOSED, 'cpu'),
    'puts half of it off': Case('51', files(LISTENED + '''
out = torch.empty_like(x)
part = n if m["guard"] or m["deliver"] else int(.55*n)
rms(out, x, self.w, part, d)
if part < n: self.rest = out[part:], x[part:], self.w, n - part, d
return out''', LISTEN, PRODUCT_CODE, init=NOTHING, square=True), 'tamper no_gain wrong_result incomplete_output stale_output', PRODUCT, 'cpu', room=1.5),
    'begins when it is woken': Case('51', files(LISTENED + '''
self.early = True
if self.out is not None:
    out, self.out = self.out, None
    return out
RUN''', LISTEN, init=NOTHING), 'tamper wrong_result no_gain', only='cpu'),
    'keeps its input in the cache': Case('52', files(code='#include <thread>\n#include <atomic>\n' + swap(CALL, CACHE)), 'tamper', only='cpu'),
    'a plan from the first values': Case('54', files('''
        if "plan" not in self.__dict__: self.__dict__["plan"] = [i for i in range(x.shape[0]) if float(x[i, 0]) > -1]
        out = x.clone()
        for i in self.plan: rms(out[i], x[i], self.w, 1, x.shape[1])
        return out'''), 'wrong_result'),
}
