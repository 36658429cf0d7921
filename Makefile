# `make run`, `make test` and `make lab` do all their own set-up: they need Python 3.11 or newer, git and make.

VENV ?= .venv
BIN := $(VENV)/bin
RUN ?= quick
ARGS ?=
LOCKED := $(VENV)/.locked

.DEFAULT_GOAL := help
.PHONY: help run test fast test-alone unit nbval test-threads test-matrix lab lint figures model notebooks lock clean

help:
	@echo 'make run            execute notebooks 00 to 07 into runs/quick/   (ARGS="--profile gpu" and so on)'
	@echo 'make lab            open JupyterLab on a working copy of notebook 00, in lab/'
	@echo 'make test           unit tests, and every notebook against its stored outputs, at once'
	@echo 'make fast           the fast unit tests, in under a minute'
	@echo 'make test-alone     the fast tests: each file by itself, and all in random order'
	@echo 'make test-threads   the notebooks once with one thread and once with two'
	@echo 'make test-matrix    exported folders in other releases of transformers, without this package; batches; profile gpu, small'
	@echo 'make lint           ruff and mypy'
	@echo 'make figures        draw the figures of a run again, RUN=quick'
	@echo 'make notebooks      execute the source notebooks in place, cleaned for a commit (NB="03 05" for some)'
	@echo 'make lock           resolve the dependencies anew and write the lock files'
	@echo 'make clean          remove caches; runs/ and $(VENV) stay'

$(LOCKED): pyproject.toml requirements.lock tools/make_venv.sh
	sh tools/make_venv.sh $(VENV)
	@touch $@

model: $(LOCKED)
	$(BIN)/vocabx models fetch

run: model
	$(BIN)/vocabx run $(ARGS)

lab: model
	$(BIN)/vocabx lab

# nbval takes a second to import in each process, and only notebooks need it.
UNIT := -p no:nbval -n auto --dist loadfile tests
NBVAL := --nbval-lax --nbval-current-env --nbval-sanitize-with tests/sanitize.cfg

# Both at once, where memory allows.
test: model
	$(BIN)/python tools/run_tests.py --unit='$(UNIT)' --nbval='$(NBVAL)'

# A process for each core, with one thread; a file of tests stays together.
unit: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(UNIT)

# For the inner loop; `make unit` runs the tests that are marked slow, too.
fast: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(UNIT) -m "not slow" -q

# No test may need what another one left behind, neither of its own file nor of another.
test-alone: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(UNIT) -m "not slow" -q -p randomly --no-loadscope-reorder
	OMP_NUM_THREADS=1 $(BIN)/python tools/run_alone.py

# A fresh run folder, so that no stage is skipped as finished.
nbval: model
	runs=$$(mktemp -d) && trap 'rm -rf "$$runs"' EXIT && VOCABX_RUNS="$$runs" \
		$(BIN)/python -m pytest $(NBVAL) notebooks

test-threads:
	OMP_NUM_THREADS=1 $(MAKE) nbval
	OMP_NUM_THREADS=2 $(MAKE) nbval

# The other release of transformers, and Snakemake, are installed into the cache once.
test-matrix: model
	$(BIN)/python -m pytest -q tests/matrix

lint: $(LOCKED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

figures: $(LOCKED)
	$(BIN)/vocabx figures $(RUN)

notebooks: model
	$(BIN)/python tools/refresh_notebooks.py $(NB)

lock:
	sh tools/update_lock.sh

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find notebooks tests tools vocabx_utils -name __pycache__ -prune -exec rm -rf {} +
	find notebooks -name .ipynb_checkpoints -prune -exec rm -rf {} +
