# Ragstone's commands for people. `make serve` is all that a user needs; `make test` and `make check` are for who works on it.

SHELL := /bin/sh

# The first Python that is new enough. 3.11 goes first: the pinned versions were resolved and are tested with it.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo "$$name"; break; fi; done)
BIN := .venv/bin
ARGS ?=
INSTALL_ARGS ?=
PYTEST_ARGS ?= -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install install-dev serve test test-all check audit format clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

install: ## make .venv and install what the server needs (again only after a change)
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: no Python 3.11 or newer found: install one (Debian: apt-get install python3.11 python3.11-venv)," >&2; \
		echo "or name it: make install PYTHON=/path/to/python3" >&2; exit 1; fi
	@"$(PYTHON)" deploy/install.py $(INSTALL_ARGS)

install-dev: ## the same, with what tests and checks need
	@$(MAKE) --no-print-directory install INSTALL_ARGS=--dev

serve: install ## serve the API on :8080 and the chat on :7860; options: make serve ARGS="--port 9000"
	@exec $(BIN)/ragstone serve $(ARGS)

test: install-dev ## run all tests but the slow ones, two files at a time; choose: make test PYTEST_ARGS="tests/app -k settings"
	@deploy/chromium.sh
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: install-dev ## run all tests, the slow ones too
	@deploy/chromium.sh
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m slow

check: install-dev ## format, lint, types, import contracts and insecure code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/bandit --quiet --severity-level medium --configfile pyproject.toml --recursive app engine kernels retrieval ui

audit: install-dev ## look the installed versions up among the known vulnerabilities (needs a network)
	@test -x .audit/bin/pip-audit || { "$(PYTHON)" -m venv .audit && .audit/bin/python -m pip install --quiet pip-audit; }
	@.audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints-cpu.txt || { \
		echo "audit failed: a version is known to be vulnerable, or one could not be looked up, which counts as much" >&2; \
		echo "(see above; each is asked for at the JSON API of the package index, which mirrors often lack)" >&2; exit 1; }

format: install-dev ## bring the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what tools have made; .venv and your data stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks build dist *.egg-info
	find app engine kernels retrieval ui tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
