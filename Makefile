# Every target makes the virtual environment it needs. A stamp file in it remembers what is installed, so that a
# second run starts at once; a change of pyproject.toml or constraints.txt installs anew.
#
#   make demo PYTHON=python3.12     with another interpreter (3.11 or later)
#   make test VENV=.venv-312        in another environment
#   make lab LAB_FLAGS=--no-browser

PYTHON ?= python3
VENV ?= .venv
LAB_FLAGS ?=
PYTEST_FLAGS ?=

PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lab bench lint clean distclean

help:
	@echo "make demo    profile a small model, print its layers and write demo.html"
	@echo "make lab     open notebooks/quickstart.ipynb in JupyterLab"
	@echo "make test    lint, run the tests, run the notebooks"
	@echo "make lint    ruff and mypy only"
	@echo "make bench   measure perfnb itself, beside its peers"
	@echo "make clean   remove what these wrote; distclean removes $(VENV) too"

demo: $(VENV)/.perfnb-demo
	@$(PY) -m perfnb.demo

lab: $(VENV)/.perfnb-lab
	@$(PY) -m jupyterlab $(LAB_FLAGS) notebooks/quickstart.ipynb

bench: $(VENV)/.perfnb-bench
	@$(PY) -m benchmarks

lint: $(VENV)/.perfnb-test
	@$(PY) -m ruff check --quiet --output-format concise .
	@$(PY) -m ruff format --check --quiet . || { echo "Not formatted; run: $(PY) -m ruff format ."; exit 1; }
	@$(PY) -m mypy --no-error-summary

# The notebooks run in a process of their own, under the limit that nbval sets for each cell.
test: lint
	@$(PY) -m pytest $(PYTEST_FLAGS) tests
	@$(PY) -m pytest $(PYTEST_FLAGS) --timeout=0 --nbval-lax --nbval-current-env --nbval-cell-timeout=300 notebooks/

# pip is what the venv module writes last: where it is, the environment is whole.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "perfnb needs Python 3.11 or later, and this is " + sys.version.split()[0] + "; name one as in: make PYTHON=python3.12")'
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.perfnb-demo: EXTRAS :=
$(VENV)/.perfnb-lab: EXTRAS := [lab]
$(VENV)/.perfnb-test: EXTRAS := [test]
$(VENV)/.perfnb-bench: EXTRAS := [bench]

$(VENV)/.perfnb-%: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing perfnb$(EXTRAS) into $(VENV) (the first time takes some minutes)"
	@$(PIP_INSTALL) --editable '.$(EXTRAS)'
	@touch $@

clean:
	@rm -rf build dist demo.html .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name '$(VENV)' -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV)
