"""The comparison's own kernels against torch: C++, CUDA text on the emulator and with nvcc where it is, and (marked gpu) on the device, where it also prints its speed."""
import ctypes, math, shutil, subprocess
from pathlib import Path

import pytest
import torch

from cuda_agent_lab.compare import STATS_CUDA, native, stats, stats_torch
from test_baseline import emulated

HERE = Path(__file__).resolve().parent
SHAPES = ((1, 1), (3, 1), (1, 2047), (5, 31), (9, 33), (17, 96), (8, 2048), (3, 5001))        # groups, elements of each: both kernels, whole and part-filled blocks


def pair(groups, n, dtype, device='cpu'):
    g = torch.Generator(device).manual_seed(groups*n)
    ref = torch.randn(groups, n, dtype=torch.float64, device=device, generator=g)
    return (ref + 1e-3*torch.randn(ref.shape, dtype=torch.float64, device=device, generator=g)).to(dtype), ref


def agree(a, b):
    assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]), 'the maxima are exact'
    assert all(math.isclose(x, y, rel_tol=1e-12) for x, y in zip(a[2:], b[2:]))


@pytest.mark.parametrize('dtype', (torch.float32, torch.float64, torch.bfloat16))
def test_cpu(dtype):
    assert native(), 'it can be built wherever the tests run'
    for groups, n in SHAPES: agree(stats(*pair(groups, n, dtype), n), stats_torch(*pair(groups, n, dtype), n))


@pytest.mark.parametrize('dtype', (torch.float32, torch.float64))
def test_cuda_text_on_the_emulator(dtype, tmp_path):
    source, library = tmp_path/'stats.cpp', tmp_path/'stats.so'
    source.write_text(f'#include "{HERE}/cuda_on_cpu.h"\n' + emulated(STATS_CUDA))
    subprocess.run(['g++', '-O0', '-std=c++17', '-w', '-shared', '-fPIC', '-o', library, source], check=True)
    f = ctypes.CDLL(str(library)).stats
    f.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p]*4]
    for groups, n in SHAPES:
        out, ref = pair(groups, n, dtype)
        off, big, squares = (torch.full((k,), -1., dtype=torch.float64) for k in (groups, groups, 2*groups))
        assert f(out.data_ptr(), dtype == torch.float64, ref.data_ptr(), groups, n, off.data_ptr(), big.data_ptr(), squares.data_ptr(), None) == 0
        agree((off, big, *squares.view(2, -1).sum(1).tolist()), stats_torch(out, ref, n))


@pytest.mark.skipif(not shutil.which('nvcc'), reason='nvcc is not installed')
def test_cuda_text_compiles(tmp_path):
    source = tmp_path/'stats.cu'
    source.write_text(STATS_CUDA)
    done = subprocess.run(['nvcc', '-O3', '-std=c++17', '-arch=sm_90', '-cubin', '-o', str(tmp_path/'stats.cubin'), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
def test_on_the_device(capsys):
    assert native('cuda'), 'it can be built'
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for groups, n in (*SHAPES, (70001, 40), (300, 65536), (2, 1 << 20)):
            out, ref = pair(groups, n, dtype, 'cuda')
            agree(stats(out, ref, n), stats_torch(out, ref, n))
    out, ref = pair(4, 100, torch.float32, 'cuda')
    out[1, 5] = math.nan
    assert math.isnan(stats(out, ref, 100)[2]) and not math.isnan(stats(out, ref, 100)[3])
    lines = []
    for groups, n in ((1 << 20, 64), (65536, 1024), (1024, 65536), (16, 65536)):
        out, ref = pair(groups, n, torch.float32, 'cuda')
        ms = []
        for f in (stats, stats_torch):
            f(out, ref, n)
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            for _ in range(10): f(out, ref, n)
            b.record(); b.synchronize()
            ms.append(a.elapsed_time(b)/10)
        lines.append(f'{groups} groups of {n}: {ms[0]:.3f} ms, torch {ms[1]:.3f} ms, {12e-9*groups*n/ms[0]:.2f} TB/s')
    with capsys.disabled(): print('', *lines, sep='\n')
