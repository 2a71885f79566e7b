# SPDX-License-Identifier: Apache-2.0
"""A scheduler's answers for scripts, and as lines for terminals, with control characters escaped. Pure."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from drom.agent.text import (
    LAST_MOMENT,
    LONGEST,
    clock,
    counted,
    cut_middle,
    duration,
    escaped,
    in_words,
    iso,
    natural,
    span_of,
    table,
)
from drom.scheduler.live.cluster.job_filter import JobFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

EMPTY = "No job waits or runs: submit one with: drom submit -- COMMAND"
NO_NODES = "No node has joined: start an agent on each with: drom agent --scheduler"


MOMENTS = ("time", "submitted", "started", "ended", "expected_start", "at", "heard", "gone_since", "again")
"""Fields that are seconds since 1970 in an answer and its rows."""


def for_scripts(value: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as `--json` prints it: times, also of its jobs, nodes and history, in ISO 8601 and UTC."""
    tables = {name: value[name] for name in ("jobs", "nodes", "history") if isinstance(value.get(name), list)}
    return _dated(value) | {name: list(map(_dated, rows)) for name, rows in tables.items()}


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: iso(row[name], "milliseconds") for name in MOMENTS if row.get(name) is not None}


def queue(value: dict[str, Any]) -> list[str]:
    """Return the jobs of a queue, one per line."""
    if not value["jobs"]:
        return [EMPTY]
    rows = [
        [
            label(job),
            cut_middle(job["name"], 24),
            job["user"],
            job["state"],
            _age(job, value["time"]),
            "-" if _is_endless(job) else clock(job["limit"]),
            _nodes(job),
            _where(job, value["time"]),
        ]
        for job in value["jobs"]
    ]
    headings = ["JOB", "NAME", "USER", "STATE", "TIME", "LIMIT", "NODES", "WHERE OR WHY"]
    if any(job.get("most") for job in value["jobs"]):
        headings.insert(7, "CORES")
        for row, job in zip(rows, value["jobs"], strict=True):
            row.insert(7, _cores(job))
    if any(names := [job.get("partition", "") for job in value["jobs"]]):
        headings.insert(4, "PARTITION")
        for row, name in zip(rows, names, strict=True):
            row.insert(4, name or "-")
    if any("home" in job for job in value["jobs"]):
        headings.insert(4, "HOME")
        for row, job in zip(rows, value["jobs"], strict=True):
            row.insert(4, job["home"])
    return _table(headings, rows)


def _nodes(job: dict[str, Any]) -> str:
    """Return the nodes of a job; of one that may leave some, those of which it has cores: ``2 of 2-4``."""
    least, most = job.get("min_nodes") or job["nodes"], job["nodes"]
    if least == most or job["ended"] is not None:
        return str(most)
    has = f"{sum(map(bool, job['sizes'].values()))} of " if job["sizes"] else ""
    return f"{has}{least}-{most}"


def _cores(job: dict[str, Any]) -> str:
    """Return the cores that a job has now, and the range that it can use: ``4 of 2-8``."""
    can = str(job["most"]) if job["least"] == job["most"] else f"{job['least']}-{job['most']}"
    return f"{sum(job['sizes'].values())} of {can}" if job["sizes"] and job["ended"] is None else can


def _is_endless(job: dict[str, Any]) -> bool:
    """Return whether a job is a filler without a time limit."""
    return bool(job.get("saving")) and job["requested"] == LONGEST


def label(job: dict[str, Any]) -> str:
    """Return the number of a job as users see it: ``12_3`` in an array."""
    return f"{job['array']}_{job['index']}" if job.get("array") else str(job["job"])


def job(value: dict[str, Any]) -> list[str]:
    """Return the lines that describe a job."""
    spec = value["spec"]
    about = [
        f"job {label(value)} {value['name']} of {value['user']}: {value['state']}",
        *value["explanation"],
        *_came_of(value),
        _command(value["name"], spec),
        f"asks for: {', '.join(_wanted(value, spec))}",
        *_files(spec),
    ]
    rows = [[moment(entry["at"], value["time"]), entry["what"], _detail(entry["detail"])] for entry in value["history"]]
    return [*map(escaped, about), "", *_table(["TIME", "EVENT", ""], rows)]


def _came_of(value: dict[str, Any]) -> Iterator[str]:
    """Yield what a job has paid, its nodes, and the resources that it used, once it is over."""
    if value.get("paid") is not None:
        yield f"paid: {value['paid']:,}"
    if value["started"] is None or value["ended"] is None:
        return
    yield f"ran on: {', '.join(value['shares'])}"
    if value["cpu_seconds"] or value["max_rss"]:
        yield f"used: {duration(value['cpu_seconds'])} of CPU time, {in_words(value['max_rss'])} of memory at most"


def _command(name: str, spec: dict[str, Any]) -> str:
    """Return the command or script of a job; of another user's script only that it is one."""
    if "script" not in spec:
        return "command: a script of its user"
    return (
        f"script: {' '.join([name, *spec['command']])}" if spec["script"] else f"command: {' '.join(spec['command'])}"
    )


def _wanted(value: dict[str, Any], spec: dict[str, Any]) -> Iterator[str]:
    least = spec.get("min_nodes") or value["nodes"]
    of_nodes = (span_of(least, value["nodes"], "node"), counted(spec["ranks"], "task"))
    yield from (span_of(spec["least"], spec["most"], "core"),) if spec.get("most") else of_nodes
    if spec["threads"]:
        yield f"{counted(spec['threads'], 'core')} per task"
    if not _is_endless(value):
        yield duration(value["requested"])
    yield f"filler, saved by {spec['saving']}" if spec.get("saving") else spec["job_class"]
    if spec["memory"]:
        yield f"{in_words(spec['memory'])} of memory"
    yield from (f"{name}={amount}" for name, amount in spec["resources"].items())
    yield from (f"feature {name}" for name in spec["constraint"])
    if spec.get("partition"):
        yield f"partition {spec['partition']}"
    for name, words in (("nodelist", "only on"), ("exclude", "not on")):
        if spec.get(name):
            yield f"{words} {cut_middle(','.join(spec[name]), 60)}"
    if spec["priority"]:
        yield f"priority {spec['priority']}"
    yield from (f"{name} {spec[name]}" for name in ("signal", "contract") if spec.get(name))
    if spec["after"]:
        # With an array, of which one job has to fail, in the fourth place.
        named = (f"{kind}:{(more or [other])[-1]}" for kind, other, *more in spec["after"])
        yield cut_middle(", ".join(dict.fromkeys(named)), 60)


def _files(spec: dict[str, Any]) -> Iterator[str]:
    """Yield the files of a job, and the folder in which it runs and to which their names are relative."""
    yield from (f"{name}: {spec[name]}" for name in ("output", "error", "input", "folder") if spec[name])


def nodes(value: dict[str, Any]) -> list[str]:
    """Return the nodes of a cluster, one per line; columns without any value are left out."""
    if not value["nodes"]:
        return [NO_NODES]
    rows = sorted(value["nodes"], key=lambda node: natural(node["name"]))
    columns: list[tuple[str, list[str]]] = [
        ("NODE", [node["name"] for node in rows]),
        ("HOME", [node.get("home", "") for node in rows]),
        ("STATE", [node["state"] for node in rows]),
        ("CORES", [str(node["cores"]) for node in rows]),
        ("MEMORY", [node["memory"] and in_words(node["memory"]) for node in rows]),
        ("LIMITS", ["memory" if node["limits_memory"] else "" for node in rows]),
        ("FEATURES", [",".join(node["features"]) for node in rows]),
        ("RESOURCES", [",".join(f"{name}={amount}" for name, amount in node["resources"].items()) for node in rows]),
        ("PARTITIONS", [",".join(node.get("partitions", ())) for node in rows]),
        ("JOBS", [_on_it(node) for node in rows]),
    ]
    shown = [(name, cells) for name, cells in columns if any(cells)]
    reasons = [_away(node, value["time"]) for node in rows]
    cells = [[column[i] or "-" for _, column in shown] + [reasons[i]] for i in range(len(rows))]
    return _table([*(name for name, _ in shown), "REASON"], cells)


def homes(value: dict[str, Any]) -> list[str]:
    """Return the home partitions of a cluster, one per line; a cluster without any is one line."""
    counts = ["nodes", "up", "cores", "held", "running", "waiting"]
    counts += [name for name in ("lent", "borrowed") if any(row.get(name) for row in value["homes"])]
    rows = [[row["home"] or "-", _led_by(row), *(str(row.get(name, "-")) for name in counts)] for row in value["homes"]]
    return _table(["HOME", "LED BY", *map(str.upper, counts)], rows)


def _led_by(row: dict[str, Any]) -> str:
    """Return the scheduler that leads a home partition, with its own home partition if it has adopted this one."""
    leader = row.get("led_by") or "-"
    return leader if row.get("leader_home") in (None, row["home"]) else f"{leader} (of {row['leader_home']})"


def _on_it(node: dict[str, Any]) -> str:
    """Return the jobs on a node, ``free`` if it has none and accepts jobs, or else ``-``."""
    jobs = [f"{cores} of job {number}" for number, cores in node["jobs"].items() if cores]
    jobs += [f"job {number} at rest" for number in node.get("resting", ())]
    return ", ".join(jobs) or ("free" if node["state"] == "up" else "-")


def _away(node: dict[str, Any], now: float) -> str:
    """Return why no job starts on a node, or no filler; empty if all may."""
    lent = f"lent to {node['borrower']}" if node.get("borrower") else ""
    full = f"no filler starts in a container: {node['full']}" if node.get("full") else ""
    reasons = [reason for reason in (lent, node["drained"], node.get("leaving"), node["busy"], full) if reason]
    since = node["heard"] or node["gone_since"]
    if node["state"] in ("gone", "down"):
        silent = f"is silent since {moment(since, now)}" if since else "has not contacted this scheduler yet"
        reasons.append(f"its agent {silent}")
    return "; ".join(reasons)


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    return table(headings, [[escaped(cell) for cell in row] for row in rows])


def _age(job: dict[str, Any], now: float) -> str:
    if job["started"] is None:
        return "-"
    return clock((job["ended"] or now) - job["started"])


def _where(job: dict[str, Any], now: float) -> str:
    if job["state"] == "pending":
        start = job["expected_start"]
        return f"{job['reason']}; expected {moment(start, now)}" if start is not None else str(job["reason"])
    if job["ended"] is None:
        return ", ".join(f"{name}:{cores}" for name, cores in job["sizes"].items() if cores)
    return str(job["reason"])


def moment(at: float, now: float) -> str:
    """Return a time in the local time zone, with its date unless that is today."""
    when, today = (datetime.fromtimestamp(min(one, LAST_MOMENT), timezone.utc).astimezone() for one in (at, now))
    return when.strftime("%H:%M:%S" if when.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def _detail(detail: dict[str, Any]) -> str:
    return ", ".join(duration(value) if key == "seconds" else f"{key} {_plain(value)}" for key, value in detail.items())


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}:{inner}" for key, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


NONE = "No such job is in the queue: see drom queue without --user, --me, --state and --name."


def lines(choice: JobFilter, value: dict[str, Any]) -> list[str]:
    """Return the chosen jobs of a queue, one per line."""
    if any(choice) and not value["jobs"]:
        return [NONE]
    shown = queue(value)
    if value.get("after") is not None:
        of = f"{len(value['jobs']):,} of {len(value['jobs']) + value['left']:,} jobs"
        shown.append(f"These are {of}: see all with --limit 0, or choose with --me, --user, --state and --name.")
    return shown
