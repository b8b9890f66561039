"""The workspace: its example pages really work, its scripts really ask, its fixed files really come back."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from cuda_agent_lab.build import build, install
from cuda_agent_lab.compilers import find_nvcc
from cuda_agent_lab.tasks import Task, sandbox_dir
from cuda_agent_lab.workspace import (FIXED, MAX_BYTES, SECTION, Candidate, CandidateError, fixed_files, make_workspace,
                                      read_candidate, restore_fixed, write_candidate)

TASK = Task(id="t", level=None, source="class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n")
MODEL_NEW = ("model_new.py", "import cuda_extension\nclass ModelNew: pass\n")

# Runs a workspace's model_new.py against its model.py in a process of its own, as an agent would.
COMPARE = """
import torch, model, model_new
torch.manual_seed(0)
new, old = model_new.ModelNew(*model.get_init_inputs()), model.Model(*model.get_init_inputs())
new.load_state_dict(old.state_dict())
with torch.no_grad():
    for x in model.get_inputs(), [torch.randn(3, 1024)], [torch.randn(2, 5, 1024).transpose(0, 1)]:
        torch.testing.assert_close(new(*x), old(*x))
print("same")
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def examples(target):
    """{file name: text} of the code blocks in SKILL.md that belong to a target."""
    text = (sandbox_dir() / "workspace" / "SKILL.md").read_text()
    part = next(m[2] for m in SECTION.finditer(text) if m[1] == target)
    return {name: f"{body}" for _, name, body in re.findall(r"```(\w+)\n(?://|#) (\S+)\n(.*?)```", part, re.S)}


def run_example(tmp_path, cache, blocks, candidate, target="cpu"):
    root = make_workspace(tmp_path / "w", Task(id="x", level=None, source=blocks["model.py"]), target)
    write_candidate(root, candidate)
    built = build(read_candidate(root), target, cache=cache)
    assert built.ok, built.log
    install(built, root)
    done = subprocess.run([sys.executable, "-c", COMPARE], cwd=root, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert done.stdout == "same\n", done.stderr
    return root


def test_skill_example_cpu(tmp_path, cache):
    blocks = examples("cpu")
    c = Candidate((("model_new.py", blocks["model_new.py"]), ("kernels/rms_norm.cpp", blocks["kernels/rms_norm.cpp"])))
    assert c.abi == "c"
    run_example(tmp_path, cache, blocks, c)


def test_skill_example_is_really_compared(tmp_path, cache):
    """Negative control: the same with one sign changed must not come out the same."""
    blocks = examples("cpu")
    spoilt = blocks["kernels/rms_norm.cpp"].replace("+ eps", "- 0.1f")
    assert spoilt != blocks["kernels/rms_norm.cpp"]
    with pytest.raises(AssertionError, match="not close"):
        run_example(tmp_path, cache, blocks, Candidate((("model_new.py", blocks["model_new.py"]), ("kernels/rms_norm.cpp", spoilt))))


def test_skill_example_cpu_pybind(tmp_path, cache):
    blocks = examples("cpu")
    new = re.sub(r"rms_norm = cuda_extension.declare\(.*?\)\"\)\n", "", blocks["model_new.py"], flags=re.S)
    new = re.sub(r"        x = x.contiguous\(\)\n.*return out\n",
                 "        return cuda_extension.rms_norm_forward(x.contiguous(), self.weight, self.eps)\n", new, flags=re.S)
    assert "declare" not in new and "rms_norm_forward" in new
    c = Candidate((("model_new.py", new), *((n, t) for n, t in blocks.items() if n.startswith("kernels/"))))
    assert c.abi == "pybind"
    run_example(tmp_path, cache, blocks, c)


@pytest.mark.skipif(not find_nvcc(), reason="nvcc is not here")
def test_skill_example_cuda_compiles(cache):
    blocks = examples("cuda")
    c = Candidate((("model_new.py", blocks["model_new.py"]), ("kernels/rms_norm.cu", blocks["kernels/rms_norm.cu"])))
    built = build(c, "cuda", cache=cache)
    assert built.ok, built.log
    broken = build(Candidate((("model_new.py", ""), ("kernels/rms_norm.cu", blocks["kernels/rms_norm.cu"].replace("float4 kept", "float5 kept")))),
                   "cuda", cache=cache)
    assert broken.status == "build_error" and "kernels/rms_norm.cu(" in broken.log
    # The declared prototype is the one that the kernel has.
    declared = re.search(r'"(int rms_norm\(.*?\))"', blocks["model_new.py"])[1]
    assert f'extern "C" {declared} {{' in blocks["kernels/rms_norm.cu"]


@pytest.mark.gpu
def test_skill_example_cuda_runs(tmp_path, cache):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not find_nvcc():
        pytest.skip("needs a CUDA device and nvcc")
    blocks = examples("cuda")
    compare = "import torch\ntorch.set_default_device('cuda')\n" + COMPARE.replace("1024", "4096")
    root = make_workspace(tmp_path / "w", Task(id="x", level=None, source=blocks["model.py"]), "cuda")
    plain = Candidate((("model_new.py", blocks["model_new.py"]), ("kernels/rms_norm.cu", blocks["kernels/rms_norm.cu"])))
    new = re.sub(r"rms_norm = cuda_extension.declare\(.*?\)\"\)\n", "", blocks["model_new.py"], flags=re.S)
    new = re.sub(r"        x = x.contiguous\(\)\n.*return out\n",
                 "        return cuda_extension.rms_norm_forward(x.contiguous(), self.weight, self.eps)\n", new, flags=re.S)
    bound = Candidate((("model_new.py", new), *((n, t) for n, t in blocks.items() if n.startswith("kernels/"))))
    for c in (plain, bound):
        write_candidate(root, c)
        built = build(c, "cuda", cache=cache)
        assert built.ok, built.log
        print(f"{c.abi} cuda build: {built.seconds:.2f} s")
        install(built, root)
        done = subprocess.run([sys.executable, "-c", compare], cwd=root, capture_output=True, text=True)
        assert done.stdout == "same\n", done.stderr


def test_skill_tells_the_own_target_first():
    cpu, cuda = (fixed_files(TASK, t)["SKILL.md"] for t in ("cpu", "cuda"))
    assert cpu.index("A complete example (cpu)") < cpu.index("# Appendix") < cpu.index("A complete example (cuda)")
    assert cuda.index("A complete example (cuda)") < cuda.index("# Appendix") < cuda.index("A complete example (cpu)")
    for text in (cpu, cuda):
        assert text.index("The C ABI") < text.index("The pybind ABI") and "{{" not in text and "<!--" not in text
        for word in ("utils/compile.sh", "utils/verify.py", "utils/profile.py", "state_dict", "cuBLAS", "milestone"):
            assert word in text


# ---------------------------------------------------------------- candidates

def test_cases_are_read(cases):
    for folder in sorted(cases.glob("[0-9]*")):
        c = read_candidate(folder)
        assert c.abi == ("pybind" if (folder / "kernels").is_dir() else "none"), folder.name
        assert {p for p, _ in c.files} == {str(p.relative_to(folder)) for p in [folder / "model_new.py", *folder.glob("kernels/*")]}


@pytest.fixture
def cases():
    folder = sandbox_dir().resolve().parent.parent / "shared" / "cases"
    if not folder.is_dir():
        pytest.skip("the shared cases are not here")
    return folder


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.cpp", "kernels/../../x.cpp", "kernels//x.cpp", "kernels/.x.cpp", "kernels/-o.cpp", "kernels/a b.cpp",
                                  "x.cpp", "kernels/x.so", "kernels/x.cpp\0", "kernels\\x.cpp", "kernels", "utils/verify.py"])
def test_candidate_refuses_paths(path):
    with pytest.raises(CandidateError) as e:
        Candidate((MODEL_NEW, (path, "")))
    assert str(e.value).count("\n") == 0
    Candidate((MODEL_NEW, ("kernels/deep/x.cpp", "")))      # control: a good path passes


def test_candidate_limits():
    with pytest.raises(CandidateError, match="larger than"):
        Candidate((MODEL_NEW, ("kernels/a.h", "x" * MAX_BYTES)))
    with pytest.raises(CandidateError, match="200 files"):
        Candidate((MODEL_NEW, *((f"kernels/{i}.h", "") for i in range(201))))
    with pytest.raises(CandidateError, match="twice"):
        Candidate((MODEL_NEW, MODEL_NEW))
    with pytest.raises(CandidateError, match="model_new.py is missing"):
        Candidate((("kernels/a.h", ""),))


def test_text_survives_byte_for_byte(tmp_path):
    c = Candidate((MODEL_NEW, ("kernels/a.h", "// é\r\nno newline at end")))
    write_candidate(tmp_path, c)
    assert read_candidate(tmp_path) == c and (tmp_path / "kernels/a.h").read_bytes() == "// é\r\nno newline at end".encode()


def test_a_swapped_folder_is_noticed(tmp_path, monkeypatch):
    """kernels/ becomes a link between the listing and the read; the file behind it must not be read."""
    from cuda_agent_lab import workspace
    write_candidate(tmp_path / "w", Candidate((MODEL_NEW, ("kernels/a.h", "mine"))))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.h").write_text("secret")
    listing = workspace._kernel_paths

    def swap(folder):
        found = listing(folder)
        shutil.rmtree(folder / "kernels")
        (folder / "kernels").symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr(workspace, "_kernel_paths", swap)
    with pytest.raises(CandidateError, match="is a link") as e:
        read_candidate(tmp_path / "w")
    assert e.value.reason == "path_escape"


# ---------------------------------------------------------------- fixed files

@pytest.mark.parametrize("name", [*FIXED, "model.py"])
def test_every_fixed_file_comes_back(tmp_path, name):
    root = make_workspace(tmp_path / "w", TASK)
    text = (root / name).read_text()
    assert restore_fixed(root, TASK) == ()
    for spoil in (lambda p: p.write_text(text + " "), lambda p: None, lambda p: p.symlink_to("/etc/hostname"), lambda p: p.mkdir()):
        (root / name).unlink()
        spoil(root / name)
        assert restore_fixed(root, TASK) == (name,)
        assert (root / name).read_text() == text and not (root / name).is_symlink()
    assert restore_fixed(root, TASK) == ()


def test_strangers_in_utils_are_removed_and_links_not_followed(tmp_path):
    root, precious = make_workspace(tmp_path / "w", TASK), tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep me")
    (root / "utils" / "more").symlink_to(precious)
    (root / "utils" / "socket.py").write_text("")
    assert restore_fixed(root, TASK) == ("utils/more", "utils/socket.py")
    shutil.rmtree(root / "utils")
    (root / "utils").symlink_to(precious)
    assert set(restore_fixed(root, TASK)) == {n for n in FIXED if n.startswith("utils/")}
    assert sorted(os.listdir(precious)) == ["file"]
    (root / "kernels").rmdir()
    (root / "kernels").symlink_to(precious)
    write_candidate(root, Candidate((MODEL_NEW, ("kernels/a.h", ""))))
    assert sorted(os.listdir(precious)) == ["file"]


def test_workspace_needs_an_empty_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(FileExistsError, match="not empty"):
        make_workspace(tmp_path, TASK)
    with pytest.raises(ValueError, match="target"):
        make_workspace(tmp_path / "w", TASK, "tpu")


# ---------------------------------------------------------------- the scripts

@pytest.mark.parametrize("command, op", [(["bash", "utils/compile.sh"], "compile"), ([sys.executable, "utils/verify.py"], "verify"),
                                         ([sys.executable, "utils/profile.py"], "profile")])
def test_scripts_ask_the_judge(tmp_path, command, op):
    root = make_workspace(tmp_path / "w", TASK)
    seen = []
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()

    def serve():
        peer, _ = server.accept()
        with peer, peer.makefile("rw") as f:
            seen.append(json.loads(f.readline()))
            f.write(json.dumps({"exit": 1, "text": "rejected wrong_result: off by one"}) + "\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    env = {"PATH": os.path.dirname(sys.executable) + ":/usr/bin:/bin", "CALAB_JUDGE": str(tmp_path / "s"), "CALAB_TOKEN": "secret"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=60)
    thread.join(10)
    server.close()
    assert seen == [{"op": op, "token": "secret"}]
    assert (done.returncode, done.stdout, done.stderr) == (1, "rejected wrong_result: off by one\n", "")
    gone = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=60)      # control: nobody listens
    assert gone.returncode == 2 and "gave no answer" in gone.stderr
