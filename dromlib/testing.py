# SPDX-License-Identifier: Apache-2.0
"""An agent for tests of malleable programs: it grants the CPUs that the test specifies, in the test's own process.

    with FakeAgent("0-3") as fake:
        program = subprocess.Popen([sys.executable, "program.py"])  # or attach() in this process
        epoch = fake.grant("0-1", reason="share")
        fake.wait_applied(epoch)

No daemon is needed, and a running one is not disturbed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import zmq

from dromlib import layout, native, signals
from dromlib.cpulist import format_cpulist, parse_cpulist
from dromlib.layout import HEADER, MAILBOX, REQUEST, SLOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from typing_extensions import Self

PATIENCE = 60.0
"""Default timeout of waits in seconds: more than a busy machine needs, so only a failing test reaches it."""
OURS = ("DROM_RUNTIME_DIR", "DROM_TASK")
"""Environment variables with the agent's runtime directory and the task of a process."""


def start_time(pid: int) -> int:
    """Return the start time of a process, clock ticks since boot. Raises OSError if it has ended."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[19])


def has_ended(pid: int, start: int) -> bool:
    """Return whether a process has ended, even if its parent has not reaped it yet."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return start_time(pid) != start or bool(select.select([fd], [], [], 0)[0])
    except OSError:
        return True
    finally:
        os.close(fd)


class Left(Exception):  # noqa: N818 - it tells what the program did
    """Raised when the program that a test waits for has left the agent."""


class Registry:
    """A registry file in `folder`, mapped for writing, and the mailboxes of its slots. Masks are over OS CPUs."""

    def __init__(self, folder: Path, capacity: int = 4, mask_bits: int = 128, flags: int = 0) -> None:
        self.path = folder / "registry"
        self.folder = folder
        self.words = layout.mask_words(mask_bits)
        self.slot_size = layout.slot_size(mask_bits)
        size = layout.HEADER_SIZE + capacity * self.slot_size
        self.path.write_bytes(bytes(size))
        with self.path.open("r+b") as file:
            self.view = memoryview(mmap.mmap(file.fileno(), size))
        HEADER.write(
            self.view,
            layout_version=layout.LAYOUT_VERSION,
            header_size=layout.HEADER_SIZE,
            slot_size=self.slot_size,
            capacity=capacity,
            mask_bits=mask_bits,
            flags=flags,
            magic=layout.REGISTRY_MAGIC,
        )
        # All mailboxes now: a program that gets one while another thread still writes it runs unmanaged.
        for slot in range(capacity):
            box = bytearray(layout.MAILBOX_SIZE)
            MAILBOX.write(box, magic=layout.MAILBOX_MAGIC, layout_version=layout.LAYOUT_VERSION, slot=slot)
            self.mailbox(slot).write_bytes(box)

    def base(self, slot: int) -> int:
        """Return the offset of a slot."""
        return layout.HEADER_SIZE + slot * self.slot_size

    def address(self, slot: int) -> int:
        """Return the address of a slot in this process."""
        return native.address(self.view, self.base(slot))

    def assign(self, slot: int, pid: int, start: int) -> None:
        """Give a slot to a task."""
        SLOT.write(self.view, self.base(slot), pid=pid, start_time=start, in_use=1)

    def tenant(self, slot: int) -> tuple[int, int]:
        """Return pid and start time of the task in a slot; (0, 0) if it is free."""
        base = self.base(slot)
        return SLOT.read(self.view, "pid", base), SLOT.read(self.view, "start_time", base)

    def epoch(self, slot: int) -> int:
        """Return the epoch of the newest grant; 0: none yet."""
        return SLOT.read(self.view, "epoch", self.base(slot))

    def publish(self, slot: int, mask: int, reason: str = "share") -> int:
        """Publish a grant; return its epoch."""
        return native.publish(self.address(slot), mask, self.words, layout.ENUMS["REASON"].index(reason))

    def retire(self, slot: int) -> None:
        """Retire a slot."""
        native.retire(self.address(slot))

    def mailbox(self, slot: int) -> Path:
        """Return the path of a slot's mailbox."""
        return self.folder / f"mail{slot}"

    def mail(self, slot: int, field: str) -> int:
        """Return a field of a slot's mailbox."""
        return MAILBOX.read(self.mailbox(slot).read_bytes(), field)

    def clear(self, slot: int) -> None:
        """Clear the reports of the last responder, as an agent does before it sets another one."""
        with self.mailbox(slot).open("r+b") as file:
            for name in ("applied", "wanted_min", "wanted_max", "points", "min_tasks", "max_tasks"):
                file.seek(MAILBOX.fields[name].offset)
                file.write(bytes(MAILBOX.fields[name].size))


class FakeAgent:
    """A context manager: while it is open, programs and `dromlib.attach` in this process find it and no other agent.

    It has one task. The first process that attaches becomes the responder; others follow until it has left. The CPUs
    are synthetic and nothing is bound to them, unless `binds` is true. `cpus` is the grant of a program from the
    start, as a kernel list; None: nothing before the first `grant`.
    """

    SLOT = 0
    MASK_BITS = 1024

    def __init__(self, cpus: str | None = None, *, binds: bool = False) -> None:
        self._first = cpus
        self._binds = binds
        self._stack = contextlib.ExitStack()
        self._responder = (0, 0)
        self._said = b""
        self._fault: Exception | None = None
        self._is_open = False

    def __enter__(self) -> Self:
        self._responder, self._said = (0, 0), b""
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(TemporaryDirectory(prefix="drom-fake-")))
            flags = 0 if self._binds else layout.HEADER_EMULATED
            self._registry = Registry(self.folder, 1, self.MASK_BITS, flags)
            self._signals = self._open_signals(stack)
            stack.enter_context(_environment(DROM_RUNTIME_DIR=str(self.folder)))
            self._door = self._open_door(stack)
            self._is_open = True
            stack.callback(setattr, self, "_is_open", False)
            if self._first is not None:
                self.grant(self._first, reason="arrival")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._said = self._registry.mailbox(self.SLOT).read_bytes()
        self._stack.close()
        if self._fault and error is None:
            raise self._fault

    def grant(self, cpus: str, reason: str = "share") -> int:
        """Grant OS CPUs, written as a kernel list such as "0-3,8"; return the epoch of the grant.

        Raises ValueError for a list that is malformed, is empty or has CPUs from 1024 on, and for a reason that is not
        in ``layout.ENUMS["REASON"]``; RuntimeError outside of the block.
        """
        self._check_open()
        mask = parse_cpulist(cpus)
        if not mask or mask.bit_length() > self.MASK_BITS:
            raise ValueError(f"'{cpus}' cannot be granted: name one CPU or more, from 0 to {self.MASK_BITS - 1}.")
        if reason not in layout.ENUMS["REASON"]:
            raise ValueError(f"'{reason}' is no reason of a grant: choose from {', '.join(layout.ENUMS['REASON'])}.")
        epoch = self._registry.publish(self.SLOT, mask, reason)
        self._signal("granted", epoch=epoch, new=format_cpulist(mask), reason=reason)
        return epoch

    def retire(self) -> None:
        """Stop, as an agent does on SIGTERM: programs run unmanaged from their next poll on."""
        self._check_open()
        self._close_door()
        self._registry.retire(self.SLOT)
        self._signal("ended", epoch=layout.EPOCH_RETIRED, new="", reason="retired")

    def wait_applied(self, epoch: int, timeout: float = PATIENCE) -> None:
        """Wait until a program has acknowledged this grant or a later one. Raises TimeoutError, and `Left` at once.

        A program that closes its session revokes its acknowledgement: wait while it runs.
        """

        def applied() -> bool:
            gone = self._has_left()  # read first, so that a last acknowledgement counts
            if epoch <= self.applied < layout.EPOCH_RETIRED:
                return True
            if gone:
                raise Left(f"The program has left, and epoch {epoch} was not seen in force: let it wait for the grant.")
            return False

        self._await(applied, f"epoch {epoch} is not applied", timeout)

    def wait_left(self, timeout: float = PATIENCE) -> None:
        """Wait until the responder has closed its session, or has ended. Raises TimeoutError."""
        self._await(self._has_left, "the program is still attached", timeout)

    def wait_attached(self, timeout: float = PATIENCE) -> None:
        """Wait until there is a responder. Raises TimeoutError."""
        self._await(lambda: self._responder[0] > 0, "no program has attached", timeout)

    @property
    def applied(self) -> int:
        """The last acknowledged epoch; 0: none, ``layout.EPOCH_RETIRED``: the responder has left."""
        return self._mail("applied")

    @property
    def polls(self) -> int:
        """The malleability points that the responder has passed."""
        return self._mail("polls")

    @property
    def progress(self) -> int:
        """The work done that the responder reports, in its own unit."""
        return self._mail("progress")

    @property
    def wanted(self) -> tuple[int, int]:
        """The fewest and the most CPUs that the responder reports it can use; 0: unspecified."""
        return self._mail("wanted_min"), self._mail("wanted_max")

    def _mail(self, field: str) -> int:
        """Return a field of the responder's mailbox; after the block, its value at the end of the block."""
        if not self._said:
            self._check_open()
        return MAILBOX.read(self._said or self._registry.mailbox(self.SLOT).read_bytes(), field)

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("a FakeAgent acts in its block: with FakeAgent() as fake: ...")

    def _open_signals(self, stack: contextlib.ExitStack) -> zmq.Socket[bytes]:
        context = stack.enter_context(zmq.Context())
        sock: zmq.Socket[bytes] = stack.enter_context(context.socket(zmq.PUB))
        sock.setsockopt(zmq.LINGER, 0)
        sock.bind(signals.endpoint(self.folder))
        return sock

    def _signal(self, event: str, **more: object) -> None:
        self._signals.send(signals.message(self.SLOT, {"event": event, "time": time.time(), **more}), zmq.NOBLOCK)

    def _await(self, condition: Callable[[], bool], complaint: str, timeout: float) -> None:
        if not self._said:
            self._check_open()
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                newest = "the program has left" if self._has_left() else f"the newest applied is {self.applied}"
                raise TimeoutError(f"After {timeout:g} s {complaint}; {newest}.")
            time.sleep(0.001)

    # --- the registration socket ----------------------------------------------------------------------------------

    def _open_door(self, stack: contextlib.ExitStack) -> socket.socket:
        door = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        door.bind(str(self.folder / "door"))
        door.listen(64)
        self._thread = threading.Thread(target=self._serve, args=(door,), name="drom-fake", daemon=True)
        self._thread.start()
        stack.callback(self._close_door)
        return door

    def _close_door(self) -> None:
        (self.folder / "door").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _serve(self, door: socket.socket) -> None:
        while True:
            try:
                peer, _ = door.accept()
            except OSError:
                return
            with peer:
                try:
                    self._answer(peer)
                except Exception as error:  # noqa: BLE001 - the end of the block raises it
                    self._fault = error

    def _answer(self, peer: socket.socket) -> None:
        request = peer.recv(4096)
        if not request:
            return
        pid = int.from_bytes(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")
        if REQUEST.read(request, "kind") != layout.ENUMS["KNOCK"].index("attach"):
            peer.send(layout.pack_reply("unmanaged", text="A fake agent launches nothing: start the program itself."))
            return
        who = (pid, start_time(pid))
        first = self._make_responder(who)
        with contextlib.ExitStack() as stack:
            fds = [stack.enter_context(self._registry.path.open("rb")).fileno()]
            if first:
                fds.append(stack.enter_context(self._registry.mailbox(self.SLOT).open("r+b")).fileno())
            status = "granted" if first else "follower"
            task = self._registry.tenant(self.SLOT)
            socket.send_fds(peer, [layout.pack_reply(status, mask_bits=self.MASK_BITS, task=task)], fds)

    def _make_responder(self, who: tuple[int, int]) -> bool:
        """Make a process the responder unless there is another; return whether it is. The first of all is the task."""
        if self._responder != who and not self._has_no_responder():
            return False
        if not self._registry.tenant(self.SLOT)[0]:
            self._registry.assign(self.SLOT, *who)
        if self._has_no_responder():
            self._registry.clear(self.SLOT)
        self._responder = who
        return True

    def _has_left(self) -> bool:
        return self._responder[0] > 0 and self._has_no_responder()

    def _has_no_responder(self) -> bool:
        pid, start = self._responder
        return not pid or self.applied == layout.EPOCH_RETIRED or has_ended(pid, start)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in OURS}
    for name in OURS:
        os.environ.pop(name, None)
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
