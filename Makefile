# The two commands: `make checkup` and `make test`. Everything else serves them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: checkup test format docs bench tables reproduction-page clean

# Predict, measure and report on bundled real data.
checkup: $(VENV)/.ready
	$(BIN)/equipoise checkup --out checkup-report

# Everything that CI runs; pytest comes last.
test: $(VENV)/.ready-to-develop
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/sphinx-build --quiet -W --keep-going -b html docs docs/_build/html
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto

format: $(VENV)/.ready-to-develop
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.ready-to-develop
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

bench: $(VENV)/.ready-to-develop
	$(BIN)/python benchmarks/theory_against_simulation.py
	$(BIN)/python benchmarks/theory_against_integrals.py
	$(BIN)/python benchmarks/bnp_overhead.py
	$(BIN)/python benchmarks/landscape_cost.py
	$(BIN)/python benchmarks/hessian_cost.py
	$(BIN)/python benchmarks/tracker_overhead.py
	$(BIN)/python benchmarks/rank_one_update.py
	$(BIN)/python benchmarks/matrix_roots.py
	$(BIN)/python benchmarks/pooling_heads.py
	$(BIN)/python benchmarks/stacked_training.py

# The table of docs/spectra.md, below its first lines.
ACTIVATIONS := identity relu "leaky_relu(0.2)" abs "alpha_relu(1.5)" "alpha_relu(2)" hardtanh \
	hardswish tanh erf sigmoid gelu silu mish elu softplus
tables: $(VENV)/.ready-to-develop
	sed '/^| activation/,$$d' docs/spectra.md > docs/spectra.new
	$(BIN)/equipoise theory --spectrum --markdown --activation $(ACTIVATIONS) \
		--batch-size 4 5 6 8 16 64 1000 1000000 >> docs/spectra.new
	mv docs/spectra.new docs/spectra.md

# docs/reproduction, from the records of `equipoise reproduce all`.
reproduction-page: $(VENV)/.ready-to-develop
	$(BIN)/equipoise reproduce report --scale small --out reproduction --page docs/reproduction

clean:
	rm -rf $(VENV) docs/_build checkup-report

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	touch $@

$(VENV)/.ready-to-develop: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev,docs]'
	touch $@ $(VENV)/.ready
