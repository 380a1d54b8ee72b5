"""The choices made on the command line, for the parts that heed them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Asked:
    """`html`: directories of HTML to crawl; `large`: measure 10^8 URLs too, which takes a GB and an hour."""

    html: tuple[Path, ...] = ()
    large: bool = False
