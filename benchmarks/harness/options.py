"""The command-line options of the parts."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Asked:
    """Options: `html` directories to crawl, and whether to measure 10^8 URLs too (a GB and an hour)."""

    html: tuple[Path, ...] = ()
    large: bool = False
