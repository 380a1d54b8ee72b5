"""The rows of the architecture: a module imports only from rows above its own."""

import ast
from pathlib import Path

import scrapy_bloom

ROWS = (
    {"errors"},
    {"sizing", "options", "keys", "header", "hashing", "cache", "info"},
    {"metadata", "config", "compat", "stats"},
    {
        *("line", "ops", "shards", "credit_ops", "sampling", "credits", "store", "patience"),
        *("stored", "layers", "protocol", "filter"),
    },
    {"advice", "report"},
    {"connection", "fingerprints", "job", "dupefilter", "custody", "workers", "outbox", "scheduler"},
)
# Which third-party packages a module may import; every other one has the standard library alone.
OUTSIDE = {
    "hashing": {"mmh3"},
    "config": {"scrapy"},
    "compat": {"scrapy", "twisted"},
    "stats": {"scrapy"},
    "line": {"hiredis", "redis"},
    "patience": {"redis"},
    "advice": {"redis"},
    "report": {"redis", "scrapy"},
    "connection": {"scrapy", "scrapy_redis"},
    "fingerprints": {"scrapy"},
    "dupefilter": {"scrapy", "scrapy_redis"},
    "outbox": {"scrapy"},
    "scheduler": {"scrapy", "scrapy_redis"},
}
# Inside some rows there is an order as well.
ORDER = (
    *("metadata", "config"),
    *("line", "ops", "shards", "credit_ops", "sampling", "credits", "store", "patience"),
    *("stored", "layers", "protocol", "filter"),
    *("connection", "fingerprints", "job", "dupefilter", "custody", "workers", "outbox", "scheduler"),
)

PACKAGE = Path(scrapy_bloom.__file__).parent
STANDARD = set(__import__("sys").stdlib_module_names)


def imports(module: str) -> tuple[set[str], set[str]]:
    """The modules of this package that a module imports, and the other packages outside the standard library."""
    own, outside = set(), set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = node.module == "scrapy_bloom"
            names = [f"{node.module}.{alias.name}" if inner else str(node.module) for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "scrapy_bloom":
                own.add(rest.partition(".")[0])
            elif top not in STANDARD:
                outside.add(top)
    return own, outside


def test_every_module_has_a_row() -> None:
    """Each file of the package stands in exactly one row."""
    modules = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    assert modules == sorted(module for row in ROWS for module in row)


def test_imports_go_upwards() -> None:
    """A module imports from rows above; in its own row only what comes before it."""
    for number, row in enumerate(ROWS):
        above = set().union(*ROWS[:number])
        for module in row:
            own, _ = imports(module)
            peers = set(ORDER[: ORDER.index(module)]) & row if module in ORDER else row - {module}
            assert own <= above | peers, f"{module} imports {sorted(own - above - peers)}"


def test_other_packages_stay_at_their_places() -> None:
    """A third-party package is imported only by the modules that exist for it."""
    for module in set().union(*ROWS):
        _, outside = imports(module)
        assert outside <= OUTSIDE.get(module, set()), f"{module} imports {sorted(outside)}"
