# SPDX-License-Identifier: Apache-2.0
"""Members of an etcd on the loopback, which end with this process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.system.unix_signals import DIE_WITH_PARENT
from drom.scheduler.errors import SchedulerError
from drom.scheduler.testbed.local import PATIENCE, await_condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FAST = ("--heartbeat-interval", "50", "--election-timeout", "500")


def is_installed() -> bool:
    """Return whether etcd is installed."""
    return _path() is not None


def _path() -> str | None:
    return shutil.which("etcd", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def program() -> str:
    """Return the path of etcd. Raises SchedulerError if it is not installed."""
    found = _path()
    if found is None:
        raise SchedulerError("etcd is not installed: install Debian's package etcd-server, or put etcd on the PATH.")
    return found


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback at which nothing listens now."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def command(name: str, folder: Path, client: str, options: Sequence[str]) -> list[str]:
    """Return the command of a member with its data in a folder, which answers at the URL `client`.

    Raises SchedulerError if etcd is not installed.
    """
    urls = ("--listen-client-urls", client, "--advertise-client-urls", client)
    return [program(), "--name", name, "--data-dir", str(folder), *FAST, *options, *urls, "--logger", "zap"]


def peer_options(name: str, peers: Mapping[str, str]) -> list[str]:
    """Return the options of a member for its peers, given the URLs at which all members reach each other."""
    urls = ["--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name]]
    return [*urls, "--initial-cluster", ",".join(f"{one}={url}" for one, url in peers.items())]


class Member:
    """A member of an etcd with its data in `folder`."""

    def __init__(self, folder: Path, name: str, port: int, options: Sequence[str], scheme: str = "http") -> None:
        self.name, self.at, self.scheme = name, f"127.0.0.1:{port}", scheme
        self._folder, self._options = folder, options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. Raises SchedulerError if etcd is not installed."""
        words = command(self.name, self._folder / self.name, f"{self.scheme}://{self.at}", self._options)
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen([*DIE_WITH_PARENT, *words], stdout=log, stderr=log)

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self._folder / f"{self.name}.log").read_text(encoding="utf-8", errors="replace")

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it, by default as a crash would."""
        if self.process:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait(PATIENCE)
            self.process = None

    def send(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.process:
            self.process.send_signal(number)

    def ask(self, path: str, **fields: Any) -> Any:  # noqa: ANN401 - JSON values
        """Send a request and return the answer. Raises OSError or HTTPException if it does not answer."""
        with contextlib.closing(HTTPConnection(self.at, timeout=5)) as connection:
            connection.request("POST", path, json.dumps(fields))
            return json.load(connection.getresponse())

    @property
    def is_leader(self) -> bool:
        """Whether it leads the members."""
        try:
            status = self.ask("/v3/maintenance/status")
        except (OSError, HTTPException):
            return False
        return bool(status.get("leader")) and status["leader"] == status["header"]["member_id"]


@contextlib.contextmanager
def running(folder: Path, count: int = 1, *options: str) -> Iterator[list[Member]]:
    """Run the members of an etcd, and end them. Raises SchedulerError or ControlError."""
    ports = free_ports(2 * count)
    names = [f"m{number}" for number in range(count)]
    peers = dict(zip(names, [f"http://127.0.0.1:{port}" for port in ports[count:]], strict=True))
    members = [
        Member(folder, name, port, [*peer_options(name, peers), *options])
        for name, port in zip(names, ports, strict=False)
    ]
    try:
        for member in members:
            member.start()
        await_condition(lambda: any(member.is_leader for member in members))
        yield members
    finally:
        for member in members:
            member.end()
