"""Print the changelog's section of a release: `python -m devtools.release_notes v0.1.0`.

Fails unless the tag is the version in pyproject.toml, and the section has a date.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def section(changelog: str, version: str) -> str:
    """Return the text of a release, with paragraphs and items on one line each, as GitHub shows releases.

    Raises:
        ValueError: the changelog has no dated section of this version.
    """
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n"
    found = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ValueError(
            f"CHANGELOG.md: has no text below a heading like '## {version} - 2026-01-31'; date the section"
        )
    # GitHub keeps the line breaks of a release's text.
    return re.sub(r"(?<=\S)\n +(?![-*] )(?=\S)", " ", found[1]).strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the section of a tag."""
    parser = argparse.ArgumentParser(prog="python -m devtools.release_notes", description="Print a release's changes.")
    parser.add_argument("tag", help="the tag of the release, such as v0.1.0")
    tag = parser.parse_args(arguments).tag
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        if tag != f"v{version}":
            raise ValueError(f"the tag {tag} is not the version {version} in pyproject.toml: tag v{version}")
        print(section((ROOT / "CHANGELOG.md").read_text(), version))
    except ValueError as error:
        sys.exit(f"release_notes: {error}")


if __name__ == "__main__":
    main()
