"""The package before queue and filter changed in one step, from the history of this checkout."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devtools.crawl_process import ROOT

COMMIT = "9bc9486aa8709f1b6c087d68ae24ea78f472f4e6"
BEFORE, NOW = "before", "now"


@contextmanager
def packages() -> Iterator[dict[str, str]]:
    """Unpack the package of the commit; yield the PYTHONPATH of either package, which has this checkout's tools too.

    Both run with the dependencies that are installed here.

    Raises:
        RuntimeError: the history lacks the commit.
    """
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-before-") as folder:
        archive = subprocess.run(["git", "archive", COMMIT, "scrapy_bloom"], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            raise RuntimeError(
                f"the history of {ROOT} lacks the commit {COMMIT}, with which this part compares: use a complete "
                f"clone of the repository ({archive.stderr.decode().strip()})"
            )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield {BEFORE: os.pathsep.join([folder, str(ROOT)]), NOW: str(ROOT)}


def has_package(path: str, file: str) -> bool:
    """Return whether a package's file is the first of a PYTHONPATH."""
    return Path(file).is_relative_to(path.partition(os.pathsep)[0])
