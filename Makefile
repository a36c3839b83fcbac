# make demo | test | lint | bench      each makes the virtual environment .venv first

PYTHON ?= python3
RUN := .venv/bin/python
BACKEND ?= hemstitch

.PHONY: demo test lint bench clean

demo: .venv/installed
	$(RUN) -m benchmarks.demo --backend $(BACKEND)

test: .venv/installed
	$(RUN) -m pytest

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
