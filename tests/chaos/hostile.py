# SPDX-License-Identifier: Apache-2.0
"""A hostile user: ``python -m tests.chaos.hostile DIRECTORY SEED SECONDS PLACE...``, to be started by root.

It attacks the agent or the scheduler of a directory. Each place is the name of a socket there, or HOST:PORT. Everything
is imported and the directory entered before the user changes, who may not enter the directories above it. What this
user was able to do and no user may is one line each on stdout, which begins with ``wrong:``.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.control.zmtp import PING, frame

from dromlib import layout
from dromlib.layout import REQUEST
from dromlib.signals import topic
from dromlib.subscription import COMMAND, GREETING, IS_READY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UID = 64903
KEPT = 200
"""Connections that are kept open at most."""
LINGER = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close resets the connection."""
ORDERS = ("ps", "explain", "resize", "set", "queue", "nodes", "job", "cancel", "hold", "submit", "none such")


def ready(kind: bytes) -> bytes:
    """Return the greeting of a ZeroMQ socket of this kind."""
    said = IS_READY + b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return GREETING + frame(said, COMMAND)


def request(chance: random.Random) -> bytes:
    """Return a launch or an attachment, which may name any task."""
    data = bytearray(REQUEST.size)
    task = {"task_pid": chance.randrange(1, 1 << 15), "task_start": 1} if chance.random() < 0.3 else {}
    kind = chance.choice(("launch", "attach"))
    REQUEST.write(
        data,
        magic=layout.DOOR_MAGIC,
        protocol=layout.PROTOCOL_VERSION,
        kind=layout.ENUMS["KNOCK"].index(kind),
        job=chance.choice(("hostile", "", "x" * 64)),
        max_cpus=chance.choice((0, 1, 2, 1 << 19)),
        min_cpus=chance.choice((0, 1)),
        **task,
    )
    return bytes(data)


def order(chance: random.Random) -> bytes:
    """Return an order about any job, as a frame."""
    about = {"job": chance.choice(("", "a", 1, -1, 10**30)), "cpus": chance.choice((None, 1, "0", "0-1"))}
    more = {"dry_run": chance.random() < 0.5, "jobs": [{"command": ["x"], "nodes": 10**9}], "held": True}
    asked = {"protocol": 1, "order": chance.choice(ORDERS), **about, **more}
    return frame(json.dumps(asked).encode())


def subscriptions(chance: random.Random) -> bytes:
    """Return a ping and subscriptions, as a subscriber sends them."""
    wanted = b"".join(frame(b"\x01" + topic(chance.randrange(64))) for _ in range(chance.randrange(40)))
    return frame(PING + bytes(2), COMMAND) + wanted


class Hostile:
    """The connections of one user to places, and what is done with them."""

    def __init__(self, chance: random.Random, places: Sequence[str]) -> None:
        self._chance = chance
        self._places = places
        self._kept: list[socket.socket] = []

    def attack(self) -> None:
        """Say something at one of the sockets, and stay, hang up, reset, or say it again and again."""
        name, _, port = self._chance.choice(self._places).partition(":")
        kind = socket.SOCK_SEQPACKET if name == "door" else socket.SOCK_STREAM
        family = socket.AF_INET if port else socket.AF_UNIX
        with suppress(OSError):
            line = socket.socket(family, kind)
            self._kept.append(line)
            line.settimeout(0.1)
            line.connect((name, int(port)) if port else name)
            line.setblocking(False)
            said = self._words(name)
            ending = self._chance.choice(("stays", "hangs up", "half", "resets", "floods", "random"))
            if ending == "half":
                said = said[: self._chance.randrange(len(said))]
            elif ending == "random":
                said = self._chance.randbytes(self._chance.choice((0, 1, 64, 5000)))
            for _ in range(300 if ending == "floods" else 1):
                line.send(said)
                if name != "door":
                    said = said.removeprefix(GREETING)
            if ending == "resets":
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            if ending in ("hangs up", "resets"):
                self._kept.remove(line)
                line.close()
        while len(self._kept) > KEPT:
            self._kept.pop(self._chance.randrange(len(self._kept))).close()

    def _words(self, name: str) -> bytes:
        if name == "door":
            return request(self._chance)
        if name == "signals":
            return ready(b"SUB") + subscriptions(self._chance)
        return ready(b"DEALER") + b"".join(order(self._chance) for _ in range(self._chance.choice((1, 1, 50))))


def meddle(files: list[int]) -> list[str]:
    """Try what no user may do to the files and the processes of others; return what has come about. Locks are kept."""
    done = []
    victim = 1
    with socket.socket(socket.AF_UNIX) as line, suppress(OSError):
        line.connect("control")
        victim, *_ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    tries: dict[str, Callable[[], object]] = {
        "freeze the node": lambda: os.close(os.open("freeze", os.O_CREAT | os.O_WRONLY)),
        "write to the registry": lambda: os.close(os.open("registry", os.O_RDWR)),
        "move the door": lambda: Path("door").rename("door.old"),
        "remove the lock": lambda: Path("lock").unlink(),
        "open the lock": lambda: os.close(os.open("lock", os.O_RDONLY)),
        "list the mailboxes": lambda: os.listdir("mail"),  # noqa: PTH208 - only whether it may be
        "bind who listens": lambda: os.sched_setaffinity(victim, {0}),
        "stop who listens": lambda: os.kill(victim, signal.SIGSTOP),
    }
    for what, attempt in tries.items():
        with suppress(OSError):
            attempt()
            done.append(f"wrong: a hostile user was able to {what}")
    for name in ("events", "registry", "lock", "queue.db"):
        with suppress(OSError):
            files.append(os.open(name, os.O_RDONLY))
            fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    return done


def main(run: Path, seed: int, seconds: float, *places: str) -> None:
    """Become the user, and go on for so many seconds."""
    until = time.monotonic() + seconds
    os.chdir(run)
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    files: list[int] = []
    for line in meddle(files):
        print(line, flush=True)
    hostile = Hostile(random.Random(seed), places)
    while time.monotonic() < until:
        hostile.attack()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
