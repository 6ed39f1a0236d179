# Every target makes the virtual environment it needs. A stamp file in it remembers what is installed, so that a
# second run starts at once; a change of pyproject.toml or constraints.txt installs anew.
#
#   make demo PYTHON=python3.12     with another interpreter (3.11 or later)
#   make test VENV=.venv-312        in another environment
#   make lab LAB_FLAGS=--no-browser; as root, as in a container, LAB_FLAGS=--allow-root
#   make test WORKERS=4             with more processes side by side
#   make test-lowest VENV_LOWEST=.venv-torch-28 LOWEST=torch=2.8.0   with another version than the lowest

PYTHON ?= python3
VENV ?= .venv
LAB_FLAGS ?=
PYTEST_FLAGS ?=
WORKERS ?= 2
LOWEST ?=
VENV_LOWEST ?= .venv-lowest

PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast test-all test-lowest accuracy lab docs bench buttons picture lint lint-js style types contracts clean distclean

help:
	@echo "make demo       profile a small model, print its layers and write demo.html"
	@echo "make lab        open notebooks/index.ipynb, a map of notebooks and labs, in JupyterLab"
	@echo "make test       lint, tests, a browser test of each view, three notebooks; 8 to 9 minutes on two cores"
	@echo "make test-fast  lint and the tests that need neither browser nor kernel; says what it leaves out"
	@echo "make test-lowest  the fast tests with the lowest versions that pyproject.toml promises"
	@echo "make test-all   everything that is deterministic, with the lowest versions too"
	@echo "make accuracy   measure what perfnb promises of its figures, beside their limits; wants a quiet machine"
	@echo "make docs       build the documentation into docs/_build/html; a warning is an error"
	@echo "make lint       ruff, mypy and the import contracts only"
	@echo "make lint-js    biome over the browser's scripts; needs node, which nothing else does"
	@echo "make buttons    write the buttons that open a published copy on Binder and Colab"
	@echo "make picture    make the README's picture anew; needs Chromium and a machine that does nothing else"
	@echo "make bench      measure perfnb itself, beside its peers"
	@echo "make clean      remove what these wrote; distclean removes $(VENV) too"

demo: $(VENV)/.perfnb-demo
	@$(PY) -m perfnb.demo

lab: $(VENV)/.perfnb-lab
	@$(PY) -m jupyterlab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/index.ipynb $(LAB_FLAGS)

docs: $(VENV)/.perfnb-docs
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going --builder html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# Writes the buttons for Binder and Colab: of git's remote origin, or of REPOSITORY=OWNER/REPO.
buttons:
	@$(PYTHON) -m notebooks.publish $(REPOSITORY)

picture: $(VENV)/.perfnb-test
	@$(PY) -m notebooks.picture

bench: $(VENV)/.perfnb-bench
	@$(PY) -m benchmarks

lint: style types contracts

style: $(VENV)/.perfnb-test
	@$(PY) -m ruff check --quiet --output-format concise .
	@$(PY) -m ruff format --check --quiet . || { echo "Not formatted; run: $(PY) -m ruff format ."; exit 1; }

types: $(VENV)/.perfnb-test
	@$(PY) -m mypy --no-error-summary

lint-js:
	@command -v npx > /dev/null || { echo "make lint-js needs node, with npx"; exit 1; }
	@npx --yes @biomejs/biome@1.9.4 lint --error-on-warnings perfnb

# Which room may import which: the contracts stand in pyproject.toml.
contracts: $(VENV)/.perfnb-test
	@$(PY) -c "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))" >$(VENV)/.contracts || { cat $(VENV)/.contracts; exit 1; }

# Which tests run where. `make test` has what a change should meet before it is committed, `make test-all` everything
# that is deterministic, and `make accuracy` what must be measured on a machine that does nothing else. No test of the
# first two judges a time.
JUDGED := not accuracy and not simulation and not outside
FAST := $(JUDGED) and not deep and not slow and not kernel and not browser

# Files of tests are shared out among processes, which compute in one thread each; more would only wait for each other.
# A notebook runs in a kernel of its own. The labs' notebooks for students are run by tests/labs. Bytecode is kept: many
# tests start interpreters, which would all compile the package again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PY) -m pytest $(PYTEST_FLAGS)
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
NBVAL := --nbval-lax --nbval-current-env --nbval-cell-timeout=600
SHORT := --budgets 0.15
SOME_NOTEBOOKS := notebooks/quickstart.ipynb notebooks/watching.ipynb notebooks/labs/solutions/08_someone_elses_trace.ipynb
ALL_NOTEBOOKS := $(filter-out notebooks/index.ipynb,$(wildcard notebooks/*.ipynb)) $(wildcard notebooks/labs/solutions/*.ipynb)

.PHONY: some-tests all-tests fast-tests
some-tests: $(VENV)/.perfnb-test
	@$(PYTEST) $(SIDE_BY_SIDE) $(NBVAL) $(SHORT) -m "$(JUDGED) and not deep" tests $(SOME_NOTEBOOKS)

all-tests: $(VENV)/.perfnb-test
	@$(PYTEST) $(SIDE_BY_SIDE) $(NBVAL) -m "$(JUDGED)" tests $(ALL_NOTEBOOKS)

fast-tests: $(VENV)/.perfnb-test
	@$(PYTEST) -p no:nbval $(SIDE_BY_SIDE) -m "$(FAST)" tests

test: style
	@$(MAKE) --no-print-directory --jobs 3 types contracts some-tests

test-all: style
	@$(MAKE) --no-print-directory --jobs 3 types contracts all-tests
	@$(MAKE) --no-print-directory test-lowest

test-fast: style contracts fast-tests

# One after the other in one process, for anything beside it would be measured too. PYTEST_FLAGS=--write-table puts the
# figures into docs/numbers.md. The labs' exercises that judge times are judged here.
accuracy: $(VENV)/.perfnb-test
	@$(PY) -m pytest $(PYTEST_FLAGS) -p no:xdist -m accuracy tests/accuracy
	@PERFNB_JUDGE_TIMES=1 $(PY) -m pytest -p no:xdist $(NBVAL) $(wildcard notebooks/labs/solutions/*.ipynb)

# Without lint and types: those belong to the versions of constraints.txt.
test-lowest: $(VENV_LOWEST)/.perfnb-lowest
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV_LOWEST)/bin/python -m pytest $(PYTEST_FLAGS) $(SIDE_BY_SIDE) -m "$(FAST)" tests

# torch comes with its libraries for CUDA here, some 6 GB: a build for the CPU alone is on no index of packages.
$(VENV_LOWEST)/.perfnb-lowest: pyproject.toml constraints.txt tests/lowest.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "The lowest versions have wheels for Python 3.11, and this is " + sys.version.split()[0] + "; name one as in: make test-lowest PYTHON=python3.11")'
	@echo "Installing the lowest versions into $(VENV_LOWEST) (some minutes)"
	@$(PYTHON) -m venv --clear $(VENV_LOWEST)
	@$(PYTHON) -m tests.lowest $(VENV_LOWEST) $(LOWEST)
	@$(VENV_LOWEST)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --only-binary :all: --requirement $(VENV_LOWEST)/requirements.txt
	@$(VENV_LOWEST)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# pip is what the venv module writes last: where it is, the environment is whole.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "perfnb needs Python 3.11 or later, and this is " + sys.version.split()[0] + "; name one as in: make PYTHON=python3.12")'
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.perfnb-demo: EXTRAS :=
$(VENV)/.perfnb-lab: EXTRAS := [lab]
$(VENV)/.perfnb-test: EXTRAS := [test]
$(VENV)/.perfnb-docs: EXTRAS := [docs]
$(VENV)/.perfnb-bench: EXTRAS := [bench]

$(VENV)/.perfnb-%: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing perfnb$(EXTRAS) into $(VENV) (the first time takes some minutes)"
	@$(PIP_INSTALL) --editable '.$(EXTRAS)'
	@touch $@

clean:
	@rm -rf build dist docs/_build demo.html .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . \( -name '$(VENV)' -o -name '$(VENV_LOWEST)' \) -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV) $(VENV_LOWEST)
