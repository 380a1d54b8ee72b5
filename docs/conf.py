"""Sphinx builds the site from the pages of this folder, in English and in Chinese: `make docs`."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from devtools.catalogues import COMMENT  # noqa: E402

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_SOURCE = _PROJECT["urls"]["Source"]

project = _PROJECT["name"]
version = release = _PROJECT["version"]
html_title = project
html_theme = "furo"
html_theme_options = {"source_repository": _SOURCE, "source_branch": "main", "source_directory": "docs/"}
html_copy_source = False
html_use_index = False  # the search finds names, and its table is too wide for narrow screens
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
templates_path = ["_templates"]
# The sidebar of the theme, with the link to the page in the other language.
html_sidebars = {
    "**": [
        f"sidebar/{part}.html" for part in ("brand", "languages", "search", "scroll-start", "navigation", "scroll-end")
    ]
}

# The Chinese texts: a catalogue for each page.
locale_dirs = ["locale"]
gettext_compact = False
# A translated link to a heading of its own page resolves, and warns. Tests compare the targets of all links.
suppress_warnings = ["i18n.inconsistent_references"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "chinese_search"]
# Links to headings, as GitHub makes them.
myst_heading_anchors = 4
# `repository:` leads to a file outside this folder. The catalogues have these links without an address.
myst_url_schemes = {"http": None, "https": None, "repository": f"{_SOURCE}/blob/main/{{{{path}}}}#{{{{fragment}}}}"}

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
# A name in single backticks is code.
default_role = "code"
nitpicky = True
# Classes of other packages, whose inventories would need a network, and internal ones.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|scrapy|redis)\..+|DropItem|RedisUnreachableError"),
    ("py:.*", r"scrapy_bloom\.\w+\..+"),
]


# The pages of this section of the index are for contributors, and not in the sidebar.
_INTERNALS = "Internals"


def _sections(index: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of the index, each with the pages of its links."""
    for section in index.split("\n## ")[1:]:
        yield section.partition("\n")[0], re.findall(r"\]\(([\w-]+)\.md\)", section)


def _add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Make a table of contents of each section of the index, in the order of its links."""
    listed: set[str] = set()
    for caption, links in _sections((Path(app.srcdir) / "index.md").read_text(encoding="utf-8")):
        pages = [each for each in dict.fromkeys(links) if each not in listed]
        listed.update(pages)
        if page == "index" and caption != _INTERNALS:
            source[0] += "\n".join(("\n```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""))
        elif page in pages and caption == _INTERNALS:
            source[0] = f"---\norphan: true\n---\n{source[0]}"


def _hide_keywords(_: Sphinx, __: str, source: list[str]) -> None:
    """Make the comment with a page's keywords, other words of its readers, a hidden text that the search finds."""
    source[0] = re.sub(r"<!-- keywords: (.+?) -->", r"```{container} keywords\n\1\n```", source[0], flags=re.DOTALL)


def _translate_comments(app: Sphinx, _: str, source: list[str]) -> None:
    """Replace the comments in code on the Chinese site, since catalogues leave code out. No heading is one of them."""
    if app.config.language == "zh_CN":
        chinese = tomllib.loads((Path(app.srcdir) / "locale/zh_CN/comments.toml").read_text(encoding="utf-8"))
        source[0] = COMMENT.sub(lambda found: f"{found[1]}{chinese.get(found[2], found[2])}", source[0])


def _link_to_repository(_: Sphinx, __: str, source: list[str]) -> None:
    """Lead links to files outside this folder to the repository."""
    source[0] = source[0].replace("](../", "](repository:")


def setup(app: Sphinx) -> None:
    """Register the changes of a page's text before it is parsed."""
    app.connect("source-read", _add_contents)
    app.connect("source-read", _hide_keywords)
    app.connect("source-read", _translate_comments)
    app.connect("source-read", _link_to_repository)
