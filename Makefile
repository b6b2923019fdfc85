# Every target sets up what it needs. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-conformance browser pictures test-long test-matrix check docs bench bench-selection bench-functions bench-flow bench-serve bench-scale bench-local-model bench-support fuzz faults sizes format clean

demo: $(VENV)/.demo
	@thread=demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/capgraph ask --config configs/demo.yml --thread $$thread \
	  "What was the hottest day in Seattle in the summer of 2015, and how did daily highs move over those months?" \
	&& echo "In the console: $(BIN)/capgraph serve --config configs/demo.yml --thread $$thread"

# Hundreds of processes are started: they are not to compile what they import, whatever is set here.
# Three at a time on two cores, for a third of the time is waiting: for processes, leases, browsers.
test: check browser $(VENV)/.wheel
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

# The published suites and official clients of each protocol, with the results in docs/conformance.md;
# SUITES for less. A suite whose kit cannot be installed says so and keeps its results.
SUITES ?=
test-conformance: $(VENV)/.dev
	$(BIN)/python -m tests.conformance $(SUITES)

# The console's tests want a browser; where none can be had they say so.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo "No Chromium: the console's tests are skipped."

# The pictures of the console in its guide.
pictures: $(VENV)/.dev browser
	PICTURES=keep $(BIN)/python -m pytest -q tests/console/test_pictures.py

# All of every sweep of which the above runs a sample; SEED chooses the samples.
SEED ?= 1
test-long: check browser $(VENV)/.wheel faults
	env -u PYTHONDONTWRITEBYTECODE LONG_TESTS=1 SEED=$(SEED) \
	  $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder \
	  --timeout 3600 --hypothesis-seed=$(SEED)

# The tests on every Python of PYTHONS that is on the machine, with the newest versions of what is
# needed and with the oldest that pyproject.toml allows.
PYTHONS ?= 3.11 3.12 3.13
test-matrix:
	$(PYTHON) -m tests.matrix $(PYTHONS)

# Everything but the tests: format, lint, types, import contracts, documentation.
check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.run

# Needs the public data sets; DATA names their folder.
DATA ?= ../shared/data
bench-selection: $(VENV)/.dev
	$(BIN)/python -m tests.benchmarks.selection --data $(DATA)

# The data comes with a package whose dependencies are not needed.
bench-functions: $(VENV)/.dev
	$(PIP) --no-deps bfcl-eval==2026.3.23
	$(BIN)/python -m tests.benchmarks.function_choice

bench-flow: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.agentdojo_flow --docs docs/guides/guard_against_injection.md

# Events of served runs against a bare stream of the same events, in one run; memory a stream.
bench-serve: $(VENV)/.dev
	$(BIN)/python -m tests.benchmarks.serving --runs 100 --listeners 5 --events 20 --pause 0.5 --turns 1000

# What turns cost on workers, beside the same turns in one process; TURNS and WORKERS for less.
TURNS ?= 2000
WORKERS ?= 1 2 4
bench-scale: $(VENV)/.dev
	$(BIN)/python -m tests.benchmarks.scale --turns $(TURNS) --workers $(WORKERS) --docs docs/guides/scale_out.md

# A small model on this machine, which is fetched and built first: 1.1 GB, 20 minutes on two cores.
# ARGS for less: ARGS="--set office --system capgraph --only oslo flight --repeat 3".
ARGS ?= --set office warehouse greenhouse --docs docs/local_models.md
bench-local-model: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.local_model.run $(ARGS)

# The support desk of docs/examples in every form of it.
bench-support: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.support --docs docs/coming_from/langgraph.md

# Ten minutes of requests that are made up from the description of the API.
fuzz: $(VENV)/.dev $(VENV)/fuzz/bin/schemathesis
	LONG_TESTS=1 SEED=$(SEED) $(BIN)/python -m pytest -q tests/unit/serve/test_fuzzed_requests.py

# Its parts and those of LangGraph's server do not go together: an environment of its own.
$(VENV)/fuzz/bin/schemathesis: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/fuzz
	$(VENV)/fuzz/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5

faults: $(VENV)/.dev
	$(BIN)/python -m tests.faults --seed $(SEED)

# Lines of code that ship, room by room, without docstrings, comments and blanks.
sizes:
	@$(PYTHON) -m tests.sizes

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@

# What the wheel needs, without capgraph: the tests of the wheel install it beside these.
$(VENV)/.wheel: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/wheel
	$(VENV)/wheel/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt '.[offline,data,sqlite,serve,mcp,models,tools]' pytest
	$(VENV)/wheel/bin/python -m pip uninstall --quiet --yes capgraph
	PYRIGHT_PYTHON_CACHE_DIR=$(CURDIR)/$(VENV)/pyright $(BIN)/python -m pyright --version >/dev/null || true
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable '.[dev,bench]'
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
