# make train: everything from nothing to a trained agent.   make test: linters, types, tests.   Each sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
INSTALL = @MAKECMDGOALS="$(MAKECMDGOALS)" PYTHON="$(PYTHON)" sh scripts/install.sh "$(VENV)"
# Processes of pytest: more than two cores keep busy, because tests often wait for what they have started.
WORKERS ?= 4
# Where the shell says that no bytecode is to be kept, each of hundreds of processes compiles all it imports anew.
export PYTHONDONTWRITEBYTECODE =
PYTEST := "$(BIN)/python" -m pytest -n $(WORKERS) --dist worksteal

.PHONY: train test test-fast test-long test-interop durations soak lint clean for-train for-dev

train: for-train
	"$(BIN)/air" train quickstart --continue

test: for-dev
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy" & types=$$!; $(PYTEST); tests=$$?; wait $$types && exit $$tests

test-fast: for-dev
	$(PYTEST) --fast

# What takes seconds of a processor each: whole runs, many processes, attacks by the dozen. CI runs them after `make test`.
test-long: for-dev
	$(PYTEST) -m "long and not soak"

# Agents of other libraries, each in an environment of its own under .venv-interop (made once). What cannot be installed
# is skipped by name, with the reason.
test-interop: for-dev
	"$(BIN)/python" scripts/interop.py
	"$(BIN)/python" -m pytest -n 2 --dist worksteal -m "interop and not soak" -rs tests/interop

# What `make test-fast` leaves out: to be made anew, on an idle machine, when it has become slow.
durations: for-dev
	$(PYTEST) -m "not soak and not interop" --note-durations

# Before a release: what takes minutes and seldom fails, what needs the machine for itself, every test in an order of its
# own, what learns by other libraries.
soak: for-dev
	$(PYTEST) -m "soak and not interop and not alone"
	"$(BIN)/python" -m pytest -n 0 -m "alone and not interop"
	$(PYTEST) -p randomly -m "not soak and not interop"
	"$(BIN)/python" scripts/interop.py
	"$(BIN)/python" -m pytest -n 0 -m "interop and soak" -rs tests/interop

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
