"""Builds: adversaries, faults, concurrency and the cache. What a small kernel needs is shown in the notebook "build"."""
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuda_agent_lab import build as B
from cuda_agent_lab import compilers as C
from cuda_agent_lab.build import build, install, prepare, tidy_log
from cuda_agent_lab.compilers import find_nvcc, recipe
from cuda_agent_lab.tasks import sandbox_dir
from cuda_agent_lab.workspace import Candidate, read_candidate

needs_nvcc = pytest.mark.skipif(not find_nvcc(), reason="nvcc is not here")
ABSOLUTE = re.compile(r"(?<![\w.])/[\w.-]+/")
SPIN = """template <int N> struct Spin {
    static constexpr unsigned run() { unsigned s = N; for (int j = 0; j < 4; ++j) for (int i = 0; i < 100000; ++i) s = s * 1664525u + 1013904223u; return s; }
    static constexpr unsigned value = run() ^ Spin<N - 1>::value; };
template <> struct Spin<0> { static constexpr unsigned value = 1; };
extern "C" unsigned token() { return Spin<100>::value; }
"""


def candidate(*texts, suffix="cpp"):
    return Candidate((("model_new.py", "class ModelNew: pass\n"), *((f"kernels/k{i}.{suffix}", t) for i, t in enumerate(texts))))


ONE = candidate('extern "C" int one() { return 1; }\n')


def entries(cache):
    return sorted((Path(cache) / "builds").glob("??/*/meta.json"))


def leftovers(cache):
    return [p for n in ("build-*", "new-*", "bad-*") for p in (Path(cache) / "builds").glob(n)]


@pytest.fixture
def cases():
    return Path(__file__).parent / "adversaries" / "cases"


# ---------------------------------------------------------------- cases

def test_plain_honest_builds_and_runs(cases, tmp_path):
    built = build(read_candidate(cases / "60_plain_honest"), cache=tmp_path)
    assert built.ok and built.abi == "pybind", built.log
    print(f"pybind, cold: {built.seconds:.1f} s")
    again = build(read_candidate(cases / "60_plain_honest"), cache=tmp_path)
    assert again.cached and again.seconds < 2
    code = ("import sys, torch; sys.path.insert(0, sys.argv[1]); import cuda_extension as e; m = e.load(sys.argv[2]);"
            "import cuda_extension; assert cuda_extension is m; x = torch.randn(4, 8);"
            "torch.testing.assert_close(m.rms_rows_forward(x, 1e-6), x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)); print('same')")
    done = subprocess.run([sys.executable, "-c", code, str(sandbox_dir() / "workspace"), str(built.library)], capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


def test_compile_error_is_the_compilers_own(cases, tmp_path):
    built = build(read_candidate(cases / "89_does_not_compile"), cache=tmp_path)
    assert built.status == "build_error" and built.library is None
    assert "kernels/typo.cpp:1:33: error: expected ';' before '}' token" in built.log
    assert not ABSOLUTE.search(built.log) and str(tmp_path) not in built.log
    assert built.seconds < 10                            # told before the binding's headers are read


def test_escape_and_bomb(cases, tmp_path):
    escape = build(read_candidate(cases / "48_path_escape"), cache=tmp_path)
    assert (escape.status, escape.reason) == ("build_error", "path_escape") and "/etc" not in escape.log
    bomb = build(read_candidate(cases / "44_compile_bomb"), cache=tmp_path, timeout=2)
    assert bomb.status == "build_timeout" and bomb.seconds < 6
    start = time.monotonic()
    assert build(ONE, cache=tmp_path).ok and time.monotonic() - start < 10
    assert not leftovers(tmp_path)


def test_cuda_only_case_on_cpu(cases, tmp_path):
    built = build(read_candidate(cases / "50_unwaited_side_stream"), cache=tmp_path)
    assert (built.status, built.reason) == ("not_runnable", "wrong_target")


# ---------------------------------------------------------------- nothing from outside

OUTWARD = {
    "absolute": '#include "/etc/hostname"\nextern "C" int one() { return 1; }',
    "macro": '#define F "/etc/host" \n#define G </etc/hostname>\n#include G\n',
    "upwards": '#include "../../../../../../../../etc/hostname"\n',
    "then an error": '#include "/etc/hostname"\n#include "nothing.h"\n',
    "incbin": 'asm(".section .rodata\\nstolen: .incbin \\"/etc/hostname\\"\\n.text");',
    "incbin, joined": 'asm(".section .rodata\\nstolen: .inc" "bin \\"/etc/hostname\\"\\n.text");',
    "assembler include": 'asm(".incl" "ude \\"/etc/passwd\\"");',
}
SECRETS = [*Path("/etc/hostname").read_text().split(), "root:", "/bin/bash", "nologin"]


@pytest.mark.parametrize("how", OUTWARD)
def test_outside_is_refused(how, tmp_path):
    built = build(candidate(OUTWARD[how]), cache=tmp_path)
    assert (built.status, built.reason) == ("build_error", "path_escape"), built.log
    assert not any(w in built.log for w in SECRETS) and "outside of the candidate" in built.log
    assert built.log.count("\n") == 0


@needs_nvcc
@pytest.mark.parametrize("how", OUTWARD)
def test_outside_is_refused_in_cuda(how, tmp_path):
    built = build(candidate(OUTWARD[how], suffix="cu"), "cuda", cache=tmp_path)
    assert built.status == "build_error"
    # nvcc -E prints nothing when a header is missing, so that one case is an ordinary error, which quotes nothing.
    assert built.reason == "path_escape" or how == "then an error", built.log
    assert not any(w in built.log for w in SECRETS)


def test_own_headers_and_system_headers_are_fine(tmp_path):
    c = Candidate((("model_new.py", ""), ("kernels/a.cpp", '#include "deep/b.h"\n#include <vector>\n#include <immintrin.h>\n#include <omp.h>\nextern "C" int one() { return ONE; }'),
                   ("kernels/deep/b.h", '#include "../c.hpp"\n'), ("kernels/c.hpp", "#define ONE 1\n")))
    assert build(c, cache=tmp_path).ok


def test_torch_is_out_of_reach_of_the_c_abi(tmp_path):
    import torch
    header = Path(torch.__file__).parent / "include/torch/types.h"
    for name in ("<torch/types.h>", f'"{header}"'):
        built = build(candidate(f"#include {name}\n"), cache=tmp_path)
        assert built.status == "build_error", built.log
    linked = build(candidate('namespace at { int get_num_threads(); }\nextern "C" int n() { return at::get_num_threads(); }'), cache=tmp_path)
    assert linked.status == "build_error" and "undefined reference" in linked.log


# ---------------------------------------------------------------- limits

def test_time_limit_kills_the_whole_group(tmp_path):
    built = build(candidate(SPIN, SPIN.replace("token", "token2")), cache=tmp_path, timeout=1.5)
    assert built.status == "build_timeout" and built.seconds < 5
    time.sleep(0.2)
    for pid in filter(str.isdigit, os.listdir("/proc")):     # no compiler whose folder was ours is left
        try:
            assert str(tmp_path) not in os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            pass
    assert not leftovers(tmp_path) and not entries(tmp_path)      # and it is not remembered


def test_memory_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(B, "LIMITS", B.LIMITS.replace(str(B.MAX_MEMORY // 1024), "60000"))
    built = build(candidate("#include <algorithm>\n#include <regex>\nstd::regex r(\"a\");"), cache=tmp_path)
    assert built.status == "build_error" and not entries(tmp_path)      # a small machine's failure is not remembered


def test_artefact_limit(tmp_path, monkeypatch):
    big = candidate('extern "C" int f(int i);\nstatic const char data[40 << 20] = {1};\nextern "C" int f(int i) { return data[i]; }')
    assert build(big, cache=tmp_path).ok                       # control
    monkeypatch.setattr(B, "MAX_LIBRARY", 30 << 20)
    built = build(big, cache=tmp_path / "b")
    assert (built.status, built.reason) == ("build_error", "artefact_too_large")
    monkeypatch.setattr(B.run_tool, "__defaults__", (2**20,))
    assert build(big, cache=tmp_path / "c").status == "build_error"     # the compiler itself may not write that much


def test_environment_is_clean(tmp_path, monkeypatch):
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    monkeypatch.setenv("CPATH", str(tmp_path))
    (tmp_path / "planted.h").write_text("#define ONE 1\n")
    built = build(candidate("#include <planted.h>\n"), cache=tmp_path / "c")
    assert built.status == "build_error" and "planted.h: No such file" in built.log


# ---------------------------------------------------------------- the cache

def test_key_follows_everything(monkeypatch):
    key = recipe(ONE).key
    assert key == recipe(Candidate(ONE.files[::-1])).key
    assert key == recipe(Candidate((("model_new.py", "other = 1\n"), ONE.files[0]))).key      # Python is not compiled
    assert key != recipe(candidate('extern "C" int one() { return 2; }\n')).key
    monkeypatch.setattr(C, "CPU_FLAGS", (*C.CPU_FLAGS, "-DX"))
    assert key != recipe(ONE).key
    monkeypatch.undo()
    monkeypatch.setattr(C, "cpu_features", lambda: "another CPU")
    assert key != recipe(ONE).key
    monkeypatch.undo()
    monkeypatch.setattr(C, "compiler_version", lambda path: "another compiler")
    assert key != recipe(ONE).key


@needs_nvcc
def test_key_follows_the_architecture():
    assert len({recipe(ONE, "cuda", "sm_90").key, recipe(ONE, "cuda", "sm_80").key, recipe(ONE).key}) == 3


def test_a_key_with_torch_follows_torch(monkeypatch):
    bound = Candidate((*ONE.files, ("kernels/k_binding.cpp", "#include <torch/types.h>\n")))
    key, plain, setup = recipe(bound).key, recipe(ONE).key, C.torch_setup()
    monkeypatch.setattr(C, "torch_setup", lambda: (*setup[:2], "9.9", *setup[3:]))
    assert recipe(bound).key != key and recipe(ONE).key == plain


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone", "meta", "meta gone"])
def test_damaged_entry_is_rebuilt(damage, tmp_path):
    first = build(ONE, cache=tmp_path)
    meta = first.library.with_name("meta.json")
    raw = first.library.read_bytes()
    if damage in ("cut", "flip", "empty"):
        first.library.write_bytes({"cut": raw[:-100], "flip": raw[:-1] + bytes([raw[-1] ^ 1]), "empty": b""}[damage])
    elif damage == "gone":
        first.library.unlink()
    else:
        meta.write_text("{") if damage == "meta" else meta.unlink()
    again = build(ONE, cache=tmp_path)
    assert again.ok and not again.cached and ctypes.CDLL(str(again.library)).one() == 1
    assert build(ONE, cache=tmp_path).cached and not leftovers(tmp_path)


def test_failures_are_remembered(tmp_path):
    bad = candidate("int x = ;\n")
    first, again = build(bad, cache=tmp_path), build(bad, cache=tmp_path)
    assert not first.cached and again.cached and again.log == first.log and again.status == "build_error"


def test_builders_of_the_same_key(tmp_path):
    """Eight threads and three processes at once: one compiles, all get the same sound library."""
    code = ("import sys; from cuda_agent_lab.build import build; from cuda_agent_lab.workspace import Candidate; import json;"
            "b = build(Candidate(tuple(map(tuple, json.loads(sys.argv[1])))), cache=sys.argv[2]); print(b.status, b.cached, b.library)")
    children = [subprocess.Popen([sys.executable, "-c", code, json.dumps(ONE.files), str(tmp_path)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    with ThreadPoolExecutor(8) as threads:
        built = list(threads.map(lambda _: build(ONE, cache=tmp_path), range(8)))
    lines = [c.communicate(timeout=120)[0].split() for c in children]
    assert {b.library for b in built} | {Path(x[2]) for x in lines} == {built[0].library}
    assert [b.cached for b in built].count(False) + [x[1] for x in lines].count("False") == 1
    assert not leftovers(tmp_path)


def test_builders_without_a_lock(tmp_path, monkeypatch):
    """Even where the lock does nothing (a network file system), entries stay sound."""
    def no_lock(*_):
        raise OSError("no locks available")
    monkeypatch.setattr(B.fcntl, "flock", no_lock)
    with ThreadPoolExecutor(4) as threads:
        built = list(threads.map(lambda _: build(ONE, cache=tmp_path), range(4)))
    assert all(b.ok for b in built) and len({b.library for b in built}) == 1 and not leftovers(tmp_path)


def test_a_killed_builder_leaves_no_lock(tmp_path):
    code = ("import sys; from cuda_agent_lab.build import build; from cuda_agent_lab.workspace import Candidate; import json;"
            "build(Candidate(tuple(map(tuple, json.loads(sys.argv[1])))), cache=sys.argv[2])")
    slow = candidate(SPIN)
    child = subprocess.Popen([sys.executable, "-c", code, json.dumps(slow.files), str(tmp_path)], start_new_session=True)
    deadline = time.monotonic() + 60
    while not leftovers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    start = time.monotonic()
    assert build(slow, cache=tmp_path, timeout=0.5).status == "build_timeout" and time.monotonic() - start < 5


def test_unwritable_cache_is_not_the_candidates_fault(tmp_path):
    (tmp_path / "builds").write_text("a file where the folder should be")
    built = build(ONE, cache=tmp_path)
    assert built.status == "infra_error" and built.library is None and str(tmp_path) not in built.log


# ---------------------------------------------------------------- targets and kinds

def test_missing_compilers(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    built = build(ONE, cache=tmp_path)
    assert built.status == "not_runnable" and "install g++" in built.log
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(C, "find_nvcc", lambda: None)
    built = build(ONE, "cuda", cache=tmp_path)
    assert built.status == "not_runnable" and "install the CUDA toolkit" in built.log
    with pytest.raises(ValueError, match="target"):
        build(ONE, "tpu")


def test_inline_and_none():
    inline = build(Candidate((("model_new.py", "from torch.utils.cpp_extension import load_inline\n"),)))
    none = build(Candidate((("model_new.py", "class ModelNew: pass\n"),)))
    assert inline.ok and inline.library is None and inline.abi == "inline" and "when it is imported" in inline.log
    assert none.ok and none.abi == "none"


def test_files_of_a_target():
    c = Candidate((("model_new.py", ""), *((f"kernels/{n}", "") for n in ("a.cpp", "a_cpu.cpp", "a_cuda.cpp", "a.cu", "a.cuh", "a.h", "a.py"))))
    assert C.sources(c, "cpu") == ["kernels/a.cpp", "kernels/a_cpu.cpp"]
    assert C.sources(c, "cuda") == ["kernels/a.cpp", "kernels/a.cu", "kernels/a_cpu.cpp", "kernels/a_cuda.cpp"]


def test_several_sources_and_all_their_errors(tmp_path):
    good = build(candidate('extern "C" int one() { return 1; }', 'extern "C" int one();\nextern "C" int two() { return 2 * one(); }'), cache=tmp_path)
    assert ctypes.CDLL(str(good.library)).two() == 2
    bad = build(candidate("int x = ;", "int fine;", "int y = ;"), cache=tmp_path)
    assert "kernels/k0.cpp:1" in bad.log and "kernels/k2.cpp:1" in bad.log and "k1" not in bad.log


def test_install_follows_no_link(tmp_path):
    built, root, precious = build(ONE, cache=tmp_path), tmp_path / "w", tmp_path / "precious"
    root.mkdir()
    precious.mkdir()
    (root / "build").symlink_to(precious)
    assert install(built, root).read_bytes() == built.library.read_bytes() and not list(precious.iterdir())


def test_log_is_cut_with_a_count(tmp_path):
    built = build(candidate("#include <map>\n" + "\n".join(f"int v{i} = w{i}(" + "1 + " * 100 + "1);" for i in range(300))), cache=tmp_path)
    assert built.status == "build_error" and len(built.log) < B.LOG_CHARS + 100
    assert built.log.startswith("kernels/k0.cpp:2:") and re.search(r"\[cut: \d+ more lines, \d+ characters\]$", built.log)
    assert tidy_log("a.cpp:1:1: warning: w\na.cpp:2:1: error: e").startswith("a.cpp:2:1: error")


# ---------------------------------------------------------------- cuda without a GPU

@needs_nvcc
def test_cuda_builds_without_a_gpu(tmp_path):
    text = '__global__ void k(float* o) { o[threadIdx.x] = 1; }\nextern "C" int go(float* o) { k<<<1, 32>>>(o); return 7; }\n'
    built = build(candidate(text, suffix="cu"), "cuda", cache=tmp_path)
    assert built.ok, built.log
    print(f"c ABI by nvcc, cold: {built.seconds:.2f} s")
    lib = ctypes.CDLL(str(built.library))
    lib.calab_last_error.restype = ctypes.c_char_p
    assert lib.go(None) == 7
    if not os.path.exists("/dev/nvidiactl"):
        assert b"driver" in lib.calab_last_error()           # the launch's error is kept by the library's own runtime
    syntax = build(candidate(text.replace("= 1;", "= 1"), suffix="cu"), "cuda", cache=tmp_path)
    assert syntax.status == "build_error" and 'kernels/k0.cu(1): error: expected a ";"' in syntax.log and not ABSOLUTE.search(syntax.log)
    asm = build(candidate('__global__ void k(float* o) { asm("bogus.f32 %0;" :: "f"(o[0])); }', suffix="cu"), "cuda", cache=tmp_path)
    assert asm.status == "build_error" and "bogus" in asm.log and "tmpxft" not in asm.log


@needs_nvcc
def test_cublas_is_linked_or_named(tmp_path):
    built = build(candidate('#include <cublas_v2.h>\nextern "C" int go() { cublasHandle_t h; return cublasCreate(&h); }', suffix="cu"), "cuda", cache=tmp_path)
    assert built.ok or (built.status == "not_runnable" and "cublas" in built.log), built.log
    plain = build(candidate('extern "C" int go() { return 0; }', suffix="cu"), "cuda", cache=tmp_path)
    assert b"libcublas" not in plain.library.read_bytes()
    if built.ok:
        assert b"libcublas" in built.library.read_bytes()


@pytest.mark.slow
def test_prepare_makes_bindings_cheaper(tmp_path):
    text = ('#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n#include "../binding_registry.h"\n'
            "static void add(pybind11::module& m) { m.def(\"n\", [](torch::Tensor t) { return t.numel() + %d; }); }\nREGISTER_BINDING(n, add);\n")
    make = lambda i: Candidate((("model_new.py", ""), ("kernels/n_binding.cpp", text % i)))
    seconds = [build(make(0), cache=tmp_path).seconds, build(make(1), cache=tmp_path).seconds]
    print(prepare(cache=tmp_path))
    last = build(make(2), cache=tmp_path)
    assert last.ok
    print(f"pybind: first {seconds[0]:.1f} s, module kept {seconds[1]:.1f} s, header precompiled too {last.seconds:.1f} s")
