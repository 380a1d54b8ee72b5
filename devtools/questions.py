"""Search the built site for the questions of its readers: `make docs`.

Each question and each term, in both languages, must find its page or the FAQ among the first ten results, and the index
must link to it. `python -m devtools.questions QUERY` prints the results of a query, in Chinese or in English.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from sphinx.search import SearchLanguage
from sphinx.search.en import SearchEnglish

ROOT = Path(__file__).parents[1]
_SITE = ROOT / "build/docs"
_FIRST = 10
_FAQ = "faq"
# Scores of Sphinx's searchtools.js.
_TITLE, _PARTIAL_TITLE, _TERM, _PARTIAL_TERM = 15, 7, 5, 2
_SHORT = 2


class Asked(NamedTuple):
    """A query in both languages, and the page with the answer."""

    english: str
    chinese: str
    page: str


# As asked in issues of scrapy-redis and scrapy-redis-bloomfilter, and on sites of questions.
QUESTIONS = (
    Asked("the program does not close automatically", "爬虫不会自动关闭", "start-requests"),
    Asked("incremental crawl only new pages", "增量爬取 列表页每次都抓", "incremental"),
    Asked("remove specific url from dupefilter set", "从去重集合中删除 URL", "recrawl"),
    Asked("send request again dont_filter", "dont_filter 不起作用", "recrawl"),
    Asked("two different crawlers use one same dupefilter", "多个爬虫共享去重", "sharing"),
    Asked("two projects same spider name", "两个项目 同名爬虫", "sharing"),
    Asked("redis memory too large", "redis 内存 太大", "capacity"),
    Asked("512 MB limit", "512 MB 限制", "capacity"),
    Asked("change the capacity", "增加容量 去重数据", "capacity"),
    Asked("start_urls duplicate", "start_urls 去重", "start-requests"),
    Asked("won't crawl after resume", "断点续爬 什么都不抓", "resume"),
    Asked("redis cluster sentinel", "redis 集群 哨兵", "connect"),
    Asked("splash playwright dupefilter", "splash playwright 去重", "integrations"),
    Asked("slow because redis is far away", "redis 离得远 慢", "performance"),
    Asked("windows macos", "windows macos", "integrations"),
)
TERMS = (
    Asked("duplicate", "去重", "faq"),
    Asked("dedupe", "去重记录", "resume"),
    Asked("deduplication", "去重过滤器", "how-it-works"),
    Asked("incremental", "增量爬取", "incremental"),
    Asked("resume", "断点续爬", "resume"),
    Asked("pause", "暂停", "resume"),
    Asked("clear dupefilter", "清空去重", "resume"),
    Asked("flush", "清空队列", "resume"),
    Asked("idle", "空跑", "start-requests"),
    Asked("close spider", "自动关闭", "start-requests"),
    Asked("shared dupefilter", "共享去重", "sharing"),
    Asked("same spider name", "同名爬虫", "sharing"),
    Asked("memory of redis", "内存", "capacity"),
    Asked("512 MB", "512M 限制", "faq"),
    Asked("false positive", "误判率", "capacity"),
    Asked("false positive rate", "假阳性", "how-it-works"),
    Asked("sentinel", "哨兵", "connect"),
    Asked("replica", "主从", "faq"),
    Asked("cluster", "集群", "connect"),
    Asked("expire", "过期", "recrawl"),
    Asked("fingerprint", "指纹", "fingerprints"),
    Asked("query string", "URL 参数", "faq"),
    Asked("POST", "POST 去重", "faq"),
    Asked("priority", "优先级", "faq"),
    Asked("breadth-first DFS", "深度优先 广度优先", "faq"),
    Asked("lost requests", "丢请求", "how-it-works"),
    Asked("at-least-once", "至少一次", "how-it-works"),
    Asked("kill -9 OOM", "强制结束 OOM", "faq"),
    Asked("splash", "splash", "integrations"),
    Asked("playwright", "playwright", "integrations"),
    Asked("pickle MessagePack", "pickle", "security"),
    Asked("windows", "windows", "integrations"),
)


class Index:
    """The index of a built site, searched as searchtools.js does."""

    def __init__(self, site: Path, language: SearchLanguage) -> None:
        text = (site / "searchindex.js").read_text(encoding="utf-8")
        self._index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
        self._language = language
        self.linked = set(re.findall(r'href="([\w-]+)\.html', (site / "index.html").read_text(encoding="utf-8")))

    def pages(self, query: str) -> list[str]:
        """Return the pages that a query finds, the best one first."""
        words = {
            self._language.stem(word.lower())
            for word in self._language.split(query)
            if word.lower() not in self._language.stopwords and not word.isdecimal()
        }
        scores = [dict(self._scores(word)) for word in words]
        long = sum(len(word) > _SHORT for word in words)
        best: dict[int, float] = {}
        for page in {page for found in scores for page in found}:
            found = [each[page] for each in scores if page in each]
            if len(found) in (len(words), long):
                best[page] = max(found)
        for title, places in self._index["alltitles"].items():
            if query.lower() in title.lower() and len(query) >= len(title) / 2:
                for page, _ in places:
                    best[page] = max(best.get(page, 0), _TITLE * len(query) / len(title))
        titles = self._index["titles"]
        ranked = sorted(best, key=lambda page: (-best[page], titles[page].lower()))
        return [self._index["docnames"][page] for page in ranked]

    def _scores(self, word: str) -> Iterator[tuple[int, int]]:
        """Yield the pages with a word, each with a score, the better ones last."""
        for scored, partial in ((self._index["terms"], _PARTIAL_TERM), (self._index["titleterms"], _PARTIAL_TITLE)):
            if len(word) > _SHORT and word not in scored:
                for term in scored:
                    if word in term:
                        yield from ((page, partial) for page in _list(scored[term]))
        for scored, exact in ((self._index["terms"], _TERM), (self._index["titleterms"], _TITLE)):
            yield from ((page, exact) for page in _list(scored.get(word, [])))


def _list(pages: int | list[int]) -> list[int]:
    return [pages] if isinstance(pages, int) else pages


def indexes() -> tuple[Index, Index]:
    """Return the index of the English site and the one of the Chinese site."""
    sys.path.insert(0, str(ROOT / "docs"))
    from chinese_search import ChineseSearch  # type: ignore[import-not-found]  # noqa: PLC0415  # of docs/conf.py

    languages = (SearchEnglish({}), cast("SearchLanguage", ChineseSearch({})))
    english, chinese = languages
    return Index(_SITE, english), Index(_SITE / "zh-cn", chinese)


def main(queries: Sequence[str]) -> int:
    """Print the results of queries, or the questions and terms that do not find their page."""
    english, chinese = indexes()
    if queries:
        for query in queries:
            print(query, *(chinese if re.search(r"[\u3400-\u9fff]", query) else english).pages(query), sep="\n  ")
        return 0
    failed = [
        f"{query!r} does not find {asked.page}: {', '.join(found) or 'nothing'}"
        for asked in (*QUESTIONS, *TERMS)
        for index, query in ((english, asked.english), (chinese, asked.chinese))
        if {asked.page, _FAQ}.isdisjoint(found := index.pages(query)[:_FIRST]) or asked.page not in index.linked
    ]
    print(*failed, f"{len(QUESTIONS)} questions and {len(TERMS)} terms: {len(failed)} without their page", sep="\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
