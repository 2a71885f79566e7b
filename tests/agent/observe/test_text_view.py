# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest
from drom.agent.observe import text_view
from drom.agent.observe.text_view import event_line, is_wanted, parse_since
from drom.agent.text import WordError, cut_middle

NOW = datetime(2026, 11, 21, 20, 0, tzinfo=timezone.utc)
CHANGE = {"time": "2026-11-21T19:59:59.500Z", "event": "applied", "job": "a", "old": "0-3", "new": "", "pid": 7}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", "2026-11-21T19:58:30.000Z"),
        ("1d", "2026-11-20T20:00:00.000Z"),
        ("2026-11-21T19:50Z", "2026-11-21T19:50:00.000Z"),
        ("2026-11-21 19:50:01.5+01:00", "2026-11-21T18:50:01.500Z"),
    ],
)
def test_since_is_ago_or_a_moment(text: str, moment: str) -> None:
    """Both are compared as events have their times."""
    assert parse_since(text, NOW) == moment


@pytest.mark.parametrize("text", ["soon", "", "0s", "2026-13-01", "0001-01-01T00:00+23:00"])
def test_what_is_no_time_is_told(text: str) -> None:
    """The sentence says what to write."""
    with pytest.raises(WordError, match=r"is not a time: write a span such as 10m or 2h, or a date such as "):
        parse_since(text, NOW)


def test_who_asks_for_a_job_sees_only_that() -> None:
    """Events of others, of nobody and from before are left out."""
    assert is_wanted(CHANGE, None, "")
    assert is_wanted(CHANGE, "a", "2026-11-21T19:59:59.500Z")
    assert not is_wanted(CHANGE, "b", "")
    assert not is_wanted(CHANGE, "a", "2026-11-21T19:59:59.501Z")
    assert not is_wanted({"time": "2026", "event": "ready"}, "a", "")


def test_an_event_is_a_line() -> None:
    """When, what, whose, from which CPUs to which, and all the rest."""
    assert event_line(CHANGE, timezone.utc) == "2026-11-21 19:59:59  applied           a             0-3 -> -  pid=7"
    ready = {"time": "2026-11-21T20:00:00.000Z", "event": "ready", "cores": 4}
    assert event_line(ready, timezone.utc) == "2026-11-21 20:00:00  ready             cores=4"
    levels = {level: event_line({**ready, "level": level}, timezone.utc) for level in ("info", "warning")}
    assert levels["info"] == event_line(ready, timezone.utc)
    assert levels["warning"] == "2026-11-21 20:00:00  ready             level=warning cores=4"


def test_nothing_in_a_history_moves_the_cursor() -> None:
    """A file that somebody else has written is shown without its control characters."""
    nasty = dict.fromkeys(("time", "event", "job", "old", "new", "more"), "\x1b[2J\n")

    assert event_line(nasty).isprintable()


NOTHING: dict[str, Any] = {
    "task": 0,
    "uid": 7,
    "lent": "",
    "layout": "",
    "memory": 0,
    "hold": None,
    "pin": "",
    "mode": "cooperative",
    "points": "",
    "left": None,
}
PLAIN = {
    "class": "malleable",
    "state": "running",
    "applied": "0-3",
    "target": "0-3",
    "owned": "0-3",
    "reason": "arrival",
}


def task(job: str = "a", **fields: Any) -> dict[str, Any]:
    """Return one task of the answer to `ps`."""
    return {**NOTHING, **PLAIN, "job": job, "pid": 100, **fields}


def shown(*rows: dict[str, Any]) -> list[str]:
    """Return the table."""
    return text_view.task_table(rows, lambda uid: f"user{uid}")


def test_columns_that_nobody_needs_are_left_out() -> None:
    """A plain node is a narrow table."""
    assert shown(task()) == [
        "JOB  USER   PID  CLASS      STATE    NCPUS  CPUS  OWNED  REASON",
        "a    user7  100  malleable  running  4      0-3   0-3    arrival",
    ]


def test_who_is_not_malleable_by_itself_is_told_apart() -> None:
    """A column says which runtime adapts a program, and which tasks are bound from outside."""
    runtime, bound, lost = task("b", points="libomp"), task("c", mode="bind-only"), task("d", mode="unmanaged")
    waiting = task("e", mode="bind-only", applied="")

    modes = [line.split()[-2] for line in shown(task(), runtime, bound, lost, waiting)]
    assert modes == ["MODE", "-", "libomp", "bind-only", "unmanaged", "-"]


def test_columns_that_somebody_needs_are_there() -> None:
    """Ranks, loans, layouts, orders and memory have columns when any task has them."""
    rows = [
        task(lent="2-3", hold=2, left=540.0, layout="compact!", memory=2 << 30),
        task("b", task=1, pin="0", target="0"),
        task("c", hold=3),
    ]
    head, first, second, third = shown(*rows)

    assert head.split()[1:2] == ["TASK"]
    assert head.endswith("LENT  REASON   LAYOUT    HELD AT   MEMORY")
    assert first.endswith("2-3   arrival  compact!  2 for 9m  2 GiB")
    assert second.endswith("0-3 -> 0  0-3    -     arrival  -         CPUs 0    -")
    assert third.endswith("-     arrival  -         3         -")


LONG = ",".join(str(2 * n) for n in range(60))


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("wraps", [False, True])
def test_a_table_of_tasks_fits_a_terminal(width: int, *, wraps: bool) -> None:
    """However long names and CPU lists are, no line is longer than asked, and what is cut shows it."""
    rows = [
        task("j" * 63, task=1, applied=LONG, target=LONG, owned=LONG, lent=LONG, layout="per-socket=12!", hold=64),
        task(pin=LONG, memory=3 << 30, state="shrinking"),
    ]
    lines = text_view.task_table(rows, str, width, wraps=wraps)

    assert shown(*rows)[1].count(LONG) == 3
    assert max(map(len, lines)) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" in lines[1]
    assert " 60 " in lines[1]
    assert (len(lines) > 3) == wraps


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_cpus_of_a_large_node_are_whole(width: int) -> None:
    """Names are cut before them: the list of CPUs is what people look for."""
    cpus = "0-63,128-191"
    rows = [task("lammps-production-run", uid=10_000_000, pid=4_194_303, applied=cpus, target=cpus, owned=cpus)]

    for wraps in (False, True):
        (head, line) = text_view.task_table(rows, lambda _: "a.long.user.name", width, wraps=wraps)
        assert [name in head.split() for name in ("JOB", "PID", "STATE", "NCPUS", "CPUS")] == [True] * 5
        assert {"4194303", "128", cpus} <= set(line.split())
        assert len(line) <= width


@pytest.mark.parametrize("width", [78, 80, 100, 120])
@pytest.mark.parametrize("wraps", [False, True])
def test_jobs_can_be_told_apart_by_the_ends_of_their_names(width: int, *, wraps: bool) -> None:
    """Names have room before OWNED, LENT and REASON; a mode is whole, or its column is left out."""
    rows = [
        task(
            f"a-rather-long-name-of-a-job-{n}",
            pid=10_359 + n,
            applied=f"{n},{n + 8}",
            target=f"{n},{n + 8}",
            lent="16-31" if n == 1 else "",
            mode="bind-only",
        )
        for n in range(1, 9)
    ]
    head, *lines = text_view.task_table(rows, lambda _: "root", width, wraps=wraps)

    assert [line.split()[0][-6:] for line in lines] == [f"-job-{n}" for n in range(1, 9)]
    assert [line[:12] for line in lines] == ["a-rather-lon"] * 8
    assert {"NCPUS", "CPUS", "STATE"} <= set(head.split())
    assert all(f" 2      {n},{n + 8}" in line for n, line in enumerate(lines, 1))
    assert "bind-o\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    assert ("MODE" in head) == all("bind-only" in line for line in lines)


def test_a_list_of_cpus_that_is_cut_says_how_many_more_there_are() -> None:
    """Whole entries are kept, of what is in force and of what is to come."""
    assert [text_view.cut_cpus(LONG, width) for width in (153, 152, 30, 15, 8)] == [
        LONG[:144] + " +10 more",
        LONG[:141] + " +11 more",
        "0,2,4,6,8,10,12,14,16 +51 more",
        "0,2,4 +57 more",
        "0,2,4,6\N{HORIZONTAL ELLIPSIS}",
    ]
    assert text_view.cut_cpus("0-63,80,90,100-107", 14) == "0-63 +10 more"
    assert text_view.cut_cpus("0-63,80-90,100-127 -> 0-3", 22) == "0-63 +39 more -> 0-3"
    assert text_view.cut_cpus(f"0-3 -> {LONG}", 24) == "0-3 -> 0,2,4,6 +56 more"
    assert text_view.cut_cpus(f"{LONG} -> {LONG}", 34) == "0,2,4 +57 more -> 0,2,4,6 +56 more"
    assert text_view.cut_cpus("0-3 -> 0-1", 10) == "0-3 -> 0-1"


@pytest.mark.parametrize("width", [78, 120])
def test_a_table_in_one_line_a_task_says_how_many_cpus_it_leaves_out(width: int) -> None:
    """As in `drom top`."""
    (_, line) = text_view.task_table([task(applied=LONG, target=LONG)], str, width)
    found = re.search(r" 60 +(\S+) \+(\d+) more", line)

    assert found, line
    assert len(found[1].split(",")) + int(found[2]) == 60
    assert LONG.startswith(found[1] + ",")
    assert len(line) <= width


def test_a_long_list_of_cpus_goes_on_in_further_lines() -> None:
    """None of its numbers is torn, and other columns stay."""
    rows = [task(applied=LONG, target=LONG, owned="0"), task("b", applied="0-63", target="0-31")]
    head, *lines = text_view.task_table(rows, lambda _: "ann", 80, wraps=True)
    at = head.index("CPUS", head.index("NCPUS") + 5)
    parts = [line[at:].split("  ")[0].strip() for line in lines]

    assert "".join(parts) == LONG + "0-63 -> 0-31"
    assert all(part.endswith(",") for part in parts[:-2])
    assert lines[0].startswith("a    ann   100  malleable  running  60")
    assert lines[0].endswith("arrival")
    assert lines[-1].split()[5:] == ["64", "->", "32", "0-63", "->", "0-31", "arrival"]


def test_changes_are_told_task_by_task() -> None:
    """From where to where, and why."""
    row = {"job": "a", "task": 0, "pid": 100, "action": "shrink", "from": "0-3", "to": "0-1", "why": "the order"}

    assert text_view.changes([row])[1] == "a    0     100  shrink  0-3   0-1  the order"
    assert text_view.changes([]) == ["Nothing would change."]


def test_a_table_is_straight_whatever_names_are_like() -> None:
    """Marks take no column, wide characters two, and what is cut fits."""
    rows = [["e\u0301e\u0301", "x"], ["\u4f5c\u696d", "x"], ["abcdefgh", "x"]]
    assert text_view.fitted(["NAME", "STATE"], rows) == [
        "NAME      STATE",
        "e\u0301e\u0301        x",
        "\u4f5c\u696d      x",
        "abcdefgh  x",
    ]
    names = [["\u4f5c\u696d" * 9], ["abcde\u0301" * 4]]
    assert text_view.fitted(["NAME"], names, 9, cutters={"NAME": cut_middle})[1:] == [
        "\u4f5c\u696d\N{HORIZONTAL ELLIPSIS}\u4f5c\u696d",
        "abcd\N{HORIZONTAL ELLIPSIS}bcde\u0301",
    ]
    assert text_view.fitted(["NAME"], [["\u4f5c\u696d" * 9]], 8) == [
        "NAME",
        "\u4f5c\u696d\u4f5c\N{HORIZONTAL ELLIPSIS}",
    ]
