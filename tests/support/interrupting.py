"""Ctrl-C at a chosen moment of a call, in our code and in redis-py's."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupted:
    """One call, with Ctrl-C at its `moment`th place; `ended` if that place was never reached.

    `is_raised` says whether KeyboardInterrupt came out of the call, from `place`. Otherwise the call returned `answer`:
    Python ignores exceptions raised while a generator is closed.

    A place is the start of a function, or of a line further down in it. At the end of a `with` block its first line
    starts again: an interrupt there would keep a lock, and Python handles no signal there.
    """

    def __init__(self, call: Callable[[], Any], moment: int) -> None:
        self.answer: Any = None
        self.is_raised = False
        self.place = ""
        self._left = moment
        self._lines: dict[int, int] = {}
        # The interpreter needs it for longer than it refers to it.
        self._tracer = self._trace
        tracing = sys.gettrace()
        sys.settrace(self._tracer)
        try:
            self.answer = call()
        except KeyboardInterrupt:
            self.is_raised = True
        finally:
            sys.settrace(tracing)

    @property
    def ended(self) -> bool:
        """True if the call had fewer places."""
        return self._left > 0

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event not in {"call", "line"}:
            return self._tracer
        line = frame.f_lineno if event == "line" else 0
        if event == "call" or line > self._lines.get(id(frame), 0):
            self._left -= 1
        self._lines[id(frame)] = line
        if self._left == 0:
            self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            # That ends the tracing, too.
            raise KeyboardInterrupt
        return self._tracer
