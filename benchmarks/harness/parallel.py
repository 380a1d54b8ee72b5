"""Spread measurements of counts, not of time, over the cores."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.harness.report import say

Task = TypeVar("Task")
Result = TypeVar("Result")


def spread(measure: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """Return the results of `measure` in the order of the tasks; put the longest task first."""
    results = []
    # Leaving the pool kills its processes at once.
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for task, result in zip(tasks, pool.imap(measure, tasks), strict=True):
            results.append(result)
            say(f"  {len(results)} of {len(tasks)}: {task}")
    return results
