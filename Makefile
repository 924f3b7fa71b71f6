# Each target makes the virtual environment that it needs.

VENV ?= .venv
PYTHON ?= python3
PIP = $(VENV)/bin/pip --quiet --disable-pip-version-check
WORKERS ?= auto

.PHONY: reproduce test check lint types bench docs tutorial requirements clean

reproduce: $(VENV)/.lab ## run the paper's experiments that need no Atari, and write a report
	$(VENV)/bin/popart reproduce $(ARGS)

test: $(VENV)/.dev ## run the tests; SLOW=1 includes the slow ones, which CI runs
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) $(if $(SLOW),-m "") # one thread per worker

check: lint types docs test ## run what CI runs: lint, types, documentation and tests

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

types: $(VENV)/.dev
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

bench: $(VENV)/.dev ## compare speed and accuracy with other libraries, as ratios
	$(VENV)/bin/python -m benchmarks.statistics
	$(VENV)/bin/python -m benchmarks.drift
	$(VENV)/bin/python -m benchmarks.head
	$(VENV)/bin/python -m benchmarks.optimizer_state
	$(VENV)/bin/python -m benchmarks.regression
	$(VENV)/bin/python -m benchmarks.atari
	$(VENV)/bin/python -m benchmarks.fleet
	$(VENV)/bin/python -m benchmarks.campaign
	$(VENV)/bin/python -m benchmarks.sklearn_regressor
	$(VENV)/bin/python -m benchmarks.agents

docs: $(VENV)/.dev ## build the documentation in site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

tutorial: $(VENV)/.dev ## run the tutorial, and write its page with its output and figures
	OMP_NUM_THREADS=1 $(VENV)/bin/python docs/build_tutorial.py

clean:
	rm -rf $(VENV) site dist .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

COMPILE = $(VENV)/bin/uv pip compile --universal --generate-hashes --no-strip-extras --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links pyproject.toml

requirements: $(VENV)/bin/python ## write the hashes of all packages, after a change of constraints.txt or of an extra
	$(PIP) install --constraint constraints.txt uv
	echo torch > $(VENV)/excluded.txt
	$(COMPILE) --python-version 3.11 --extra lab requirements/lab.in --output-file requirements/lab.txt
	$(COMPILE) --python-version 3.11.5 --extra dev requirements/dev.in --output-file requirements/dev.txt \
		--excludes $(VENV)/excluded.txt

# Packages are installed from files with known hashes, and this package is built without a download.
HASHED = $(PIP) install --require-hashes --only-binary :all: --requirement
PACKAGE = $(PIP) install --no-deps --no-build-isolation --editable .

$(VENV)/.lab: pyproject.toml requirements/lab.txt | $(VENV)/bin/python
	$(HASHED) requirements/lab.txt
	$(PACKAGE)
	@touch $@

# PyTorch has no hash: its builds for CPUs and GPUs are different files of one version, and pip chooses one.
$(VENV)/.dev: pyproject.toml constraints.txt requirements/dev.txt | $(VENV)/bin/python
	$(HASHED) requirements/dev.txt --no-deps
	$(PIP) install --constraint constraints.txt torch
	$(PACKAGE)
	$(PIP) check
	@touch $@
