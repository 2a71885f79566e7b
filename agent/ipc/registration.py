# SPDX-License-Identifier: Apache-2.0
"""Messages of the AF_UNIX registration socket: requests of drom-run and libdrom, and answers, as bytes and values."""

from __future__ import annotations

from dataclasses import dataclass

from drom.agent.model.jobs import Arrival
from drom.agent.model.layouts import ANY, KINDS, Layout
from drom.agent.text import clean_name

from dromlib import layout
from dromlib.layout import REQUEST

REQUEST_KINDS = layout.ENUMS["KNOCK"]
CLASSES = layout.ENUMS["CLASS"]
UPDATE = "use drom-run or libdrom of this version."
MAX_CPUS = 1 << 20
"""Greatest count in a request; larger ones are refused as invalid."""


class BadRequest(ValueError):  # noqa: N818 - reported to the sender, not a fault of ours
    """Raised when a message at the registration socket is not a request; the message says what was wrong."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: `kind` is launch or attach; `task` is (pid, start time) from DROM_TASK or None.

    `program` is the command a launcher is about to run, as typed. `for_parent`: the launch is that of the parent of the
    requesting process. `is_confined`: without a cpuset the affinity of the task confines it.
    """

    kind: str
    task: tuple[int, int] | None
    job: str
    session: int
    job_class: str
    min_cpus: int
    max_cpus: int
    rank: int
    size: int
    layout: Layout = ANY
    memory: int = 0
    program: str = ""
    for_parent: bool = False
    is_confined: bool = False

    def arrival(self, pid: int, start_time: int, uid: int, restore: int, command: str) -> Arrival:
        """Return the arrival of the requesting process; its program or `command` names a job without a name."""
        return Arrival(
            pid,
            start_time,
            uid,
            self.job or clean_name(self.program.rpartition("/")[2]) or clean_name(command) or "program",
            self.job_class,
            self.session,
            self.min_cpus,
            self.max_cpus,
            self.rank,
            self.size,
            restore,
            self.layout,
            self.memory,
            within=self.task if self.kind == "launch" else None,
        )


def parse_request(data: bytes) -> Request:
    """Return the request in `data`. Raises `BadRequest`."""
    if len(data) != REQUEST.size:
        msg = f"a request has {REQUEST.size} bytes, this message has {len(data)}: {UPDATE}"
        raise BadRequest(msg)
    f = {name: REQUEST.read(data, name) for name, field in REQUEST.fields.items() if field.kind != "char"}
    if f["magic"] != layout.DOOR_MAGIC or f["protocol"] != layout.PROTOCOL_VERSION:
        msg = f"this agent uses registration protocol {layout.PROTOCOL_VERSION}: {UPDATE}"
        raise BadRequest(msg)
    known = 0 < f["kind"] < len(REQUEST_KINDS) and f["job_class"] < len(CLASSES) and f["distribution"] < len(KINDS)
    if not known or (KINDS[f["distribution"]] == "per_socket") != (f["per_socket"] > 0):
        msg = f"the request has an unknown kind, class or distribution: {UPDATE}"
        raise BadRequest(msg)
    if max(f[name] for name in ("max_cpus", "min_cpus", "local_size", "local_rank", "per_socket")) > MAX_CPUS:
        msg = f"a count in the request is above {MAX_CPUS}: check --cpus, --min and the launcher's variables."
        raise BadRequest(msg)
    session = REQUEST.read_text(data, "session")
    return Request(
        kind=REQUEST_KINDS[f["kind"]],
        task=(f["task_pid"], f["task_start"]) if f["task_pid"] > 0 and f["task_start"] else None,
        job=clean_name(REQUEST.read_text(data, "job")),
        session=session_number(session) if session else 0,
        job_class=CLASSES[f["job_class"]],
        min_cpus=f["min_cpus"],
        max_cpus=f["max_cpus"],
        rank=f["local_rank"],
        size=max(1, f["local_size"]),
        layout=Layout(KINDS[f["distribution"]], f["per_socket"], bool(f["flags"] & layout.REQUEST_STRICT)),
        memory=f["memory"],
        program=REQUEST.read_text(data, "program"),
        for_parent=bool(f["flags"] & layout.REQUEST_PARENT) and REQUEST_KINDS[f["kind"]] == "launch",
        is_confined=bool(f["flags"] & layout.REQUEST_FENCED) and REQUEST_KINDS[f["kind"]] == "launch",
    )


def session_number(text: str) -> int:
    """Return the 64-bit number (FNV-1a) under which a launcher's job id is kept; never 0."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value or 1
