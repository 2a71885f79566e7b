# SPDX-License-Identifier: Apache-2.0
"""Every legal message at every socket of an agent, and whatever its sender does next: a real agent, in emulation.

`tests/agent/execution/test_step_requests.py` has the socket for commands on other nodes, which an agent of a cluster
opens. The sender is a process of another user where the tests run as root.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from drom.agent.control import messages
from drom.agent.control.zmtp import PING, frame

from dromlib import layout
from dromlib.signals import topic
from dromlib.subscription import COMMAND, GREETING, IS_READY
from tests.support.agents import Agent, anonymous_memory, start_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

SOMEBODY = 65534
ENDINGS = ("stays", "hangs up", "half a message", "reset", "floods", "never reads")
GROWTH_MB = 10


def knock(kind: str, **fields: Any) -> bytes:
    """Return a request at the door."""
    data = bytearray(layout.REQUEST.size)
    about = {"magic": layout.DOOR_MAGIC, "protocol": layout.PROTOCOL_VERSION, "kind": layout.ENUMS["KNOCK"].index(kind)}
    layout.REQUEST.write(data, **about, **fields)
    return bytes(data)


def hello(kind: bytes) -> bytes:
    """Return the greeting of a ZeroMQ socket of this kind."""
    return GREETING + frame(IS_READY + b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind, COMMAND)


def order(name: str, **fields: Any) -> bytes:
    """Return an order as a frame."""
    return frame(json.dumps({"protocol": messages.PROTOCOL, "order": name, **fields}).encode())


MESSAGES = {
    "door": {
        "launch": knock("launch", job="a"),
        "launch that waits": knock("launch", job="b", job_class=layout.ENUMS["CLASS"].index("rigid"), min_cpus=2),
        "launch of a rank": knock("launch", job="c", session="1", local_size=2, local_rank=1),
        "attach": knock("attach", job="d"),
        "attach within a task": knock("attach", task_pid=1, task_start=1),
    },
    "control": {
        "ps": order("ps"),
        "topology": order("topology"),
        "explain": order("explain", job="keeper"),
        "resize": order("resize", job="keeper", cpus=1),
        "preview": order("resize", job="keeper", cpus=None, dry_run=True),
        "set": order("set", job="keeper", cpus="0"),
        "attach": order("attach", pid=1, dry_run=True),
        "release": order("release", job="nobody"),
        "reload": order("reload"),
        "unknown": order("none such"),
    },
    "signals": {
        "subscribe": frame(b"\x01" + topic(0)),
        "subscribe to all": frame(b"\x01"),
        "cancel": frame(b"\x00" + topic(0)),
        "ping": frame(PING + b"\0\1again", COMMAND),
    },
}
HELLO = {"door": b"", "control": hello(b"DEALER"), "signals": hello(b"SUB")}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Return the agent of four emulated cores, which keeps no memory of what all tests have sent."""
    folder = tmp_path_factory.mktemp("sockets")
    for above in (folder, *list(folder.parents)[:2]):
        above.chmod(0o755)
    with start_agent(folder, "--emulate", "core:4") as running:
        for _ in range(5):
            running.order("ps")
        before = memory_mb(running)
        yield running
        assert memory_mb(running) - before < GROWTH_MB


def memory_mb(agent: Agent) -> float:
    """Return the anonymous memory of an agent."""
    return anonymous_memory(agent.pid) / 1024_000


def descriptors(agent: Agent) -> int:
    """Return how many descriptors an agent has open."""
    return psutil.Process(agent.pid).num_fds()


def behave(name: str, message: bytes, ending: str) -> socket.socket:
    """Send a message to the socket `name` of this directory, and do what the ending says."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if name == "door" else socket.SOCK_STREAM)
    line.connect(name)
    line.sendall(HELLO[name] + (message[:-1] if ending == "half a message" else message))
    line.setblocking(False)
    if ending == "reset":  # with what is there to be read
        select.select([line], [], [], 0.5)
    for _ in range({"floods": 500, "never reads": 50}.get(ending, 0)):
        with suppress(OSError):
            line.send(message)
    if ending in {"hangs up", "reset"}:
        line.close()
    elif ending == "stays":
        select.select([line], [], [], 0.5)
        with suppress(OSError):
            line.recv(1 << 16)
    return line


@contextmanager
def somebody(run: Path, name: str, message: bytes, ending: str) -> Iterator[None]:
    """Have another process behave so, and stay for the length of a block."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.chdir(run)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
                os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
            line = behave(name, message, ending)
            os.write(write, b"done")
            time.sleep(1000)
            line.close()
        finally:
            os._exit(1)
    os.close(write)
    try:
        assert os.read(read, 10) == b"done"
        yield
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def others_are_served(agent: Agent) -> None:
    """Check that each socket answers us."""
    agent.order("ps")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.settimeout(60)
        door.connect(str(agent.dir / "door"))
        door.send(b"?")
        status = layout.REPLY.read(door.recv(layout.REPLY.size), "status")
        assert layout.ENUMS["STATUS"][status] == "refused"
    with socket.socket(socket.AF_UNIX) as signals:
        signals.settimeout(60)
        signals.connect(str(agent.dir / "signals"))
        signals.sendall(hello(b"SUB") + frame(PING + b"\0\1here", COMMAND))
        got = b""
        while b"here" not in got:
            got += signals.recv(1000)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("name", "message"), [(name, what) for name, found in MESSAGES.items() for what in found])
def test_a_message_costs_nobody_else(agent: Agent, name: str, message: str, ending: str) -> None:
    """Others are served meanwhile, and nothing is left of the sender once it has gone."""
    wait_until(lambda: not agent.tasks(), agent.tasks)
    before = descriptors(agent)
    with somebody(agent.dir, name, MESSAGES[name][message], ending):
        others_are_served(agent)
    wait_until(lambda: not agent.tasks(), agent.tasks)
    wait_until(lambda: descriptors(agent) <= before, lambda: (descriptors(agent), before))
