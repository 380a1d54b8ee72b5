"""The wheel holds the package alone, with the metadata of pyproject.toml."""

import email
import re
import subprocess
import sys
import tomllib
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INFO = f"scrapy_bloom-{PROJECT['version']}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """The wheel of this checkout."""
    made = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", f"{made}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = made.iterdir()
    return ZipFile(path)


def metadata(wheel: ZipFile, file: str) -> Message:
    """Return one of the wheel's metadata files."""
    return email.message_from_string(wheel.read(f"{INFO}/{file}").decode())


def test_contents(wheel: ZipFile) -> None:
    """The wheel has every file of the package, with that which announces its types, and no other, none compiled."""
    package = {path for path in (ROOT / "scrapy_bloom").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    described = {f"{INFO}/{file}" for file in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert set(wheel.namelist()) == {f"{path.relative_to(ROOT)}" for path in package} | described
    assert "scrapy_bloom/py.typed" in wheel.namelist()
    assert metadata(wheel, "WHEEL")["Tag"] == "py3-none-any"


def test_readme_of_an_index(wheel: ZipFile) -> None:
    """An index shows the README with links to the files of the release's tag, and to the bytes of its pictures."""
    shown = str(metadata(wheel, "METADATA").get_payload())
    source, tag = PROJECT["urls"]["Source"], f"v{PROJECT['version']}"
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]+)\)", shown)
    assert {kind for kind, _ in links} == {"!", ""}
    for kind, link in links:
        prefix = f"{source}/{'raw' if kind else 'blob'}/{tag}/"
        assert link.startswith(prefix)
        assert (ROOT / link.removeprefix(prefix).partition("#")[0]).is_file(), link
    assert re.sub(rf"{source}/(raw|blob)/{tag}/", "", shown) == (ROOT / "README.md").read_text()


def test_requirements(wheel: ZipFile) -> None:
    """The wheel requires exactly the imported packages, each with a minimum version; its extras are for users."""
    said = metadata(wheel, "METADATA")
    every = [Requirement(text) for text in said.get_all("Requires-Dist", [])]
    ours = {"scrapy>=2.13", "scrapy-redis>=0.9.1", "redis>=6", "hiredis>=3", "mmh3>=5", "msgpack>=1.1", "tqdm>=4.66"}
    assert {f"{each}" for each in every if each.marker is None} == ours
    assert said.get_all("Provides-Extra") == ["embedded"]
