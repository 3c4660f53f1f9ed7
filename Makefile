# The two commands: `make checkup` and `make test`. Everything else serves them.
PYTHON ?= python3
VENV ?= .venv
FLOORS := $(VENV)-floors
NEWEST := $(VENV)-newest
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# `make test ROOM=theory` tests one room, `make test ROOM=papers` or `ROOM=papers/yang2019` papers.
ROOM ?=
TESTED := $(if $(ROOM),$(if $(filter papers%,$(ROOM)),\
	$(wildcard $(patsubst papers%,papers/tests%,$(ROOM)) $(patsubst papers%,papers/src/equipoise_papers%,$(ROOM))),\
	$(wildcard tests/$(ROOM) src/equipoise/$(ROOM) src/equipoise/$(ROOM).py)))

.PHONY: checkup test floors newest format docs bench tables reproduction-page census clean

# Predict, measure and report on bundled real data.
checkup: $(VENV)/.ready
	$(BIN)/equipoise checkup --out checkup-report

# glibc keeps up to 256 MB that are free: to give large arrays back to the kernel and take them again
# was an eighth of the time of some tests of theory.
ALLOCATOR := MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=268435456

# Everything that CI runs; pytest comes last. Compiled files are kept, as many tests start Python.
# Threads wait without spinning, which would cost the other worker its core. Workers get half of the
# tests each and steal from each other's end, so that few modules compute their fixtures twice. One
# room's tests alone with ROOM=…
test: $(VENV)/.ready-to-develop
ifeq ($(ROOM),)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/sphinx-build --quiet -W --keep-going -b html docs docs/_build/html
	$(BIN)/sphinx-build --quiet -W --keep-going -b html papers/docs papers/docs/_build/html
else ifeq ($(strip $(TESTED)),)
	$(error there is no room $(ROOM): name a folder of tests/, or papers/ and a folder of papers/tests/)
endif
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(ALLOCATOR) \
		$(BIN)/python -m pytest --numprocesses auto --dist worksteal --durations 15 \
		$(TESTED)

# The tests with the oldest versions that pyproject.toml and papers/pyproject.toml allow. These warn
# of their own old age. Needs Python 3.11 or 3.12, for which NumPy 1.26 has wheels.
floors: $(FLOORS)/.ready
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(ALLOCATOR) \
		$(FLOORS)/bin/python -m pytest --numprocesses auto --dist worksteal \
		-W ignore::DeprecationWarning -W ignore::FutureWarning $(TESTED)

# The tests with the newest versions that there are. PyTorch with CUDA takes several GB. Begins
# anew each time, as it is to meet what a user installs today.
newest:
	rm -rf $(NEWEST)
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable '.[dev]' --editable 'papers[dask]'
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(NEWEST)/bin/python -m pytest --numprocesses auto \
		--dist worksteal $(TESTED)

format: $(VENV)/.ready-to-develop
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.ready-to-develop
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -b html papers/docs papers/docs/_build/html

bench: $(VENV)/.ready-to-develop
	for script in benchmarks/*.py papers/benchmarks/*.py; do $(BIN)/python $$script || exit; done

# What docs/architecture.md promises, counted.
census: $(VENV)/.ready-to-develop
	$(BIN)/python tests/census.py

# The table of docs/spectra.md, below its first lines.
ACTIVATIONS := identity relu "leaky_relu(0.2)" abs "alpha_relu(1.5)" "alpha_relu(2)" hardtanh \
	hardswish tanh erf sigmoid gelu silu mish elu softplus
tables: $(VENV)/.ready-to-develop
	sed '/^| activation/,$$d' docs/spectra.md > docs/spectra.new
	$(BIN)/equipoise theory --spectrum --markdown --activation $(ACTIVATIONS) \
		--batch-size 4 5 6 8 16 64 1000 1000000 >> docs/spectra.new
	mv docs/spectra.new docs/spectra.md

# papers/docs/reproduction, from the records of `equipoise reproduce all`.
reproduction-page: $(VENV)/.ready-to-develop
	$(BIN)/equipoise reproduce report --scale small --out reproduction \
		--page papers/docs/reproduction

clean:
	rm -rf $(VENV) $(FLOORS) $(NEWEST) docs/_build papers/docs/_build checkup-report

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

PROJECTS := pyproject.toml papers/pyproject.toml constraints.txt

$(VENV)/.ready: $(PROJECTS) | $(VENV)/bin/python
	$(PIP) --editable . --editable papers
	touch $@

$(VENV)/.ready-to-develop: $(PROJECTS) | $(VENV)/bin/python
	$(PIP) --editable '.[dev,docs]' --editable 'papers[dask]'
	touch $@ $(VENV)/.ready

# Every >= becomes a pin; other packages are as in constraints.txt, but dask is as distributed asks.
$(FLOORS)/.ready: $(PROJECTS)
	$(PYTHON) -m venv $(FLOORS)
	{ grep -ohE '"[a-z0-9-]+(\[[a-z]+\])?>=[0-9.]+"' pyproject.toml papers/pyproject.toml \
		| sed -E 's/"|\[.*\]//g; s/>=/==/'; grep -v ^dask= constraints.txt; } \
		| awk -F== '/==/ && !seen[tolower($$1)]++' > $(FLOORS)/constraints.txt
	$(FLOORS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(FLOORS)/constraints.txt --editable '.[dev]' --editable 'papers[dask]'
	touch $@
