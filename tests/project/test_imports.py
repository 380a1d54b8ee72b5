"""The levels of the architecture: imports go down, and no package has a cycle."""

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import scrapy_bloom

# From the bottom up. A place is a package, or a module beside them.
LEVELS = (
    {"cache", "errors", "runtime", "text"},
    {"command", "serializer", "settings"},
    {"transport"},
    {"engine", "filter", "fingerprints", "stats"},
    {"pace", "queue"},
    {"codec", "pipelines", "report", "start_data"},
    {"dupefilter", "spiders", "unique_items"},
    {"components"},
    {"scheduler"},
    {"addon", "cli"},
)
# The places allowed to import each third-party package; all others use the standard library alone.
OUTSIDE = {
    "addon": {"scrapy", "scrapy_redis"},
    "cli": {"redis", "scrapy", "scrapy_redis", "tqdm", "w3lib"},
    "codec": {"scrapy", "scrapy_redis"},
    "components": {"scrapy", "scrapy_redis"},
    "dupefilter": {"scrapy", "scrapy_redis"},
    "engine": {"scrapy", "twisted"},
    "filter": {"mmh3", "redis"},
    "fingerprints": {"scrapy"},
    "pace": {"scrapy"},
    "pipelines": {"scrapy", "scrapy_redis", "twisted"},
    "queue": {"redis", "scrapy", "scrapy_redis"},
    "report": {"scrapy"},
    "runtime": {"twisted"},
    "scheduler": {"scrapy", "scrapy_redis"},
    "serializer": {"msgpack", "scrapy"},
    "settings": {"scrapy"},
    "spiders": {"scrapy", "scrapy_redis"},
    "start_data": {"scrapy", "scrapy_redis"},
    "stats": {"scrapy"},
    "transport": {"hiredis", "redis", "scrapy", "scrapy_redis"},
    "unique_items": {"itemadapter", "scrapy", "twisted"},
}
PACKAGE = Path(scrapy_bloom.__file__).parent


def modules() -> dict[str, Path]:
    """Return every module of the package, named without the package."""
    paths = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items() if name != "__init__"}


def place(module: str) -> str:
    """Return the package that a module is in, or the module itself."""
    return module.partition(".")[0]


@cache
def imports(path: Path) -> tuple[set[str], set[str]]:
    """Return a module's imports: those of this package, and third-party packages."""
    own, outside = set(), set()
    tree = ast.parse(path.read_text())
    # An import for type checkers only does not count.
    for_types = [
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    ]
    for node in ast.walk(tree):
        if node in for_types or not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            inside = (PACKAGE.parent / str(node.module).replace(".", "/")).is_dir() and str(node.module) != "scrapy"
            names = [f"{node.module}.{name}" for name in names] if inside else [str(node.module)]
        for name in names:
            top, _, rest = name.partition(".")
            if top == "scrapy_bloom":
                own.add(rest)
            elif top not in sys.stdlib_module_names:
                outside.add(top)
    return own, outside


def test_imports_go_downwards() -> None:
    """A module imports from levels below, or from its own package; each place stands on one of at most ten levels."""
    assert sorted({place(module) for module in modules()}) == sorted(name for level in LEVELS for name in level)
    assert len(LEVELS) <= 10
    level_of = {name: number for number, level in enumerate(LEVELS) for name in level}
    for module, path in modules().items():
        for other in {place(name) for name in imports(path)[0]} - {place(module)}:
            assert level_of[other] < level_of[place(module)], f"{module} imports {other}"


def test_no_cycle_in_a_package() -> None:
    """A package's modules can be ordered so that each imports earlier ones only."""
    known = modules()
    graph = {name: {other for other in imports(path)[0] if other in known} - {name} for name, path in known.items()}
    assert set(TopologicalSorter(graph).static_order()) >= set(known)


def test_other_packages_stay_at_their_places() -> None:
    """A third-party package is imported at the places that exist for it, and at no other."""
    outside: dict[str, set[str]] = {}
    for module, path in modules().items():
        found = imports(path)[1]
        if found:
            outside.setdefault(place(module), set()).update(found)
    assert outside == OUTSIDE
