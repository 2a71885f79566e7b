# SPDX-License-Identifier: Apache-2.0
"""Parse the text of squeue and scontrol. Pure.

Jobs come from `squeue`, never from `scontrol show job`, in whose lines a user can forge fields by a job's name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from drom.agent.model import slurm_values as values
from drom.agent.text import WordError
from drom.scheduler.slurm.fields import MISSING, BrokenFieldError, read_field, read_records
from drom.scheduler.slurm.records import Job, Licence, Node, Partition, Reading, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    Read = Callable[[str], object]

T = TypeVar("T")
R = TypeVar("R", bound="Hashable")


def _states(text: str) -> frozenset[str]:
    """Return states such as ``IDLE+DRAIN*``; the signs after a state are flags of its power and its answers."""
    found = {part for part in re.split(r"[+]", text.rstrip("*~#!%$@^-")) if part}
    if not found:
        raise WordError("is not a state")
    return frozenset(found | ({"NOT_RESPONDING"} if "*" in text else set()))


JOB_COLUMNS: tuple[tuple[str, str, Read], ...] = (
    ("JobID", "number", values.number),
    ("ArrayJobID", "array", values.number_or_none),
    ("ArrayTaskID", "task", values.word),
    ("UserName", "user", values.word),
    ("UserID", "uid", values.number),
    ("Account", "account", values.free_text),
    ("Partition", "partitions", values.words),
    ("State", "states", _states),
    ("Reason", "reason", values.word),
    ("PriorityLong", "priority", values.number),
    ("SubmitTime", "submitted", values.moment),
    ("EligibleTime", "eligible", values.moment),
    ("StartTime", "started", values.moment),
    ("EndTime", "ends", values.moment),
    ("TimeLimit", "limit_min", values.limit),
    ("NumNodes", "least_nodes", values.number),
    ("MaxNodes", "most_nodes", values.number_or_zero),
    ("NumTasks", "tasks", values.number_or_zero),
    ("cpus-per-task", "cpus_per_task", values.number_or_zero),
    ("NumCPUs", "cpus", values.number),
    ("OverSubscribe", "sharing", values.word),
    ("Licenses", "licences", values.licences),
    ("Dependency", "dependency", values.word),
    ("ReqNodes", "requested_nodes", values.hosts),
    ("Nice", "nice", values.number_or_zero),
    ("HetJobID", "het", values.number_or_none),
    ("NodeList", "nodes", values.hosts),
    ("MinMemory", "memory", values.word),
    ("Reservation", "reservation", values.word),
    ("RestartCnt", "restarts", values.number_or_zero),
    ("Name", "name", values.free_text),
    ("Comment", "comment", values.free_text),
    ("admin_comment", "admin_comment", values.free_text),
)
"""The fields of `squeue -O` that are requested, the attribute of a job that each becomes, and how it is read."""


NOT_ALL = (
    "squeue did not print all the fields of a job, or something else: run 'squeue --version'; 22.05, 24.11 and 26.05"
    " were tried."
)


def job_format(separator: str) -> str:
    """Return the format for `squeue -O`: each field as long as it is, followed by the separator.

    The separator begins with no digit and no period. Users write names and comments: a separator that they cannot
    guess keeps them from forging fields.
    """
    return ",".join(f"{field}:0{separator}" for field, _, _ in JOB_COLUMNS)


def parse_jobs(text: str, separator: str) -> Reading[Job]:
    """Return the jobs in the output of ``squeue -h --noconvert --states=all -O`` with `job_format`, in UTC.

    A job with a broken field is left out, with a sentence among the faults.
    """
    return JobParser().parse(text, separator)


class JobParser:
    """Parses jobs again and again, as `parse_jobs`; rows that it has seen the last time are not parsed anew."""

    def __init__(self) -> None:
        self._known: dict[object, Job] = {}

    def parse(self, text: str, separator: str) -> Reading[Job]:
        """Return the jobs in the output of squeue."""
        cells = text.split(separator)
        width = len(JOB_COLUMNS)
        cells[:-1:width] = [cell.lstrip("\n") for cell in cells[:-1:width]]
        rows = [tuple(cells[at : at + width]) for at in range(0, len(cells) - 1, width)]
        is_whole = len(cells) % width == 1 and not cells[-1].strip()
        return self._read([(row[0], row) for row in rows if len(row) == width], _job, is_whole=is_whole)

    def parse_records(self, text: str, separator: str) -> Reading[Job]:
        """Return the jobs in a text with the same fields, in which another separator ends each job; no field is empty.

        This is quicker than `parse`: jobs that have not changed are not divided into fields.
        """
        *rows, rest = text.split(2 * separator)
        most = len(JOB_COLUMNS) - 1
        whole = [(row.partition(separator)[0], row) for row in rows if row.count(separator) == most]
        is_whole = len(whole) == len(rows) and not rest
        return self._read(whole, lambda row: _job(tuple(row.split(separator))), is_whole=is_whole)

    def _read(self, rows: Sequence[tuple[str, R]], job_of_row: Callable[[R], Job], *, is_whole: bool) -> Reading[Job]:
        known, self._known = self._known, {}

        def read(row: R) -> Job:
            job = self._known[row] = known.get(row) or job_of_row(row)
            return job

        found = read_records(read, ((f"job {number}", row) for number, row in rows))
        return found if is_whole else found._replace(faults=(*found.faults, NOT_ALL))


def _job(row: tuple[str, ...]) -> Job:
    found: dict[str, Any] = {
        attribute: read_field(read, cell, field)
        for (field, attribute, read), cell in zip(JOB_COLUMNS, row, strict=True)
    }
    return job_of(found, found.pop("task"))


def job_of(found: dict[str, Any], task: str) -> Job:
    """Return a job from its attributes and the text of its array task, such as ``3`` or ``4-9%2``."""
    alone = not task
    is_one = re.fullmatch(r"[0-9]{1,9}", task) is not None
    return Job(
        **found
        | {
            "ends": None if "PENDING" in found["states"] else found["ends"],
            "array": None if alone else found["array"],
            "task": int(task) if is_one else None,
            "tasks_left": "" if alone or is_one else task,
            "most_nodes": max(found["least_nodes"], found["most_nodes"]),
            "cpus_per_task": max(1, found["cpus_per_task"]),
        }
    )


def parse_nodes(text: str) -> Reading[Node]:
    """Return the nodes in the output of ``scontrol show node -o``."""
    return _records(text, "node", "NodeName", _node)


def _node(fields: Fields) -> Node:
    return Node(
        name=fields.of("NodeName", values.word),
        cpus=fields.of("CPUTot", values.number),
        usable_cpus=fields.of("CPUEfctv" if "CPUEfctv" in fields.found else "CPUTot", values.number),
        allocated_cpus=fields.of("CPUAlloc", values.number),
        cores=fields.of("Sockets", values.number) * fields.of("CoresPerSocket", values.number),
        threads_per_core=fields.of("ThreadsPerCore", values.number),
        memory_mib=fields.of("RealMemory", values.number),
        allocated_memory_mib=fields.of("AllocMem", values.number),
        states=fields.of("State", _states),
        partitions=fields.of("Partitions", values.words, "(null)"),
        features=fields.of("ActiveFeatures", values.words, "(null)"),
        version=fields.of("Version", values.word, "(null)"),
        reason=re.sub(r" \[[^][ ]*@[^][ ]*\].*", "", fields.rest_of("Reason")),
    )


def parse_partitions(text: str) -> Reading[Partition]:
    """Return the partitions in the output of ``scontrol show partition -o``."""
    return _records(text, "partition", "PartitionName", _partition)


def _memory(text: str) -> int | None:
    return None if text in values.ENDLESS else values.number_or_none(text)


def _partition(fields: Fields) -> Partition:
    return Partition(
        name=fields.of("PartitionName", values.word),
        nodes=fields.of("Nodes", values.hosts, "(null)"),
        is_default=fields.of("Default", values.word, "NO") == "YES",
        oversubscribe=fields.of("OverSubscribe", values.word),
        state=fields.of("State", values.word),
        preempt_mode=fields.of("PreemptMode", values.word, "OFF"),
        default_limit_min=fields.of("DefaultTime", values.limit, "NONE"),
        most_limit_min=fields.of("MaxTime", values.limit, "UNLIMITED"),
        memory_per_node_mib=fields.of("DefMemPerNode", _memory, "UNLIMITED"),
        memory_per_cpu_mib=fields.of("DefMemPerCPU", _memory, "UNLIMITED"),
    )


def parse_licences(text: str) -> Reading[Licence]:
    """Return the licences in the output of ``scontrol show licenses -o``; none if Slurm has none."""
    if "No licenses" in text:
        return Reading(())
    return _records(text, "licence", "LicenseName", _licence)


def _licence(fields: Fields) -> Licence:
    counts = (fields.of(name, values.number, "0") for name in ("Total", "Used", "Reserved"))
    return Licence(fields.of("LicenseName", values.word), *counts)


def parse_reservations(text: str) -> Reading[Reservation]:
    """Return the reservations in the output of ``scontrol show reservation -o``, in UTC; none if Slurm has none."""
    if "No reservations" in text:
        return Reading(())
    return _records(text, "reservation", "ReservationName", _reservation)


def _reservation(fields: Fields) -> Reservation:
    return Reservation(
        name=fields.of("ReservationName", values.word),
        starts=fields.of("StartTime", values.moment),
        ends=fields.of("EndTime", values.moment),
        nodes=fields.of("Nodes", values.hosts),
        licences=fields.of("Licenses", values.licences),
        flags=frozenset(fields.of("Flags", values.words)),
        is_active=fields.of("State", values.word) == "ACTIVE",
    )


class Fields:
    """The fields ``Name=value`` of a line of `scontrol -o`, by name; the first of a name counts."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.found: dict[str, str] = dict(reversed(re.findall(r"(?:^|\s)([A-Z][\w/:]*)=(\S*)", line)))

    def of(self, name: str, read: Callable[[str], T], default: str | None = None) -> T:
        """Return a field's value. Raises WordError if it is broken, or missing where there is no default."""
        text = self.found.get(name, default)
        if text is None:
            raise BrokenFieldError(name, "", MISSING)
        return read_field(read, text, name)

    def rest_of(self, name: str) -> str:
        """Return a field that may contain blanks, up to the end of the line."""
        return self.line.partition(f" {name}=")[2].strip()


def _records(text: str, kind: str, first: str, record: Callable[[Fields], T]) -> Reading[T]:
    """Return a record for each line that has text; the field `first` names it."""
    lines = [Fields(line.rstrip()) for line in text.splitlines() if line.strip()]
    return read_records(record, ((f"{kind} {fields.found.get(first, 'without a name')}", fields) for fields in lines))
