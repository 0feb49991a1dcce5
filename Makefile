# Two commands: `make demo` runs the main job, `make test` checks everything. Both need Python 3.11, 3.12 or 3.13 and a network to PyPI.
# The first that runs: a version manager may have a stand-in on the path for one that is not in use.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13; do $$python -c "" 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
# What was tested, also on a fresh machine in a year.
LOCK := requirements/lock.txt
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(LOCK)
CODE := src tests benchmarks examples requirements

.PHONY: demo test lint unit bench peers docs lock audit clean

demo: $(VENV)/.torch
	$(BIN)/octune demo

test: $(VENV)/.all
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.all
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy

unit: $(VENV)/.all
	$(BIN)/pytest --ignore=tests/end_to_end -m "not slow"

bench: $(VENV)/.all
	$(BIN)/python benchmarks/torch_speed.py

# make peers MODELS=... DATA=...; without these folders the stress cases alone. Hours, and some GB of environments.
peers: $(VENV)/.all
	$(BIN)/python benchmarks/peers.py $(if $(MODELS),--models $(MODELS)) $(if $(DATA),--data $(DATA))
	$(BIN)/python benchmarks/peers.py --markdown docs/peers.md

docs: $(VENV)/.all
	$(BIN)/mkdocs build

# torch comes first and by its exact version: asked for by another package, pip would take a build with gigabytes of CUDA.
$(VENV)/.torch: pyproject.toml $(LOCK)
	test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "needs Python 3.11, 3.12 or 3.13: make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e '.[torch]'
	touch $@

$(VENV)/.all: $(VENV)/.torch
	$(INSTALL) torch==2.13.0 -e '.[all,dev]'
	touch $@

# Needs all three Pythons on the path.
lock:
	$(PYTHON) requirements/make_lock.py

audit: $(VENV)/.all
	$(BIN)/python requirements/audit.py

clean:
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache
