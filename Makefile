# make demo | test | papers | lint | bench      each makes the virtual environment .venv first

PYTHON ?= python3
RUN := .venv/bin/python
# Bytecode is kept whatever the machine is told otherwise: dozens of processes import the same.
export PYTHONDONTWRITEBYTECODE :=
BACKEND ?= hemstitch
# The oldest and the newest that are supported; not in .venv itself, where Inductor would find it.
TRITONS := 3.6.0 3.9.0
# The newest runs all that is printed for GPUs; the oldest the emulator and the compiler, and then
# what does not depend on the version, so that both take as long, side by side.
TRITON_TESTS := tests/emulator tests/cuda
MORE_3.6.0 := tests/latency tests/front_door tests/test_gpu_benchmarks.py
MORE_3.9.0 := tests/printed
MODELS_3.6.0 := no_less_exact and bfloat16 and bert
MODELS_3.9.0 := no_less_exact and bfloat16 and llama

.PHONY: demo test test-cpu test-gpu test-samples test-lowest test-newest papers lint bench clean

demo: .venv/installed
	$(RUN) -m benchmarks.demo --backend $(BACKEND)

test: test-cpu $(TRITONS:%=.venv/triton/%)
	$(MAKE) --jobs 3 --output-sync=target test-samples test-gpu

test-cpu: .venv/installed
	OMP_WAIT_POLICY=passive $(RUN) -m pytest --numprocesses auto --dist worksteal --ignore tests/opinfo

# PyTorch's own samples count what agrees in one process, and start processes of their own.
test-samples: .venv/installed
	$(RUN) -m pytest tests/opinfo

# Kernels for GPUs, emulated and cross-compiled with each Triton. No GPU is needed.
test-gpu: $(TRITONS:%=test-gpu-%)

test-gpu-%: .venv/triton/%
	PYTHONPATH=$(CURDIR)/$< TRITON_CACHE_DIR=$(CURDIR)/build/triton-$* $(RUN) -m pytest $(TRITON_TESTS) $(MORE_$*)
	PYTHONPATH=$(CURDIR)/$< HEMSTITCH_TARGET=interpret $(RUN) -m pytest tests/models/test_models.py -k "$(MODELS_$*)"

# Which row of the papers' checklist is held by which test; `-m tools.papers --write` makes the page.
# Some of the tests with the oldest and with the newest of all requirements, each in an environment
# of its own in build/. PYTHON says with which Python.
test-lowest test-newest: test-%:
	PYTHON=$(PYTHON) tools/requirements $*

papers: .venv/triton/3.9.0
	HEMSTITCH_TESTS=all PYTHONPATH=$(CURDIR)/$< $(RUN) -m tools.papers

.venv/triton/%: .venv/installed
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --target $@ triton==$*

lint: .venv/installed
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(RUN) tools/house.py

bench: .venv/installed
	$(RUN) -m benchmarks.cpu --backend $(BACKEND) --json benchmarks/results/cpu.json

.venv/installed: tools/install pyproject.toml requirements/constraints.txt
	PYTHON=$(PYTHON) tools/install
	touch $@

clean:
	rm -rf .venv build dist
