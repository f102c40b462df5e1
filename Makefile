# make train: everything from nothing to a trained agent.   make test: all tests.   Each sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
INSTALL = @MAKECMDGOALS="$(MAKECMDGOALS)" PYTHON="$(PYTHON)" sh scripts/install.sh "$(VENV)"

.PHONY: train test test-fast lint clean for-train for-dev

train: for-train
	"$(BIN)/air" train quickstart

test: for-dev
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"
	"$(BIN)/python" -m pytest -n 2 --dist worksteal

test-fast: for-dev
	"$(BIN)/python" -m pytest -n 2 --dist worksteal -m "not slow"

lint: for-dev
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .
	"$(BIN)/mypy"

# what the quickstart uses and nothing else; `plot` draws its learning.png
for-train:
	$(INSTALL) tune,plot .train

for-dev:
	$(INSTALL) dev .dev

clean:
	rm -rf "$(VENV)" build *.egg-info
