# Each target creates the virtual environment that it needs. A stamp file in the environment records which extras are
# installed, so the next run starts immediately. If pyproject.toml or constraints.txt changes, they are installed again.
#
#   make demo PYTHON=python3.12       use another interpreter (3.11 or later)
#   make test VENV=.venv-312          use another environment
#   make lab LAB_FLAGS=--no-browser   print an address to open
#   make lab LAB_FLAGS=--allow-root   run as root, as in a container
#   make test WORKERS=4               use more processes
#   make accuracy SECTION=latency     run one section of tests/accuracy
#   make accuracy SECTION=own_steps AGAINST=origin/main   compare two of perfnb's own steps with another revision
#   make lowest-tests VENV_LOWEST=.venv-torch-28 LOWEST=torch=2.8.0   test a version other than the lowest
#   make lowest-tests VENV_LOWEST=.venv-pandas LOWEST=pandas          test only pandas at its lowest version

PYTHON ?= python3
VENV ?= .venv
LAB_FLAGS ?=
PYTEST_FLAGS ?=
WORKERS ?= 2
SECTION ?=
AGAINST ?= HEAD~1
LOWEST ?=
VENV_LOWEST ?= .venv-lowest
VENV_NUMPY ?= .venv-numpy
VENV_DIST ?= .venv-dist

PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast test-all test-lowest test-gpu accuracy lab docs dist bench buttons picture lint lint-js style types contracts clean distclean

help:
	@echo "make demo       profile a small model, print the report and write demo.html"
	@echo "make lab        open the index of notebooks and labs in JupyterLab"
	@echo "make test       run lint, tests, one browser test per view and two notebooks; takes 7 minutes on two idle cores"
	@echo "make test-fast  run lint and the quick tests, without a browser or kernel; lists the tests that it leaves out"
	@echo "make test-lowest  run the quick tests with the lowest versions that pyproject.toml allows, then with only NumPy at its lowest"
	@echo "make test-gpu   test everything that needs a live GPU; GPU_PYTHON=python3 uses the torch that is already installed"
	@echo "make test-all   run every deterministic test, then make test-lowest"
	@echo "make accuracy   measure how accurate the figures are; needs an idle machine; SECTION=latency runs one section"
	@echo "make docs       build the documentation into docs/_build/html; a warning is an error"
	@echo "make dist       build the sdist and the wheel of a release, and check them in an empty environment"
	@echo "make lint       run ruff, mypy, and the checks of wording and imports"
	@echo "make lint-js    lint the JavaScript with biome; the only target that needs node"
	@echo "make buttons    add buttons that open a published copy on Binder and Colab"
	@echo "make picture    render the pictures of README and docs; needs Chromium and an idle machine; PICTURES=input renders one"
	@echo "make bench      measure perfnb itself against torch.profiler and others"
	@echo "make clean      remove generated files; make distclean also removes $(VENV)"

demo: $(VENV)/.perfnb-demo
	@$(PY) -m perfnb.demo

lab: $(VENV)/.perfnb-lab
	@$(PY) -m jupyterlab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/index.ipynb $(LAB_FLAGS)

docs: $(VENV)/.perfnb-docs
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going --builder html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# The wheel is built from the sdist. The first environment only contains the packages in the extra `dist`, not perfnb
# itself. The second one contains the wheel, its dependencies and a kernel, but nothing from this checkout.
DIST_EXTRA := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dist"])
dist: PIP_DIST := $(VENV_DIST)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
dist:
	@rm -rf dist
	@$(PYTHON) -m venv --clear $(VENV_DIST)
	@$(PIP_DIST) $$($(PYTHON) -c '$(DIST_EXTRA)')
	@$(VENV_DIST)/bin/python -m build --no-isolation --outdir dist >$(VENV_DIST)/build.log 2>&1 || { cat $(VENV_DIST)/build.log; exit 1; }
	@echo "Installing the wheel into $(VENV_DIST) (takes a few minutes)"
	@$(PYTHON) -m venv --clear $(VENV_DIST)
	@$(PIP_DIST) dist/*.whl ipykernel
	@$(VENV_DIST)/bin/python -I tests/check_dist.py
	@ls dist/*

# Add the Binder and Colab buttons, either for the git remote origin or for REPOSITORY=OWNER/REPO.
buttons:
	@$(PYTHON) -m notebooks.publish $(REPOSITORY)

picture: $(VENV)/.perfnb-test
	@$(PY) -m notebooks.pictures $(PICTURES)

bench: $(VENV)/.perfnb-bench
	@$(PY) -m benchmarks

lint: style types contracts

style: $(VENV)/.perfnb-test
	@$(PY) -m ruff check --quiet --output-format concise .
	@$(PY) -m ruff format --check --quiet . || { echo "Not formatted; run: $(PY) -m ruff format ."; exit 1; }
	@$(PY) -m tests.habits

types: $(VENV)/.perfnb-test
	@$(PY) -m mypy --no-error-summary

lint-js:
	@command -v npx > /dev/null || { echo "make lint-js needs node, with npx"; exit 1; }
	@npx --yes @biomejs/biome@1.9.4 lint --error-on-warnings perfnb

# Check which room may import which. The contracts are in pyproject.toml.
contracts: $(VENV)/.perfnb-test
	@$(PY) -c "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))" >$(VENV)/.contracts || { cat $(VENV)/.contracts; exit 1; }

# Run `make test` before each commit. `make test-all` runs every deterministic test, and `make accuracy` runs the tests
# that have to measure on an idle machine. The first two never depend on a measured time.
JUDGED := not accuracy and not simulation and not outside
FAST := $(JUDGED) and not deep and not slow and not kernel and not browser

# Test files are distributed over processes with one thread each, because more threads would only compete for cores.
# Each notebook runs in its own kernel, and tests/labs runs the students' notebooks. Bytecode is written because many
# tests start interpreters, each of which would otherwise compile the package again. If torch uses two threads anyway, a
# waiting thread sleeps. By default, it would keep a core busy, which would take up most of the time for small ops.
THREADS := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
PYTEST := PYTHONDONTWRITEBYTECODE= $(THREADS) $(PY) -m pytest $(PYTEST_FLAGS)
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
NBVAL := --nbval-lax --nbval-current-env --nbval-cell-timeout=600
SHORT := --budgets 0.15
SOME_NOTEBOOKS := notebooks/quickstart.ipynb notebooks/labs/solutions/08_someone_elses_trace.ipynb
ALL_NOTEBOOKS := $(filter-out notebooks/index.ipynb,$(wildcard notebooks/*.ipynb)) $(wildcard notebooks/labs/solutions/*.ipynb)

.PHONY: some-tests all-tests fast-tests
some-tests: $(VENV)/.perfnb-test
	@$(PYTEST) $(SIDE_BY_SIDE) $(NBVAL) $(SHORT) -m "$(JUDGED) and not deep" tests $(SOME_NOTEBOOKS)

all-tests: $(VENV)/.perfnb-test
	@$(PYTEST) $(SIDE_BY_SIDE) $(NBVAL) -m "$(JUDGED)" tests $(ALL_NOTEBOOKS)

fast-tests: $(VENV)/.perfnb-test
	@PERFNB_TESTS_QUICK=1 $(PYTEST) -p no:nbval $(SIDE_BY_SIDE) -m "$(FAST)" tests

test: style
	@$(MAKE) --no-print-directory --jobs 3 types contracts some-tests

test-all: style
	@$(MAKE) --no-print-directory --jobs 3 types contracts all-tests
	@$(MAKE) --no-print-directory test-lowest

test-fast: style contracts fast-tests

# These tests run in one process, because anything running at the same time would affect the measurements. With
# PYTEST_FLAGS=--write-table, the figures are written to docs/accuracy.md. SECTION=latency runs only
# tests/accuracy/test_latency.py. SECTION=labs runs only the solutions of the labs, including the checks of measured
# times. SECTION=own_steps only compares the times of two of perfnb's own steps with another revision.
accuracy: $(VENV)/.perfnb-test
ifeq ($(filter-out labs own_steps,$(or $(SECTION),all)),$(or $(SECTION),all))
	@$(PY) -m pytest $(PYTEST_FLAGS) -p no:xdist -m accuracy $(if $(SECTION),tests/accuracy/test_$(SECTION).py,tests/accuracy)
endif
ifneq ($(filter own_steps,$(or $(SECTION),own_steps)),)
	@$(PY) -m pytest -p no:xdist tests/gate/test_own_steps.py --perf-against $(AGAINST)
endif
ifneq ($(filter labs,$(or $(SECTION),labs)),)
	@PERFNB_JUDGE_TIMES=1 $(PY) -m pytest -p no:xdist $(NBVAL) $(wildcard notebooks/labs/solutions/*.ipynb)
endif

# Test what perfnb promises about live GPUs, on a CUDA machine. These tests check measured times. If GPU_PYTHON is an
# interpreter that has torch, pytest and pytest-timeout, nothing is installed. See CONTRIBUTING.md.
ifdef GPU_PYTHON
test-gpu:
	@PYTHONPATH=.:$$PYTHONPATH $(GPU_PYTHON) -m pytest $(PYTEST_FLAGS) -W default -p no:xdist -p no:cacheprovider -m gpu tests/on_gpu
else
test-gpu: $(VENV)/.perfnb-test
	@$(PY) -m pytest $(PYTEST_FLAGS) -p no:xdist -m gpu tests/on_gpu
endif

# Test with every package at its lowest version, and then with only NumPy at its lowest version. A package that was
# compiled for a newer NumPy may refuse to work with an old one even if its metadata allows it, and pip then installs
# both of them together.
test-lowest: lowest-tests
	@$(MAKE) --no-print-directory lowest-tests VENV_LOWEST=$(VENV_NUMPY) LOWEST=numpy

# Lint and types are not checked here, because they depend on the versions in constraints.txt.
.PHONY: lowest-tests
lowest-tests: $(VENV_LOWEST)/.perfnb-lowest
	@PYTHONDONTWRITEBYTECODE= $(THREADS) $(VENV_LOWEST)/bin/python -m pytest $(PYTEST_FLAGS) $(SIDE_BY_SIDE) -m "$(FAST)" tests

# The lowest torch includes the CUDA libraries (about 6 GB), because PyPI has no CPU-only build.
$(VENV_LOWEST)/.perfnb-lowest: pyproject.toml constraints.txt tests/lowest.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "The lowest versions need Python 3.11, but this is " + sys.version.split()[0] + "; for example: make test-lowest PYTHON=python3.11")'
	@echo "Installing the lowest versions$(if $(LOWEST), ($(LOWEST))) into $(VENV_LOWEST) (takes a few minutes)"
	@$(PYTHON) -m venv --clear $(VENV_LOWEST)
	@$(PYTHON) -m tests.lowest $(VENV_LOWEST) $(LOWEST)
	@$(VENV_LOWEST)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --only-binary :all: --requirement $(VENV_LOWEST)/requirements.txt
	@$(VENV_LOWEST)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# The venv module writes pip last, so if pip exists, the environment is complete.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "perfnb needs Python 3.11 or later, but this is " + sys.version.split()[0] + "; for example: make PYTHON=python3.12")'
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.perfnb-demo: EXTRAS :=
$(VENV)/.perfnb-lab: EXTRAS := [lab]
$(VENV)/.perfnb-test: EXTRAS := [test]
$(VENV)/.perfnb-docs: EXTRAS := [docs]
$(VENV)/.perfnb-bench: EXTRAS := [bench]

$(VENV)/.perfnb-%: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing perfnb$(EXTRAS) into $(VENV) (takes a few minutes the first time)"
	@$(PIP_INSTALL) --editable '.$(EXTRAS)'
	@touch $@

clean:
	@rm -rf build dist docs/_build demo.html .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . \( -name '$(VENV)' -o -name '$(VENV_LOWEST)' -o -name '$(VENV_NUMPY)' -o -name '$(VENV_DIST)' \) -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV) $(VENV_LOWEST) $(VENV_NUMPY) $(VENV_DIST)
