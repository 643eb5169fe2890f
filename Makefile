# `make test` runs everything; both it and `make demo` set up their own virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP := $(BIN)/python $(INSTALL)
ECOSYSTEM := .venv-ecosystem

.PHONY: demo test lint ecosystem works-with docs dist matrix experiments benchmarks torture portability oldest clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) torch
	$(PIP) --editable '.[all]' --group test
	touch $@

demo: $(VENV)/installed
	$(BIN)/mecam bench recipes/demo.toml --workers 2 --out demo-runs
	$(BIN)/mecam table demo-runs --spread interval --baseline adam
	$(BIN)/mecam report demo-runs --out demo-runs/report.html

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 -p mecam.optim -p mecam.virtual -p mecam.integrations
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src
	$(BIN)/lint-imports --no-cache
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

# with bytecode, or every process of the tests compiles the package anew
test: lint
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2 --dist loadfile

$(ECOSYSTEM)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/python $(INSTALL) --upgrade "pip>=25.1"
	$(ECOSYSTEM)/bin/python $(INSTALL) torch
	$(ECOSYSTEM)/bin/python $(INSTALL) --editable . --group ecosystem
	touch $@

# the optimizers under frameworks that bring much else, in an environment of their own
ecosystem: $(ECOSYSTEM)/installed
	OMP_NUM_THREADS=1 $(ECOSYSTEM)/bin/python -m pytest tests/ecosystem --junitxml=works-with/ecosystem.xml

# the table of what the optimizers were tried with
works-with: ecosystem $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m works_with tests/optim tests/integrations --junitxml=works-with/tests.xml
	$(BIN)/python benchmarks/works_with.py works-with/tests.xml works-with/ecosystem.xml --out docs/works-with.md

# a test builds it too
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# the sdist and the wheel of a release
dist: $(VENV)/installed
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# every method under every optimizer and averaging: does it train?
matrix: $(VENV)/installed
	$(BIN)/python benchmarks/matrix.py --out docs/matrix.md

# the paper's experiments, each in its small version on the embedded set, then every figure; runs that two experiments
# share are run once: about ten minutes on two cores
experiments: $(VENV)/installed
	for file in $(filter-out recipes/pacs_% recipes/demo.toml recipes/figure4.toml,$(wildcard recipes/*.toml)); do $(BIN)/mecam bench $$file --small --workers 2 --out experiments || exit 1; done
	$(BIN)/mecam bench recipes/figure4.toml --small --workers 2 --out experiments/figure4
	$(BIN)/mecam landscape experiments/figure4/shapes-* --steps 15 --images 96 --out experiments/figure4/landscape
	$(BIN)/mecam report experiments --out experiments/report.html
	$(BIN)/mecam figures experiments --out experiments/figures

benchmarks: $(VENV)/installed
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/memory.py

# every attack that docs/reliability.md promises to survive, at length: about an hour
torture: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/torture.py --out benchmarks/results/torture.md

# the suite and the demo under other instruction sets and thread counts, before a release: about an hour and a half
portability: $(VENV)/installed
	$(BIN)/python benchmarks/portability.py --out benchmarks/results/portability.md

# the optimizers' tests on the oldest torch they support; 2.6 brings several GB of CUDA packages unless an index for CPUs is
# named: make oldest INDEX='--index-url https://download.pytorch.org/whl/cpu'
oldest:
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet $(INDEX) 'torch==2.6.*'
	$(VENV)-oldest/bin/python -m pip install --quiet --editable '.[lightning,optimizers,timm]' 'torch==2.6.*' accelerate expecttest hypothesis numpy pytest pytest-timeout
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest tests/optim tests/virtual

clean:
	rm -rf $(VENV) $(ECOSYSTEM) works-with $(VENV)-oldest dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
