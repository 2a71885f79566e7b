# SPDX-License-Identifier: Apache-2.0
"""The data of an agent's web page: the job on each core now, and the CPUs of jobs over the last hour. Pure.

The input is the agent's answers to `ps` and to `topology`, and the history of `drom.agent.observe.cpu_history`.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.observe import node_map, text_view
from drom.agent.observe.cpu_history import OTHERS, STEP
from drom.agent.observe.timeline import PALETTE

from dromlib.cpulist import format_cpulist, mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from drom.agent.observe.cpu_history import CpuHistory

SCHEMA_VERSION = 1
STATES = ("shrinking", "growing", "moving", "waiting", "enforced", "running", "resting")
"""A job has the first of these states that any of its tasks has."""
CHANGING = frozenset(STATES[:3])

Task = dict[str, Any]


class DashboardState(NamedTuple):
    """The node at one moment."""

    machine: dict[str, Any]
    """The agent's answer to `topology`."""
    answer: dict[str, Any]
    """Its answer to `ps`."""
    numbers: Mapping[str, int]
    """The number of each job of now and of the last hour, which gives its letter and its colour."""


def state(now: DashboardState, user: Callable[[int], str]) -> dict[str, Any]:
    """Return jobs, map and pending changes; jobs are referred to by their index in the list of jobs."""
    tasks = now.answer["tasks"]
    by_job: dict[str, list[Task]] = {}
    for task in tasks:
        by_job.setdefault(task["job"], []).append(task)
    places = {name: place for place, name in enumerate(by_job)}
    cells = node_map.cells(now.machine, now.answer, now.numbers)
    return {
        "schema_version": SCHEMA_VERSION,
        "palette": [colour for colour, _ in PALETTE],
        "unit": "core" if len(cells) == len(now.machine["cores"]) else "CPU",
        "used": sum(cell.job != "" for cell in cells),
        "managed": sum(cell.sign != node_map.UNMANAGED for cell in cells),
        "tasks": len(tasks),
        "notes": list(text_view.node_notes(now.answer)),
        "jobs": [_job(name, mine, now.numbers[name], user) for name, mine in by_job.items()],
        "pending": [
            {"job": places[task["job"]], "task": task["task"], "from": task["applied"], "to": task["target"]}
            | {"state": task["state"]}
            for task in tasks
            if task["state"] in CHANGING
        ],
        "map": _map(now, cells, places),
    }


def _job(name: str, tasks: Sequence[Task], number: int, user: Callable[[int], str]) -> dict[str, Any]:
    first = tasks[0]
    now, target, owned, lent = (_union(tasks, field) for field in ("applied", "target", "owned", "lent"))
    detail = next((task["detail"] for task in tasks if task["detail"]), "")
    return {
        "name": name,
        "number": number,
        "letter": node_map.letter(number),
        "user": user(first["uid"]),
        "class": first["class"],
        "state": min((task["state"] for task in tasks), key=STATES.index),
        "cpus": format_cpulist(now),
        "now": now.bit_count(),
        "target": target.bit_count(),
        "owned": owned.bit_count(),
        "lent": lent.bit_count(),
        "why": detail or first["reason"],
    }


def _union(tasks: Sequence[Task], field: str) -> int:
    return mask_of(cpu for task in tasks for cpu in node_map.cpus_of(task[field]))


def _map(now: DashboardState, cells: Sequence[node_map.Cell], places: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return packages with their NUMA nodes with their cells: sign, job or None, and CPUs."""
    units = node_map.units(now.machine, now.answer)
    drawn = [
        (cell.package, cell.numa, [cell.sign, places.get(cell.job), format_cpulist(mask_of(cpus))])
        for cell, (_, _, cpus) in zip(cells, units, strict=True)
    ]
    found = []
    for package, alike in groupby(drawn, lambda one: one[0]):
        nodes = groupby(alike, lambda one: one[1])
        found.append({"package": package, "nodes": [{"numa": n, "cells": [c for *_, c in node]} for n, node in nodes]})
    return found


def hour(history: CpuHistory, numbers: Mapping[str, int], cpus: int) -> dict[str, Any]:
    """Return columns of [job, CPUs]; a job is an index in the list of jobs, None stands for those taken together.

    `cpus` is the number of CPUs managed now. The last column covers `last` seconds, the others `step`.
    """
    names = sorted({name for column in history.columns for name in column if name != OTHERS}, key=numbers.__getitem__)
    places: dict[str, int | None] = {name: place for place, name in enumerate(names)}
    order = {name: place for place, name in enumerate([*names, OTHERS])}
    return {
        "schema_version": SCHEMA_VERSION,
        "step": STEP,
        "last": round(history.last, 3),
        "cpus": cpus,
        "jobs": [{"name": name, "number": numbers[name], "letter": node_map.letter(numbers[name])} for name in names],
        "columns": [
            [[places.get(name), round(column[name], 2)] for name in sorted(column, key=order.__getitem__)]
            for column in history.columns
        ],
    }
