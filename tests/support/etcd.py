# SPDX-License-Identifier: Apache-2.0
"""Real members of an etcd on the loopback, which end with the test; queues in it, and their schedulers' copies."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from drom.agent.system.unix_signals import WITH_US
from drom.scheduler.live.server.etcd import StoreAddress
from drom.scheduler.live.server.shared_rows import SharedRows
from drom.scheduler.live.server.store import Store

from tests.support.agents import SECONDS, wait_until
from tests.support.prometheus import tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LEASE = 2
FAST = ("--heartbeat-interval", "50", "--election-timeout", "500")


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback at which nothing listens now."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Member:
    """A member of an etcd with its data in `folder`."""

    def __init__(self, folder: Path, name: str, port: int, options: Sequence[str], scheme: str = "http") -> None:
        self.name, self.at, self.scheme = name, f"127.0.0.1:{port}", scheme
        self._folder, self._options = folder, options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        url = f"{self.scheme}://{self.at}"
        words = [
            *WITH_US,
            tool("etcd", "etcd-server"),
            "--name",
            self.name,
            "--data-dir",
            str(self._folder / self.name),
            *FAST,
            *self._options,
        ]
        words += ["--listen-client-urls", url, "--advertise-client-urls", url, "--logger", "zap"]
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self._folder / f"{self.name}.log").read_text(encoding="utf-8", errors="replace")

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it, by default as a crash would."""
        if self.process:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait(SECONDS)
            self.process = None

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self.process
        self.process.send_signal(number)

    def ask(self, path: str, **fields: Any) -> Any:
        """Send a request and return the answer."""
        request = urllib.request.Request(f"http://{self.at}{path}", json.dumps(fields).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    @property
    def is_leader(self) -> bool:
        """Whether it leads the members."""
        try:
            status = self.ask("/v3/maintenance/status")
        except OSError:
            return False
        return bool(status.get("leader")) and status["leader"] == status["header"]["member_id"]


@contextlib.contextmanager
def running(folder: Path, count: int = 1, *options: str) -> Iterator[list[Member]]:
    """Run the members of an etcd, and end them."""
    ports = free_ports(2 * count)
    names = [f"m{number}" for number in range(count)]
    peers = dict(zip(names, [f"http://127.0.0.1:{port}" for port in ports[count:]], strict=True))
    cluster = ",".join(f"{name}={url}" for name, url in peers.items())
    members = []
    for name, port in zip(names, ports, strict=False):
        about = ["--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name]]
        members.append(Member(folder, name, port, [*about, "--initial-cluster", cluster, *options]))
    try:
        for member in members:
            member.start()
        wait_until(lambda: any(member.is_leader for member in members), lambda: members[0].log)
        yield members
    finally:
        for member in members:
            member.end()


def address_of(members: Sequence[Member], prefix: str, **more: Any) -> StoreAddress:
    """Return the address of a queue below a prefix."""
    return StoreAddress(tuple(member.at for member in members), prefix, **more)


def shared_store(
    folder: Path, address: StoreAddress, name: str = "n1", cluster: str = "drom", lease: int = LEASE
) -> Store:
    """Open the queue of a scheduler that stands by."""
    return Store(folder, medium=SharedRows(address, cluster, name, lease))


def rows_of(store: Store) -> SharedRows:
    """Return the rows of a queue in etcd."""
    assert isinstance(store._medium, SharedRows)
    return store._medium


def lead(store: Store) -> Store:
    """Let a scheduler take over as soon as none leads."""
    wait_until(rows_of(store).advance, lambda: rows_of(store).leader)
    store.take_over()
    return store
