# SPDX-License-Identifier: Apache-2.0
"""Parse what `squeue --json`, `sinfo --json` and `scontrol show nodes --json` print. Pure.

Three dialects were recorded: Slurm 22.05 has plain numbers and words; 24.11 (data_parser v0.0.42) and 26.05 (v0.0.45)
have numbers ``{"set", "infinite", "number"}`` and lists of states. The text of squeue is to be preferred: the JSON of
26.05 leaves out whether a job shares its cores, that of 22.05 the CPUs of a task.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from drom.agent.errors import SlurmError
from drom.agent.model import slurm_values as values
from drom.agent.text import WordError
from drom.scheduler.slurm.fields import MISSING, BrokenFieldError, read_field, read_records
from drom.scheduler.slurm.records import Node
from drom.scheduler.slurm.text_records import job_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.scheduler.slurm.records import Job, Reading

    Read = Callable[[Any], object]

SHARING = {"shared": "YES", "oversubscribe": "YES", "none": "NO", "user": "USER", "mcs": "MCS"}
"""The words of JSON for how a job shares its cores, and those of squeue."""


def _number(value: Any) -> int | None:  # noqa: ANN401 - a JSON value
    """Return a number of any dialect; None where it is not set or infinite. Raises WordError."""
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set"):
            return None
        value = value.get("number")
    if value is None:
        return None
    is_whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
    if not is_whole or isinstance(value, bool):
        raise WordError("is not a whole number")
    return int(value)


def _number_here(value: Any) -> int:  # noqa: ANN401
    found = _number(value)
    if found is None:
        raise WordError("is not a whole number")
    return found


def _number_or_zero(value: Any) -> int:  # noqa: ANN401
    return _number(value) or 0


def _number_or_none(value: Any) -> int | None:  # noqa: ANN401
    """Return a number; None if it is 0, with which Slurm says that there is none."""
    return _number(value) or None


def _text(value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise WordError("is not a text")
    return value


def _list_of(read: Callable[[str], object]) -> Read:
    """Return a reader of a list, or of a text that names one."""

    def read_list(value: Any) -> object:  # noqa: ANN401
        return read(",".join(_texts(value)))

    return read_list


def _texts(value: Any) -> list[str]:  # noqa: ANN401
    return list(map(_text, value)) if isinstance(value, list) else [_text(value)]


def _states(value: Any) -> frozenset[str]:  # noqa: ANN401
    found = frozenset(_texts(value)) - {""}
    if not found:
        raise WordError("is not a state")
    return found


def _sharing(value: Any) -> str:  # noqa: ANN401
    """Return the word of squeue; empty where JSON leaves it out."""
    found = value if isinstance(value, list) else [value]
    return SHARING.get(found[0], "") if found and isinstance(found[0], str) else ""


def _task(value: Any) -> str:  # noqa: ANN401
    found = _number(value)
    return "" if found is None else str(found)


JOB_KEYS: tuple[tuple[str, str, Read], ...] = (
    ("job_id", "number", _number_here),
    ("array_job_id", "array", _number_or_none),
    ("array_task_id", "task", _task),
    ("array_task_string", "tasks_left", _text),
    ("user_name", "user", _text),
    ("user_id", "uid", _number_here),
    ("account", "account", _text),
    ("partition", "partitions", _list_of(values.words)),
    ("job_state", "states", _states),
    ("state_reason", "reason", lambda value: values.word(_text(value))),
    ("priority", "priority", _number_or_zero),
    ("submit_time", "submitted", _number_or_none),
    ("eligible_time", "eligible", _number_or_none),
    ("start_time", "started", _number_or_none),
    ("end_time", "ends", _number_or_none),
    ("time_limit", "limit_min", _number),
    ("node_count", "least_nodes", _number_here),
    ("max_nodes", "most_nodes", _number_or_zero),
    ("tasks", "tasks", _number_or_zero),
    ("cpus_per_task", "cpus_per_task", _number_or_zero),
    ("cpus", "cpus", _number_here),
    ("shared", "sharing", _sharing),
    ("licenses", "licences", _list_of(values.licences)),
    ("dependency", "dependency", _text),
    ("required_nodes", "requested_nodes", _list_of(values.hosts)),
    ("nice", "nice", _number_or_zero),
    ("het_job_id", "het", _number_or_none),
    ("nodes", "nodes", _list_of(values.hosts)),
    ("resv_name", "reservation", _text),
    ("restart_cnt", "restarts", _number_or_zero),
    ("name", "name", _text),
    ("comment", "comment", _text),
    ("admin_comment", "admin_comment", _text),
)
"""The keys of a job that are read, the attribute that each becomes, and how it is read."""


def parse_jobs(text: str) -> Reading[Job]:
    """Return the jobs in the output of ``squeue --json`` or ``scontrol show jobs --json``.

    A job with a broken field is left out, with a sentence among the faults. Raises SlurmError for other JSON.
    """
    rows = _rows(text, "jobs", "squeue --json")
    return read_records(_job, ((f"job {row.get('job_id', 'without a number')}", row) for row in rows))


def _job(row: dict[str, Any]) -> Job:
    found: dict[str, Any] = {attribute: _value(row, key, read) for key, attribute, read in JOB_KEYS}
    found["memory"] = _memory(row)
    return job_of(found, found.pop("task") or found["tasks_left"])


def _memory(row: dict[str, Any]) -> str:
    """Return the memory for a node, or for a CPU with a c, as squeue prints it."""
    per_cpu = _value(row, "memory_per_cpu", _number)
    per_node = _value(row, "memory_per_node", _number)
    if per_cpu:
        return f"{per_cpu}Mc"
    return f"{per_node}M" if per_node else "0"


def _value(row: dict[str, Any], key: str, read: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    if key not in row:
        raise BrokenFieldError(key, None, MISSING)
    return read_field(read, row[key], key)


def parse_nodes(text: str) -> Reading[Node]:
    """Return the nodes in ``sinfo --json`` of Slurm 22.05 or ``scontrol show nodes --json`` of later ones.

    Raises SlurmError for other JSON.
    """
    rows = _rows(text, "nodes", "scontrol show nodes --json")
    return read_records(_node, ((f"node {row.get('name', 'without a name')}", row) for row in rows))


def _node(row: dict[str, Any]) -> Node:
    cpus = _value(row, "cpus", _number_here)
    return Node(
        name=_value(row, "name", _text),
        cpus=cpus,
        usable_cpus=_value(row, "effective_cpus", _number_here) if "effective_cpus" in row else cpus,
        allocated_cpus=_value(row, "alloc_cpus", _number_here),
        cores=_value(row, "sockets", _number_here) * _value(row, "cores", _number_here),
        threads_per_core=_value(row, "threads", _number_here),
        memory_mib=_value(row, "real_memory", _number_here),
        allocated_memory_mib=_value(row, "alloc_memory", _number_here),
        states=frozenset(
            state.upper()
            for state in [
                *_value(row, "state", _states),
                *read_field(_texts, row.get("state_flags", []), "state_flags"),
            ]
        ),
        partitions=_value(row, "partitions", _list_of(values.words)),
        features=_value(row, "active_features", _list_of(values.words)),
        version=_value(row, "version" if "version" in row else "slurmd_version", _text),
        reason=_value(row, "reason", _text),
    )


def _rows(text: str, key: str, command: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SlurmError(f"this is not JSON ({error}): give what '{command}' prints.") from error
    rows = found.get(key) if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SlurmError(f"this JSON has no list of {key}: give what '{command}' prints.")
    return rows
