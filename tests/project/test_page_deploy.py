"""The pages' containers, manifests and units: run without their platform where that is possible, else parsed.

A process stands for a container: it has the environment, the command and the signal of the Dockerfile.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

from devtools.crawl_process import LIMIT, Process
from devtools.site import Site, serving
from scrapy_bloom.queue.keys import QueueKeys
from tests.project.test_start import SPIDER
from tests.support import command, forked
from tests.support.documentation import IMPOLITE, blocks
from tests.support.pages import linked
from tests.support.servers import Server, running

PAGES = 60
# A page in the middle of a crawl.
MIDDLE = "/page/20"
QUEUE = "news:requests"
SCRIPTS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
# Of https://docs.docker.com/reference/dockerfile/.
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "STOPSIGNAL", "ENTRYPOINT"}
# Of systemd.unit(5), systemd.service(5), systemd.exec(5) and systemd.timer(5).
DIRECTIVES = {
    "Service": {"Type", "WorkingDirectory", "EnvironmentFile", "ExecStart"},
    "Timer": {"OnActiveSec", "OnUnitActiveSec", "AccuracySec"},
    "Install": {"WantedBy"},
}


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments."""
    (block,) = blocks("deploy.md", "dockerfile")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in block.splitlines()]


class Container:
    """A project with the page's settings, and the command of the Dockerfile."""

    def __init__(self, directory: Path, server: Server, site: Site) -> None:
        instructions = dict(dockerfile())
        self._command = json.loads(instructions["ENTRYPOINT"])
        self._signal = signal.Signals[instructions["STOPSIGNAL"]]
        self._environment = {**os.environ, "REDIS_URL": server.url}
        self._directory = command.make_project(directory / "crawler")
        (settings,) = (block for block in blocks("deploy.md", "python") if "ADDONS" in block)
        with (self._directory / "project" / "settings.py").open("a") as file:
            file.write(settings + IMPOLITE)
        (self._directory / "project" / "spiders.py").write_text(f"{SPIDER}    start_urls = ['{site.url}/']\n")

    @contextmanager
    def started(self, command: Sequence[str] = ()) -> Iterator[Process]:
        """Start the Dockerfile's or another command, and kill it at the end of the block if it still runs."""
        program, *arguments = command or self._command
        assert program == "scrapy"
        with (self._directory / "log").open("wb") as log:
            process = forked.start(arguments, self._directory, self._environment, log, log)
        try:
            yield process
        finally:
            process.kill()

    def stop(self, process: Process) -> None:
        """Send the signal of the Dockerfile."""
        process.send_signal(self._signal)


def test_stopped_container(tmp_path: Path) -> None:
    """A stopped container exits with 0 and leaves its requests in the queue; the next one completes the crawl."""
    with running("valkey") as server, server.client() as client, serving(linked(PAGES)) as site:
        container = Container(tmp_path, server, site)
        with container.started() as process:
            site.on[MIDDLE] = lambda _: container.stop(process)
            assert process.wait(LIMIT) == 0
        site.on.clear()
        assert client.zcard(QUEUE) > 0
        assert [field for field in client.hkeys(QueueKeys(QUEUE).crawl) if field.startswith(b"@")] == []
        with container.started() as process:
            assert process.wait(LIMIT) == 0
        assert {path for _, path in site.fetched} >= {*site.links}


def test_dockerfile() -> None:
    """Each line is an instruction that Docker knows; the command is a list, so that no shell gets the signal."""
    instructions = dockerfile()
    assert {name for name, _ in instructions} == INSTRUCTIONS
    arguments = dict(instructions)
    assert isinstance(json.loads(arguments["ENTRYPOINT"]), list)
    (wheel, build, run), *_ = (map(shlex.split, block.splitlines()) for block in blocks("deploy.md", "bash"))
    assert f"{wheel[wheel.index('--wheel-dir') + 1]}/*.whl" in arguments["RUN"].split()
    assert build[build.index("--tag") + 1] == run[-1]


def manifests() -> list[dict[str, Any]]:
    """Return the blocks of YAML on the page of deployments."""
    return [yaml.safe_load(block) for block in blocks("deploy.md", "yaml")]


def test_manifests() -> None:
    """The Deployment with the probe is valid by Kubernetes' schema, and agrees with the Secret."""
    workers, probe = manifests()
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    container |= probe
    kubernetes_validate.validate(workers, kubernetes_validate.latest_version(), strict=True)
    assert workers["spec"]["selector"]["matchLabels"] == workers["spec"]["template"]["metadata"]["labels"]
    (secret,) = (shlex.split(block) for block in blocks("deploy.md", "bash") if "secret" in block)
    reference = {"name": secret[4], "key": secret[5].partition("=")[2].partition("=")[0]}
    assert {"name": "REDIS_URL", "valueFrom": {"secretKeyRef": reference}} in container["env"]


def units() -> dict[str, list[tuple[str, str]]]:
    """Return the directives of each section of the pages' units."""
    found: dict[str, list[tuple[str, str]]] = {}
    for block in blocks("monitoring.md", "ini"):
        for name, lines in re.findall(r"^\[(\w+)\]\n((?:.+\n)*)", block, re.MULTILINE):
            found.setdefault(name, []).extend(re.findall(r"^(\w+)=(.*)$", lines, re.MULTILINE))
    return found


def metrics() -> list[str]:
    """Return the commands of the service that writes the metrics."""
    return [value for name, value in units()["Service"] if name == "ExecStart"]


def test_units(tmp_path: Path) -> None:
    """The units have directives that systemd knows, and the service's commands write the metrics."""
    assert {section: {*dict(directives)} for section, directives in units().items()} == DIRECTIVES
    target = "/var/lib/node_exporter"
    with running("valkey") as server:
        project = command.make_project(tmp_path / "crawler", REDIS_URL=server.url)
        for line in metrics():
            words = shlex.split(line.replace(target, str(tmp_path)).replace("/srv/crawler/.venv/bin/", ""))
            assert Path(words[0]).is_absolute()
            subprocess.run(words, cwd=project, env={**os.environ, "PATH": SCRIPTS}, check=True)
    written = [path for path in tmp_path.iterdir() if path.is_file()]
    assert [path.suffix for path in written] == [".prom"]
    assert "scrapy_bloom_exists" in written[0].read_text()


def test_alerts() -> None:
    """The rules have Prometheus' fields, and the file in an expression is the service's."""
    (block,) = blocks("monitoring.md", "yaml")
    (group,) = yaml.safe_load(block)["groups"]
    assert {*group} == {"name", "rules"}
    for rule in group["rules"]:
        assert {"alert", "expr"} <= {*rule} <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    file = Path(metrics()[-1].split()[-1]).name
    assert any(file in rule["expr"] for rule in group["rules"])
