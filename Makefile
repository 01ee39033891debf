# Everything below makes .venv first if it is missing. Python 3.11 or newer and pip are all that is
# needed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO_READY := .venv/.demo-ready
MADE := .venv/.made
# pip would compile 15,000 files, of which few are ever imported. Python compiles each file when it
# is first imported.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile

# The installation leaves compiling to the first import. Where Python may not keep what it compiled,
# each of the processes below would compile torch once more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-ci test-all lint check bench results docs install clean

install: $(READY)

$(MADE):
	$(PYTHON) -m venv .venv
	@touch $(MADE)

$(READY): pyproject.toml | $(MADE)
	$(BIN)/python $(INSTALL) --editable ".[dev]"
	@touch $(READY) $(DEMO_READY)

# The demo needs a third of what the development needs. A later `make test` adds the rest.
$(DEMO_READY): pyproject.toml | $(MADE)
	$(BIN)/python $(INSTALL) --editable ".[train]"
	@touch $(DEMO_READY)

# The main job on synthetic voices, synthetic faces and real digits: train, embed, score, evaluate,
# report. It takes two or three minutes, installation included.
demo: $(DEMO_READY)
	$(BIN)/likeness demo --out runs/demo-$$(date +%Y%m%d-%H%M%S)

# One process per core, at most four, each with one thread and less than 3 GB. Each begins with a
# share of the tests in their order, so that what the tests of a file share is made once. A process
# that has finished takes tests from the end of another's share.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 \
	--dist worksteal --durations=30

# A quarter of hypothesis's examples, and an eighth of the damaged files.
FEW_EXAMPLES := LIKENESS_FUZZ_EXAMPLES=5 $(PYTEST) --hypothesis-profile quick

# Seven minutes on two cores: few examples, and no test that is marked slow.
test: $(READY)
	$(FEW_EXAMPLES) -m "not slow"

# What CI runs: few examples, of which it draws the same ones each time, and a tenth of the tests
# that are marked slow. Which tenth follows from the commit.
test-ci: $(READY)
	$(FEW_EXAMPLES) --slow-share "$$(git rev-parse HEAD)"

# All examples, and all tests, also those that take long and prove little more than others do.
test-all: $(READY)
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

check: lint test

# HTML pages of the documentation, in build/docs. Broken links and public names without a docstring
# end it.
docs: $(READY)
	$(BIN)/python docs/make_site.py

# A day of one core: everything that docs/reference/results.md reports. It can be run again: what is
# done is not done again. DATA is the folder that holds an4/, orl/ and the others, and
# ARGUMENTS="--only an4,orl" chooses jobs.
DATA ?= ../shared/data
ARGUMENTS ?=
results: $(READY)
	$(BIN)/python benchmarks/results.py --data $(DATA) --out runs/results $(ARGUMENTS)

# Two hours of one core: runs the commands of docs/reference/performance.toml, and prints what moved
# by more than a quarter. ARGUMENTS="start_up --write" runs the commands that have this word, and
# writes their numbers into performance.toml and the page. pytorch-metric-learning is installed.
bench: $(READY)
	$(BIN)/python $(INSTALL) "pytorch-metric-learning>=2.8,<3"
	$(BIN)/python benchmarks/performance.py $(ARGUMENTS)

clean:
	rm -rf .venv build *.egg-info
