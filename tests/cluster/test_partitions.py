"""Workers follow 200,000 links in six partitions of a cluster whose master dies, or whose slots move."""

import multiprocessing
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from threading import Event
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import CloseSpider, DontCloseSpider

from scrapy_bloom import BloomScheduler
from tests.cluster.test_faults import reshard_and_kill
from tests.support.clusters import Cluster, kill, replicated_cluster, reshard
from tests.support.in_process import crawl_settings, start
from tests.support.outcomes import tell
from tests.support.waiting import until

LINKS = 200_000
FANOUT = 5
SITE = "https://example.com/"
WORKERS = 3
SETTINGS = {"BLOOMFILTER_PARTITIONS": 6, "BLOOMFILTER_CAPACITY": LINKS}
CONTEXT = multiprocessing.get_context("spawn")


def follow(url: str, key: str, progress: Any, pipe: Any) -> None:
    """Follow the links of a tree as an engine would, and send the pages, and whether a loss was reported."""
    crawler = start({**crawl_settings(url, key), **SETTINGS})
    scheduler, pages, is_told = BloomScheduler.from_crawler(crawler), list[int](), False
    scheduler.open(crawler.spider)
    scheduler.enqueue_request(Request(SITE + "0"))
    while True:
        request = scheduler.next_request()
        if request is not None:
            pages.append(page := int(request.url.removeprefix(SITE)))
            for link in range(page * FANOUT + 1, min(page * FANOUT + 1 + FANOUT, LINKS)):
                scheduler.enqueue_request(Request(f"{SITE}{link}"))
            progress.value = len(pages)
        elif not scheduler.has_pending_requests():
            try:
                scheduler._spider_idle()
                break
            except DontCloseSpider:
                Event().wait(0.02)
            except CloseSpider:
                is_told = True
                break
    scheduler.close("finished")
    scheduler._disconnect()
    pipe.send((pages, is_told))


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("fault", [kill, reshard, reshard_and_kill], ids=lambda fault: fault.__name__)
def test_links(fault: Callable[[Cluster, str], None], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No page is missed in silence."""
    with replicated_cluster("valkey") as cluster:
        progress = [CONTEXT.Value("i", 0) for _ in range(WORKERS)]
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(WORKERS)]
        workers = [
            CONTEXT.Process(target=follow, args=(cluster.url, key, each, pipe), daemon=True)
            for each, (_, pipe) in zip(progress, pipes, strict=True)
        ]
        for worker, (_, pipe) in zip(workers, pipes, strict=True):
            worker.start()
            pipe.close()
        until(lambda: sum(each.value for each in progress) > LINKS // 3)
        fault(cluster, f"{{{key}}}")
        at_its_end = sum(each.value for each in progress)
        reports = [pipe.recv() for pipe, _ in pipes]  # EOFError: a worker has failed
        for worker in workers:
            worker.join()
        with closing(cluster.client()) as client:
            left = client.dbsize(target_nodes=client.PRIMARIES)
    followed = Counter(page for pages, _ in reports for page in pages)
    missed, twice = LINKS - len(followed), followed.total() - len(followed)
    is_told = any(is_told for _, is_told in reports)
    tell(capsys, f"{LINKS:,} links, {fault.__name__}: {missed} missed, told: {is_told}, {twice} followed twice")
    assert at_its_end < LINKS
    assert missed == 0 or is_told
    assert left == 0
