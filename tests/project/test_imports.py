"""The levels of the architecture: imports go down, and no package has a cycle."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import scrapy_bloom
from scrapy_bloom.cli.bloom import ACTIONS

# From the bottom up. A place is a package, or a module beside them.
LEVELS = (
    {"errors", "_cache", "_format", "_runtime"},
    {"options", "serializers", "transport"},
    {"_scrapy", "scripts"},
    {"filter"},
    {"queue"},
    {"_filter_key", "monitoring", "settings", "start_urls"},
    {"codec", "dupefilter"},
    {"delivery"},
    {"addon", "cli", "scheduler", "spiders"},
)
# The places allowed to import each third-party package; all others use the standard library alone.
OUTSIDE = {
    "_filter_key": {"scrapy", "scrapy_redis"},
    "_runtime": {"twisted"},
    "_scrapy.components": {"scrapy", "scrapy_redis"},
    "_scrapy.connection": {"redis", "scrapy", "scrapy_redis"},
    "_scrapy.engine": {"scrapy", "twisted"},
    "_scrapy.fingerprints": {"scrapy"},
    "_scrapy.redis_settings": {"scrapy", "scrapy_redis"},
    "addon": {"scrapy", "scrapy_redis"},
    "cli._console": {"tqdm"},
    "cli._exit_codes": {"redis", "scrapy"},
    "cli._filling": {"redis"},
    "cli._items": {"scrapy"},
    "cli._target": {"scrapy", "scrapy_redis"},
    "cli.bloom": {"scrapy"},
    "cli.check": {"scrapy", "w3lib"},
    "cli.checks": {"redis", "scrapy", "scrapy_redis"},
    "cli.clear": {"redis", "scrapy"},
    "cli.doctor": {"redis", "scrapy"},
    "cli.export": {"scrapy"},
    "cli.file_lines": {"w3lib"},
    "cli.forget": {"scrapy"},
    "cli.import_": {"scrapy"},
    "cli.info": {"scrapy"},
    "cli.plan": {"scrapy"},
    "cli.report": {"prometheus_client"},
    "cli.requeue": {"redis", "scrapy"},
    "cli.restore": {"scrapy"},
    "codec": {"scrapy"},
    "delivery": {"scrapy"},
    "dupefilter": {"scrapy", "scrapy_redis"},
    "filter.bloom_filter": {"redis"},
    "filter.stored": {"redis"},
    "monitoring.reporter": {"scrapy"},
    "monitoring.stats": {"scrapy"},
    "queue.inspection": {"redis"},
    "queue.keys": {"redis"},
    "queue.request_queue": {"redis"},
    "scheduler": {"scrapy", "scrapy_redis"},
    "scripts": {"redis"},
    "serializers.json": {"scrapy"},
    "settings": {"scrapy"},
    "spiders": {"scrapy", "scrapy_redis"},
    "start_urls.feed": {"scrapy", "scrapy_redis"},
    "start_urls.leases": {"redis"},
    "transport.client": {"redis"},
    "transport.failures": {"redis"},
    "transport.from_url": {"redis"},
    "transport.redis_url": {"redis"},
    "transport.retry": {"redis"},
    "transport.sentinel": {"redis"},
}

# The modules of `scrapy bloom` that may print: its actions and their shared helpers.
ACTION_MODULES = {"import_" if action == "import" else action for action in ACTIONS}
SHARED = {"cli.bloom", "cli._console", "cli._exit_codes", "cli._target"}

PACKAGE = Path(scrapy_bloom.__file__).parent


def modules() -> dict[str, Path]:
    """Return every module of the package, named without the package."""
    paths = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items() if name != "__init__"}


def place(module: str) -> str:
    """Return the package that a module is in, or the module itself."""
    return module.partition(".")[0]


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


def test_every_place_has_a_level() -> None:
    """Each package, and each module beside them, stands on exactly one of at most nine levels."""
    assert sorted({place(module) for module in modules()}) == sorted(name for level in LEVELS for name in level)
    assert len(LEVELS) <= 9


def test_imports_go_downwards() -> None:
    """A module imports from levels below, or from its own package."""
    for number, level in enumerate(LEVELS):
        below = set().union(*LEVELS[:number])
        for module, path in modules().items():
            if place(module) in level:
                own = {place(name) for name in imports(path)[0]}
                assert own <= below | {place(module)}, f"{module} imports {sorted(own - below)}"


def test_no_cycle_in_a_package() -> None:
    """A package's modules can be ordered so that each imports earlier ones only."""
    known = modules()
    graph = {name: {other for other in imports(path)[0] if other in known} - {name} for name, path in known.items()}
    assert set(TopologicalSorter(graph).static_order()) >= set(known)


def prints(path: Path) -> bool:
    """Return whether a module calls `print`, or writes to a standard stream."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    calls = any(isinstance(node, ast.Name) and node.id == "print" for node in nodes)
    return calls or any(isinstance(node, ast.Attribute) and node.attr in {"stdout", "stderr"} for node in nodes)


def test_work_of_the_command_prints_nothing() -> None:
    """Only the actions of `scrapy bloom` and their shared helpers print."""
    printing = {f"cli.{name}" for name in ACTION_MODULES} | SHARED
    for module, path in modules().items():
        if module.startswith("cli.") and module not in printing:
            assert not prints(path), f"{module} prints"
            assert "cli._console" not in imports(path)[0], f"{module} imports cli._console"
    assert all(prints(modules()[module]) for module in ("cli._console", "cli.info"))


def test_other_packages_stay_at_their_places() -> None:
    """A third-party package is imported by the modules that exist for it, and by no other."""
    outside = {module: imports(path)[1] for module, path in modules().items()}
    assert {module: packages for module, packages in outside.items() if packages} == OUTSIDE
