"""The only description of the bytes that processes share: registry, mailbox, registration messages.

The C header ``drom_layout.h`` is generated from this module at build time (``python layout.py HEADER``) and
NumPy and numba read the same bytes through `slot_dtype`. Nothing else in the project knows an offset.

All integers are little-endian and naturally aligned. CPU masks are bit sets over *OS CPU numbers*:
bit ``c % 64`` of 64-bit word ``c // 64`` stands for CPU ``c``.

A registry is a header page followed by ``capacity`` slots of ``slot_size`` bytes. Word 0 of a slot is its epoch in
every layout version. A slot carries two copies of the grant; the copy in force is ``epoch % 2``, so there is no
moment at which a reader finds neither, whatever instruction the writer died at.
"""

from __future__ import annotations

import struct
import sys

TYPE_CHECKING = False  # as typing's: programs load this module, and it and dataclasses are slow to import
if TYPE_CHECKING:
    import numpy as np

LAYOUT_VERSION = 1
"""Raised when a byte changes its meaning; header fields keep their offsets in all versions."""
PROTOCOL_VERSION = 1
"""Version of the registration messages."""
REGISTRY_MAGIC = 0x3147_4552_4D4F_5244
"""``DROMREG1``, read as a little-endian word."""
MAILBOX_MAGIC = 0x3158_4F42_4D4F_5244
"""``DROMBOX1``."""
DOOR_MAGIC = 0x4F44_5244
"""``DRDO``."""
EPOCH_RETIRED = (1 << 64) - 1
"""Epoch of a slot in a retired registry: detach and register again."""
HEADER_SIZE = 4096
MAILBOX_SIZE = 4096
NAME_SIZE = 64
"""Bytes of a job or session name, the closing NUL included."""
TEXT_SIZE = 256
"""Bytes of a message text, the closing NUL included."""
MAX_MASK_BITS = 1 << 15
"""Maximum number of CPUs of a mask; limits the size of a registration reply."""

_C_TYPES = {
    "u64": ("uint64_t", 8),
    "u32": ("uint32_t", 4),
    "i32": ("int32_t", 4),
    "u8": ("uint8_t", 1),
    "char": ("char", 1),
}
_STRUCT_CODES = {"u64": "Q", "u32": "I", "i32": "i", "u8": "s", "char": "s"}


class Field:
    """One field of a shared structure: its type, name, place and meaning."""

    __slots__ = ("code", "count", "doc", "kind", "name", "offset", "size")

    def __init__(self, kind: str, name: str, count: int, offset: int, doc: str) -> None:
        self.kind = kind
        self.name = name
        self.count = count
        self.offset = offset
        self.doc = doc
        self.size = _C_TYPES[kind][1] * count
        """Bytes the field takes."""
        self.code = f"<{count}{_STRUCT_CODES[kind]}"
        """Format of the field for the standard module ``struct``."""


class Record:
    """A named sequence of fields, laid out in the order given."""

    def __init__(self, name: str, *rows: tuple[str, str, str]) -> None:
        self.name = name
        self.fields: dict[str, Field] = {}
        offset = 0
        for spec, field_name, doc in rows:
            kind, _, count = spec.partition("*")
            field = Field(kind, field_name, int(count or 1), offset, doc)
            if offset % _C_TYPES[kind][1]:
                msg = f"{name}.{field_name} is not aligned: reorder the fields."
                raise ValueError(msg)
            self.fields[field_name] = field
            offset += field.size
        self.size = offset

    def read(self, buffer: memoryview | bytes, name: str, base: int = 0) -> int:
        """Return the integer field `name` of the record that starts at byte `base`."""
        field = self.fields[name]
        value: int = struct.unpack_from(field.code, buffer, base + field.offset)[0]
        return value

    def read_text(self, buffer: memoryview | bytes, name: str, base: int = 0) -> str:
        """Return the NUL-terminated text field `name`; bytes that are not UTF-8 are replaced."""
        field = self.fields[name]
        raw: bytes = struct.unpack_from(field.code, buffer, base + field.offset)[0]
        return raw.split(b"\0", 1)[0].decode(errors="replace")

    def write(self, buffer: memoryview | bytearray, base: int = 0, **values: int | bytes | str) -> None:
        """Store the named fields of the record that starts at byte `base`, in the order given.

        A concurrent reader of an integer sees the old or the new value, also if this process dies meanwhile: all its
        bytes are copied at once, in contrast to `struct.pack_into`, which fills them with zeros first. Text that does
        not fit is cut at a character boundary and always ends in NUL.
        """
        for name, value in values.items():
            field = self.fields[name]
            raw = cut_text(value, field.count) if isinstance(value, str) else value
            at = base + field.offset
            buffer[at : at + field.size] = struct.pack(field.code, raw)

    def unpack(self, buffer: memoryview | bytes, base: int = 0) -> dict[str, int | bytes | tuple[int, ...]]:
        """Return every field by name: integers, tuples of integers, or bytes for text."""
        out: dict[str, int | bytes | tuple[int, ...]] = {}
        for name, field in self.fields.items():
            values = struct.unpack_from(field.code, buffer, base + field.offset)
            out[name] = values if len(values) > 1 else values[0]
        return out


def cut_text(text: str, size: int) -> bytes:
    """Return `text` as UTF-8 of at most ``size - 1`` bytes, cut between characters, NUL-padded to `size`."""
    raw = text.encode()[: size - 1].decode(errors="ignore").encode()
    return raw.ljust(size, b"\0")


HEADER = Record(
    "drom_header",
    ("u64", "magic", "REGISTRY_MAGIC; written last when a registry is made"),
    ("u32", "layout_version", "LAYOUT_VERSION of the writer"),
    ("u32", "header_size", "bytes before the first slot"),
    ("u32", "slot_size", "bytes from one slot to the next"),
    ("u32", "capacity", "number of slots"),
    ("u32", "mask_bits", "CPUs each mask can hold, a multiple of 64"),
    ("u32", "retired", "1 when the agent has given this registry up"),
    ("i32", "agent_pid", "pid of the agent that writes, in its own pid namespace"),
    ("u32", "flags", "HEADER_* bits"),
    ("u64", "agent_start", "start time of the agent, clock ticks since boot (proc(5), field 22)"),
    ("u8*16", "boot_id", "kernel.random.boot_id as 16 bytes"),
    ("u64", "heartbeat_ns", "CLOCK_MONOTONIC when the agent last wrote, nanoseconds"),
    ("u64", "topology_digest", "changes when packages, cores or CPUs differ"),
    ("u64", "arrivals", "arrivals numbered so far"),
    ("u32", "moved_tid", "thread that the agent is moving: its mask is one CPU for a moment; 0: none"),
    ("u32", "moved_cpu", "that CPU"),
)
HEADER_EMULATED = 1
"""Header flag: the CPUs are synthetic and no affinity is ever set."""
HEADER_THREADS = 4
"""Header flag: the allocation unit is the hardware thread; counts of cores in slots count threads."""

REPLY_BOUND = 2
"""Reply flag, besides those of the header: the agent has bound the process already."""

SLOT = Record(
    "drom_slot",
    ("u64", "epoch", "number of the newest grant; its parity selects the copy; EPOCH_RETIRED: register again"),
    ("u64", "start_time", "start time of the task's first process, clock ticks since boot"),
    ("i32", "pid", "pid of the task's first process; 0 when the slot is free"),
    ("u32", "in_use", "1 from the moment the slot is complete until it is given back"),
    ("u32*2", "reason", "why each grant copy was published, REASON_*"),
    ("u32*2", "ncpus", "CPUs in each grant copy"),
    ("u64", "applied_epoch", "newest epoch known to be in force in the program"),
    ("u64", "deadline_ns", "CLOCK_MONOTONIC when the agent enforces, nanoseconds; 0: nothing pending"),
    # From here on the agent's own data, for a restart.
    ("u64", "arrival", "order of arrival on this node, from 1"),
    ("u64", "mailbox", "number in the name of the task's mailbox file"),
    ("u64", "session", "distinguishes jobs of one user that have the same name"),
    ("u64", "responder_start", "start time of the responder"),
    ("i32", "responder_pid", "pid of the responder; 0: none"),
    ("u32", "uid", "user of the task"),
    ("u32", "job_class", "CLASS_*"),
    ("u32", "flags", "SLOT_* bits"),
    ("u32", "min_cores", "cores below which a task of the job does not go"),
    ("u32", "max_cores", "cores a task of the job can use"),
    ("u32", "hold_cores", "cores an order has fixed the job at; 0: none"),
    ("u32", "local_rank", "index of the task in its job on this node"),
    ("u32", "local_size", "tasks of the job on this node"),
    ("u32", "distribution", "DISTRIBUTION_* the job asked for"),
    ("u32", "per_socket", "cores on each socket the job asked for; 0: unsaid"),
    ("u32", "ordered_by", "1 + user who gave the order behind hold_cores or pin; 0: none, or nobody knows"),
    ("u64", "memory", "bytes of memory declared for each task of the job; 0: unsaid"),
    ("u64", "hold_until_ns", "CLOCK_MONOTONIC when the order behind hold_cores ends, nanoseconds; 0: when told"),
    ("char*64", "job", "job name"),
)
SLOT_FIXED = 320
"""Bytes before the first mask of a slot."""
SLOT_WAITING = 1
"""Slot flag: the task waits for its first grant."""
SLOT_ENFORCED = 2
"""Slot flag: the newest grant was applied by the agent, not by the program."""
SLOT_STRICT = 4
"""Slot flag: the job waits rather than run in a layout other than the requested one."""
SLOT_ATTACHED = 8
"""Slot flag: the task ran before an order attached it; `restore` is the affinity that it had."""

MASKS = ("grant0", "grant1", "held", "applied", "target", "owned", "restore", "pin")
"""The masks of a slot in order: the two grant copies, every CPU of every grant not yet superseded by an
acknowledgement, the grant in force, the target of the plan, the CPUs that the task owns, the affinity to restore at
stop, and the exact CPUs an order has set (empty: none)."""

MAILBOX = Record(
    "drom_mailbox",
    ("u64", "magic", "MAILBOX_MAGIC"),
    ("u32", "layout_version", "LAYOUT_VERSION of the agent that made it"),
    ("u32", "slot", "index of the task's slot"),
    ("u64", "applied", "newest epoch in force in the program, by pwrite; EPOCH_RETIRED: the responder has left"),
    ("u64", "polls", "malleability points passed"),
    ("u64", "progress", "work done, in the program's own unit"),
    ("u32", "wanted_min", "CPUs the program can do with; 0: unsaid"),
    ("u32", "wanted_max", "CPUs the program can use; 0: unsaid"),
    ("u32", "points", "where its malleability points are, a bit for each POINTS_*; 0: in the program itself"),
    ("u32", "min_tasks", "tasks of the job that keep CPUs while this one may rest; 0: it may not"),
    ("u32", "max_tasks", "tasks of the job that can use CPUs while this one may rest; 0: all"),
)

REQUEST = Record(
    "drom_request_message",
    ("u32", "magic", "DOOR_MAGIC"),
    ("u32", "protocol", "PROTOCOL_VERSION"),
    ("u32", "kind", "KNOCK_*"),
    ("u32", "flags", "REQUEST_* bits"),
    ("u64", "task_start", "start time in DROM_TASK; 0: none"),
    ("i32", "task_pid", "pid in DROM_TASK; 0: none"),
    ("u32", "max_cpus", "CPUs asked for; 0: all the node has"),
    ("u32", "min_cpus", "CPUs below which the job must not go; 0: one per task"),
    ("u32", "job_class", "CLASS_*"),
    ("u32", "local_rank", "index of this task in its job on this node"),
    ("u32", "local_size", "tasks of the job on this node; 0: one"),
    ("u32", "distribution", "DISTRIBUTION_*"),
    ("u32", "per_socket", "cores wanted on each socket, with DISTRIBUTION_PER_SOCKET"),
    ("u64", "memory", "bytes of memory this task needs; 0: unsaid"),
    ("char*64", "job", "job name; empty: the agent makes one from the command's"),
    ("char*64", "session", "launcher's job id, so that ranks of one launch are one job; empty: none"),
    ("char*256", "program", "the command to be launched, as typed; its last part where it is longer; empty: none"),
)
REQUEST_STRICT = 1
"""Request flag: wait rather than run in a layout other than the requested one."""
REQUEST_PARENT = 2
"""Request flag of a launch: the task is the parent of the process that sends the request, which has the same user."""
REQUEST_FENCED = 4
"""Request flag of a launch: where no cpuset confines the task, the affinity that it has confines it."""

REPLY = Record(
    "drom_reply_message",
    ("u32", "magic", "DOOR_MAGIC"),
    ("u32", "protocol", "PROTOCOL_VERSION"),
    ("u32", "status", "STATUS_*"),
    ("u32", "slot", "index of the task's slot"),
    ("u32", "mask_bits", "bits of the mask that follows this record"),
    ("u32", "max_cpus", "CPUs the job may grow to: the number of threads to launch with; 0: the agent only observes"),
    ("u64", "epoch", "epoch of the grant in the mask"),
    ("u64", "start_time", "start time of the task's first process"),
    ("i32", "pid", "pid of the task's first process: with start_time the value of DROM_TASK"),
    ("u32", "flags", "HEADER_* bits of the registry, and REPLY_BOUND"),
    ("char*256", "text", "a sentence for people when waiting or refused"),
)

ENUMS: dict[str, tuple[str, ...]] = {
    "KNOCK": ("none", "launch", "attach"),
    "STATUS": ("granted", "waiting", "refused", "follower", "unmanaged"),
    "CLASS": ("malleable", "moldable", "rigid"),
    "REASON": ("none", "arrival", "share", "return", "order", "death", "retired", "avoid", "wish"),
    "POINTS": ("libomp", "libgomp", "mpi", "other_libomp", "pinned", "other_tool"),
    "DISTRIBUTION": ("default", "compact", "spread", "per_socket"),
}
"""Enumerations by prefix; the value is the index in the tuple. REASON is why a grant was published: the task's own
arrival, another task's arrival (share), cores that return to their owner (return), an order of a user or a scheduler,
cores of a task that ended (death), cores that may not or should not be used any longer (avoid), the demand that a
program has reported (wish). STATUS_UNMANAGED means that the agent leaves this program alone: it runs as without an
agent. POINTS are bit numbers: the runtimes whose calls are malleability points of a program without its own; with
POINTS_OTHER_LIBOMP the program has more LLVM runtimes, which drom does not resize, with POINTS_OTHER_TOOL such a
runtime reports to a tool of the user instead, and with POINTS_PINNED the program's threads may bind themselves one by
one, so no other process may move them."""
IN_DROM_H = ("REASON",)
"""Enumerations that programs see: drom.h declares them, so drom_layout.h does not."""


def pack_reply(
    status: str,
    *,
    slot: int = 0,
    mask: int = 0,
    mask_bits: int = 0,
    max_cpus: int = 0,
    epoch: int = 0,
    task: tuple[int, int] = (0, 0),
    flags: int = 0,
    text: str = "",
) -> bytes:
    """Return the bytes of a registration reply; `task` is pid and start time, `mask` over OS CPUs."""
    data = bytearray(REPLY.size)
    REPLY.write(
        data,
        magic=DOOR_MAGIC,
        protocol=PROTOCOL_VERSION,
        status=ENUMS["STATUS"].index(status),
        slot=slot,
        mask_bits=mask_bits,
        max_cpus=max_cpus,
        epoch=epoch,
        start_time=task[1],
        pid=task[0],
        flags=flags,
        text=text,
    )
    return bytes(data) + mask.to_bytes(mask_bits // 8, "little")


def mask_words(mask_bits: int) -> int:
    """Return the number of 64-bit words of a mask over `mask_bits` CPUs."""
    return (mask_bits + 63) // 64


def slot_size(mask_bits: int) -> int:
    """Return the size in bytes of a slot with masks of `mask_bits` CPUs, a multiple of a cache line."""
    size = SLOT_FIXED + len(MASKS) * 8 * mask_words(mask_bits)
    return (size + 63) // 64 * 64


def mask_offset(name: str, mask_bits: int) -> int:
    """Return the offset in a slot of the mask `name`."""
    return SLOT_FIXED + MASKS.index(name) * 8 * mask_words(mask_bits)


def slot_dtype(mask_bits: int) -> np.dtype[np.void]:
    """Return the NumPy structured type of a slot, which numba reads as well."""
    import numpy as np

    kinds = {"u64": "<u8", "u32": "<u4", "i32": "<i4"}
    names, formats, offsets = [], [], []
    for field in SLOT.fields.values():
        names.append(field.name)
        base = f"S{field.count}" if field.kind == "char" else kinds[field.kind]
        formats.append((base, (field.count,)) if field.count > 1 and field.kind != "char" else base)
        offsets.append(field.offset)
    for name in MASKS:
        names.append(name)
        formats.append(("<u8", (mask_words(mask_bits),)))
        offsets.append(mask_offset(name, mask_bits))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": slot_size(mask_bits)})


def _c_record(record: Record) -> list[str]:
    lines = [f"struct {record.name} {{"]
    for field in record.fields.values():
        array = f"[{field.count}]" if field.count > 1 else ""
        lines.append(f"    {_C_TYPES[field.kind][0]} {field.name}{array}; /* {field.doc} */")
    lines.append("};")
    lines += [
        f'_Static_assert(offsetof(struct {record.name}, {field.name}) == {field.offset}, "{record.name}.{field.name}");'
        for field in record.fields.values()
    ]
    return lines


def c_header() -> str:
    """Return the text of ``drom_layout.h``."""
    lines = [
        "/* Generated from dromlib/layout.py: do not edit. */",
        "#ifndef DROM_LAYOUT_H",
        "#define DROM_LAYOUT_H",
        "#include <stddef.h>",
        "#include <stdint.h>",
    ]
    constants = {
        "LAYOUT_VERSION": f"{LAYOUT_VERSION}u",
        "PROTOCOL_VERSION": f"{PROTOCOL_VERSION}u",
        "REGISTRY_MAGIC": f"UINT64_C({REGISTRY_MAGIC})",
        "MAILBOX_MAGIC": f"UINT64_C({MAILBOX_MAGIC})",
        "DOOR_MAGIC": f"{DOOR_MAGIC}u",
        "EPOCH_RETIRED": "UINT64_MAX",
        "HEADER_SIZE": f"{HEADER_SIZE}u",
        "MAILBOX_SIZE": f"{MAILBOX_SIZE}u",
        "NAME_SIZE": f"{NAME_SIZE}u",
        "TEXT_SIZE": f"{TEXT_SIZE}u",
        "MAX_MASK_BITS": f"{MAX_MASK_BITS}u",
        "HEADER_EMULATED": f"{HEADER_EMULATED}u",
        "HEADER_THREADS": f"{HEADER_THREADS}u",
        "REPLY_BOUND": f"{REPLY_BOUND}u",
        "REQUEST_STRICT": f"{REQUEST_STRICT}u",
        "REQUEST_PARENT": f"{REQUEST_PARENT}u",
        "REQUEST_FENCED": f"{REQUEST_FENCED}u",
        "SLOT_WAITING": f"{SLOT_WAITING}u",
        "SLOT_ENFORCED": f"{SLOT_ENFORCED}u",
        "SLOT_STRICT": f"{SLOT_STRICT}u",
        "SLOT_ATTACHED": f"{SLOT_ATTACHED}u",
        "SLOT_FIXED": f"{SLOT_FIXED}u",
        "MASKS_PER_SLOT": f"{len(MASKS)}u",
    }
    lines += [f"#define DROM_{name} {value}" for name, value in constants.items()]
    for prefix, names in ENUMS.items():
        if prefix in IN_DROM_H:
            continue
        lines.append(
            "enum { " + ", ".join(f"DROM_{prefix}_{name.upper()} = {i}" for i, name in enumerate(names)) + " };"
        )
    lines.append("enum { " + ", ".join(f"DROM_MASK_{name.upper()} = {i}" for i, name in enumerate(MASKS)) + " };")
    for record in (HEADER, SLOT, MAILBOX, REQUEST, REPLY):
        lines += _c_record(record)
    lines.append("#endif")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(c_header())
