# Everything is relative to this file: make knows no paths with spaces, the shell does.
# A first call makes .venv; a stamp in it makes every later call quick.

PYTHON ?= python3
WORKERS ?= 2
CONFIG ?= configs/quickstart.yaml
FAULTS ?= 200
SEED ?= 1

PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.SUFFIXES:

# made-in is written when an installation is complete: a .venv that was interrupted, moved with its folder, or lost its
# Python is made anew.
SOUND = [[ "$$(cat .venv/made-in 2>/dev/null)" == "$$(pwd -P)" ]] && $(PY) -c '' 2>/dev/null
ANEW := $(shell $(SOUND) || echo FORCE)

define MAKE_VENV
	if ! { $(SOUND); }; then
	  if ! command -v "$(PYTHON)" >/dev/null; then
	    echo 'make: there is no "$(PYTHON)" here. stemdl needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...' >&2; exit 2
	  fi
	  if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
	    echo 'make: "$(PYTHON)" is '"$$("$(PYTHON)" --version 2>&1 | head -1)"'. stemdl needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...' >&2; exit 2
	  fi
	  rm -rf .venv
	  if ! "$(PYTHON)" -m venv .venv; then
	    rm -rf .venv
	    echo 'make: "$(PYTHON)" -m venv failed. On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 2
	  fi
	fi
endef

.ONESHELL:

.PHONY: help install dev demo check lint types layers shell test torture clean distclean FORCE

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

install: .venv/installed ## make .venv with stemdl in it
	@echo "stemdl is in .venv: . .venv/bin/activate"

dev: .venv/installed-dev ## the same, with everything the tests need

.venv/installed: pyproject.toml constraints.txt $(ANEW)
	@$(MAKE_VENV)
	echo "installing stemdl into .venv (some minutes the first time)"
	rm -f .venv/made-in
	$(PIP) install --quiet -c constraints.txt -e .
	printf '%s\n' "$$(pwd -P)" > .venv/made-in
	touch .venv/installed

.venv/installed-dev: pyproject.toml constraints.txt $(ANEW)
	@$(MAKE_VENV)
	echo "installing stemdl and its development tools into .venv (some minutes the first time)"
	rm -f .venv/made-in
	$(PIP) install --quiet -c constraints.txt -e '.[dev,mpi]'
	printf '%s\n' "$$(pwd -P)" > .venv/made-in
	touch .venv/installed .venv/installed-dev

demo: .venv/installed ## simulate, train, reconstruct and report: a few minutes (CONFIG=configs/quickstart.yaml)
	@.venv/bin/stemdl run "$(CONFIG)"

lint: dev ## ruff: rules and format
	@$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: dev ## mypy --strict
	@$(PY) -m mypy --strict

layers: dev ## import-linter: who may import whom
	@.venv/bin/lint-imports

shell: dev ## shellcheck on every shell script
	@scripts=(.ci/run tests/peers/horovod_env.sh)
	if [[ -d jobs ]]; then
	  while IFS= read -r -d '' f; do scripts+=("$$f"); done \
	    < <(find jobs -type f \( -name '*.sh' -o -name '*.sbatch' -o -name '*.lsf' \) -print0 | sort -z)
	fi
	.venv/bin/shellcheck --shell=bash "$${scripts[@]}"
	echo "shellcheck: $${#scripts[@]} scripts clean"

check: lint types layers shell ## every check but the tests

test: check ## every check, then pytest with coverage
	@# One thread in each worker: they share the cores already.
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term:skip-covered

torture: dev ## inject 200 faults into the simulation, check what must hold, print a table (FAULTS=200 SEED=1)
	@$(PY) -m tests.torture --faults $(FAULTS) --seed $(SEED)

clean: ## remove caches (runs/ and .venv stay)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.* build dist *.egg-info
	find stemdl data_gen tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv as well (runs/ stays)
	@rm -rf .venv
