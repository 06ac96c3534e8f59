# Everything runs in .venv, made with PYTHON (3.11 or newer). Re-running installs nothing unless versions changed.

PYTHON ?= python3
PY := .venv/bin/python
LOCKED := pyproject.toml requirements/lock.txt requirements/demo-models.txt bin/setup
PYTEST_ARGS ?=
# Most tests wait for processes, so that more of them than cores run well side by side; 0 runs them in this process.
# Files go out in the order of their folders, so that the long ones (acceptance, chaos) begin and units fill up the end.
TEST_WORKERS ?= 3
DEMO_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test chaos check verify lock clean bench-claims bench-intake bench-orchestration bench-generate bench-governor bench-cranfield

help: ## say what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1	/' | awk -F '\t' '{printf "  make %-19s %s\n", $$1, $$2}'

.venv/.installed-core: $(LOCKED)
	@sh bin/setup "$(PYTHON)" core

.venv/.installed-dev: $(LOCKED)
	@sh bin/setup "$(PYTHON)" dev

demo: .venv/.installed-core ## run the main job on two small real models, with no server; DEMO_ARGS="--model FOLDER"
	@.venv/bin/pipeline demo $(DEMO_ARGS)

test: .venv/.installed-dev ## run the tests; PYTEST_ARGS="-k word" for some of them
	@$(PY) -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

chaos: .venv/.installed-dev ## kill, stop, flush, fill and restart things under a job and see that nothing is lost; CHAOS_ARGS="--seeds 20 --database sqlite"
	@$(PY) -m tests.chaos $(CHAOS_ARGS)

check: .venv/.installed-dev ## lint, format, types, import contracts, migrations, licences
	@sh bin/check

verify: .venv/.installed-dev ## the full counts that `make test` samples; resumes where it was stopped, writes docs/verify-results.md
	@$(PY) bin/verify.py

bench-intake: .venv/.installed-dev ## lines/s and memory of reading a request file
	@$(PY) tests/benchmarks/bench_intake.py $(BENCH_ARGS)

bench-claims: .venv/.installed-dev ## claims/s of 16 processes on PostgreSQL; BENCH_ARGS="--sqlite"
	@$(PY) tests/benchmarks/bench_claims.py $(BENCH_ARGS)

bench-governor: .venv/.installed-dev ## `auto` against every fixed choice, in replays of recorded runs; BENCH_ARGS="--jitter 0.2"
	@$(PY) -m tests.benchmarks.bench_governor $(BENCH_ARGS)

bench-orchestration: .venv/.installed-dev ## share of a real job's time outside engine calls; needs `make demo` before
	@$(PY) tests/benchmarks/bench_orchestration.py demo-output/home/models/smollm2 --requests 160 $(BENCH_ARGS)

bench-generate: .venv/.installed-dev ## our engine against mlx-lm's batch call, guessing against plain decoding; BENCH_ARGS="--only mixed"
	@$(PY) -m tests.benchmarks.bench_generate $(BENCH_ARGS)

bench-cranfield: .venv/.installed-dev ## the reference ranking by PyTorch and numpy; needs CRANFIELD_DIR
	@$(PY) tests/benchmarks/cranfield_reference.py $(BENCH_ARGS)

lock: .venv/.installed-dev ## resolve requirements/lock.txt anew, for Linux and macOS
	@$(PY) bin/lock.py

clean: ## remove the environment, caches and what was built
	rm -rf .venv .verify .chaos build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo-output
