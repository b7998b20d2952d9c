# `make demo` is the way in; `make` alone lists the verbs.
PYTHON ?= python3
PY := .venv/bin/python
# Test files run side by side: many of them wait for servers. Each worker has servers of its own, and needs 4 GB.
# `make test` goes through the folders in their order: `tests/chaos`, whose files take longest, begins, so that no worker
# is idle at the end.
# There is one more than cores, where there are 5 GB for each, since tests wait for half of their time.
WORKERS ?= $(shell cd scripts && $(PYTHON) -Bc "import os, system_checks; \
  memory = (system_checks.memory_bytes() or 0) // (5 * system_checks.GIB); \
  print(max(2, min(len(os.sched_getaffinity(0)) + 1, memory)))")
# Where a coloured or interactive child would wait for a terminal, there is none.
export PYTHONUNBUFFERED = 1

.PHONY: help setup demo unit test test-long chaos guarantees abuse check bench clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## install all that is needed under this folder (once)
	@$(PYTHON) scripts/setup.py

demo: setup ## train the calculator agent; KEEP=1 leaves the stack up, CRASH=1 kills its processes on the way
	@$(PY) -m relight.cli demo $(if $(filter-out 0,$(KEEP)),--keep) $(if $(filter-out 0,$(CRASH)),--crash)

unit: setup ## the unit tests alone: no server but those that a test starts itself; one to two minutes on 2 free cores
	@$(PY) -m pytest tests/unit -m "not long" -n $(WORKERS) --dist loadfile

test: setup check ## what CI runs: checks and all tests but the long ones
	@$(PY) -m pytest -m "not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-long: setup ## the tests that take minutes each, and all property tests with many fresh examples
	@$(PY) -m pytest -m "long or hypothesis" --hypothesis-profile=fresh

chaos: setup ## faults that a seed decides, against the whole stack: SEED=1 MINUTES=5
	@$(PY) -m tests.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),5)

guarantees: setup ## the figures of docs/guarantees.md, with faults and without: SEED=1 MINUTES=5 JSON=1
	@$(PY) -m tests.chaos --guarantees --seed $(or $(SEED),1) --minutes $(or $(MINUTES),5) $(if $(JSON),--json)

abuse: setup ## attacks of agents' code and on the services, with all boundaries and without each: JSON=1
	@$(PY) -m tests.attacks $(if $(JSON),--json)

check: setup ## lint, format, types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pyright

bench: setup ## the benchmarks; each prints what it means
	@$(PY) -m benchmarks

clean: ## remove the environment, the stack's data and the caches of this folder
	@$(PYTHON) scripts/setup.py clean
