# SPDX-License-Identifier: Apache-2.0
"""Somebody else on the node, who tries things: ``python other_user.py UID RUNTIME_DIR WHAT [JSON]``.

Everything is imported before the user changes, who may not be able to read where drom is installed. What came of it is
one JSON value on stdout.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq
from drom.agent.control import client, zmtp
from drom.agent.errors import ControlError

import dromlib
from dromlib import layout, signals, subscription

if TYPE_CHECKING:
    from collections.abc import Callable


def knock(run: Path, kind: str, task: tuple[int, int] = (0, 0), **fields: Any) -> tuple[dict[str, Any], list[int]]:
    """Return the reply to a request of ours, and the descriptors that came with it."""
    data = bytearray(layout.REQUEST.size)
    about = {"magic": layout.DOOR_MAGIC, "protocol": layout.PROTOCOL_VERSION, "kind": layout.ENUMS["KNOCK"].index(kind)}
    layout.REQUEST.write(data, **about, task_pid=task[0], task_start=task[1], **fields)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.settimeout(30)
        door.connect(str(run / "door"))
        door.send(data)
        reply, fds, *_ = socket.recv_fds(door, layout.REPLY.size, 4)
    found: dict[str, Any] = {name: layout.REPLY.read(reply, name) for name in ("pid", "slot", "status")}
    return found | {
        "status": layout.ENUMS["STATUS"][found["status"]],
        "text": layout.REPLY.read_text(reply, "text"),
    }, fds


def touch_files(run: Path, mailbox: int) -> dict[str, str]:
    """Try to read, write, replace and remove what is in the runtime directory."""
    mail, door = run / "mail" / str(mailbox), run / "door"
    tries: dict[str, Callable[[], object]] = {
        "read mailbox": mail.read_bytes,
        "write mailbox": lambda: mail.write_bytes(bytes(8)),
        "remove mailbox": mail.unlink,
        "link mailbox": lambda: (run / "mail/x").hardlink_to(mail),
        "list mailboxes": lambda: list((run / "mail").iterdir()),
        "write registry": lambda: os.truncate(run / "registry", 0),
        "remove registry": (run / "registry").unlink,
        "read lock": (run / "lock").read_bytes,
        "replace door": lambda: door.rename(run / "old"),
        "freeze": (run / "freeze").touch,
    }
    return {name: outcome(attempt) for name, attempt in tries.items()}


def outcome(attempt: Callable[[], object]) -> str:
    """Return what came of an attempt: done, the name of the error, or the sentence of the agent."""
    try:
        attempt()
    except ControlError as error:
        return str(error)
    except OSError as error:
        return type(error).__name__
    return "done"


def impersonate(run: Path, pid: int, start: int) -> dict[str, Any]:
    """Attach and launch as if we were another's task; say what we got, and whether we can write to the registry."""
    attached, fds = knock(run, "attach", (pid, start))
    writable = []
    for fd in fds[:1]:
        with suppress(OSError):
            os.pwrite(fd, bytes(8), 0)
            writable.append(fd)
        with suppress(OSError):
            writable.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
    launched, _ = knock(run, "launch", (pid, start), job="victim")
    return {"attached": attached["pid"], "launched": launched["pid"], "we": os.getpid(), "writable": writable}


def give_orders(run: Path, asked: list[list[Any]]) -> list[str]:
    """Give orders about what is another's."""
    return [outcome(lambda name=name, fields=fields: client.order(run, name, **fields)) for name, fields in asked]  # type: ignore[misc]


def look(run: Path, many: int) -> list[Any]:
    """Ask so many times in a row what the node looks like; return how many different answers came, and the seconds."""
    begin = time.monotonic()
    answers = {json.dumps(client.order(run, "ps")) for _ in range(many)}
    return [len(answers), time.monotonic() - begin]


def crowd(run: Path, connections: int) -> str:
    """Hold connections to door, control and signals until our stdin is closed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (connections * 3 + 100,) * 2)
    kinds = (("door", socket.SOCK_SEQPACKET), ("control", socket.SOCK_STREAM), ("signals", socket.SOCK_STREAM))
    held = []
    for name, kind in kinds:
        for _ in range(connections):
            one = socket.socket(socket.AF_UNIX, kind)
            one.settimeout(1)
            with suppress(OSError):
                one.connect(str(run / name))
            held.append(one)
    return wait_for_end(len(held))


def flood(run: Path, _: object) -> str:
    """Knock, order, subscribe and write to our own mailbox without end, until our stdin is closed."""
    print(json.dumps("began"), flush=True)
    context = zmq.Context()
    orders, listener = context.socket(zmq.DEALER), context.socket(zmq.SUB)
    for sock, name in ((orders, "control"), (listener, "signals")):
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(signals.endpoint(run, name))
    _, fds = knock(run, "attach", job="flood")
    mailbox = fds[1]
    number = 0
    while not select.select([0], [], [], 0)[0]:
        for _ in range(100):
            number += 1
            os.pwrite(mailbox, number.to_bytes(8, "little"), layout.MAILBOX.fields["applied"].offset)
            listener.setsockopt(zmq.SUBSCRIBE, b"%d" % number * 20)
            with suppress(zmq.Again):
                orders.send(b'{"protocol": 1, "order": "ps"}', zmq.NOBLOCK)
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
                door.setblocking(False)
                door.connect(str(run / "door"))
                door.send(b"?")
    context.destroy(linger=0)
    return "over"


def hoard(run: Path, size: int) -> str:
    """Have our own mailbox take up so much space, and keep it until our stdin is closed."""
    _, fds = knock(run, "attach", job="hoard")
    os.posix_fallocate(fds[1], 0, size)
    return wait_for_end("grown")


def pile(run: Path, megabytes: int) -> str:
    """Say for so long that our message goes on, at each socket of ZeroMQ, and stay until our stdin is closed."""
    ends = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    for end, name, kind in zip(ends, ("control", "signals"), (b"DEALER", b"SUB"), strict=True):
        end.connect(str(run / name))
        ready = subscription.IS_READY + b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
        end.sendall(subscription.GREETING + zmtp.frame(ready, subscription.COMMAND))
        with suppress(ConnectionError):
            for _ in range(megabytes * 20):
                end.sendall(zmtp.frame(bytes(50_000), zmtp.MORE))
    return wait_for_end(len(ends))


def register(run: Path, many: int) -> list[str]:
    """Register as many tasks as we are told to, a process each; return what the refused ones were told."""
    said, children = [], []
    for _ in range(many):
        read, write = os.pipe()
        if not (child := os.fork()):
            try:
                reply, _ = knock(run, "attach", job="many")
                os.write(write, reply["text"].encode() or b"in")
                time.sleep(1000)
            finally:
                os._exit(1)
        os.close(write)
        children.append(child)
        said.append(os.read(read, 1000).decode())
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return [text for text in said if text != "in"]


def follow(run: Path, _: object) -> str:
    """Be a program that applies its grants, until our stdin is closed."""
    os.environ["DROM_RUNTIME_DIR"] = str(run)
    with dromlib.attach(adapters=()) as session:
        print(json.dumps(session.mode), flush=True)
        while not select.select([0], [], [], 0)[0]:
            session.apply(session.wait(0.02))
    return "over"


def wait_for_end(value: object) -> str:
    """Show that we are ready, and wait for the end of stdin."""
    print(json.dumps(value), flush=True)
    sys.stdin.read()
    return "over"


def main(uid: int, run: Path, what: str, argument: Any) -> None:
    """Become the user, and do it."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.chdir("/")
    arguments = argument if isinstance(argument, list) and what == "impersonate" else [argument]
    print(json.dumps(globals()[what](run, *arguments)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]) if len(sys.argv) > 4 else None)
