# The one entry point that people and CI share. Each target sets up what it needs in .venv.
PYTHON ?= python3
PROFILE ?= profiles/demo-cpu.toml
PYTEST_ARGS ?=
BIN := .venv/bin

.PHONY: help setup serve test smoke lint format soak bench clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

setup: ## third-party packages into the user's cache, the project into .venv
	@$(PYTHON) tools/setup_venv.py

serve: setup ## start SGLang with EAGLE-3 on this CPU, guarded (PROFILE=... for another profile)
	@$(BIN)/python -m guarded_serve.launch_server --profile $(PROFILE)

# Exit status 5 is pytest's for "no tests", which a choice in PYTEST_ARGS makes of one of the two.
test: setup ## all tests but the long ones: four at a time, then those on the real engine, which needs the machine to itself
	@$(BIN)/python -m pytest -m "not engine and not soak and not gpu" -n 4 --dist worksteal $(PYTEST_ARGS); many=$$?; \
	$(BIN)/python -m pytest -m "engine and not soak and not gpu" $(PYTEST_ARGS); engine=$$?; \
	case "$$many $$engine" in "0 0" | "0 5" | "5 0") ;; *) exit 1 ;; esac

smoke: setup ## the smoke test on the demo pair and on broken copies of it, on this CPU
	@$(BIN)/python tools/smoke_demo.py

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m mypy

format: setup ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

soak: setup ## the long tests
	@$(BIN)/python -m pytest -m "soak and not gpu" --timeout 7200 $(PYTEST_ARGS)

bench: setup ## the benchmarks that need no GPU (benchmarks/*.sh need one)
	$(BIN)/python -m benchmarks.preflight
	$(BIN)/python -m benchmarks.clock_cost
	$(BIN)/python -m benchmarks.cycle_report
	$(BIN)/python -m benchmarks.cpu_kernels --target demo/target --drafter demo/drafter

clean: ## remove what make made in this folder (the cache stays)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
