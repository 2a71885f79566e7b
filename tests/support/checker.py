"""An independent checker of a node: reads the registry and /proc, and says what contradicts the rules of drom.

It shares `dromlib.layout` with the agent and nothing else. The registry is written without a lock, so a reading counts
only when the slots did not change while they were read.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from dromlib import layout
from dromlib.layout import HEADER, SLOT

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


Who = tuple[int, int]
"""A process: pid and start time, clock ticks since boot."""

PERSISTS = 1.0
"""Seconds at rest after which what /proc shows is no passing moment between a grant and its application."""
STEP = 0.1
"""Most seconds that count between two looks: a machine that does not let the watcher look may have let nobody work."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A used slot: who it belongs to and which CPUs (masks) it was granted, holds, has applied and gives back.

    `arrival` counts the jobs that have come: a process may have come again. `earlier` is the grant before the newest.
    """

    index: int
    job: str
    who: Who
    responder: Who
    epoch: int
    grant: int
    held: int
    applied_epoch: int
    applied: int
    restore: int
    mailbox: int
    waiting: bool
    arrival: int = 0
    earlier: int = 0

    @property
    def in_force(self) -> int:
        """The CPUs of the grant that is in force: an agent may have died after it had written which one that is."""
        grants = {self.epoch: self.grant, self.epoch - 1: self.earlier}
        return grants.get(self.applied_epoch, self.applied)

    @property
    def settled(self) -> bool:
        """Whether the newest grant is all that is held."""
        return bool(self.grant) and self.grant == self.held

    def __str__(self) -> str:
        """Return how a violation names the slot."""
        return f"slot {self.index} ({self.job}, pid {self.who[0]}, epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class Reading:
    """One stable reading of a registry. `raw` is the bytes of its slots, `file` the inode it was read from."""

    slots: tuple[Slot, ...]
    faults: tuple[str, ...]
    agent: Who
    emulated: bool
    retired: bool
    raw: bytes
    file: int = 0


def list_of(mask: int) -> str:
    """Return a mask as text for people."""
    return ",".join(str(c) for c in range(mask.bit_length()) if mask >> c & 1) or "none"


def read(runtime_dir: Path) -> Reading | None:
    """Return a stable reading of the registry, or None where there is none. Raises TimeoutError when it never rests."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with (runtime_dir / "registry").open("rb") as file:
                about = os.fstat(file.fileno())
                size = about.st_size
                if size < layout.HEADER_SIZE:
                    return Reading((), (f"the registry has {size} bytes",), (0, 0), False, False, b"")
                with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
                    first = memory[:]
                    again = memory[layout.HEADER_SIZE :]
        except FileNotFoundError:
            return None
        if first[layout.HEADER_SIZE :] == again:
            return _parse(first, about.st_ino)
    raise TimeoutError("the registry changed in every one of many readings")


def _parse(raw: bytes, file: int) -> Reading:
    header = {name: HEADER.read(raw, name) for name, f in HEADER.fields.items() if f.kind != "u8"}
    faults = _header_faults(header, len(raw))
    slots = []
    if not faults:
        for index in range(header["capacity"]):
            base = header["header_size"] + index * header["slot_size"]
            if SLOT.read(raw, "in_use", base):
                slots.append(_slot(raw, base, index, header["mask_bits"]))
    return Reading(
        tuple(slots),
        tuple(faults),
        (header["agent_pid"], header["agent_start"]),
        bool(header["flags"] & layout.HEADER_EMULATED),
        bool(header["retired"]),
        raw[layout.HEADER_SIZE :],
        file,
    )


def _header_faults(header: dict[str, int], size: int) -> list[str]:
    wanted = {
        "magic": layout.REGISTRY_MAGIC,
        "layout_version": layout.LAYOUT_VERSION,
        "header_size": layout.HEADER_SIZE,
        "slot_size": layout.slot_size(header["mask_bits"]),
    }
    faults = [
        f"header field {name} is {header[name]}, not {value}" for name, value in wanted.items() if header[name] != value
    ]
    if header["mask_bits"] % 64 or not 0 < header["mask_bits"] <= layout.MAX_MASK_BITS:
        faults.append(f"masks of {header['mask_bits']} bits")
    if size != layout.HEADER_SIZE + header["capacity"] * header["slot_size"]:
        faults.append(f"{header['capacity']} slots in {size} bytes")
    return faults


def _slot(raw: bytes, base: int, index: int, bits: int) -> Slot:
    def number(name: str) -> int:
        return SLOT.read(raw, name, base)

    def mask(name: str) -> int:
        at = base + layout.mask_offset(name, bits)
        return int.from_bytes(raw[at : at + bits // 8], "little")

    epoch = number("epoch")
    return Slot(
        index=index,
        job=SLOT.read_text(raw, "job", base),
        who=(number("pid"), number("start_time")),
        responder=(number("responder_pid"), number("responder_start")),
        epoch=epoch,
        grant=mask(f"grant{epoch % 2}") if epoch != layout.EPOCH_RETIRED else 0,
        held=mask("held"),
        applied_epoch=number("applied_epoch"),
        applied=mask("applied"),
        restore=mask("restore"),
        mailbox=number("mailbox"),
        waiting=bool(number("flags") & layout.SLOT_WAITING),
        arrival=number("arrival"),
        earlier=mask(f"grant{(epoch + 1) % 2}"),
    )


def registry_violations(reading: Reading) -> list[str]:
    """Return what must not be at any instant, whatever instruction the agent is at or died at."""
    found = list(reading.faults)
    for slot in reading.slots:
        if slot.who[0] <= 0 or not slot.who[1]:
            found.append(f"{slot} is used by nobody: {slot.who}")
        if slot.grant & ~slot.held:
            found.append(f"{slot}: grant {list_of(slot.grant)} exceeds held {list_of(slot.held)}")
    for one, two in combinations(reading.slots, 2):
        if one.held & two.held:
            found.append(f"{one} and {two} both hold {list_of(one.held & two.held)}")
        if one.who == two.who:
            found.append(f"{one} and {two} are of one process")
    return found


def process_violations(reading: Reading) -> list[str]:
    """Return what /proc shows against the registry; between a grant and its application it may pass."""
    stats = _stats()
    found = []
    agent_lives = _lives(stats, reading.agent)
    members = _members(stats, reading.slots)
    for slot in reading.slots:
        pid, start = slot.who
        if pid in stats and stats[pid].start != start:
            found.append(f"{slot} names a process that started at {start}, pid {pid} started at {stats[pid].start}")
        if agent_lives and not any(_lives(stats, (pid, stats[pid].start)) for pid in members[slot.index]):
            found.append(f"{slot} belongs to processes that have ended")
    if not reading.emulated and not reading.retired:
        found += _affinity_violations(reading.slots, members)
    return found


def _affinity_violations(slots: tuple[Slot, ...], members: dict[int, set[int]]) -> list[str]:
    found = []
    for slot in slots:
        if slot.waiting or not slot.grant:
            continue
        union = 0
        others = [other for other in slots if other is not slot]
        for tid, mask, cpu in _threads(members[slot.index]):
            union |= mask
            if mask & ~slot.held:
                found.append(f"{slot}: thread {tid} may run on {list_of(mask)}, held is {list_of(slot.held)}")
            owner = next((o for o in others if cpu is not None and o.held >> cpu & 1), None)
            if owner:
                found.append(f"{slot}: thread {tid} runs on CPU {cpu}, which {owner} holds")
        if slot.settled and union and union != slot.grant and not union & ~slot.held:
            found.append(f"{slot}: its threads use {list_of(union)} of grant {list_of(slot.grant)}")
    return found


def check(runtime_dir: Path, proc: bool = True) -> list[str]:
    """Return every violation at this instant; empty when all is well or there is no registry."""
    for _ in range(100):
        reading = read(runtime_dir)
        if reading is None:
            return []
        found = registry_violations(reading)
        if not proc or found:
            return found
        found = process_violations(reading)
        again = read(runtime_dir)
        if again is not None and again.raw == reading.raw:
            return found
    raise TimeoutError("the registry changed whenever /proc was read")


@dataclass(frozen=True, slots=True)
class _Stat:
    ppid: int
    start: int


def _fields(path: str) -> list[bytes] | None:
    try:
        with open(path, "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields if len(fields) > 36 else None


def _stats() -> dict[int, _Stat]:
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are what is wanted
        if name.isdecimal() and (fields := _fields(f"/proc/{name}/stat")) and fields[0] != b"X":
            found[int(name)] = _Stat(int(fields[1]), int(fields[19]))
    return found


def _lives(stats: dict[int, _Stat], who: Who) -> bool:
    """Say whether a process runs. A main thread that has ended may leave workers, a whole process none."""
    pid, start = who
    if pid not in stats or stats[pid].start != start:
        return False
    fields = _fields(f"/proc/{pid}/stat")
    return fields is not None and (fields[0] != b"Z" or len(_tids(pid)) > 1)


def _at_rest(reading: Reading) -> bool:
    """Say whether the agent sleeps, and the first processes and responders of its tasks do, or have ended."""
    everybody = {who for slot in reading.slots for who in (slot.who, slot.responder)}
    states = {_state(pid) for pid, _ in everybody if pid}
    return _state(reading.agent[0]) == b"S" and not states & {b"R", b"D", b"T"}


def _state(pid: int) -> bytes:
    return (_fields(f"/proc/{pid}/stat") or [b"X"])[0]


def _members(stats: dict[int, _Stat], slots: tuple[Slot, ...]) -> dict[int, set[int]]:
    """Return the pids of each task by slot: descendants of its first process and whoever carries its DROM_TASK."""
    roots = {
        slot.who[0]: slot.index for slot in slots if slot.who[0] in stats and stats[slot.who[0]].start == slot.who[1]
    }
    marks = {b"DROM_TASK=%d:%d" % slot.who: slot.index for slot in slots}
    members: dict[int, set[int]] = {slot.index: set() for slot in slots}
    for pid, stat in stats.items():
        at, index = pid, None
        for _ in range(len(stats)):
            index = roots.get(at)
            if index is not None or at not in stats:
                break
            at = stats[at].ppid
        if index is None and stat.ppid != 2:
            index = _marked(pid, marks)
        if index is not None:
            members[index].add(pid)
    return members


def _marked(pid: int, marks: dict[bytes, int]) -> int | None:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            if entry in marks:
                return marks[entry]
    return None


def _tids(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    return []


def _threads(pids: set[int]) -> list[tuple[int, int, int | None]]:
    """Return thread id, mask, and the CPU it runs on right now, if it does, of every living thread of the processes."""
    found = []
    for pid in pids:
        for tid in _tids(pid):
            fields = _fields(f"/proc/{pid}/task/{tid}/stat")
            if not fields or fields[0] in (b"Z", b"X"):
                continue
            with suppress(ProcessLookupError):
                mask = sum(1 << cpu for cpu in os.sched_getaffinity(tid))
                found.append((tid, mask, int(fields[36]) if fields[0] == b"R" else None))
    return found


@dataclass
class Watcher:
    """Check again and again in a thread while a block runs; leaving the block fails with what was seen.

    Registry violations count at once; those that /proc shows when they have lasted for `PERSISTS` seconds in which
    neither the agent nor the programs had anything to do, however long a busy machine kept them from it.
    """

    runtime_dir: Path
    proc: bool = True
    violations: list[str] = field(default_factory=list)
    readings: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _lasted: dict[str, float] = field(default_factory=dict)
    _looked: float = field(default_factory=time.monotonic)

    def __enter__(self) -> Watcher:  # noqa: PYI034 - Self is of Python 3.11
        """Start checking."""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop checking, and fail unless something else has failed already."""
        self._stop.set()
        self._thread.join()
        if kind is None:
            assert not self.violations, "\n".join(self.violations)
            assert self.readings, "the watcher never read the registry"

    def _watch(self) -> None:
        try:
            while not self._stop.wait(0.002):
                self._look()
        except Exception as error:  # noqa: BLE001 - the test's thread reports it
            self.violations.append(f"the watcher failed: {error!r}")

    def _look(self) -> None:
        reading = read(self.runtime_dir)
        if reading is None:
            return
        self.readings += 1
        for text in registry_violations(reading):
            self._report(text)
        if self.proc and self.readings % 8 == 0:
            self._look_at_processes(reading)

    def _look_at_processes(self, reading: Reading) -> None:
        found = process_violations(reading)
        after = read(self.runtime_dir)
        if after is None or after.raw != reading.raw:
            found = []
        now = time.monotonic()
        step = min(now - self._looked, STEP) if _at_rest(reading) else 0.0
        self._looked = now
        self._lasted = {text: self._lasted[text] + step if text in self._lasted else 0.0 for text in found}
        for text, seconds in self._lasted.items():
            if seconds > PERSISTS:
                self._report(text)

    def _report(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)
