# The two commands of the README are `make demo` and `make test`; each makes .venv itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all test-unit check simulate pythons lowest wheel typing coverage mutants bench search replay soak clean

demo: $(VENV)/.demo
	$(BIN)/python -m devtools.demo $(ARGS)

# Three processes: the tests wait for servers and crawls more than they compute.
test: $(VENV)/.test
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not long" $(ARGS)

# The full searches, the soak, the error rate and large crawls, too.
test-all: $(VENV)/.test
	$(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

# What needs no server: in seconds, while one edits.
test-unit: $(VENV)/.test
	$(BIN)/python -m pytest tests/unit $(addprefix tests/project/test_,benchmarks.py docs.py imports.py) $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/mypy

# Tests in environments of their own: see noxfile.py.
pythons lowest wheel typing coverage: $(VENV)/.dev
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

# One stamp an extra: an environment is made, or made anew when pyproject.toml changes.
$(VENV)/.%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@
