"""The key of a filter that belongs to a job directory of Scrapy's, kept there for the crawls that resume the job."""

import os
from pathlib import Path

from scrapy_bloom.errors import ConfigError

KEY_FILE = "bloomfilter.key"


def read_key(directory: str) -> str | None:
    """Return the key that an earlier crawl in this directory had, or None: there was none."""
    path = Path(directory, KEY_FILE)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(path, f"cannot be read ({type(error).__name__})") from None
    if len(lines) != 1 or not lines[0].strip():
        raise _refusal(path, "must be one line, the key of the job's filter")
    return lines[0].strip()


def write_key(directory: str, key: str) -> None:
    """Keep the key; nobody ever finds a part of it."""
    path = Path(directory, KEY_FILE)
    unfinished = path.with_suffix(".part")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(
            f"JOBDIR = {directory!r}: the file {path} cannot be written ({error.strerror}), which keeps the key of the "
            "filter for the crawl that goes on; use a directory that can be written to, or set SCHEDULER_DUPEFILTER_KEY"
        ) from None


def _refusal(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"JOBDIR = {str(path.parent)!r}: the file {path} {what}; write the key into it that the last crawl's log "
        "names, or set SCHEDULER_DUPEFILTER_KEY to it, or delete the file: the crawl then fetches pages again"
    )
