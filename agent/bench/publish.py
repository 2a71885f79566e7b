"""Measure the time until a published grant is seen by a program that polls on another CPU.

This process writes a registry of its own and opens a registration socket for one program, so that only the agent's
own publish function and libdrom lie between the two.
"""

from __future__ import annotations

import contextlib
import gc
import math
import mmap
import os
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from drom.agent.errors import ControlError
from drom.agent.ipc.mailboxes import Mailboxes
from drom.agent.ipc.registry import Owner, Registry
from drom.agent.model.jobs import Arrival, Job, Task
from drom.agent.system import connections, proc

from dromlib import layout, native

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

CHANGES = 5000
WARM_UP = 500
PATIENCE = 20.0
"""Seconds after which the measurement fails."""


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def seen_after(publishing_cpu: int, polling_cpu: int, changes: int = CHANGES) -> list[float]:
    """Return for each of `changes` grants the microseconds from the call of publish until the program has seen it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="drom-bench-")))
        seen = stack.enter_context(shared_words(folder / "seen", WARM_UP + changes + 1))
        stage = FakeAgent(folder)
        stack.callback(stage.close)
        words = [str(polling_cpu), str(folder / "seen"), str(WARM_UP + changes)]
        program = stack.enter_context(subprocess.Popen([native.bench_path(), "seen", *words], env=stage.environment))
        stack.callback(program.kill)
        task = stage.admit()
        stack.enter_context(_on_cpu(publishing_cpu))
        _await(seen, 1, program)
        called = _publish_all(stage.registry, task, seen, WARM_UP + changes, program)
        return [(seen[i] - called[i]) / 1000 for i in range(WARM_UP + 1, WARM_UP + changes + 1)]


def _publish_all(
    registry: Registry, task: Task, seen: memoryview, changes: int, program: subprocess.Popen[bytes]
) -> list[int]:
    """Publish one grant after the other, each when the last has been seen; return the times of the calls."""
    publish, now = registry.publish, time.monotonic_ns
    called = [0]
    with _no_garbage_collection():
        for epoch in range(1, changes + 1):
            mask = 1 + epoch % 2
            begin = now()
            publish(task, epoch, mask, "share")
            called.append(begin)
            _await(seen, epoch + 1, program)
    return called


def _await(seen: memoryview, count: int, program: subprocess.Popen[bytes]) -> None:
    """Spin until the program has seen `count` grants."""
    deadline = time.monotonic() + PATIENCE
    while seen[0] != count:
        for _ in range(1000):
            if seen[0] == count:
                return
        if program.poll() is not None or time.monotonic() > deadline:
            raise ControlError("the polling program of the benchmark has stopped: its words stand above.")


class FakeAgent:
    """A registry, a mailbox and a registration socket for one program, which binds itself to its grants if `binds`."""

    def __init__(self, folder: Path, mask_bits: int = 64, *, binds: bool = False) -> None:
        me = os.getpid()
        owner = Owner(me, proc.start_time(me) or 0, proc.boot_id(), 0, emulated=not binds)
        self.folder = folder
        self.environment = {"DROM_RUNTIME_DIR": str(folder)}
        self.registry = Registry.create(folder / "registry", 1, mask_bits, owner)
        self._mask_bits = mask_bits
        self._flags = 0 if binds else layout.HEADER_EMULATED
        self._mailboxes = Mailboxes(folder / "mail")
        self._door = connections.listen(folder / "door", 0o600)
        self._door.settimeout(PATIENCE)

    def admit(self) -> Task:
        """Accept the program's registration, in the only slot. Raises `ControlError` if none comes."""
        try:
            connection, _ = self._door.accept()
        except TimeoutError:
            raise ControlError("a program of the benchmark has not looked for its agent: run it again.") from None
        with connection:
            return self._register(connection)

    def _register(self, connection: socket.socket) -> Task:
        peer = proc.peer_identity(connection)
        if peer is None or not connection.recv(layout.REQUEST.size):
            raise ControlError("the polling program of the benchmark has gone: run it again.")
        os.close(peer.pidfd)
        who = peer.identity
        number = self._mailboxes.make(peer.uid, 0)
        task = Task(0, "bench", 0, Arrival(who.pid, who.start_time, peer.uid, "bench"), 0, mailbox=number)
        self.registry.register(task, Job("bench", "bench", peer.uid, 0, "malleable", 1, 1, 1, {0: task}))
        reply = layout.pack_reply(
            "granted", mask_bits=self._mask_bits, task=(who.pid, who.start_time), flags=self._flags
        )
        fds = [os.open(self.registry.path, os.O_RDONLY | os.O_CLOEXEC), self._mailboxes.open(number)]
        try:
            connections.send(connection, reply, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return task

    def close(self) -> None:
        """Close all descriptors; the files are removed with their directory."""
        self._door.close()
        self._mailboxes.close()


@contextlib.contextmanager
def shared_words(path: Path, count: int) -> Iterator[memoryview]:
    """Create a file of 64-bit words, mapped for the length of a block."""
    path.write_bytes(bytes(8 * count))
    with (
        path.open("r+b") as file,
        mmap.mmap(file.fileno(), 8 * count) as memory,
        memoryview(memory) as raw,
        raw.cast("Q") as words,
    ):
        yield words


@contextlib.contextmanager
def _on_cpu(cpu: int) -> Iterator[None]:
    """Keep this process on one CPU for the length of a block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
