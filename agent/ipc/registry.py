# SPDX-License-Identifier: Apache-2.0
"""The registry file, which only the agent creates and writes, in place, and which the next agent reads.

The order of stores is essential, because the agent may die between any two of them: a slot is complete before it is
marked as used, the held mask grows before a grant is published and shrinks only after the acknowledgement, and
`SLOT.epoch` is stored last, by libdrom's publish. Masks are over OS CPU numbers; times are seconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.model.jobs import Arrival, Grant, Job, Task
from drom.agent.model.layouts import KINDS, Layout

from dromlib import layout, native
from dromlib.errors import DromError
from dromlib.layout import HEADER, MASKS, SLOT

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = layout.ENUMS["CLASS"]
REASON_NUMBERS = {name: number for number, name in enumerate(layout.ENUMS["REASON"])}


class RegistryError(DromError):
    """Raised when a registry can be neither used nor created; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The writer of a registry, for its header. `threads`: hardware threads are handed out, not cores."""

    pid: int
    start_time: int
    boot_id: bytes
    digest: int
    emulated: bool
    threads: bool = False

    @property
    def flags(self) -> int:
        """The header's HEADER_* bits."""
        return (layout.HEADER_EMULATED if self.emulated else 0) | (layout.HEADER_THREADS if self.threads else 0)


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """A used slot as stored in the file: its fields by name, and its masks by name."""

    index: int
    fields: dict[str, int]
    job: str
    masks: dict[str, int]
    reasons: tuple[int, ...] = (0, 0)

    @property
    def granted(self) -> int:
        """The CPUs of the newest grant."""
        return self.masks[f"grant{self.fields['epoch'] % 2}"]

    @property
    def is_sound(self) -> bool:
        """Whether its numbers have valid meanings."""
        known = (("job_class", CLASSES), ("distribution", KINDS))
        return all(self.fields[name] < len(names) for name, names in known)

    @property
    def reason(self) -> str:
        """The reason of the newest grant: a name of REASON."""
        names, number = layout.ENUMS["REASON"], self.reasons[self.fields["epoch"] % 2]
        return names[number] if number < len(names) else names[0]


class Registry:
    """A mapped registry. Only the process that holds the runtime directory's lock may write."""

    def __init__(self, path: Path, memory: memoryview) -> None:
        self.path = path
        self.memory = memory
        self.mask_bits = HEADER.read(memory, "mask_bits")
        self.capacity = HEADER.read(memory, "capacity")
        self._slot_size = HEADER.read(memory, "slot_size")
        self._first = HEADER.read(memory, "header_size")
        self._words = layout.mask_words(self.mask_bits)
        self._mask_bytes = 8 * self._words
        # Programs wait for publish: everything that can be prepared for it is prepared here.
        address = native.address(memory)
        self._slots = [ctypes.c_void_p(address + self._base(slot)) for slot in range(self.capacity)]
        self._publish = native.publisher()
        self._saved: dict[int, dict[str, int]] = {}

    @classmethod
    def create(cls, path: Path, capacity: int, mask_bits: int, owner: Owner) -> Registry:
        """Create an empty registry of `capacity` slots for CPUs below `mask_bits` (rounded up to 64) and open it.

        Raises `RegistryError` if the file cannot be allocated in full.
        """
        mask_bits = 64 * layout.mask_words(mask_bits)
        size = layout.HEADER_SIZE + capacity * layout.slot_size(mask_bits)
        fresh = path.with_name("registry.new")
        fresh.unlink(missing_ok=True)
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)
            os.posix_fallocate(fd, 0, size)
            header = bytearray(HEADER.size)
            HEADER.write(
                header,
                layout_version=layout.LAYOUT_VERSION,
                header_size=layout.HEADER_SIZE,
                slot_size=layout.slot_size(mask_bits),
                capacity=capacity,
                mask_bits=mask_bits,
                boot_id=owner.boot_id,
                topology_digest=owner.digest,
                flags=owner.flags,
                magic=layout.REGISTRY_MAGIC,
            )
            os.pwrite(fd, header, 0)
            fresh.rename(path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = "free space there or choose another --runtime-dir" if full else "check the directory"
            msg = f"cannot make {path} ({size} bytes): {os.strerror(error.errno or 0)}: {advice}."
            raise RegistryError(msg) from error
        finally:
            os.close(fd)
        registry = cls.open(path)
        registry.sign(owner)
        return registry

    @classmethod
    def open(cls, path: Path) -> Registry:
        """Open a registry for writing. Raises `RegistryError` if it is not one of this layout."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            msg = f"cannot open {path}: {os.strerror(error.errno or 0)}: move it away or choose another --runtime-dir."
            raise RegistryError(msg) from error
        try:
            size = os.fstat(fd).st_size
            fault = "it is too short" if size < layout.HEADER_SIZE else ""
            memory = memoryview(mmap.mmap(fd, size)) if not fault else None
        finally:
            os.close(fd)
        if memory is not None:
            fault = _fault(memory, size)
        if memory is None or fault:
            raise _not_adopted(path, fault)
        found = cls(path, memory)
        for record in found.records():
            if not record.is_sound:
                raise _not_adopted(path, f"slot {record.index} in it is damaged")
        return found

    def sign(self, owner: Owner) -> None:
        """Write the new writer of the registry into its header."""
        HEADER.write(self.memory, agent_pid=owner.pid, agent_start=owner.start_time, topology_digest=owner.digest)
        self.beat()

    def beat(self) -> None:
        """Write the heartbeat."""
        HEADER.write(self.memory, heartbeat_ns=time.monotonic_ns())

    def record_move(self, tid: int, cpu: int) -> None:
        """Write that a thread is about to be moved to the OS CPU `cpu`; a `tid` of 0: that none is being moved."""
        HEADER.write(self.memory, moved_cpu=cpu, moved_tid=tid)

    def header(self, name: str) -> int:
        """Return an integer field of the header."""
        return HEADER.read(self.memory, name)

    @property
    def boot_id(self) -> bytes:
        """The boot in which the registry was created."""
        field = HEADER.fields["boot_id"]
        return bytes(self.memory[field.offset : field.offset + field.size])

    # --- writing --------------------------------------------------------------------------------------------------

    def save(self, task: Task, job: Job, *, target: int, owned: int) -> None:
        """Write what a restart needs to know about the task, if it differs from the stored values."""
        base, now = self._base(task.slot), kept(task, job, target, owned)
        before = self._saved.get(task.slot, {})
        for name, value in now.items():
            if before.get(name) == value:
                continue
            if name in MASKS:
                self._write_mask(base, name, value)
            else:
                SLOT.write(self.memory, base, **{name: value})
        self._saved[task.slot] = now

    def held(self, slot: int) -> int:
        """Return the held CPUs as stored in the file."""
        return self._saved.get(slot, {}).get("held", 0)

    def register(self, task: Task, job: Job) -> None:
        """Write the slot of a task that has arrived: all other fields first, `in_use` last."""
        base = self._base(task.slot)
        SLOT.write(
            self.memory,
            base,
            start_time=task.arrival.start_time,
            pid=task.arrival.pid,
            arrival=job.arrived,
            session=task.arrival.session,
            uid=task.arrival.uid,
            job_class=CLASSES.index(task.arrival.job_class),
            local_rank=task.rank,
            distribution=KINDS.index(job.layout.kind),
            per_socket=job.layout.per_socket,
            memory=job.memory,
            job=job.name,
        )
        self._write_mask(base, "restore", self._storable(task.arrival.restore))
        self._saved.pop(task.slot, None)
        self.save(task, job, target=0, owned=0)
        HEADER.write(self.memory, arrivals=job.arrived)
        SLOT.write(self.memory, base, in_use=1)

    def publish(self, task: Task, epoch: int, mask: int, reason: str) -> None:
        """Publish a grant: the program sees it from this moment."""
        written = self._publish(
            self._slots[task.slot],
            mask.to_bytes(self._mask_bytes, "little"),
            self._words,
            REASON_NUMBERS[reason],
        )
        if written != epoch:
            msg = f"slot {task.slot} published epoch {written}, planned {epoch}"
            raise AssertionError(msg)

    def forget(self, task: Task) -> None:
        """Free the slot and wake processes that still wait on it.

        Its epoch is then beyond all those planned for the task, some of which may never have been published.
        """
        base = self._base(task.slot)
        SLOT.write(self.memory, base, in_use=0, pid=0, start_time=0, ordered_by=0)
        for name in MASKS[2:]:
            self._write_mask(base, name, 0)
        self._saved.pop(task.slot, None)
        while self._publish(self._slots[task.slot], bytes(self._mask_bytes), self._words, 0) <= task.epoch:
            pass

    def retire(self) -> None:
        """Notify every program that this registry is retired, then remove it."""
        HEADER.write(self.memory, retired=1)
        for record in self.records():
            native.retire(self._slots[record.index])
        self.path.unlink(missing_ok=True)

    def _base(self, slot: int) -> int:
        return self._first + slot * self._slot_size

    def _storable(self, mask: int) -> int:
        """Return the CPUs of a mask that the file has bits for; if there are none, all that it has bits for.

        A process may have run on CPUs that the agent does not know. When it is restored, it gets all that are left.
        """
        everything = (1 << self.mask_bits) - 1
        return mask & everything or (everything if mask else 0)

    def _write_mask(self, base: int, name: str, mask: int) -> None:
        at = base + layout.mask_offset(name, self.mask_bits)
        self.memory[at : at + 8 * self._words] = mask.to_bytes(8 * self._words, "little")

    # --- reading back ---------------------------------------------------------------------------------------------

    def epochs(self) -> dict[int, int]:
        """Return the epoch of every slot that ever had one, so that a slot's next task continues from there."""
        found = ((slot, SLOT.read(self.memory, "epoch", self._base(slot))) for slot in range(self.capacity))
        return {slot: epoch for slot, epoch in found if epoch}

    def records(self) -> list[SlotRecord]:
        """Return the used slots."""
        used = (slot for slot in range(self.capacity) if SLOT.read(self.memory, "in_use", self._base(slot)))
        records = [self._record(slot) for slot in used]
        for record in records:
            self._saved[record.index] = {"held": record.masks["held"]}
        return records

    def _record(self, slot: int) -> SlotRecord:
        base = self._base(slot)
        plain = [f.name for f in SLOT.fields.values() if f.count == 1]
        masks = {}
        for name in MASKS:
            at = base + layout.mask_offset(name, self.mask_bits)
            masks[name] = int.from_bytes(self.memory[at : at + 8 * self._words], "little")
        fields = {name: SLOT.read(self.memory, name, base) for name in plain}
        reason = SLOT.fields["reason"]
        reasons = struct.unpack_from(reason.code, self.memory, base + reason.offset)
        return SlotRecord(slot, fields, SLOT.read_text(self.memory, "job", base), masks, reasons)


def kept(task: Task, job: Job, target: int, owned: int) -> dict[str, int]:
    """Return what a restart needs to know about a task and what changes during its life, by field or mask."""
    return {
        "mailbox": task.mailbox,
        "applied_epoch": task.grants[0].epoch if task.grants else 0,
        "deadline_ns": int((task.deadline or 0) * 1e9),
        "responder_pid": task.responder[0] if task.responder else 0,
        "responder_start": task.responder[1] if task.responder else 0,
        "hold_cores": job.hold or 0,
        "hold_until_ns": int((job.hold_until or 0) * 1e9),
        "ordered_by": 0 if job.hold_by is None else job.hold_by + 1,
        "min_cores": job.task_min,
        "max_cores": job.task_max,
        "local_size": len(job.ranks),
        "flags": _flags(task, job),
        "held": task.held,
        "applied": task.applied,
        "target": target,
        "owned": owned,
        "pin": task.pin,
    }


def _not_adopted(path: Path, fault: str) -> RegistryError:
    return RegistryError(f"{path} cannot be adopted, {fault}: remove it once its programs have ended.")


def restore(record: SlotRecord) -> tuple[Task, Job]:
    """Return the task of a slot and a job that describes it, as the previous agent left them.

    A grant that was not applied keeps all held CPUs. Held CPUs added for a grant that was never published are dropped.
    """
    f = record.fields
    arrival = Arrival(
        pid=f["pid"],
        start_time=f["start_time"],
        uid=f["uid"],
        job=record.job,
        job_class=CLASSES[f["job_class"]],
        session=f["session"],
        rank=f["local_rank"],
        size=max(1, f["local_size"]),
        restore=record.masks["restore"],
        layout=Layout(KINDS[f["distribution"]], f["per_socket"], bool(f["flags"] & layout.SLOT_STRICT)),
        memory=f["memory"],
        attached=bool(f["flags"] & layout.SLOT_ATTACHED),
    )
    task = Task(
        record.index, record.job, arrival.rank, arrival, f["epoch"], mailbox=f["mailbox"], pin=record.masks["pin"]
    )
    if f["responder_pid"]:
        task.responder = (f["responder_pid"], f["responder_start"])
    # A first grant that was never published has an epoch beyond the slot's: the stored one is an earlier task's.
    if 0 < f["applied_epoch"] < f["epoch"]:
        task.grants.append(Grant(f["applied_epoch"], record.masks["held"] | record.masks["applied"], time.monotonic()))
        task.deadline = f["deadline_ns"] / 1e9 or None
    if 0 < f["applied_epoch"] <= f["epoch"]:
        task.grants.append(Grant(f["epoch"], record.granted, time.monotonic()))
        task.reason = record.reason
    task.enforced = bool(f["flags"] & layout.SLOT_ENFORCED)
    job = Job(
        name=record.job,
        asked=record.job,
        user=f["uid"],
        session=f["session"],
        job_class=arrival.job_class,
        arrived=f["arrival"],
        task_min=max(1, f["min_cores"]),
        task_max=max(1, f["max_cores"]),
        ranks={},
        hold=f["hold_cores"] or None,
        hold_until=f["hold_until_ns"] / 1e9 or None,
        hold_by=f["ordered_by"] - 1 if f["ordered_by"] else None,
        layout=arrival.layout,
        memory=arrival.memory,
    )
    return task, job


def _flags(task: Task, job: Job) -> int:
    bits = {
        layout.SLOT_WAITING: not task.started,
        layout.SLOT_ENFORCED: task.enforced,
        layout.SLOT_STRICT: job.layout.strict,
        layout.SLOT_ATTACHED: task.arrival.attached,
    }
    return sum(bit for bit, is_set in bits.items() if is_set)


def is_obsolete(path: Path, boot: bytes) -> bool:
    """Return whether a registry of another layout can be replaced: it is retired, or of another boot than `boot`.

    The first fields of a registry are at the same place in every version.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        header = os.read(fd, HEADER.size)
    except OSError:
        return False
    finally:
        os.close(fd)
    if len(header) < HEADER.size or HEADER.read(header, "magic") != layout.REGISTRY_MAGIC:
        return False
    made = HEADER.fields["boot_id"]
    over = header[made.offset : made.offset + made.size] != boot or bool(HEADER.read(header, "retired"))
    return over and HEADER.read(header, "layout_version") != layout.LAYOUT_VERSION


def _fault(memory: memoryview, size: int) -> str:
    """Return the fault in the header of a registry, or an empty text."""
    if HEADER.read(memory, "magic") != layout.REGISTRY_MAGIC:
        return "it is not a registry of drom"
    version = HEADER.read(memory, "layout_version")
    if version != layout.LAYOUT_VERSION:
        made = f"its layout is version {version}, this agent writes version {layout.LAYOUT_VERSION}"
        return f"{made} (run the drom that made it and stop that, so that its programs continue unmanaged)"
    bits, capacity = HEADER.read(memory, "mask_bits"), HEADER.read(memory, "capacity")
    fits = (
        HEADER.read(memory, "slot_size") == layout.slot_size(bits)
        and HEADER.read(memory, "header_size") == layout.HEADER_SIZE
    )
    if (
        bits % 64
        or bits > layout.MAX_MASK_BITS
        or not fits
        or size != layout.HEADER_SIZE + capacity * layout.slot_size(bits)
    ):
        return "its header contradicts its size"
    return ""
