"""The interface of all transports."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from scrapy_bloom.transport.commands import Command, Failure
from scrapy_bloom.transport.failures import was_not_executed


class Transport(ABC):
    """Sends commands and returns replies. It never sends a command again that may have been executed.

    Attributes:
        connections: a number that grows with each new connection: behind it, the server may have lost its last writes.
    """

    connections: int

    @abstractmethod
    def attempt(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands once, and return for each its reply or a `Failure`.

        Commands on one node are executed in order, except where one is redirected to another node.
        """

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands once and return their replies; raise the first error among them."""
        outcomes = self.attempt(commands)
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                raise outcome.error
        return outcomes


def failed_round_trip(error: Exception, number: int) -> list[Any]:
    """Return the outcomes of a round trip of `number` commands that has failed as a whole.

    A refusal proves that one command was not executed; of several, others may have been.
    """
    return [Failure(error, is_in_doubt=number > 1 or not was_not_executed(error))] * number
