# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from drom.agent.observe import dashboard
from drom.agent.observe.cpu_history import OTHERS, CpuHistory
from drom.agent.topology.synthetic import synthetic_topology

from tests.agent.cli.test_top import answer
from tests.agent.observe import test_text_view

SMALL = "pack:2 numa:1 core:4 pu:2"


def task(job: str, **fields: Any) -> dict[str, Any]:
    """Return one task of the answer to `ps`."""
    return {"detail": "", **test_text_view.task(job, **fields)}


def told(*tasks: dict[str, Any], words: str = SMALL, **fields: Any) -> dict[str, Any]:
    """Return what a page is told of these tasks."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(row["job"] for row in tasks))}
    now = dashboard.DashboardState(synthetic_topology(words).to_json(), answer(*tasks, **fields), numbers)
    return dashboard.state(now, lambda uid: f"user{uid}")


def test_a_map_has_packages_nodes_and_cells() -> None:
    """A cell says sign, job and CPUs, as in drom top: small letters come or go."""
    a = task("a", applied="0-3", target="0-1", state="shrinking")
    state = told(a, task("b", pid=101, applied="8-9", target="2-3,8-9"))

    left = [["A", 0, "0-1"], ["a", 0, "2-3"], [".", None, "4-5"], [".", None, "6-7"]]
    right = [["B", 1, "8-9"], [".", None, "10-11"], [".", None, "12-13"], [".", None, "14-15"]]
    assert state["map"] == [
        {"package": 0, "nodes": [{"numa": 0, "cells": left}]},
        {"package": 1, "nodes": [{"numa": 1, "cells": right}]},
    ]
    assert (state["unit"], state["used"], state["managed"]) == ("core", 3, 8)


def test_jobs_that_share_a_core_have_cells_of_a_cpu() -> None:
    """As with `--unit thread`."""
    state = told(task("a", applied="0", target="0"), task("b", pid=2, applied="1", target="1"))

    assert (state["unit"], state["managed"]) == ("CPU", 16)
    assert state["map"][0]["nodes"][0]["cells"][:3] == [["A", 0, "0"], ["B", 1, "1"], [".", None, "2"]]


def test_tasks_of_a_job_are_one_row() -> None:
    """CPUs are counted together; the most urgent state and the first detail are told."""
    rows = (
        task("a", applied="0-1", target="0-1", owned="0-3", state="running"),
        task("a", pid=8, task=1, applied="4-5", target="4-7", owned="4-7", lent="6-7", state="growing"),
        task("b", pid=9, applied="", target="", state="waiting", detail="needs more."),
    )
    a, b = told(*rows)["jobs"]

    assert (a["cpus"], a["now"], a["target"], a["owned"], a["lent"]) == ("0-1,4-5", 4, 6, 8, 2)
    assert (a["state"], a["user"], a["letter"], b["letter"]) == ("growing", f"user{rows[0]['uid']}", "A", "B")
    assert (b["state"], b["why"], b["now"]) == ("waiting", "needs more.", 0)
    assert told(*rows)["pending"] == [{"job": 0, "task": 1, "from": "4-5", "to": "4-7", "state": "growing"}]


def test_notes_are_those_of_ps() -> None:
    """Who only observes, or is frozen, says so."""
    assert told(observe=True)["notes"] == ["This agent only observes: no mask is changed."]


def test_an_hour_has_columns_of_jobs_in_one_order() -> None:
    """Jobs go by their number, those taken together last."""
    history = CpuHistory([{"b": 1.0}, {OTHERS: 3.0, "b": 0.333333, "a": 2.0}], 4.5)
    hour = dashboard.hour(history, {"b": 2, "a": 1, "c": 0}, 16)

    assert [(job["name"], job["letter"]) for job in hour["jobs"]] == [("a", "B"), ("b", "C")]
    assert hour["columns"] == [[[1, 1.0]], [[0, 2.0], [1, 0.33], [None, 3.0]]]
    assert (hour["step"], hour["last"], hour["cpus"]) == (10.0, 4.5, 16)
