"""The events of a crawl, and when they happen."""

import threading
from collections.abc import Callable

Action = Callable[[str], object]


class Moments:
    """The events of a crawl, each when so many pages have been asked for, and how slow each page is.

    `when(number, action)` calls the action with the name of the worker that asks, before it is answered. Actions come
    one at a time, and an error in one is raised at the end by `check`.
    """

    def __init__(self, delay: float) -> None:
        self.asked = 0
        self._delay = delay
        self._actions: list[tuple[int, Action]] = []
        self._errors: list[Exception] = []
        self._lock = threading.Lock()
        self._never = threading.Event()

    def when(self, number: int, action: Action) -> None:
        """Do something at the moment when a page is asked for as the one with this number, or as soon after."""
        self._actions.append((number, action))

    def __call__(self, worker: str) -> None:
        """A page is asked for."""
        with self._lock:
            self.asked += 1
            due = [action for number, action in self._actions if number <= self.asked]
            self._actions = [(number, action) for number, action in self._actions if number > self.asked]
            for action in due:
                self._act(action, worker)
        self._never.wait(self._delay)

    def _act(self, action: Action, worker: str) -> None:
        try:
            action(worker)
        except Exception as error:  # `check` raises it
            self._errors.append(error)

    def check(self) -> None:
        """Everything has happened, and went well."""
        assert self._actions == []
        for error in self._errors:
            raise error
