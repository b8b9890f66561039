"""Asks the judge outside of this workspace to compile, verify or profile it.  Fixed: it is put back before judging.

The scripts only carry a question and print the answer: nothing that runs in this workspace decides anything.
"""
import importlib.util
import json
import os
import socket
import subprocess
import sys

TARGET = "{{TARGET}}"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def ask(op):
    """Send one question, print the answer, return the exit status (0 good, 1 bad candidate, 2 no answer)."""
    address = os.environ.get("CALAB_JUDGE")
    if not address:
        # No judge is listening: the installed package judges this folder itself, in a process of its own.
        if importlib.util.find_spec("cuda_agent_lab") is None:
            print(f"cuda_agent_lab is not installed for {sys.executable}; activate the environment in which you installed it", file=sys.stderr)
            return 2
        command = [sys.executable, "-m", "cuda_agent_lab.cli", op, ROOT, "--target", TARGET]
        return subprocess.call(command, cwd=ROOT, env={**os.environ, "PYTHONSAFEPATH": "1"})
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(address)
            s.sendall((json.dumps({"op": op, "token": os.environ.get("CALAB_TOKEN", "")}) + "\n").encode())
            with s.makefile("r", encoding="utf-8") as reply:
                answer = json.loads(reply.readline())
        print(answer["text"])
        return int(answer["exit"])
    except (OSError, ValueError, KeyError) as error:
        print(f"the judge at {address} gave no answer: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1]))
