"""Whether filters keep their error rate over a cluster of three masters.

The fillings are those of `promise` over one server, and in processes.
"""

from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.suites import promise
from benchmarks.suites.cluster import MASTERS
from devtools.clusters import running_cluster


def run(_: Asked) -> list[Plot]:
    """Fill in every way over a cluster; print the measured error rates."""
    with running_cluster("valkey", MASTERS) as cluster:
        promise.print_found(promise.fill_over(f"{MASTERS} masters", cluster.url))
    return []
