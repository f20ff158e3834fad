# Everything from a bare checkout with Python 3.11 or newer: `make demo`, `make test`.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
# MLX's backend, an extra of the package. On Linux it may be cuda13: `make setup MLX=cuda13`.
MLX ?= $(if $(filter Linux,$(shell uname -s)),cpu,metal)
# One more than most CI machines have cores: tests wait for processes, disks and clocks half of their time.
TEST_PROCESSES ?= 3
# Tests start hundreds of interpreters, which would compile all they import where no bytecode is kept.
export PYTHONDONTWRITEBYTECODE :=
export NO_MKDOCS_2_WARNING := 1
# What a start imports. Its bytecode is written by `make setup`: without that the first start takes twice as long, and
# every one does where PYTHONDONTWRITEBYTECODE is set.
STARTED := gateway.cli.up.command, gateway.app, gateway.cluster.attach, gateway.workflows.attach, cache_service.process, inference_service.process
# Apple's own python3 is 3.9; and for one for Intel processors, which runs on any Mac, there is no MLX.
FIT := import platform, sys; mac, arch = sys.platform == "darwin", platform.machine(); \
	arm = ", for arm64" if mac else ""; \
	fit = sys.version_info >= (3, 11) and not (mac and arch == "x86_64"); \
	sys.exit(0 if fit else f"Agentmem needs Python 3.11 or newer{arm}, and {sys.executable} is \
	{platform.python_version()} for {arch}: make PYTHON=python3.12, which brew install python@3.12 or uv python \
	install 3.12 brings")
PACKAGES := cache_service inference_service gateway protos tests benchmarks deploy

.PHONY: help setup demo test test-all lint types imports stubs check proto docs docs-check format bench clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.installed  ## the virtual environment with the locked packages

$(VENV)/.installed: pyproject.toml uv.lock
	@$(PYTHON) -c '$(FIT)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --quiet --locked --inexact --extra $(MLX)
	-@$(BIN)/python -c 'import $(STARTED)'
	@touch $@

demo: setup  ## an agent that remembers after kill -9
	$(BIN)/python -m benchmarks.demo

# In the order of tests/conftest.py: by default files of one test come last, and the longest tests have files of their own.
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test: setup  ## the tests of every commit, ten minutes; tests/README.md says what else there is
	$(PYTEST) --quick --durations=10 --durations-min=5

test-all: setup  ## all tests, at full length: more than an hour; SHARD=2/4 is the second of four parts
	AGENTMEM_FULL_MATRIX=1 $(PYTEST) $(if $(SHARD),--shard=$(SHARD)) --durations=40 --durations-min=20

lint: setup  ## style and common bugs
	$(BIN)/ruff format --check $(PACKAGES)
	$(BIN)/ruff check $(PACKAGES)
	$(BIN)/buf lint
	$(BIN)/python -m tests.english --check

types: setup  ## mypy --strict
	$(BIN)/mypy

imports: setup  ## who may import whom
	$(BIN)/lint-imports

stubs: setup  ## the checked-in stubs are what the protos give
	$(BIN)/python -m pytest -q tests/agentmem/test_stubs.py

check: lint types imports test  ## all that CI runs

proto: setup  ## the stubs
	$(BIN)/python protos/generate.py

docs: setup  ## the documentation at http://127.0.0.1:8000, built again when its pages change
	$(BIN)/python -m mkdocs serve

docs-check: setup  ## the documentation in build/site; any warning is an error (a test does the same)
	$(BIN)/python -m mkdocs build --strict

format: setup  ## fix what can be fixed
	$(BIN)/ruff check --fix $(PACKAGES)
	$(BIN)/ruff format $(PACKAGES)

bench: setup  ## a series of benchmarks, and the report: more than an hour; one that fails leaves its result as it was
	-for name in memory store ttft restart at-rest; do $(BIN)/agentmem bench $$name; done
	$(BIN)/agentmem bench report

clean:  ## remove what can be made again
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
