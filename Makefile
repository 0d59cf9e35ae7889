# make demo | up | test | test-exhaustive | browser | lint | redteam | bench-judge | bench-endurance | bench-policy | bench-gpu | chaos | fuzz-api | mutations | load | clean-venv
#
# Everything runs in one virtual environment, .venv, made at the first call and reused: the stamp in it is older than the
# lock or pyproject.toml exactly when something has to be installed.

# The lock was made with 3.11; `make PYTHON=/path/to/python3.13 test` takes another.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.kernelwright-installed
# Three processes for two cores: half of the tests wait. Files in the order of their names: the long ones come first.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo up test test-exhaustive browser lint redteam bench-judge bench-endurance bench-policy bench-gpu chaos fuzz-api load format
.PHONY: install mutations clean-venv

help:
	@echo "make demo   watch one real search, from a REST call to a verified faster kernel (no GPU, no key needed)"
	@echo "make up     Postgres, Valkey, the API and the workers on this machine: http://127.0.0.1:8080"
	@echo "make test   the tests: unit, integration (embedded servers), acceptance (real workers)"
	@echo "make redteam, make bench-judge   cheats and honest kernels against the judge; its figures (QUICK=1: under 5 minutes)"
	@echo "make test-exhaustive   the same tests for further problems, recipes and users, the demo, the longer pages: 12 minutes"
	@echo "make browser   the web page in a real Chromium, with accessibility checks (apt install chromium; SHOTS=FOLDER: pictures)"
	@echo "make bench-endurance   a job under kill -9 of every process beside the same job in peace (QUICK=1: 20 candidates)"
	@echo "make bench-policy   search policies at equal budgets on recorded pools, and what each lever is worth (QUICK=1: under 5 minutes)"
	@echo "make bench-gpu   every bundled operator on this machine's GPU, beside every baseline: a slice of 9 minutes, again to go on"
	@echo "make chaos   50 seeded schedules of faults against a fleet, and whether anything was lost or told wrong (QUICK=1: under 5 minutes)"
	@echo "make fuzz-api   every operation of the API before 10,000 generated requests, right and wrong ones (QUICK=1: 4,000)"
	@echo "make mutations   the ledger's SQL broken in 39 ways, one at a time, and which test notices (minutes)"
	@echo "make load   submits, polls, watchers, doorbells and dashboards before a million stored candidates (QUICK=1: 100,000)"
	@echo "make lint   ruff, mypy --strict, the import contracts, the container files"

demo: $(STAMP)
	@$(BIN)/kernelwright demo

up: $(STAMP)
	@$(BIN)/kernelwright up

test: $(STAMP)
	$(PYTEST) -m "not exhaustive and not browser" $(PYTEST_ARGS)

test-exhaustive: $(STAMP)
	$(PYTEST) -m exhaustive $(PYTEST_ARGS)

# One browser at a time. Chromium is the system's: nothing is downloaded.
browser: $(STAMP)
	KERNELWRIGHT_SCREENSHOTS="$(SHOTS)" $(BIN)/python -m pytest tests/browser $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile.api Dockerfile.gpu-worker
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

redteam: $(STAMP)
	$(BIN)/python -m tests.redteam $(if $(QUICK),--quick) $(REDTEAM_ARGS)

bench-judge: $(STAMP)
	$(BIN)/python -m benchmarks.judge $(if $(QUICK),--quick) --out judge-figures.json $(BENCH_ARGS)

# Half an hour on two cores; what was done is kept in the folder, so that it may be stopped and called again.
bench-endurance: $(STAMP)
	$(BIN)/python -m benchmarks.endurance --home endurance-home --out endurance.json \
		$(if $(QUICK),--candidates 20 --kills 2) $(BENCH_ARGS)

# Plots too, where matplotlib is installed: make bench-policy BENCH_ARGS="--plots docs/img"
bench-policy: $(STAMP)
	$(BIN)/python -m benchmarks.policy $(if $(QUICK),--quick) --out policy-figures.json $(BENCH_ARGS)

# What has ended is in the folder, so that it may be called again until nothing is left (exit status 75: there is more).
bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.record run --out record --home record-home --limit-s $(if $(QUICK),280,540) \
		$(if $(QUICK),--problems softmax) $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.record tables --out record

# Four hours on two cores; what was done is in the file, so that it may be stopped and called again.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos $(if $(QUICK),--quick,--seeds 0-49 --figures all --resume) \
		--out chaos.jsonl $(CHAOS_ARGS)

# Each mutation in a process and with a Postgres of its own: 15 minutes on two cores with three times as much to do.
mutations: $(STAMP)
	$(BIN)/python -m tests.mutations $(MUTATIONS_ARGS)

fuzz-api: $(STAMP)
	$(BIN)/python -m tests.fuzz $(if $(QUICK),--quick) $(FUZZ_ARGS)

# Nothing else should run meanwhile: server, database and load share the cores.
load: $(STAMP)
	$(BIN)/python -m benchmarks.load $(if $(QUICK),--quick) --out load-figures.json $(BENCH_ARGS)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: $(STAMP)

# torch first and spelled exactly: of the builds that satisfy it, the one this machine offers is kept by all that follows.
# litellm by hash and without its dependencies (they are in the lock): see requirements/litellm.txt.
$(STAMP): requirements/lock.txt requirements/litellm.txt pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV): torch ..."
	@$(PIP) install --quiet torch==2.13.0
	@echo "Installing into $(VENV): litellm, by its hash ..."
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements/litellm.txt
	@echo "Installing into $(VENV): the rest of the lock ..."
	@$(PIP) install --quiet -r requirements/lock.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Kernelwright needs Python 3.11 or newer; none was found. Install one, or: make PYTHON=/path/to/it" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { echo "python -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }

clean-venv:
	rm -rf $(VENV)
