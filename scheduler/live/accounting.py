# SPDX-License-Identifier: Apache-2.0
"""The history of a cluster's jobs in the simulator's formats: a schedule, and its figures. Pure.

The run time of a real program with all its cores is not known. It is estimated as its core-seconds divided by all cores
of its nodes: exact for a job that never shared, and for jobs whose speed is proportional to their cores.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.agent.execution.devices import GPU
from drom.agent.text import natural
from drom.scheduler.analysis.gantt import Stay, core_rows, ranges
from drom.scheduler.analysis.metrics import SCHEMA, Power, metrics_of, versions
from drom.scheduler.analysis.schedule import NAMES, UNKNOWN, Schedule, SharedNode, node_runs
from drom.scheduler.interface import NOBODY
from drom.scheduler.live.cluster.jobs import CLASSES, COMPLETED, FINAL
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from drom.scheduler.analysis.schedule import Table
    from drom.workloads.workload import Workload

_NUMBERS = NAMES[:-1]


def schedule_of(told: dict[str, Any]) -> Schedule:
    """Return the schedule in a scheduler's answer to `history`: `nodes`, `cores`, `time`, `jobs` and `entries`.

    Where nodes have no common number of `cores`, it has those of `sizes`, and is a schedule of cores.
    """
    if not told["cores"]:
        return _schedule_of_cores(told)
    table = _table(told["jobs"], entries_of(told), told["cores"], told["time"])
    names = dict.fromkeys([*told["nodes"], *(name for job in told["jobs"] for name in job["shares"])])  # some are gone
    index = {name: number for number, name in enumerate(names)}
    places = [sorted(index[name] for name in job["shares"]) or [NOBODY] * job["nodes"] for job in told["jobs"]]
    first = np.concatenate(([0], np.cumsum([len(place) for place in places], dtype=np.int64))).astype(np.int64)
    first, runs = node_runs(first, np.array(list(itertools.chain.from_iterable(places)), np.int64))
    return Schedule(table, len(index), told["cores"], int(told["time"]), first, runs)


class Chart(NamedTuple):
    """What a chart shows: a schedule, the names of its jobs, and the rows of those that are attempts of fillers."""

    schedule: Schedule
    labels: list[str]
    filling: set[int]


def chart_of(told: dict[str, Any]) -> Chart:
    """Return what a chart shows of a scheduler's answer to `history`."""
    shown = each_attempt(told)
    filling = {row for row, job in enumerate(shown["jobs"]) if job["saving"]}
    return Chart(schedule_of(shown), [job["name"] for job in shown["jobs"]], filling)


def each_attempt(told: dict[str, Any]) -> dict[str, Any]:
    """Return an answer in which each attempt of a filler that has begun is a job of its own, with a number below 0."""
    entries = entries_of(told)
    jobs, moved = [job for job in told["jobs"] if not job["saving"]], list[dict[str, Any]]()
    for job in told["jobs"]:
        if job["saving"]:
            for attempt in _attempts(entries[job["job"]]):
                number = len(moved) - len(told["entries"]) - 1
                times = {entry["what"]: entry["at"] for entry in attempt}
                end = attempt[-1]["at"] if attempt[-1]["what"] in (*FINAL, "requeued") else None
                shares = attempt[0]["detail"]["shares"]
                state = job["state"] if end is None else COMPLETED
                about = {"job": number, "started": times["started"], "ended": end, "shares": shares, "state": state}
                jobs.append(job | about)
                moved += [entry | {"job": number} for entry in attempt]
    return told | {"jobs": jobs, "entries": [*told["entries"], *moved]}


def _attempts(entries: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the entries of each attempt of a job that has begun, from its placement on."""
    attempt = list[dict[str, Any]]()
    for entry in entries:
        attempt = [entry] if entry["what"] == "placed" else [*attempt, entry]
        if (entry["what"] == "requeued" or entry["what"] in FINAL) and _has_begun(attempt):
            yield attempt
            attempt = []
    if _has_begun(attempt):
        yield attempt


def _has_begun(attempt: Iterable[dict[str, Any]]) -> bool:
    return {"placed", "started"} <= {entry["what"] for entry in attempt}


def _table(
    jobs: Sequence[dict[str, Any]], entries: Mapping[int, list[dict[str, Any]]], cores: int, now: float
) -> Table:
    """Return the table of jobs in an answer, of which each has `cores` of each of its `nodes`."""
    rows = [_row(job, entries[job["job"]], cores, now) for job in jobs]
    table: Table = {name: np.array([row[name] for row in rows], np.int64) for name in _NUMBERS}
    return table | {"state": np.array([_state(job) for job in jobs])}


def entries_of(told: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """Return the entries of each job in an answer to `history`, in their order; empty for a job that has none."""
    entries = defaultdict(list)
    for entry in told["entries"]:
        entries[entry["job"]].append(entry)
    return entries


def _size(job: dict[str, Any], entries: Iterable[dict[str, Any]], now: float) -> int:
    """Return the cores of a job on shared nodes; of one with a range, how many it had on average."""
    if job.get("least", 0) < job.get("most", 0) and job["started"] is not None:
        end = job["ended"] or now
        mean: float = core_seconds(entries, end) / max(1.0, end - job["started"])
        return max(1, round(mean))
    size: int = sum(job["shares"].values()) or job["nodes"]
    return size


def _schedule_of_cores(told: dict[str, Any]) -> Schedule:
    """Return the schedule of jobs on shared nodes; those that have started have rows for their cores and GPUs."""
    jobs, nodes, core, gpu = told["jobs"], list[SharedNode](), 0, 0
    on_cores, on_gpus = ([list[tuple[int, int]]() for _ in jobs] for _ in range(2))
    for name, stays in _stays(told).items():
        cores, gpus = told["sizes"].get(name, (0, 0))
        for at, rows in zip(stays, core_rows(list(stays.values()), cores), strict=True):
            devices = sorted(jobs[at]["devices"].get(name, {}).get(GPU, ()))
            on_cores[at] += [(core + low, core + high) for low, high in rows]
            on_gpus[at] += [(gpu + low, gpu + high) for low, high in ranges(np.array(devices, np.int64))]
            cores, gpus = max(cores, rows[-1][1] + 1), max([gpus, *(device + 1 for device in devices)])
        nodes.append(SharedNode(name, cores, gpus))
        core, gpu = core + cores, gpu + gpus
    runs = [
        [*of_job, *((core + low, core + high) for low, high in devices)]
        for of_job, devices in zip(on_cores, on_gpus, strict=True)
    ]
    entries = entries_of(told)
    sized = [job | {"nodes": _size(job, entries[job["job"]], told["time"])} for job in jobs]
    first = np.cumsum([0, *map(len, runs)], dtype=np.int64)
    place = np.array(list(itertools.chain.from_iterable(runs)), np.int64).reshape(-1, 2)
    return Schedule(_table(sized, entries, 1, told["time"]), core, 1, int(told["time"]), first, place, tuple(nodes))


def _stays(told: dict[str, Any]) -> dict[str, dict[int, Stay]]:
    """Return by node, also those that are gone, when jobs had how many cores there, by the index of the job.

    Nodes are in the order of their names.
    """
    found: dict[str, dict[int, Stay]] = {name: {} for name in told["sizes"]}
    for at, job in enumerate(told["jobs"]):
        if job["started"] is not None:
            end = job["ended"] if job["state"] in FINAL else told["time"]
            for name, cores in [(name, cores) for name, cores in job["shares"].items() if cores]:
                found.setdefault(name, {})[at] = Stay(int(job["started"]), int(end), cores)
    return {name: found[name] for name in sorted(found, key=natural)}


def _state(job: dict[str, Any]) -> str:
    if job["state"] in FINAL:
        return "ended" if job["started"] is not None else "future"
    return "running" if job["started"] is not None else "waiting"


def _row(job: dict[str, Any], entries: list[dict[str, Any]], cores: int, now: float) -> dict[str, int]:
    """Return the columns of a job; those of its last attempt if it had several."""
    placed = [at for at, entry in enumerate(entries) if entry["what"] == "placed"]
    last = entries[placed[-1] :] if placed and job["started"] is not None else []
    start = job["started"]
    end = job["ended"] if job["state"] in FINAL and start is not None else None
    shares = dict(last[0]["detail"]["shares"]) if last else {}
    submit = int(job["submitted"])
    return {
        "job_id": job["job"],
        "submit": submit,
        "start": UNKNOWN if start is None else int(start),
        "end": UNKNOWN if end is None else int(end),
        "nodes": job["nodes"],
        "cores": job["nodes"] * cores,
        "wait": UNKNOWN if start is None else int(start) - submit,
        "run_time": UNKNOWN if end is None else int(end) - int(start),
        "full_speed_run_time": round(_core_seconds(last, shares, start, end or now) / (job["nodes"] * cores)),
        "requested_time": job["requested"],
        "expected_time": job["requested"],
        "class": CLASSES[job["class"]],
        "limit": job["limit"],
        "lent": _times_lent(last, shares),
        "share_at_start": min(shares.values(), default=UNKNOWN),
    }


def _core_seconds(entries: Iterable[dict[str, Any]], shares: dict[str, int], start: float | None, end: float) -> float:
    """Return the core-seconds that a job had from its start to `end`; 0 if it has not started."""
    if start is None:
        return 0.0
    total, since, held = 0.0, start, dict(shares)
    for entry in entries:
        if entry["what"] == "resized" and entry["at"] >= start:
            at = min(entry["at"], end)
            total += (at - since) * sum(held.values())
            since, held[entry["detail"]["node"]] = at, entry["detail"]["cores"]
    return total + (end - since) * sum(held.values())


def core_seconds(entries: Iterable[dict[str, Any]], until: float) -> float:
    """Return the core-seconds that a job had up to `until` in all its attempts, by the entries of its history."""
    total = 0.0
    for attempt in _attempts([*entries, {"what": "requeued", "at": until}]):
        start = next(entry["at"] for entry in attempt if entry["what"] == "started")
        total += _core_seconds(attempt, attempt[0]["detail"]["shares"], start, min(attempt[-1]["at"], until))
    return total


def _times_lent(entries: Iterable[dict[str, Any]], shares: dict[str, int]) -> int:
    """Return how often a job gave up cores; giving up cores of several nodes at once counts once."""
    held, moments = dict(shares), set()
    for entry in entries:
        if entry["what"] == "ordered":
            node, cores = entry["detail"]["node"], entry["detail"]["cores"]
            if cores < held[node]:
                moments.add(entry["at"])
            held[node] = cores
    return len(moments)


def workload_of(told: dict[str, Any], schedule: Schedule) -> Workload:
    """Return the jobs as a workload log that `drom simulate` reads."""
    table = schedule.table
    users = {name: number for number, name in enumerate(sorted({job["user"] for job in told["jobs"]}), 1)}
    columns = {
        "job": table["job_id"],
        "submit": table["submit"] - int(table["submit"].min(initial=0)) if len(table["submit"]) else table["submit"],
        "wait": table["wait"],
        "run_time": table["run_time"],
        "allocated": table["cores"],
        "requested_processors": table["cores"],
        "requested_time": table["requested_time"],
        "status": np.array([job["state"] == "completed" for job in told["jobs"]], np.int64),
        "user": np.array([users[job["user"]] for job in told["jobs"]], np.int64),
    }
    return make_workload(columns, comments=(f"; Note: jobs of the cluster {told['name']}",), source=told["name"])


class Account(NamedTuple):
    """The results of a cluster in the form in which results of a simulation are written."""

    schedule: Schedule
    work: Workload
    summary: dict[str, Any]


def account(told: dict[str, Any], schedule: Schedule) -> Account:
    """Return the results in a scheduler's answer to `history`, of which `schedule` is the schedule."""
    work = workload_of(told, schedule)
    return Account(schedule, work, summary(told, schedule, work))


def summary(told: dict[str, Any], schedule: Schedule, work: Workload) -> dict[str, Any]:
    """Return the summary for a folder of results, like that of a simulation."""
    resized = sum(entry["what"] == "resized" for entry in told["entries"])
    power = _power_of_a_core(schedule) if schedule.shared else Power()
    counts = {name: int((schedule.table["state"] == name).sum()) for name in ("future", "waiting", "running", "ended")}
    classes = {name: int((schedule.table["class"] == number).sum()) for name, number in CLASSES.items()}
    busy, machine = busy_seconds(schedule), (schedule.nodes, schedule.cores)
    of_power = "linear, nodes stay on, by core" if schedule.shared else "linear, nodes stay on"
    return {
        "schema_version": SCHEMA,
        "complete": counts["ended"] == len(work),
        "stopped": "" if counts["ended"] == len(work) else "jobs still wait or run",
        "log": told["name"],
        "workload": "live",
        "policy": told["policy"],
        "parameters": told["parameters"],
        "machine": {"nodes": schedule.nodes, "cores": schedule.cores, "event_rule": "live", "runtime_model": "real"},
        "shared_nodes": [list(node) for node in schedule.shared],
        "predictions": {"by": "user"},
        "jobs": counts,
        "classes": classes,
        "metrics": metrics_of(schedule.table, machine, work.user, busy, schedule.until, resized, power),
        "power_model": {"kind": of_power, "idle_watt": power.idle, "peak_watt": power.peak},
        "cleaning": {"jobs_in": len(work), "jobs_out": len(work), "findings": []},
        "seed": None,
        "simulated_until_s": schedule.until,
        "seconds": 0.0,
        "peak_memory_bytes": 0,
        "versions": versions(),
    }


def _power_of_a_core(schedule: Schedule) -> Power:
    """Return the watts of a core of shared nodes, which together take as much as other nodes."""
    node, part = Power(), len(schedule.shared) / schedule.nodes
    return Power(node.idle * part, node.peak * part)


def busy_seconds(schedule: Schedule) -> int:
    """Return the node-seconds with a job on the node; the core-seconds with a job on the core for shared nodes."""
    stays: dict[int, list[tuple[int, int]]] = defaultdict(list)
    table = schedule.table
    if schedule.shared:
        started = table["start"] != UNKNOWN
        ends = np.where(table["end"] == UNKNOWN, schedule.until, table["end"])
        return int(((ends - table["start"]) * table["cores"])[started].sum())
    for job in np.flatnonzero(table["start"] != UNKNOWN).tolist():
        end = int(table["end"][job])
        span = int(table["start"][job]), schedule.until if end == UNKNOWN else end
        for low, high in schedule.runs[schedule.first[job] : schedule.first[job + 1]].tolist():
            for node in range(low, high + 1):
                stays[node].append(span)
    return sum(map(_covered, stays.values()))


def _covered(spans: list[tuple[int, int]]) -> int:
    total, until = 0, -1
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total
