# SPDX-License-Identifier: Apache-2.0
"""`drom bench hostile`: the cost of one hostile user at every local socket of an agent for other users.

Two processes of that user run during the measurement: one floods the sockets with complete and incomplete messages,
and disconnects; the other keeps as many connections as it gets, with answers that it does not read and messages that
it does not finish. Started by root they run as another user than the measured orders; otherwise as the same one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from drom.agent.bench import agent as bench_agent
from drom.agent.bench import scale
from drom.agent.bench.node import Figure, report
from drom.agent.bench.publish import percentile
from drom.agent.control import client, messages
from drom.agent.control.access import MOST_CONNECTIONS
from drom.agent.control.zmtp import PING, frame

from dromlib import layout
from dromlib.layout import REQUEST
from dromlib.signals import topic
from dromlib.subscription import COMMAND, GREETING, ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.agent.bench.agent import Agent

MACHINE = "pack:2 core:128"
TASKS = 200
UID = 65534
ORDERS = 200
"""Number of orders that are timed in each situation."""
PAUSE = 0.01
"""Seconds between two orders."""
FIGURES = {
    "alone_p50": Figure("order at an agent of 200 tasks, p50", "ms", None),
    "alone_p99": Figure("order at an agent of 200 tasks, p99", "ms", None),
    "previews_p50": Figure("... while another user asks for previews in a row, p50", "ms", None),
    "previews_p99": Figure("... while another user asks for previews in a row, p99", "ms", 50),
    "attacked_p50": Figure("... while another user attacks every socket, p50", "ms", None),
    "attacked_p99": Figure("... while another user attacks every socket, p99", "ms", 50),
    "memory": Figure("agent, anonymous memory grown meanwhile", "MB", 10),
}


def _hello(kind: bytes) -> bytes:
    return GREETING + frame(ready(kind), COMMAND)


def _order(name: str, **fields: object) -> bytes:
    return frame(json.dumps({"protocol": messages.PROTOCOL, "order": name, **fields}).encode())


def _request() -> bytes:
    data = bytearray(REQUEST.size)
    kind = layout.ENUMS["KNOCK"].index("launch")
    REQUEST.write(data, magic=layout.DOOR_MAGIC, protocol=layout.PROTOCOL_VERSION, kind=kind, max_cpus=1 << 19)
    return bytes(data)


MESSAGES = {
    "door": (b"", _request()),
    "control": (_hello(b"DEALER"), _order("ps")),
    "signals": (_hello(b"SUB"), frame(PING + bytes(2), COMMAND) + frame(b"\x01") + frame(b"\x01" + topic(0))),
}
"""The first message at each socket, and the one that is repeated."""
HALF = _hello(b"DEALER") + frame(bytes(messages.MAX_MESSAGE))[:-1]


def _connect(name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if name == "door" else socket.SOCK_STREAM)
    made.setblocking(False)
    with contextlib.suppress(OSError):
        made.connect(name)
    return made


def flood() -> None:
    """Send messages to the sockets in this directory and disconnect, in an endless loop."""
    chance = random.Random(1)  # noqa: S311 - the same in every run
    for name in itertools.cycle(MESSAGES):
        first, again = MESSAGES[name]
        with _connect(name) as line, contextlib.suppress(OSError):
            line.send(first + again)
            for _ in range(chance.choice((0, 0, 100))):
                line.send(again)
            line.send(again[: chance.randrange(1, len(again))])


def hold() -> None:
    """Keep connections to the sockets in this directory that read nothing, and open more, in an endless loop."""
    kept: dict[int, socket.socket] = {}
    for number in itertools.cycle(range(3 * MOST_CONNECTIONS)):
        name = list(MESSAGES)[number % 3]
        with contextlib.suppress(OSError):
            if number not in kept or kept[number].send(MESSAGES[name][1], socket.MSG_NOSIGNAL) < 0:
                kept[number] = _connect(name)
                kept[number].send(HALF if number % 9 == 1 else MESSAGES[name][0] + MESSAGES[name][1])
            continue
        if number in kept:
            kept.pop(number).close()
        time.sleep(0.001)


def preview() -> None:
    """Request one preview after the other from the agent of this directory, in an endless loop."""
    with _connect("control") as line:
        line.setblocking(True)
        line.sendall(_hello(b"DEALER"))
        while True:
            line.sendall(_order("attach", pid=os.getpid(), dry_run=True))
            line.recv(1 << 16)


@contextlib.contextmanager
def hostile(run: Path, *attacks: Callable[[], None]) -> Iterator[None]:
    """Run processes of another user that attack the agent in a runtime directory for the length of a block."""
    with contextlib.ExitStack() as stack:
        for attack in attacks:
            pid = os.fork()
            if not pid:
                try:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    os.chdir(run)
                    if os.geteuid() == 0:
                        os.setgroups([])
                        os.setresgid(UID, UID, UID)
                        os.setresuid(UID, UID, UID)
                    attack()
                finally:
                    os._exit(1)
            stack.callback(os.waitpid, pid, 0)
            stack.callback(os.kill, pid, signal.SIGKILL)
        yield


def orders(agent: Agent, count: int) -> tuple[list[float], float]:
    """Return the milliseconds of each of `count` orders, and the most memory that the agent had meanwhile (MB)."""
    took, most = [], 0.0
    for _ in range(count):
        begin = time.monotonic()
        client.order(agent.folder, "ps")
        took.append((time.monotonic() - begin) * 1e3)
        most = max(most, agent.memory_mb())
        time.sleep(PAUSE)
    return took, most


def situations(agent: Agent, count: int = ORDERS) -> dict[str, float]:
    """Return the times of orders without and with hostile users, and the additional memory of the agent."""
    _, before = orders(agent, count // 4)
    times = {"alone": orders(agent, count)[0]}
    with hostile(agent.folder, preview):
        times["previews"], _ = orders(agent, count)
    with hostile(agent.folder, flood, hold):
        time.sleep(1)
        times["attacked"], most = orders(agent, count)
    found = {f"{name}_p{p}": percentile(values, p) for name, values in times.items() for p in (50, 99)}
    return found | {"memory": max(0.0, most - before)}


def hostile_users(runs: int) -> dict[str, Any]:
    """Measure each figure `runs` times; return medians and extremes. Raises `ControlError` if the agent fails."""
    found: dict[str, list[float]] = {key: [] for key in FIGURES}
    for _ in range(runs):
        with bench_agent.running_agent("--emulate", MACHINE) as agent, scale.crowd(agent) as programs:
            agent.folder.parent.chmod(0o711)
            for slot in range(TASKS):
                programs.arrive(slot)
            for key, value in situations(agent).items():
                found[key].append(value)
    return report(found, FIGURES, runs)
