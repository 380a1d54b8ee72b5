"""Run steps over a store: on a server, with retries while it is unreachable, or in this process's memory."""

import time
from collections.abc import Callable

from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.errors import SETTING_NAMES, Names, RefusedError, UnavailableError, WrongTypeError
from scrapy_bloom.storage.operation import Operations, Results, Steps, Store, T, delete_expired
from scrapy_bloom.transport.client import Client, transport_for
from scrapy_bloom.transport.commands import Failure
from scrapy_bloom.transport.retry import retry_until


class RedisStore:
    """Sends each operation as one command."""

    def __init__(self, client: Client) -> None:
        self._transport = transport_for(client)

    def execute(self, operations: Operations) -> Results:
        """Execute operations, and note the failed ones in `failures`.

        Raises:
            WrongTypeError: a reply is not UTF-8, as all text of a filter is.
        """
        try:
            outcomes = self._transport.attempt([operation.command() for operation in operations])
        except UnicodeDecodeError:
            raise WrongTypeError(
                "a key of the filter holds bytes that are not UTF-8, which no filter stores: use another key"
            ) from None
        if Failure in map(type, outcomes):
            results = Results(outcomes)
            results.failures = {index: each for index, each in enumerate(outcomes) if isinstance(each, Failure)}
            for index, operation in enumerate(operations):
                if index not in results.failures:
                    results[index] = operation.parse_reply(outcomes[index])
        else:
            results = Results([operation.parse_reply(raw) for operation, raw in zip(operations, outcomes, strict=True)])
        results.contact = self._transport.connections
        return results


class RetryingStore:
    """Retries failed operations on another store for up to `timeout` seconds, which may change.

    Errors use the user's `names`.
    """

    def __init__(self, store: Store, timeout: float, names: Names = SETTING_NAMES, runtime: Runtime = RUNTIME) -> None:
        self.timeout = timeout
        self._names = names
        self._runtime = runtime
        self._store = store
        # A proxy may keep our connection while the server behind it changes: each fault counts as
        # an interruption.
        self._faults = 0

    def execute(self, operations: Operations) -> Results:
        """Execute operations, and the failed ones again.

        Raises:
            UnavailableError, RefusedError: some operations have failed. The error's `outcomes` are all results so far.
        """
        results: Results | None = None

        def attempt() -> Results:
            nonlocal results
            if results is None:
                results = self._store.execute(operations)
            else:
                results.replace_failures(self._store.execute([operations[index] for index in results.failures]))
            if results.failures:
                self._faults += 1
                raise next(iter(results.failures.values())).error
            results.contact += self._faults
            return results

        try:
            return retry_until(attempt, self.timeout, self._names, self._runtime)
        except (RefusedError, UnavailableError) as error:  # of the last attempt, whose failures are in the results
            error.outcomes = results
            raise


class MemoryStore:
    """Executes operations on this process's memory; `now` is any clock in seconds.

    It serves `MemoryBloomFilter`, the search of the filter's steps and the simulation. The queue has no such store:
    only its tests need one.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.hashes: dict[str, dict[str, str]] = {}
        self.strings: dict[str, bytearray] = {}
        self.expiries: dict[str, int] = {}
        self._now = now

    def now(self) -> float:
        """Return the clock's time in seconds."""
        return self._now()

    def execute(self, operations: Operations) -> Results:
        """Execute operations in order, as one atomic step."""
        delete_expired(self)
        return Results(operation.apply(self) for operation in operations)


def run_steps(steps: Steps[T], execute: Callable[[Operations], Results]) -> T:
    """Run steps with `execute`, and return their result."""
    results: Results | None = None
    while True:
        try:
            operations = steps.send(results)  # type: ignore[arg-type]  # the first value sent is None
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # T, which StopIteration does not know
        results = execute(operations)
