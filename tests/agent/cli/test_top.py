# SPDX-License-Identifier: Apache-2.0
"""The screen of `drom top` as text, without a terminal and without an agent."""

from __future__ import annotations

from typing import Any

from drom.agent.cli import top
from drom.agent.observe import node_map
from drom.agent.topology.synthetic import synthetic_topology
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.observe.test_text_view import task

SMALL = "pack:2 numa:1 core:4 pu:2"


def answer(*tasks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an answer to `ps`."""
    return {"tasks": list(tasks), "observe": False, "frozen_since": None, "avoided": "", "unavailable": "", **fields}


def view(words: str, *tasks: dict[str, Any], trouble: str = "", **fields: Any) -> top.View:
    """Return what there is to see on such a machine."""
    numbers = node_map.number(dict.fromkeys(row["job"] for row in tasks), {})
    return top.View("top", synthetic_topology(words).to_json(), answer(*tasks, **fields), numbers, trouble=trouble)


def text(seen: top.View, choice: top.Choice | None = None, width: int = 79, height: int = 24) -> list[str]:
    """Return the lines of a screen."""
    lines = top.frame(seen, choice or top.Choice(), lambda uid: f"user{uid}", width, height)
    return ["".join(span.text for span in line).rstrip() for line in lines]


def test_a_core_is_shown_as_its_holder_has_it() -> None:
    """Large letters are in force, small ones come or go; a dot is idle."""
    shown = text(
        view(
            SMALL,
            task("a", applied="0-3", target="0-1"),
            task("b", pid=101, applied="8-11", target="2-3,8-11"),
            task("c", pid=102, applied="", target="12-13"),
        )
    )

    assert shown[0] == "top: 3 jobs, 3 tasks, 5 of 8 cores in use"
    assert shown[1:3] == ["socket 0  Aa..", "socket 1  BBc."]
    assert shown[3] == ". idle   small letter: changing, not yet in force"
    assert shown[5].split() == ["JOB", "USER", "PID", "CLASS", "STATE", "NCPUS", "CPUS", "OWNED", "REASON"]
    assert [line[:3] for line in shown[6:9]] == ["A a", "B b", "C c"]
    assert shown[-1].startswith("q quit   s sort: arrival")


def test_changes_are_told_where_they_are_counted() -> None:
    """One picture alone has none, and an agent on another node signals none."""
    seen = view(SMALL)

    assert text(seen)[0] == "top: 0 jobs, 0 tasks, 0 of 8 cores in use"
    assert text(seen._replace(rate=0.25))[0].endswith("in use, 0.2 changes a second")


def test_jobs_that_share_a_core_are_shown_by_cpu() -> None:
    """As with `--unit thread`."""
    shown = text(view(SMALL, task("a", applied="0", target="0"), task("b", pid=2, applied="1-2", target="1-2")))

    assert shown[0].endswith("3 of 16 CPUs in use")
    assert shown[1:3] == ["socket 0  ABB.....", "socket 1  ........"]


def test_cpus_that_nobody_gets_are_told_apart() -> None:
    """Those left to unmanaged programs, and those that are not the agent's; with the sentences of `drom ps`."""
    seen = view(SMALL, avoided="0-1", trouble="The last known state: no agent answers.", observe=True)
    seen.machine["allowed"] = "0-13"
    shown = text(seen)

    assert shown[1:3] == ["socket 0  ~...", "socket 1  ...-"]
    assert shown[3] == ". idle   ~ left alone   - not the agent's"
    assert shown[4:7] == [
        "The last known state: no agent answers.",
        "This agent only observes: no mask is changed.",
        "CPUs 0-1 are left to unmanaged programs, which keep them busy.",
    ]
    assert shown[8] == "No task runs here."


def test_nodes_and_runs_of_cores_have_gaps() -> None:
    """Eight cores together, NUMA nodes apart, a long package in several rows of which none is too wide."""
    shown = text(view("pack:1 numa:4 core:20 pu:1"), width=64)

    assert shown[1] == "socket 0  ........ ........ ....  ........ ........ ...."
    assert shown[2] == "          ........ ........ ....  ........ ........ ...."


@given(st.integers(1, 8), st.integers(1, 128), st.integers(40, 200), st.integers(16, 60), st.integers(0, 40))
def test_every_screen_has_room(packages: int, cores: int, width: int, height: int, jobs: int) -> None:
    """Whatever the machine and the window: as many lines as there are, none too long, the chosen task always there."""
    rows = [task(f"job{i}", pid=i, applied=f"{i % cores}", target=f"{i % cores}") for i in range(jobs)]
    shown = text(view(f"pack:{packages} core:{cores} pu:1", *rows), top.Choice(pid=jobs - 1), width, height)

    assert len(shown) == height
    assert max(map(len, shown)) <= width
    assert any(line[2:].startswith(f"job{jobs - 1}") for line in shown) or jobs == 0


def test_a_window_without_room_shows_what_it_can() -> None:
    """A tiling window may leave nothing."""
    for width in (0, 1):
        assert len(text(view("pack:2 core:4 pu:1", task()), top.Choice(), width, 3)) == 3


def test_a_cell_of_many_cores_shows_who_has_most() -> None:
    """A machine too large for the window."""
    found = node_map.cells(
        synthetic_topology("pack:1 core:64 pu:1").to_json(),
        answer(task("a", applied="0-40", target="0-40")),
        {"a": 0},
    )
    together, ((label, cells),) = node_map.rows(found, 60, 1)

    assert together == 2
    assert (
        label + "".join(cell.sign if cell else " " for cell in cells) == "socket 0  AAAAAAAA AAAAAAAA AAAAA... ........"
    )


def test_a_job_keeps_its_letter() -> None:
    """Whoever comes and goes before it; a new one has a letter that nobody has."""
    first = node_map.number(["a", "b", "c"], {})
    second = node_map.number(["b", "c", "d", "e"], first)

    assert first == {"a": 0, "b": 1, "c": 2}
    assert second == {"b": 1, "c": 2, "d": 0, "e": 3}
    assert [node_map.letter(number) for number in (0, 25, 26)] == ["A", "Z", "A"]


def test_tasks_are_sorted_as_chosen() -> None:
    """By arrival, number of CPUs, job and user; the choice of a task stays within them."""
    rows = [
        task("b", pid=1, uid=9, applied="0"),
        task("c", pid=2, uid=8, applied="1-3"),
        task("a", pid=3, uid=7, applied="4-5"),
    ]
    choice, orders = top.Choice(), {}
    for _ in range(4):
        orders[choice.sort] = "".join(row["job"] for row in top.in_order(rows, choice.sort, str))
        choice = choice.sorted_otherwise()

    assert orders == {"arrival": "bca", "cpus": "cab", "job": "abc", "user": "acb"}
    assert choice.sort == "arrival"
    assert [choice.moved(rows, step).pid for step in (-1, 5)] == [1, 1]
    assert [top.Choice(pid=2).moved(rows, step).pid for step in (-1, 0, 1, 9)] == [1, 2, 3, 3]
    assert choice.moved([], 1) == choice


def test_a_job_is_explained_in_place_of_the_table() -> None:
    """Long sentences go on in the next line."""
    shown = text(view(SMALL, task()), top.Choice(pid=100, sentences=("word " * 30, "The end.")), width=40)

    assert shown[5:10] == [" ".join(["word"] * 8)] * 3 + [" ".join(["word"] * 6), "The end."]
    assert shown[-1].startswith("q quit   enter back to the tasks")
