# SPDX-License-Identifier: Apache-2.0
"""What drom history prints."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import typer
from drom.agent.text import WordError
from drom.scheduler.live.cli import commands, history, history_options
from drom.scheduler.live.cli.history import COLUMNS, lines, parse_moment, records, total_lines, totals
from drom.scheduler.live.cluster.spec import MOST_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator

NOON = 1795176000.0
"""2026-11-20T12:00:00Z."""


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a time zone of three hours."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "XYZ-3")
        time.tzset()
        yield
    time.tzset()


def row(number: int, user: str = "ann", **more: Any) -> dict[str, Any]:
    """Return a job that waited for a minute and ran for an hour on eight cores."""
    times = {"submitted": NOON - 3660, "started": NOON - 3600, "ended": NOON, "core_seconds": 8 * 3600.0}
    about = {"job": number, "name": "solve", "user": user, "state": "completed", "class": "malleable", "nodes": 2}
    used = {"shares": {"n1": 4, "n2": 4}, "cpu_seconds": 60.0, "max_rss": 1 << 20, "attempt": 1, "status": 0}
    return times | about | used | {"reason": "", "limit": 7200} | more


ROWS = [
    row(1),
    row(2, "ben", name="x\x1b[2Jy", state="failed", reason="it returned 3", status=3),
    row(3, state="cancelled", started=None, core_seconds=0.0, shares={}, ended=NOON - 86400),
    row(4, state="running", ended=None, core_seconds=0.5 * 3600),
]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2h", NOON - 7200),
        ("90s", NOON - 90),
        ("today", NOON - 15 * 3600),
        ("2026-11-20", NOON - 15 * 3600),
        ("2026-11-20T15:00", NOON),
        ("2026-11-20 15:00:01.5", NOON + 1.5),
        ("2026-11-20T12:00:00Z", NOON),
        ("2026-11-20T12:00:00+02:00", NOON - 7200),
    ],
)
def test_moments_are_read(text: str, at: float) -> None:
    """Ages, days and ISO times; without an offset they are local."""
    assert parse_moment(text, NOON) == at


@pytest.mark.parametrize(
    "text", ["", "soon", "2026", "2026-13-01", "99d99", "12:00", "2h ago", "9999999999h", "0001-01-01Z"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    """With examples."""
    with pytest.raises(
        WordError, match=r"is not a time: write for example 2h, today, 2026-11-20 or 2026-11-20T14:30\.$"
    ):
        parse_moment(text, NOON)


def test_a_list_has_the_columns_that_were_asked_for() -> None:
    """Control characters are escaped, and what a job has not is a dash."""
    assert lines(ROWS, ("job", "name", "time", "wait", "core_hours", "where"), NOON + 60) == [
        "JOB  NAME       TIME  WAIT  CORE HOURS  WHERE",
        "1    solve      60m   60s   8.00        n1 n2",
        "2    x\\x1b[2Jy  60m   60s   8.00        n1 n2",
        "3    solve      -     -     0.00        -",
        "4    solve      61m   60s   0.50        n1 n2",
    ]
    assert all(len(lines(ROWS, [name], NOON)) == 5 for name in COLUMNS)


def test_csv_has_numbers_and_utc() -> None:
    """Nothing is rounded for reading."""
    assert records(ROWS[1:3], ("job", "ended", "started", "wait", "state"), NOON) == [
        ["job", "ended", "started", "wait", "state"],
        ["2", "2026-11-20T12:00:00Z", "2026-11-20T11:00:00Z", 60.0, "failed"],
        ["3", "2026-11-19T12:00:00Z", None, None, "cancelled"],
    ]


def test_totals_count_jobs_and_core_hours() -> None:
    """The mean wait is that of jobs that started."""
    assert totals(ROWS, "user", NOON) == [
        {"user": "ann", "jobs": 3, "core_hours": 8.5, "mean_wait": 60.0},
        {"user": "ben", "jobs": 1, "core_hours": 8.0, "mean_wait": 60.0},
    ]
    assert total_lines(ROWS, "day", NOON) == [
        "DAY         JOBS  CORE HOURS  MEAN WAIT",
        "2026-11-19     1        0.00          -",
        "2026-11-20     3       16.50        60s",
        "all            4       16.50        60s",
    ]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what the scheduler is asked, which answers with the rows above."""
    found: list[dict[str, Any]] = []

    def ask(_: str, order: str, **fields: Any) -> dict[str, Any]:
        found.append({"order": order, **fields})
        return {"jobs": ROWS, "time": NOON, "entries": [], "policy": "sd"}

    monkeypatch.setenv("DROM_QUEUE", "here")
    monkeypatch.setattr(commands, "_ask", ask)
    monkeypatch.setattr(time, "time", lambda: NOON)
    return found


def drom(*words: str) -> Any:
    """Run `drom history`."""
    return typer.main.get_command(commands.app)(["history", *words], standalone_mode=False)


def test_the_scheduler_chooses(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """By default among all jobs that are over; a table is bounded, and totals are of all."""
    drom()
    drom(
        "--by",
        "state",
        "--csv",
        "--since",
        "2h",
        "--until",
        "1h",
        "--user",
        "ann,ben",
        "--state",
        "failed",
        "--name",
        "x",
    )
    over = ["cancelled", "completed", "failed", "node_fail", "timeout"]
    assert asked[0] == {"order": "history", "brief": True, "last": 1000, "states": over}
    span = {"since": NOON - 7200, "until": NOON - 3600}
    chosen = {"users": ["ann", "ben"], "states": ["failed"], "names": ["x"]}
    assert asked[1] == {"order": "history", "brief": True, "last": (1 << 53) - 1, **span, **chosen}
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == [
        "JOB",
        "NAME",
        "USER",
        "STATE",
        "ENDED",
        "WAIT",
        "TIME",
        "NODES",
        "CORE",
        "HOURS",
        "REASON",
    ]
    assert printed[5:] == [
        "state,jobs,core_hours,mean_wait",
        "cancelled,1,0.0,",
        "completed,1,8.0,60.0",
        "failed,1,8.0,60.0",
        "running,1,0.5,60.0",
    ]


def test_scripts_get_json(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Times are ISO 8601 in UTC."""
    drom("--json", "--limit", "7")
    drom("--json", "--by", "user")
    jobs, sums = map(json.loads, capsys.readouterr().out.splitlines())
    assert asked[0]["last"] == 7
    assert jobs.keys() == {"schema_version", "time", "jobs"}
    assert (jobs["jobs"][0]["ended"], jobs["jobs"][0]["core_seconds"]) == ("2026-11-20T12:00:00.000Z", 28800.0)
    assert [one["jobs"] for one in sums["totals"]] == [3, 1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--json", "--csv"), "--json and --csv contradict each other: give one of them."),
        (("--by", "user", "--columns", "job"), "--columns applies to the list and to --csv: omit it."),
        (("--since", "1h", "--until", "2h"), "--since is not before --until: exchange them."),
        (("--by", "moon"), "'moon' has no totals: choose user, state, day."),
        (("--columns", "job,size"), "'size' is not a column: choose from job, name, user, "),
        (("--since", "soon"), "'soon' is not a time: "),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(asked: list[dict[str, Any]], words: tuple[str, ...], sentence: str) -> None:
    """Before anybody is asked."""
    with pytest.raises(typer.BadParameter) as refused:
        drom(*words)
    assert str(refused.value).startswith(sentence)
    assert asked == []


def test_a_cut_list_says_so(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its length was asked for; an empty one says where to look."""
    monkeypatch.setattr(history_options, "FIRST", 4)
    drom()
    assert capsys.readouterr().out.splitlines()[-1].startswith("These are the newest 4 jobs: see all with --limit 0, ")
    drom("--limit", "0")
    assert "newest" not in capsys.readouterr().out
    assert [one["last"] for one in asked] == [4, MOST_JOBS - 1]
    monkeypatch.setattr(commands, "_ask", lambda *_, **__: {"jobs": [], "time": NOON})
    drom()
    assert capsys.readouterr().out == "No such job is over: see drom queue for those that wait and run.\n"
    assert set(history.USUAL) <= COLUMNS.keys()
