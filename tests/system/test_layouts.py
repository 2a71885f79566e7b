# SPDX-License-Identifier: Apache-2.0
"""Layouts and units as people ask for them: real agents over an emulated machine, real launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dromlib.cpulist import parse_cpulist
from tests.support.agents import Agent, Program, Programs, drom, launch_agent, start_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system
MACHINE = "pack:2 core:4 pu:2"
"""CPUs 0-7 are socket 0, two neighbours are a core."""
SOCKETS = (0x00FF, 0xFF00)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """An agent that hands out the cores of the emulated machine."""
    with start_agent(tmp_path, "--emulate", MACHINE, "--sharing-factor", "1") as running:
        yield running
        running.assert_clean()


def launch(agent: Agent, start: Programs, job: str, *options: str) -> Program:
    """Start a program that runs until it is killed."""
    return start.start(*agent.run("--job", job, *options, "--", "sleep", "600"))


def per_socket(agent: Agent, job: str) -> list[int]:
    """Return the CPUs a job holds in each socket, once it has settled there."""

    def settled() -> list[int] | None:
        row = agent.tasks().get(job, {})
        if not row.get("granted") or len({row[key] for key in ("granted", "applied", "held", "target")}) > 1:
            return None
        return [(parse_cpulist(row["granted"]) & socket).bit_count() for socket in SOCKETS]

    return wait_until(settled, lambda: f"{agent.tasks()}\n{agent.log}")


def test_strict_compact_waits_and_starts_when_there_is_room(agent: Agent, start: Programs) -> None:
    """Three cores in one socket: the launcher says where the room is, and runs when a socket has it."""
    blockers = [launch(agent, start, name, "--class", "rigid", "--cpus", "4") for name in ("a", "b")]
    for job in ("a", "b"):
        per_socket(agent, job)
    spread = launch(agent, start, "c", "--class", "rigid", "--cpus", "4", "--distribution", "spread")
    per_socket(agent, "c")
    for blocker in blockers:
        blocker.kill()
    wait_until(lambda: agent.tasks().keys() == {"c"}, agent.tasks)
    rigid = launch(agent, start, "r", "--class", "rigid", "--cpus", "4", "--distribution", "spread")
    assert per_socket(agent, "r") == [2, 2]
    waits = launch(agent, start, "w", "--cpus", "8", "--min", "6", "--distribution", "compact!")
    waits.await_err(
        r"^drom: waiting: compact! of job w needs 6 CPUs in one socket: it can have 4 in socket 0, 4 in socket 1\.$"
    )

    assert agent.tasks()["w"]["state"] == "waiting"
    rigid.kill()
    assert sorted(per_socket(agent, "w")) == [0, 6]
    assert per_socket(agent, "c") == [2, 2]
    spread.kill()
    waits.kill()
    agent.await_tasks()


def test_a_neighbours_arrival_does_not_break_strict_compact(agent: Agent, start: Programs) -> None:
    """A job that shrinks for others and grows again stays in its socket."""
    launch(agent, start, "a", "--cpus", "8", "--distribution", "compact!")
    home = per_socket(agent, "a")
    guests = [launch(agent, start, job, "--min", "4") for job in ("b", "c", "d")]
    for job in ("b", "c", "d"):
        per_socket(agent, job)
    crowded = per_socket(agent, "a")

    assert sorted(home) == [0, 8]
    assert min(crowded) == 0
    assert crowded.index(0) == home.index(0)
    for guest in guests:
        guest.kill()
    wait_until(lambda: per_socket(agent, "a") == home, agent.tasks)


def test_spread_and_per_socket_leave_cores_on_each_socket(agent: Agent, start: Programs) -> None:
    """Four cores are two of each socket, one per socket is one of each, and a third job has the rest."""
    launch(agent, start, "a", "--cpus", "8", "--distribution", "spread")
    assert per_socket(agent, "a") == [4, 4]
    launch(agent, start, "b", "--distribution", "per-socket=1")
    assert per_socket(agent, "b") == [2, 2]
    launch(agent, start, "c", "--cpus", "4")

    assert per_socket(agent, "c") == [2, 2]
    assert per_socket(agent, "a") == [4, 4]


def test_a_layout_survives_the_agent(tmp_path: Path, start: Programs) -> None:
    """The next agent finds the layout in the registry and keeps to it."""
    folder = tmp_path / "run"
    first = launch_agent(folder, "--emulate", MACHINE)
    launch(first, start, "a", "--distribution", "per-socket=2!")
    assert per_socket(first, "a") == [4, 4]
    first.kill()
    with start_agent(tmp_path, "--emulate", MACHINE) as second:
        assert per_socket(second, "a") == [4, 4]
        done = second.cli("resize", "a", "10")
        assert done.stderr == "drom: job a can have 2 to 8 CPUs, not 10: see its min and max.\n"
        second.order("resize", job="a", cpus=4)
        wait_until(lambda: sorted(per_socket(second, "a")) == [0, 4], second.tasks)


def test_a_site_may_spread_by_default(tmp_path: Path, start: Programs) -> None:
    """--distribution of the agent counts for jobs that ask for none."""
    with start_agent(tmp_path, "--emulate", MACHINE, "--distribution", "spread") as agent:
        launch(agent, start, "a", "--cpus", "8")
        assert per_socket(agent, "a") == [4, 4]


def test_threads_are_handed_out_one_by_one(tmp_path: Path, start: Programs) -> None:
    """Sixteen tasks run on eight cores of two threads; a task of two threads has them of one core."""
    with start_agent(tmp_path, "--emulate", MACHINE, "--unit", "thread") as agent:
        for n in range(14):
            launch(agent, start, f"t{n}", "--cpus", "1")
        wait_until(lambda: len(agent.tasks()) == 14, agent.tasks)
        pair = launch(agent, start, "pair", "--cpus", "2")
        pair_cpus = sum(per_socket(agent, "pair"))
        mask = parse_cpulist(agent.tasks()["pair"]["granted"])
        assert pair_cpus == 2
        assert mask in [0b11 << 2 * core for core in range(8)]
        pair.kill()
        for n in (14, 15):
            launch(agent, start, f"t{n}", "--cpus", "1")
        wait_until(lambda: sum(row["granted"] != "" for row in agent.tasks().values()) == 16, agent.tasks)

        assert sorted(parse_cpulist(row["granted"]) for row in agent.tasks().values()) == [1 << n for n in range(16)]
        agent.assert_clean()


def test_living_tasks_keep_their_unit(tmp_path: Path, start: Programs) -> None:
    """An agent started with another unit over living tasks goes on counting as before, and says so."""
    folder = tmp_path / "run"
    first = launch_agent(folder, "--emulate", MACHINE, "--unit", "thread")
    launch(first, start, "a", "--cpus", "3")
    assert sum(per_socket(first, "a")) == 3
    first.kill()
    with start_agent(tmp_path, "--emulate", MACHINE) as second:
        second.await_log(
            r'event=unit_kept reason="running tasks are counted in threads: start again with cores once they have '
            r'ended\."'
        )
        assert sum(per_socket(second, "a")) == 3
        launch(second, start, "b", "--cpus", "1")
        assert sum(per_socket(second, "b")) == 1


def test_a_unit_that_is_none_is_one_sentence() -> None:
    """Only cores and threads are handed out."""
    done = drom("agent", "--emulate", MACHINE, "--unit", "socket")

    assert (done.returncode, done.stderr) == (1, "drom: --unit socket is not core or thread.\n")
