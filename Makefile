# The commands of development and CI. Each runs in .venv, which its target builds, or in a session of noxfile.py.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all test-unit test-cluster check lint fix simulate pythons lowest scrapys wheel coverage main dist \
	bench search soak docs browse links translations clean

demo: $(VENV)/.package
	$(BIN)/python -m devtools.demo $(ARGS)

# Let the tests' processes share compiled modules.
test test-all test-cluster: export PYTHONDONTWRITEBYTECODE =

# Four processes: the tests wait for servers and crawls more than they compute.
test: $(VENV)/.test
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not long" $(ARGS)

# With the full searches, the soak, the measured error rates and large crawls.
test-all: $(VENV)/.test
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not cluster" $(ARGS)

# Faults of clusters and masters under full load, one after another, in a quarter of an hour.
test-cluster: $(VENV)/.test
	$(BIN)/python -m pytest tests/cluster -m "cluster or long" $(ARGS)

# The tests without a server, in seconds.
test-unit: $(VENV)/.test
	$(BIN)/python -m pytest tests/unit $(addprefix tests/project/test_,docs.py imports.py) $(ARGS)

check: lint
	$(BIN)/mypy

# Takes two seconds; pre-commit, if installed, runs it before each commit.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Sessions of noxfile.py.
pythons lowest scrapys wheel coverage main dist: $(VENV)/.dev
	$(BIN)/nox --session $@ $(if $(ARGS),-- $(ARGS))

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks --write $(ARGS)

# Search all states of each scenario of the queue, of which the tests visit the nearest ones; ARGS="crash" the named ones.
search: $(VENV)/.test
	$(BIN)/python -m tests.queue.search $(ARGS)

# Simulate crawls on a virtual clock for a minute, with fresh seeds; ARGS="--kind mixed --seed 7" prints one crawl.
simulate: $(VENV)/.test
	$(BIN)/python -m tests.simulation $(ARGS)

# Run crawls with faults for ten minutes; ARGS="--seconds 60 --seed 2" runs one minute from another seed.
soak: $(VENV)/.test
	$(BIN)/python -m tests.soak $(ARGS)

SPHINX := $(BIN)/python -m sphinx --quiet --fresh-env --jobs auto --fail-on-warning --keep-going

# The site in build/docs, in Chinese in its folder zh-cn. A warning is an error, such as a link to a missing heading, and
# so is an entry of the Chinese catalogues that is missing, fuzzy, faulty or obsolete.
docs: build/gettext
	$(SPHINX) --builder html docs build/docs $(ARGS)
	$(SPHINX) --builder html --define language=zh_CN docs build/docs/zh-cn $(ARGS)
	$(BIN)/python -m devtools.catalogues

# The texts of all pages, added to the Chinese catalogues: new ones are empty, similar ones fuzzy.
translations: build/gettext
	$(BIN)/sphinx-intl update --pot-dir $< --locale-dir docs/locale --language zh_CN --line-width 0 --no-obsolete
	-$(BIN)/python -m devtools.catalogues

.PHONY: build/gettext
build/gettext: $(VENV)/.docs
	rm -rf $@
	$(SPHINX) --builder gettext docs $@

# Each page of the site in Chromium, wide and narrow; needs Debian's chromium or $CHROMIUM.
browse: docs
	$(BIN)/python -m devtools.browse $(ARGS)

# The site's links to other sites, over the network; weekly.yml checks them.
links: $(VENV)/.docs
	$(SPHINX) --builder linkcheck docs build/links

clean:
	rm -rf $(VENV)

$(VENV)/.package: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'pip >= 25.1' # the first with --group; Python 3.11 and Debian 12 bring an older version
	$(PIP) --editable '.[embedded]'
	touch $@

# One stamp per dependency group, renewed when pyproject.toml changes.
$(VENV)/.%: $(VENV)/.package
	$(PIP) --group $*
	touch $@
