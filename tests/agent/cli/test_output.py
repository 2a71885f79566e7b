# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from drom.agent.bench import report
from drom.agent.cli import output
from drom.agent.text import CORES_DIFFER, KINDS_ALIKE
from drom.agent.topology.synthetic import synthetic_topology

if TYPE_CHECKING:
    import pytest


def task(**fields: Any) -> dict[str, Any]:
    """Return one task of the answer to `ps`."""
    base = {
        "job": "a",
        "task": 0,
        "pid": 100,
        "uid": 0,
        "class": "malleable",
        "state": "running",
        "mode": "cooperative",
        "reason": "arrival",
        "detail": "",
        "min": 1,
        "max": 8,
        "owned": "0-7",
        "target": "0-3",
        "granted": "0-3",
        "applied": "0-3",
        "lent": "",
        "layout": "",
        "memory": 0,
        "hold": None,
        "pin": "",
        "left": None,
        "points": "",
    }
    return {**base, **fields}


def shown(capsys: pytest.CaptureFixture[str], *tasks: dict[str, Any], **more: Any) -> list[str]:
    """Return the lines that `ps` prints."""
    output.tasks({"tasks": list(tasks), "observe": False} | more, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_a_table_is_as_wide_as_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns line up and no line ends in blanks."""
    output.table(["A", "LONG", "C"], [["one", "2", ""], ["1", "second", "x"]])

    assert capsys.readouterr().out == "A    LONG    C\none  2\n1    second  x\n"


def test_tasks_are_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Each task is a line with whose it is, what it has and owns and why; a dash is nothing."""
    head, row = shown(capsys, task(applied=""))

    assert head.split() == ["JOB", "USER", "PID", "CLASS", "STATE", "NCPUS", "CPUS", "OWNED", "REASON"]
    assert row.split() == [
        "a",
        "root",
        "100",
        "malleable",
        "running",
        "0",
        "->",
        "4",
        "-",
        "->",
        "0-3",
        "0-7",
        "arrival",
    ]


def test_an_order_is_answered_as_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run is a table of changes, a release is a sentence, a resize shows the tasks."""
    step = {"job": "a", "task": 0, "pid": 100, "action": "shrink", "from": "0-3", "to": "", "why": "the order"}
    output.ordered({"dry_run": True, "changes": [step]}, as_json=False)
    output.ordered({"dry_run": True, "changes": []}, as_json=False)
    output.ordered({"said": "a runs on.", "tasks": [], "observe": False}, as_json=False)
    output.ordered({"said": "", "tasks": [], "observe": False}, as_json=False)

    assert capsys.readouterr().out.splitlines() == [
        "JOB  TASK  PID  CHANGE  FROM  TO  WHY",
        "a    0     100  shrink  0-3   -   the order",
        "This is a dry run: nothing was changed.",
        "Nothing would change.",
        "This is a dry run: nothing was changed.",
        "a runs on.",
        output.NOBODY,
    ]


def test_an_explanation_is_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    """Each sentence has a line, or all of it is one JSON value."""
    value = {"job": "a", "sentences": [{"topic": "asked", "text": "One."}, {"topic": "has", "text": "Two."}]}
    output.explanation(value, as_json=False)
    output.explanation(value, as_json=True)

    assert capsys.readouterr().out.splitlines() == ["One.", "Two.", json.dumps(value)]


def test_the_screen_of_a_file_is_not_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no terminal is there is nothing to redraw."""
    output.clear()

    assert capsys.readouterr().out == ""


def test_a_waiting_task_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the table stands a sentence for each task that waits."""
    lines = shown(capsys, task(), task(job="b", state="waiting", detail="others arrived before it."))

    assert lines[3:] == ["b (pid 100) waits: others arrived before it."]


def test_a_task_on_cpus_that_are_gone_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """One that runs and lacks CPUs is short of them, and the CPUs are named."""
    lines = shown(capsys, task(detail="CPUs 1 are gone."), unavailable="1")

    assert lines[2] == "a (pid 100) is short: CPUs 1 are gone."
    assert lines[3] == "CPU 1 is gone, not allowed or reserved now: it is handed out again once that is over."


def test_an_observing_agent_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Who only observes says so."""
    assert shown(capsys, observe=True)[-1] == "This agent only observes: no mask is changed."


def test_json_is_one_value(capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts the answer is printed as it came."""
    value = {"tasks": [task()], "observe": False}
    output.tasks(value, as_json=True)

    assert json.loads(capsys.readouterr().out) == value


def test_a_machine_is_told_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts and sets come first, then alike cores of a package on a line, then nodes, then warnings."""
    machine = synthetic_topology("pack:2 [numa(memory=3GiB)] [numa(memory=1GiB)] die:2 core:2 pu:2")
    cores = (replace(machine.cores[0], kind="performance"), *machine.cores[1:])
    changed: dict[str, Any] = {
        "cores": cores,
        "isolated": 1 << 15,
        "allowed": 0xFF,
        "quota": 2.5,
        "warnings": ("It is odd.",),
    }
    output.topology(replace(machine, **changed), as_json=False)

    assert capsys.readouterr().out.splitlines() == [
        "2 packages, 4 NUMA nodes, 8 cores, 16 CPUs",
        "online: 0-15",
        "allowed: 0-7",
        "isolated: 15",
        "quota: 2.5 CPUs",
        "memory: 8 GiB",
        "",
        "PACKAGE  NUMA  DIE  KIND         CORES  THREADS  CPUS   FIRST CORE  ALLOWED",
        "0        0     0    performance  1      2        0-1    0-1         0-1",
        "0        0     0    -            1      2        2-3    2-3         2-3",
        "0        0     1    -            2      2        4-7    4-5         4-7",
        "1        2     2    -            2      2        8-11   8-9         none",
        "1        2     3    -            2      2        12-15  12-13       none",
        "",
        KINDS_ALIKE,
        "",
        "NUMA  MEMORY  CPUS",
        "0     3 GiB   0-7",
        "1     1 GiB   none",
        "2     3 GiB   8-15",
        "3     1 GiB   none",
        "warning: It is odd.",
        "warning: The CPU quota of 2.5 CPUs has room for 1 core of 4: CPUs 0-1 are managed of 0-7.",
    ]


def test_a_sentence_says_what_cpus_mean_where_cores_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """Where some cores have two CPUs and some one, a sentence below the cores tells what jobs get."""
    machine = synthetic_topology("core:3 pu:2")
    cores = (replace(machine.cores[0], cpus=1, kind="efficiency"), *machine.cores[1:])
    output.topology(replace(machine, cores=cores), as_json=False)
    said = capsys.readouterr().out
    output.topology(machine, as_json=False)

    assert f"\n\n{CORES_DIFFER} `drom agent --unit thread` hands out CPUs one by one.\n\n{KINDS_ALIKE}\n" in said
    assert CORES_DIFFER not in capsys.readouterr().out


def test_a_machine_without_nodes_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not known is said to be unknown or a dash."""
    machine = synthetic_topology("core:1")
    cores = (replace(machine.cores[0], numa=-1),)
    output.topology(replace(machine, numa=(), cores=cores), as_json=False)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 package, 0 NUMA nodes, 1 core, 1 CPU"
    assert "memory: unknown" in lines
    assert lines[-1].split() == ["0", "-", "1", "1", "0", "0", "0"]


def test_measurements_stand_beside_what_they_are_to_reach(capsys: pytest.CaptureFixture[str]) -> None:
    """A figure has a spread, a unit, a limit and a peer, or dashes."""
    row = {"name": "publish", "median": 1.5, "min": 1.0, "max": 2.25, "unit": "us"}
    report.bench({"figures": [row, {**row, "reach": 5, "peer": 3}]}, as_json=False)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["publish", "1.5", "1", "2.25", "us", "-", "-"],
        ["publish", "1.5", "1", "2.25", "us", "<=", "5", "3"],
    ]
