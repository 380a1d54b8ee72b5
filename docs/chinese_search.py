"""Index the Chinese site for its search.

Chinese has no spaces between words, and Sphinx leaves its text out of the index unless a dictionary splits it. Pairs of
neighboring characters need no dictionary: a page is found by each part of its text. With Sphinx 9.0 the search of a
Chinese site does not even start, because it calls a ChineseStemmer that does not exist.
"""

import re

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish


class ChineseSearch(SearchEnglish):
    """Words of Latin letters, stemmed as English, and pairs of Chinese characters."""

    lang = "zh"
    # The same as `split`, for the query.
    js_splitter_code = r"""
var splitQuery = function (query) {
  return (query.match(/[\u3400-\u9fff]+|[A-Za-z0-9_]+/g) || []).flatMap(function (word) {
    if (word.length === 1 || !/[\u3400-\u9fff]/.test(word)) return [word];
    return Array.from(word.slice(1), function (second, index) { return word[index] + second; });
  });
};
"""

    def split(self, input: str) -> list[str]:  # noqa: A002
        """Return the words and the pairs of a text."""
        words = re.findall(r"[A-Za-z0-9_]+", input)
        runs = re.findall(r"[\u3400-\u9fff]+", input)
        return words + [run[start : start + 2] for run in runs for start in range(max(len(run) - 1, 1))]


def setup(app: Sphinx) -> dict[str, bool]:
    """Replace Sphinx's Chinese search."""
    app.add_search_language(ChineseSearch)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
