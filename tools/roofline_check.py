"""Do the counters and the ceilings hold? Kernels whose work is known: one that copies, and cuBLAS products in each precision.

  python tools/roofline_check.py                     -> figures/roofline_check.json, .svg, .png, on a GPU whose counters may be read
  python tools/roofline_check.py --picture           draws the picture of the kept file again

A copy must reach 90 % of the bandwidth that was measured with torch's, and a product must be counted with 2MNK operations, within 1 %, on the pipe that its precision names."""
import argparse, datetime, json
from dataclasses import asdict
from pathlib import Path
import torch
from cuda_agent_lab.compilers import gpus
from cuda_agent_lab.devices import Ceilings
from cuda_agent_lab.pool import LocalPool
from cuda_agent_lab.referee import JudgeOptions
from cuda_agent_lab.roofline import Kernel, Roofline, Work, bound, describe, to_json
from cuda_agent_lab.tasks import Task
from cuda_agent_lab.workspace import Candidate

FIGURES = Path(__file__).resolve().parent.parent/'figures'
N, ELEMENTS = 4096, 1 << 27
COPY = Task('copy', 1, f'''
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x*2
def get_inputs(): return [torch.randn({ELEMENTS})]
def get_init_inputs(): return []
'''), Candidate((('model_new.py', '''
import torch, cuda_extension
twice = cuda_extension.declare("void twice(float* out, const float* x, int64_t n, cudaStream_t stream)")
class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        twice(out, x, x.numel())
        return out
'''), ('kernels/twice.cu', '''
#include <cstdint>
__global__ void run(float4* out, const float4* x, int64_t n) {
  int64_t i = (int64_t)blockIdx.x*blockDim.x + threadIdx.x;
  if (i < n) { float4 v = __ldcs(x + i); v.x *= 2; v.y *= 2; v.z *= 2; v.w *= 2; __stcs(out + i, v); }
}
extern "C" void twice(float* out, const float* x, int64_t n, cudaStream_t stream) { run<<<(n/4 + 511)/512, 512, 0, stream>>>((float4*)out, (const float4*)x, n/4); }
''')))
# precision -> C type, cuBLAS's type, what it computes in, the counters' name
PRODUCTS = dict(fp32=('float', 'CUDA_R_32F', 'CUBLAS_COMPUTE_32F_PEDANTIC', 'fp32'), tf32=('float', 'CUDA_R_32F', 'CUBLAS_COMPUTE_32F_FAST_TF32', 'tf32 tensor'),
                bf16=('__nv_bfloat16', 'CUDA_R_16BF', 'CUBLAS_COMPUTE_32F', 'bf16 tensor'))


def product(precision: str) -> tuple[Task, Candidate]:
    "x wᵀ by cuBLAS."
    ctype, kind, compute, _ = PRODUCTS[precision]
    task = Task(f'product in {precision}', 1, f'''
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn({N}, {N})/{N**.5})
    def forward(self, x): return x @ self.w.t()
def get_inputs(): return [torch.randn({N}, {N})]
def get_init_inputs(): return []
''')
    return task, Candidate((('model_new.py', f'''
import torch, cuda_extension
product = cuda_extension.declare("void product({ctype}* out, const {ctype}* x, const {ctype}* w, int n, cudaStream_t stream)")
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros({N}, {N}))
    def forward(self, x):
        out = torch.empty_like(x)
        product(out, x, self.w, {N})
        return out
'''), ('kernels/product.cu', f'''
#include <cublas_v2.h>
#include <cuda_bf16.h>
extern "C" void product({ctype}* out, const {ctype}* x, const {ctype}* w, int n, cudaStream_t stream) {{
  static cublasHandle_t h; static bool made = cublasCreate(&h) == CUBLAS_STATUS_SUCCESS;
  float one = 1, zero = 0;
  if (!made) return;
  cublasSetStream(h, stream);
  cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, w, {kind}, n, x, {kind}, n, &zero, out, {kind}, n, {compute}, CUBLAS_GEMM_DEFAULT);
}}
''')))


def check(pool) -> tuple[dict, list]:
    "({name: Roofline}, a row for each)."
    rooflines, rows = {}, []
    for name, (task, candidate), precision in (('copy', COPY, 'fp32'), *((f'product, {p}', product(p), p) for p in PRODUCTS)):
        v = pool.judge(task, candidate, JudgeOptions(target='cuda', precision=precision, compile=False, counters=True))
        if not v.correct: raise SystemExit(f'{name}: {v.status} {v.reason} {v.message}')
        r = rooflines[name] = pool.roofline(task, v)
        if not r.counted: raise SystemExit(f'{name}: the counters were not read: {v.evidence.get("counters")}')
        kernel = max(r.kernels, key=lambda k: k.seconds)
        what, share = bound(kernel, r.ceilings)
        row = dict(name=name, ms=round(1e3*r.seconds, 4), kernel=kernel.name[:60], kernel_ms=round(1e3*kernel.seconds, 4), bound=what, share=round(share, 4))
        if name == 'copy': row |= dict(share_of_copy_by_the_clock=round(r.work.bytes/r.seconds/r.ceilings.bytes['dram'], 4), dram_by_what_must_move=round(kernel.bytes['dram']/r.work.bytes, 4))
        else:
            counted = sum(k.flops.get(PRODUCTS[precision][3], 0) for k in r.kernels)
            row |= dict(pipe=PRODUCTS[precision][3], counted_by_2mnk=round(counted/(2*N**3), 5), on_other_pipes={kind: n for k in r.kernels for kind, n in k.flops.items() if kind.endswith('tensor') and kind != PRODUCTS[precision][3] and n})
        rows.append(row)
        print(name, describe(r), sep='\n')
    return rooflines, rows


def from_json(d: dict) -> Roofline:
    "Inverse of `to_json`."
    fields = ('name', 'seconds', 'flops', 'bytes')
    return Roofline(d['seconds'], tuple(Kernel(**{f: k[f] for f in fields}) for k in d['kernels']), d['counted'], Work(**d['work']) if d['work'] else None, d['precision'], Ceilings(**d['ceilings']))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--picture', action='store_true')
    parser.add_argument('--out', type=Path, default=FIGURES)
    args = parser.parse_args()
    from cuda_agent_lab.figures import roofline_chart, save
    path = args.out/'roofline_check.json'
    if not args.picture:
        if not gpus(): raise SystemExit('no GPU here; its counters are what is checked')
        with LocalPool(target='cuda') as pool: rooflines, rows = check(pool)
        args.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(command='python tools/roofline_check.py', date=datetime.date.today().isoformat(), device=gpus()[0].name, torch=torch.__version__, rows=rows,
                                        ceilings=asdict(rooflines['copy'].ceilings), rooflines={k: to_json(r) for k, r in rooflines.items()})) + '\n')
        for r in rows: print(r)
    kept = json.loads(path.read_text())
    print(*save(roofline_chart({k: from_json(r) for k, r in kept['rooflines'].items()}, f"Kernels whose work is known, {kept['device']}"), path.with_suffix('')))


if __name__ == '__main__': main()
