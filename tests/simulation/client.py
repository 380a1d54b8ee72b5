"""The clients of a simulated server: Redis client, queue, and filter store."""

from collections.abc import Callable
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError

from scrapy_bloom.queue.operations import QueueOperation, Reply, RequestQueue, Status
from scrapy_bloom.queue.queue_keys import QueueKeys, StartKeys
from scrapy_bloom.storage.operation import Operation as StoreOperation
from scrapy_bloom.storage.operation import Operations, Results
from scrapy_bloom.transport.failures import FAULTS
from tests.simulation.server import Server, TimedQueue
from tests.support.failed_results import failed
from tests.support.start_memory import StartMemory, StartScript

# Called with each operation on a queue or a filter that the server executes.
Listener = Callable[[str, object], None]


class Client:
    """A Redis client of one process: single commands, and scrapy-redis's pipelines."""

    def __init__(self, server: Server, slowness: float, **_: Any) -> None:
        self.server = server
        self.slowness = slowness

    def execute_command(self, *arguments: Any) -> Any:
        """Send one command, and return its reply."""
        reply = self._trip(lambda: self._carry_out(*arguments))
        if isinstance(reply, NoScriptError):
            raise reply
        return reply

    def _trip(self, *steps: Callable[[], Any]) -> Any:
        return self.server.round_trip("command", steps, self.slowness)[-1]

    def _carry_out(self, name: str, *arguments: Any) -> Any:
        method: Callable[..., Any] = getattr(self, f"_{name.lower()}")
        return method(*arguments)

    # The commands of scrapy-redis and the dupefilter.

    def ping(self) -> bool:
        return bool(self.execute_command("PING"))

    def zcard(self, key: str) -> int:
        return int(self.execute_command("ZCARD", key))

    def delete(self, *keys: str) -> int:
        return int(self.execute_command("DEL", *keys))

    def exists(self, key: str) -> int:
        return int(self.execute_command("EXISTS", key))

    def info(self) -> dict[str, Any]:
        return {"maxmemory": 0}

    def close(self) -> None:
        pass

    def llen(self, key: str) -> int:
        return int(self.execute_command("LLEN", key))

    def pipeline(self) -> "Pipeline":
        return Pipeline(self)

    # Their effects.

    def _queue(self, key: str) -> TimedQueue:
        return queue_at(self.server, key)

    def _ping(self) -> bool:
        return True

    def _zcard(self, key: str) -> int:
        return len(self._queue(key).queue)

    def _zadd(self, key: str, score: float, member: bytes) -> int:
        self._queue(key).queue[member] = score
        return 1

    def _exists(self, key: str) -> int:
        return int(key in self.server.data.filters.hashes)

    def _del(self, *keys: str) -> int:
        for key in keys:
            self._queue(key).queue.clear()
        return len(keys)

    def _hset(self, *_: Any) -> int:
        """Accept the flag of a shared queue, which the simulation ignores."""
        return 1

    def _llen(self, key: str) -> int:
        return len(self._start_urls(key).waiting)

    def _hkeys(self, key: str) -> list[bytes]:
        data = self.server.data
        for name, queue in data.queues.items():
            if key == QueueKeys(name).workers:
                return [worker.encode() for worker in queue.workers]
        return [field.encode() for field in self._leased(key)]

    def _hdel(self, key: str, *fields: str) -> int:
        return sum(self._leased(key).pop(field, None) is not None for field in fields)

    def _eval(self, text: str, count: int, *arguments: Any) -> list[Any]:
        self.server.scripts[sha1(text.encode(), usedforsecurity=False).hexdigest()] = text
        memory, operation = self._start_urls(arguments[0]), StartScript.of(text, arguments[count:])
        self.server.before(memory, operation)
        return memory.apply(operation)

    def _evalsha(self, digest: str, count: int, *arguments: Any) -> list[Any] | NoScriptError:
        text = self.server.scripts.get(digest)
        return NoScriptError("No matching script.") if text is None else self._eval(text, count, *arguments)

    def _start_urls(self, key: str) -> StartMemory:
        return self.server.data.start_urls.setdefault(key, StartMemory())

    def _leased(self, key: str) -> dict[str, bytes]:
        """Return the leased start URLs by the key of their hash."""
        start_urls = self.server.data.start_urls
        return next((urls.leased for name, urls in start_urls.items() if StartKeys(name).leased == key), {})


class Pipeline:
    """A transaction of scrapy-redis's queue, which takes the first entry."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def multi(self) -> None:
        pass

    def zrange(self, key: str, first: int, last: int) -> "Pipeline":
        assert (first, last) == (0, 0)
        self._key = key
        return self

    def zremrangebyrank(self, key: str, first: int, last: int) -> "Pipeline":
        assert (key, first, last) == (self._key, 0, 0)
        return self

    def execute(self) -> list[Any]:
        def take() -> list[Any]:
            queue = self._client._queue(self._key).queue
            first = min(((score, member) for member, score in queue.items()), default=None)
            if first is None:
                return [[], 0]
            del queue[first[1]]
            return [[first[1]], 1]

        found: list[Any] = self._client._trip(take)
        return found


class SimulatedQueue(RequestQueue):
    """The queue of a spider on a simulated server."""

    def __init__(self, client: Client, key: str, listen: Listener) -> None:
        super().__init__(client, key)
        self._client = client
        self._listen = listen

    def execute(self, operation: QueueOperation) -> Reply:
        """Execute an operation."""
        return self._client._trip(lambda: self._apply(operation))  # type: ignore[no-any-return]

    def _apply(self, operation: QueueOperation) -> Reply:
        memory = queue_at(self._client.server, self.keys.queue)
        self._client.server.before(memory, operation)
        answer = memory.apply(operation)
        told = f"{self.keys.queue}: {answer.status}, {answer.waiting} waiting, took {len(answer.entries)}"
        if answer.status in (Status.EXPIRED, Status.WAIT):
            told += f", registered: {', '.join(map(memory.described, memory.workers)) or 'nobody'}"
        self._listen(told, operation)
        return answer


class SimulatedStore:
    """The store of a filter on a simulated server."""

    def __init__(self, client: Client, listen: Listener) -> None:
        self._client = client
        self._listen = listen

    def execute(self, operations: Operations) -> Results:
        """Execute operations in one round trip."""
        steps = [lambda operation=operation: self._apply(operation) for operation in operations]
        try:
            results = Results(self._client.server.round_trip("filter", steps, self._client.slowness))
        except FAULTS as error:
            return failed(error, len(operations))
        results.contact = self._client.server.incarnation
        return results

    def _apply(self, operation: StoreOperation[Any]) -> Any:
        memory = self._client.server.data.filters
        self._client.server.before(memory, operation)
        result = operation.apply(memory)
        self._listen("filter", operation)
        return result


def queue_at(server: Server, key: str) -> TimedQueue:
    """Return the queue at a key, a new one if it is missing."""
    return server.data.queues.setdefault(key, TimedQueue(server._hub))
