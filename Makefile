# make demo | test | papers | lint | bench      each makes the virtual environment .venv first

PYTHON ?= python3
RUN := .venv/bin/python
BACKEND ?= hemstitch
# The oldest and the newest that are supported; not in .venv itself, where Inductor would find it.
TRITONS := 3.6.0 3.9.0
TRITON_TESTS := tests/emulator tests/latency tests/printed tests/cuda
# What depends little on Triton's version runs with one: both take as long, side by side.
MORE_3.6.0 := tests/front_door
MORE_3.9.0 := tests/test_gpu_benchmarks.py
MODELS := inference_agrees or no_less_exact
FIRST := bert or llama or lstm or t5 or dien
MODELS_3.6.0 := ($(MODELS)) and ($(FIRST))
MODELS_3.9.0 := ($(MODELS)) and not ($(FIRST))

.PHONY: demo test test-cpu test-gpu papers lint bench clean

demo: .venv/installed
	$(RUN) -m benchmarks.demo --backend $(BACKEND)

test: test-cpu test-gpu

# PyTorch's own samples count what agrees in one process, and start processes of their own.
test-cpu: .venv/installed
	OMP_WAIT_POLICY=passive $(RUN) -m pytest --numprocesses auto --dist worksteal --ignore tests/opinfo
	$(RUN) -m pytest tests/opinfo

# Kernels for GPUs, emulated and cross-compiled with each Triton, side by side. No GPU is needed.
test-gpu: $(TRITONS:%=.venv/triton/%)
	$(MAKE) --jobs 2 --output-sync=target $(TRITONS:%=test-gpu-%)

test-gpu-%: .venv/triton/%
	PYTHONPATH=$(CURDIR)/$< TRITON_CACHE_DIR=$(CURDIR)/build/triton-$* $(RUN) -m pytest $(TRITON_TESTS) $(MORE_$*)
	PYTHONPATH=$(CURDIR)/$< HEMSTITCH_TARGET=interpret $(RUN) -m pytest tests/models/test_models.py -k "$(MODELS_$*)"

# Which row of the papers' checklist is held by which test; `-m tools.papers --write` makes the page.
papers: .venv/triton/3.9.0
	PAPERS_MODELS=all PYTHONPATH=$(CURDIR)/$< $(RUN) -m tools.papers

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
