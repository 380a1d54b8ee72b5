"""Open every page of the built site in headless Chromium, on a wide and on a narrow screen: `make browse`.

A fault is a failed request, a picture that is not shown, a link to a page or heading that does not exist, an error in
the console, or an element wider than the screen. Exit codes: 0 without a fault, 1 with one.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from playwright.sync_api import Browser, Page, Response, sync_playwright
from tqdm import tqdm

from devtools.crawl_process import ROOT
from devtools.site import serving_directory

_WIDTHS = (1280, 360)
_HEIGHT = 800
_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
_LOOK = """() => ({
    ids: [...document.querySelectorAll('[id]')].map(each => each.id),
    links: [...document.querySelectorAll('a[href]')].map(each => each.href),
    unseen: [...document.images].filter(each => !each.complete || !each.naturalWidth).map(each => each.src),
    wide: [...document.querySelectorAll('body *')].filter(
        each => each.getBoundingClientRect().right > innerWidth + 1
            && getComputedStyle(each).position !== 'fixed' && !each.closest('.highlight, .table-wrapper, aside')
    ).slice(0, 1).map(each => `<${each.tagName.toLowerCase()}> ${each.textContent.trim().slice(0, 40)}`),
})"""


class Look(TypedDict):
    """A page as the browser shows it: ids, links, hidden pictures, and an element beyond its right edge.

    Code and tables scroll by themselves; the sidebars are beyond the edge of a narrow screen until they are opened.
    """

    ids: list[str]
    links: list[str]
    unseen: list[str]
    wide: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Open the pages, print the faults, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m devtools.browse", description=__doc__)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "docs", help="the built site (%(default)s)")
    parser.add_argument(
        "--chromium", default=os.environ.get("CHROMIUM") or shutil.which("chromium"), help="its program"
    )
    options = parser.parse_args(arguments)
    if options.chromium is None:
        parser.error("--chromium: no chromium on PATH; install Debian's package or name the program")
    names = sorted(str(path.relative_to(options.directory)) for path in options.directory.rglob("*.html"))
    if not names:
        parser.error(f"--directory {options.directory}: holds no page; run `make docs`")
    with serving_directory(options.directory) as url, _chromium(options.chromium) as browser:
        found = list(faults(browser, url, options.directory, names))
    print(*found, sep="\n")
    print(f"{len(names)} pages at {' and '.join(map(str, _WIDTHS))} pixels: {len(found)} faults")
    return 1 if found else 0


@contextmanager
def _chromium(program: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def faults(browser: Browser, url: str, directory: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield the faults of the pages in a directory that is served at a URL."""
    looks: dict[str, Look] = {}
    for width in _WIDTHS:
        for name in tqdm(names, unit=" pages", disable=None, leave=False):
            with browser.new_page(viewport={"width": width, "height": _HEIGHT}) as page:
                reported = _listen(page)
                page.goto(f"{url}/{name}")
                looks[name] = page.evaluate(_LOOK)
            reported += [f"{source} is not shown" for source in looks[name]["unseen"]]
            reported += [f"wider than the screen: {element}" for element in looks[name]["wide"]]
            yield from (f"{name} at {width} pixels: {fault}" for fault in reported)
    for name in names:
        for link in dict.fromkeys(looks[name]["links"]):
            target, _, fragment = link.removeprefix(f"{url}/").partition("#")
            path = f"{target}index.html" if target.endswith("/") or not target else target
            exists = fragment in looks[path]["ids"] if fragment and path in looks else (directory / path).is_file()
            if link.startswith(url) and not exists:
                yield f"{name}: {target}#{fragment} does not exist"


def _listen(page: Page) -> list[str]:
    """Return a list to which a page's failed requests and errors are added."""
    reported: list[str] = []

    def report_status(response: Response) -> None:
        if not response.ok:
            reported.append(f"{response.url} returned {response.status}")

    page.on("response", report_status)
    page.on("requestfailed", lambda request: reported.append(f"{request.url} failed"))
    page.on("pageerror", lambda error: reported.append(f"{error}"))
    return reported


if __name__ == "__main__":
    sys.exit(main())
