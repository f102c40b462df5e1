# make train: everything from nothing to a trained agent.   make test: all tests.   Both set up what they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Processes of pytest: more than two cores keep busy, because tests often wait for what they have started.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: train test test-fast soak lint clean
.DELETE_ON_ERROR:

train: $(READY)
	$(BIN)/air train @ configs/quickstart.toml

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST)

test-fast: $(READY)
	$(PYTEST) -m "not slow and not soak"

# Before a release: what takes minutes and seldom fails, then every test in an order of its own.
soak: $(READY)
	$(PYTEST) -m soak
	$(PYTEST) -p randomly

lint: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "air needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 train")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
