# SPDX-License-Identifier: Apache-2.0
"""What an agent says of itself, and what is kept of that: the log replayed, and `drom events`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dromlib.cpulist import format_cpulist
from tests.support import checker
from tests.support.agents import Agent, Programs, drom, environment, launch_agent, start_agent

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1")


def parsed(line: str) -> dict[str, Any]:
    """Return a line of the log as its fields."""
    if line.startswith("{"):
        value: dict[str, Any] = json.loads(line)
        return value
    return {key: value.strip('"') for key, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)', line)}


def replayed(records: Iterable[dict[str, Any]]) -> dict[tuple[str, int], str]:
    """Return the CPUs of each task after these events, from their changes alone."""
    masks: dict[tuple[str, int], str] = {}
    for record in records:
        if "old" not in record or "new" not in record:
            continue
        task = (record["job"], int(record["task"]))
        assert record["event"] == "kept" or masks.get(task, "") == record["old"], (record, masks)
        assert record["reason"], record
        masks[task] = record["new"]
    return {task: cpus for task, cpus in masks.items() if cpus}


def in_registry(agent: Agent) -> dict[tuple[str, int], str]:
    """Return what the registry says that each task has; the jobs of these tests have one task."""
    reading = checker.read(agent.dir)
    assert reading
    return {(slot.job, 0): format_cpulist(slot.grant) for slot in reading.slots}


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_log_replayed_is_the_registry(tmp_path: Path, start: Programs, program: Path, form: str) -> None:
    """Starts, shrinks, orders, ends, the death of an agent and its successor: each change of a mask is one line."""
    agent = launch_agent(tmp_path / "run", *TWO, "--log-format", form)
    try:
        a = start.start(*agent.run("--job", "a", "--", program))
        agent.await_tasks(a="0-1")
        b = start.start(*agent.run("--job", "b", "--", program))
        agent.await_tasks(a="0", b="1")
        assert replayed(map(parsed, agent.log.splitlines())) == in_registry(agent) == {("a", 0): "0", ("b", 0): "1"}
        agent.kill()
        b.kill()
        agent = launch_agent(tmp_path / "run", *TWO, "--log-format", form)
        agent.await_tasks(a="0-1")
        agent.order("resize", job="a", cpus=1)
        c = start.start(*agent.run("--job", "c c", "--", program))
        agent.await_tasks(a="0", **{"c c": "1"})

        whole = agent.log_file.read_text(encoding="utf-8")
        assert replayed(map(parsed, whole.splitlines())) == in_registry(agent) == {("a", 0): "0", ("c c", 0): "1"}
        kept = drom("events", "--json", "--runtime-dir", agent.dir).stdout
        assert replayed(map(json.loads, kept.splitlines())) == in_registry(agent)
        assert (a.quit(), c.quit()) == (0, 0)
        agent.await_tasks()
        assert replayed(map(parsed, agent.log_file.read_text(encoding="utf-8").splitlines())) == {}
        agent.stop()
    finally:
        agent.discard()


def test_events_of_the_past_and_from_now_on(tmp_path: Path, start: Programs) -> None:
    """They outlive the agent, in the file that was named; a job alone can be asked for, and what comes be followed."""
    file = tmp_path / "kept.jsonl"
    for job in ("a", "b"):
        with start_agent(tmp_path, *TWO, "--events-file", str(file)) as agent:
            assert start.start(*agent.run("--job", job, "--", "true")).wait() == 0
            agent.await_log(f"event=task_ended job={job}")
    assert not (agent.dir / "events").exists()

    told = drom("events", "--job", "b", "--runtime-dir", agent.dir, DROM_EVENTS_FILE=str(file)).stdout.splitlines()
    assert [re.split(r"  +", line)[1] for line in told] == ["arrived", "task_started", "task_ended"]
    assert re.search(r"task_started      b             - -> 0-1  task=0 pid=\d+ reason=arrival$", told[1])
    assert drom("events", "--file", file, "--since", "2099-01-01").stdout == ""

    command = [sys.executable, "-m", "drom", "events", "--file", str(file), "--follow", "--json", "--job", "c"]
    watcher = start.start(*command)
    with start_agent(tmp_path, *TWO, "--events-file", str(file)) as agent:
        start.start(*agent.run("--job", "c", "--", "true"))
        watcher.await_out('"event": "task_ended", "job": "c"')
    assert {json.loads(line)["job"] for line in watcher.out.splitlines()} == {"c"}


def test_who_reads_only_the_first_events_is_no_error(tmp_path: Path) -> None:
    """`drom events | head -1` says nothing on stderr."""
    line = json.dumps({"time": "2026-11-21T20:00:00.000Z", "event": "x"}) + "\n"
    (tmp_path / "events").write_text(line * 20_000, encoding="utf-8")
    shell = f"set -o pipefail; {sys.executable} -m drom events --file {tmp_path}/events --json | head -1"
    done = subprocess.run(["bash", "-c", shell], env=environment(), capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == (line, "")


def test_an_agent_without_a_history(tmp_path: Path) -> None:
    """Who switches it off finds no file, and is told so."""
    with start_agent(tmp_path, *TWO, "--events-size", "off") as agent:
        assert not (agent.dir / "events").exists()
        done = agent.cli("events")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"drom: no events can be read in {agent.dir}/events (No such file or directory): ")


def test_a_place_for_events_that_cannot_be(tmp_path: Path) -> None:
    """The agent works without a history, and warns what to choose."""
    place = tmp_path / "no" / "events"
    with start_agent(tmp_path, *TWO, "--events-file", str(place)) as agent:
        reason = f"cannot keep events in {place}: No such file or directory: choose another --events-file."
        agent.await_log(f'event=history_failed reason="{reason}"')
        agent.await_log("event=ready")
