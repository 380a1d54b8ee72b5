"""The events of a crawl, and their moments."""

import threading
from collections.abc import Callable

Action = Callable[[str], object]


class Moments:
    """The events of a crawl, each at a number of requested pages, and the delay of each page.

    `when(number, action)` calls the action with the name of the requesting worker, before the response. Actions run one
    at a time, and `check` raises their errors at the end.
    """

    def __init__(self, delay: float) -> None:
        self.asked = 0
        self.delay = delay
        self._actions: list[tuple[int, Action]] = []
        self._errors: list[Exception] = []
        self._lock = threading.Lock()
        self._never = threading.Event()

    def when(self, number: int, action: Action) -> None:
        """Call an action when the page with this number is requested, or as soon after as possible."""
        self._actions.append((number, action))

    def __call__(self, worker: str) -> None:
        """Handle the request of a page."""
        with self._lock:
            self.asked += 1
            due = [action for number, action in self._actions if number <= self.asked]
            self._actions = [(number, action) for number, action in self._actions if number > self.asked]
            for action in due:
                self._act(action, worker)
        self._never.wait(self.delay)

    def _act(self, action: Action, worker: str) -> None:
        try:
            action(worker)
        except Exception as error:  # `check` raises it
            self._errors.append(error)

    def check(self) -> None:
        """Assert that every event has happened, without errors."""
        assert self._actions == []
        for error in self._errors:
            raise error
