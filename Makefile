# Needs Python 3.11 or newer, pip and make; everything else goes into $(VENV), which is made when first needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.package
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal
LONG := acceptance benchmarks examples
SUITES := $(notdir $(patsubst %/,%,$(dir $(wildcard tests/slow/*/requirements.txt))))
TEST_TOOLS := $(sort $(dir $(filter-out tests/slow/% tests/typing/%,$(wildcard $(addsuffix /*.py,tests tests/* tests/*/*))))) benchmarks
SOURCES := qreward tests benchmarks examples docs/site setup.py

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all slow $(SUITES:%=slow-%) check soak bench docs docs-serve dist clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(PACKAGE) ## watch a fleet of fake endpoints limit, slow down and die while a bulk finishes
	$(BIN)/qreward demo

test: $(READY) ## run the tests; a few minutes
	$(PYTEST) $(LONG:%=--ignore=tests/%)

test-all: $(READY) ## run the tests with ten times the random cases, and those of the examples, the benchmarks and real sockets
	TEST_SCALE=10 $(PYTEST) --timeout=1800

slow: $(SUITES:%=slow-%) ## test on real frameworks (Ray, ...), each in an environment of its own; minutes

$(SUITES:%=slow-%): slow-%: tests/slow/.envs/%/.ready
	tests/slow/.envs/$*/bin/python -m pytest tests/slow/$*

check: $(READY) ## lint, format and types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/mypy tests/typing
	MYPYPATH=$$(echo $(TEST_TOOLS) | tr ' ' ':') $(BIN)/mypy --config-file=tests/mypy.ini
	$(BIN)/pyright --pythonpath $(BIN)/python tests/typing

soak: $(READY) ## play 10,000 random simulations of the scheduler
	cd tests/scheduler && $(abspath $(BIN))/python soak.py 10000

bench: $(READY) ## measure the CPU time per request, and the scheduler in virtual time
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/streaming.py
	$(BIN)/python benchmarks/simulate.py

docs: $(READY) ## build the documentation site into build/site; a warning fails
	$(BIN)/mkdocs build --strict

docs-serve: $(READY) ## show the documentation site on http://127.0.0.1:8000 and build it again after each change
	$(BIN)/mkdocs serve

dist: $(READY) ## build the source distribution and the wheel into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean: ## remove the environment and all caches
	rm -rf .venv .ci/.venv benchmarks/.envs tests/slow/.envs .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# no-deps.txt names frameworks whose own requirements are for machines with GPUs
tests/slow/.envs/%/.ready: tests/slow/%/requirements.txt pyproject.toml
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@test ! -e $(<D)/no-deps.txt || $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(<D)/no-deps.txt
	@touch $@

.PRECIOUS: tests/slow/.envs/%/.ready

# the package alone; what the tests and checks need is added when one of them is made
$(PACKAGE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qreward needs Python 3.11 or newer; say make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(READY): $(PACKAGE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
