# One command is enough on a fresh machine: every target sets up what it needs.
#   make train   a small policy trained on measured kernels          -> runs/
#   make evaluate  the built-in baseline on the bundled suite        -> runs/
#   make test    everything that CI checks
#   make lab     JupyterLab on nbs/
#   make docs    the rendered site                                    -> _docs/
PYTHON ?= python3
VENV   ?= .venv
PRESET ?= laptop
SEED   ?= 0
OUT    ?= runs/$(PRESET)-$(SEED)
# make setup SYSTEM_TORCH=1 uses the torch that PYTHON already has, as GPU images do.
SYSTEM_TORCH ?=
TORCH  ?= 2.13.0

BIN   := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup train evaluate test lab docs readme clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(if $(SYSTEM_TORCH),--system-site-packages) $(VENV)
	$(BIN)/python -m pip install -q -U pip
ifeq ($(SYSTEM_TORCH),)
	# Without a GPU the CPU build saves gigabytes; where no index offers it, the ordinary build does the same work.
	nvidia-smi -L >/dev/null 2>&1 \
	  || $(BIN)/python -m pip install -q "torch==$(TORCH)+cpu" 2>/dev/null \
	  || $(BIN)/python -m pip install -q "torch==$(TORCH)"
endif
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

train: $(READY)
	mkdir -p $(OUT)
	$(BIN)/papermill nbs/train.ipynb $(OUT)/train.ipynb -k python3 --log-output --no-progress-bar \
	  -p preset $(PRESET) -p seed $(SEED) -p out $(OUT)

evaluate: OUT = runs/evaluate-$(PRESET)
evaluate: $(READY)
	mkdir -p $(OUT)
	$(BIN)/papermill nbs/evaluate.ipynb $(OUT)/evaluate.ipynb -k python3 --log-output --no-progress-bar \
	  -p preset $(PRESET) -p out $(OUT)

test: $(READY)
	$(BIN)/python -m pytest -q tests
	$(BIN)/nbdev_test --n-workers 2
	rm -rf runs/smoke-test
	$(MAKE) train PRESET=smoke OUT=runs/smoke-test
	$(BIN)/python tools/build_docs.py

lab: $(READY)
	$(BIN)/jupyter lab nbs

docs: $(READY)
	$(BIN)/python tools/build_docs.py --exec

readme: $(READY)
	$(BIN)/python tools/build_readme.py

clean:
	rm -rf _docs _proc _exec build
