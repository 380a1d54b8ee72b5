"""The package before queue and filter changed in one step, from the history of this checkout."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.report import line
from devtools.crawl_process import ROOT

COMMIT = "9bc9486aa8709f1b6c087d68ae24ea78f472f4e6"
BEFORE, NOW = "before", "now"


@contextmanager
def packages() -> Iterator[dict[str, str]]:
    """Unpack the package of the commit; yield the PYTHONPATH of either package, which has this checkout's tools too.

    Both run with the dependencies that are installed here. A history without the commit has only the package of now.
    """
    paths = {NOW: str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-before-") as folder:
        archive = subprocess.run(["git", "archive", COMMIT, "scrapy_bloom"], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            line(f"\nThe history lacks the commit {COMMIT}: only this package is measured. Use a complete clone.")
        else:
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            paths[BEFORE] = os.pathsep.join([folder, str(ROOT)])
        yield paths


def has_package(path: str, file: str) -> bool:
    """Return whether a package's file is the first of a PYTHONPATH."""
    return Path(file).is_relative_to(path.partition(os.pathsep)[0])
