# Two commands matter: `make demo` runs the main job, `make test` runs every check. Both make the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The test suite already runs a process per core and one more, so each process uses one thread.
SINGLE_THREADED := OMP_NUM_THREADS=1
# The tests start hundreds of processes of this package. Each compiles it again where the environment forbids to keep that.
KEEP_BYTECODE := PYTHONDONTWRITEBYTECODE=
# Many tests wait for processes that they start. One more worker keeps the cores busy meanwhile.
WORKERS = $(shell $(BIN)/python -c "import os; print(os.cpu_count() + 1)")
WHEEL_VENV := build/wheel-venv
TRANSFORMERS := build/transformers
NEED_TRANSFORMERS := tests/loop/test_transformers_callback.py tests/tune/trainers/test_transformers_trainer.py

.PHONY: help env demo test lint types contracts wheel docs readme unit transformers clean

help:
	@echo "make demo   train the sign-language recipe on its own data with PerfCallback and print the report"
	@echo "make test   lint, types, layer contracts, the wheel, and all tests"
	@echo "make docs   build the site in build/site"
	@echo "make readme update the demo's quotes and picture in the README and the docs"
	@echo "make env    make .venv with the tested set of packages"
	@echo "make clean  remove everything that the other commands made"

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	touch $@

demo: env
	$(BIN)/python -m recipes.signlang --log-dir demo_output

# Two at a time, begun in this order: beside mypy, which uses one core, two wait for downloads, and then the tests begin.
test: lint
	$(MAKE) --jobs=2 types wheel contracts transformers unit

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env
	$(BIN)/mypy

contracts: env
	$(BIN)/lint-imports

# Users get the wheel. This builds it, installs it alone (without torch), and runs it outside the checkout.
wheel: env
	rm -rf dist $(WHEEL_VENV)
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv --without-pip $(WHEEL_VENV)
	$(BIN)/python -m pip --python $(WHEEL_VENV) install --quiet --constraint constraints.txt dist/*.whl
	cd $(WHEEL_VENV) && bin/lightning-perf --version && bin/lightning-perf demo --no-browser --out demo > /dev/null

# The tests build the site, too. This target keeps it, so that you can open it.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The README's text and picture show the same recording. Record it again with `python -m benchmarks.training.demo`.
readme: env
	$(BIN)/python docs/screenshots.py build/screenshots lightning_perf/demo/recordings/before --readme docs/images/overview.png
	$(BIN)/python docs/refresh.py README.md docs/quickstart.md docs/reading.md docs/tutorial.md

unit: env
	$(SINGLE_THREADED) $(KEEP_BYTECODE) $(BIN)/pytest -n $(WORKERS) --dist worksteal

# With transformers installed, each import of Lightning takes a second longer. So it has a folder of its own, and only the
# tests that need it find it there.
$(TRANSFORMERS)/.installed: $(VENV)/.installed constraints.txt
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $(TRANSFORMERS) \
		--constraint constraints.txt accelerate annotated-doc psutil shellingham tokenizers transformers typer
	touch $@

transformers: $(TRANSFORMERS)/.installed
	$(SINGLE_THREADED) PYTHONPATH=$(CURDIR)/$(TRANSFORMERS) $(BIN)/pytest $(NEED_TRANSFORMERS)

clean:
	rm -rf $(VENV) build dist demo_output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
