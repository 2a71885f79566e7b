# SPDX-License-Identifier: Apache-2.0
"""What a scheduler answers: for scripts, and as lines for people, where users cannot have terminals obey them. Pure."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from agent import listing
from agent.words import LAST_MOMENT, clock, counted, duration, escaped, iso

EMPTY = "No job waits or runs: submit one with: drom submit -- COMMAND"
NO_NODES = "No node has joined: start an agent on each with: drom agent --scheduler"


MOMENTS = ("time", "submitted", "started", "ended", "expected_start", "at", "heard", "gone_since", "again")
"""Fields that are seconds since 1970 in an answer and its rows."""


def for_scripts(value: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as `--json` prints it: moments, also of its jobs, nodes and history, as ISO-8601 UTC."""
    tables = {name: value[name] for name in ("jobs", "nodes", "history") if isinstance(value.get(name), list)}
    return _dated(value) | {name: list(map(_dated, rows)) for name, rows in tables.items()}


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: iso(row[name], "milliseconds") for name in MOMENTS if row.get(name) is not None}


def queue(value: dict[str, Any]) -> list[str]:
    """Return the jobs of a queue, one a line."""
    if not value["jobs"]:
        return [EMPTY]
    rows = [
        [
            str(job["job"]),
            job["name"][:24],
            job["user"],
            job["state"],
            _age(job, value["time"]),
            clock(job["limit"]),
            str(job["nodes"]),
            _where(job, value["time"]),
        ]
        for job in value["jobs"]
    ]
    return _table(["JOB", "NAME", "USER", "STATE", "TIME", "LIMIT", "NODES", "WHERE OR WHY"], rows)


def job(value: dict[str, Any]) -> list[str]:
    """Return all about a job."""
    spec = value["spec"]
    is_script = spec.get("script") != ""  # of another's we are not told
    about = [
        f"job {value['job']} {value['name']} of {value['user']}: {value['state']}",
        *value["explanation"],
        f"command: {'a script of its user' if is_script else ' '.join(spec['command'])}",
        f"asks for: {', '.join(_wanted(value, spec))}",
    ]
    rows = [
        [_moment(entry["at"], value["time"]), entry["what"], _detail(entry["detail"])] for entry in value["history"]
    ]
    return [*map(escaped, about), "", *_table(["TIME", "EVENT", ""], rows)]


def _wanted(value: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    return [
        counted(value["nodes"], "node"),
        counted(spec["ranks"], "task"),
        duration(value["requested"]),
        spec["job_class"],
    ]


def nodes(value: dict[str, Any]) -> list[str]:
    """Return the nodes of a cluster, one a line."""
    if not value["nodes"]:
        return [NO_NODES]
    rows = [
        [
            node["name"],
            node["state"],
            str(node["cores"]),
            ", ".join(f"{cores} of job {number}" for number, cores in node["jobs"].items()) or "free",
            node["drained"] or node["busy"],
        ]
        for node in value["nodes"]
    ]
    return _table(["NODE", "STATE", "CORES", "JOBS", "REASON"], rows)


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    return listing.table(headings, [[escaped(cell) for cell in row] for row in rows])


def _age(job: dict[str, Any], now: float) -> str:
    if job["started"] is None:
        return "-"
    return clock((job["ended"] or now) - job["started"])


def _where(job: dict[str, Any], now: float) -> str:
    if job["state"] == "pending":
        start = job["expected_start"]
        return f"{job['reason']}; expected {_moment(start, now)}" if start is not None else str(job["reason"])
    if job["ended"] is None:
        return ", ".join(f"{name}:{cores}" for name, cores in job["shares"].items())
    return str(job["reason"])


def _moment(at: float, now: float) -> str:
    """Return a moment as a clock on the wall here says it, with its day unless that is today."""
    when, today = (datetime.fromtimestamp(min(one, LAST_MOMENT), timezone.utc).astimezone() for one in (at, now))
    return when.strftime("%H:%M:%S" if when.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def _detail(detail: dict[str, Any]) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in detail.items())


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}:{inner}" for key, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
