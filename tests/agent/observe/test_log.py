# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from drom.agent.observe.event_log import FORMER, EventLog, read
from drom.agent.observe.log import AT_ONCE, EVENTS, Level, Log
from drom.scheduler.live.cluster.jobs import FINAL, Entry
from drom.scheduler.live.server.records import entry_of

from tests.support.paths import ROOT

SAYS = frozenset(
    {
        "log",
        "_log",
        "_log_limited",
        "_log_reason",
        "_tell",
        "_warn",
        "warn",
        "user_event",
        "_user_event",
        "_changed",
        "_say",
        "partial",
    }
)
"""Functions that write the event that their first or second argument names."""
OUTCOMES = frozenset({"applied", "bound", "enforced"})


def written(event: str, **fields: object) -> str:
    """Return what one event looks like, without its time."""
    stream = io.StringIO()
    Log(stream)(event, **fields)
    time, _, rest = stream.getvalue().partition(" ")
    assert re.fullmatch(r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    return rest


def test_an_event_is_one_line_of_pairs() -> None:
    """Time comes first, in UTC with milliseconds, then level and event, then the fields in order."""
    assert written("applied", job="a", pid=7, cpus="0-3") == "level=info event=applied job=a pid=7 cpus=0-3\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", '""'),
        ("two words", '"two words"'),
        ('a "b"', r'"a \"b\""'),
        ("a=b", '"a=b"'),
        ("a\\b c", r'"a\\b c"'),
        ("line\nbreak", r'"line\nbreak"'),
        (None, "None"),
        ([3, 4], "3,4"),
        ({"n1": 4, "n 2": 1}, '"n1:4,n 2:1"'),
    ],
)
def test_odd_values_are_quoted_and_stay_on_the_line(value: object, shown: str) -> None:
    """Blanks, quotes, equals signs and line breaks never look like another field or event."""
    assert written("ready", value=value) == f"level=notice event=ready value={shown}\n"


def test_as_json_numbers_stay_numbers() -> None:
    """One value per line; what JSON has no word for is text."""
    stream = io.StringIO()
    Log(stream, form="json")("applied", job='a "b"\n', pid=7, share=0.5, last=True, file=Path("/f"))

    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert list(record) == ["time", "level", "event", "job", "pid", "share", "last", "file"]
    assert list(record.values())[1:] == ["info", "applied", 'a "b"\n', 7, 0.5, True, "/f"]


def test_what_cannot_be_kept_is_said_once(tmp_path: Path) -> None:
    """The history gets the same as JSON; when it cannot, one line more says so."""
    stream = io.StringIO()
    log = Log(stream)
    log.history = EventLog(tmp_path / "gone" / "events", 1 << 16)
    log("ready")
    log("stopped")

    assert [line.split(" ", 3)[1:3] for line in stream.getvalue().splitlines()] == [
        ["level=notice", "event=ready"],
        ["level=warning", "event=events_lost"],
        ["level=notice", "event=stopped"],
    ]
    assert log.history.lost == 2


@pytest.mark.parametrize("longest", [1, 3 * AT_ONCE])
def test_a_reader_that_stops_reading_stops_no_loop(longest: int) -> None:
    """Lines that stderr does not accept are lost; the log says how many once it accepts lines again."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as read, os.fdopen(writer, "w", encoding="utf-8") as stream:
        os.set_blocking(reader, False)
        log = Log(stream)
        for number in range(2 * (1 << 16) // AT_ONCE):  # twice what a pipe holds
            log("ready", number=number, text="x" * max(AT_ONCE // 2, longest))
        log("ready", number="lost")
        before = read.read().decode()
        log("stopped")
        after = read.read().decode()

    kept = re.findall(r"event=ready number=(\d+) text=x+\n", before)
    assert kept == [str(number) for number in range(len(kept))]
    missing = 2 * (1 << 16) // AT_ONCE + 1 - len(kept)
    assert [line.partition(" ")[2] for line in after.lstrip("\n").splitlines()] == [
        f'level=warning event=events_lost reason="stderr accepted no more for a time: the log lacks {missing} lines."',
        "level=notice event=stopped",
    ]


@pytest.mark.parametrize("character", ["\x1b", "\r", "\0", "\u2028"])
def test_no_character_moves_the_cursor(character: str) -> None:
    """What a program calls itself cannot clear the screen of who reads the log."""
    assert character not in written("arrived", job=f"a{character}b")


def test_a_quiet_log_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Quiet is silent."""
    Log(quiet=True)("ready")

    assert capsys.readouterr() == ("", "")


def test_the_log_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is for answers."""
    Log()("ready")

    out, err = capsys.readouterr()
    assert (out, err.endswith(" event=ready\n")) == ("", True)


def _in_a_unit(code: str, *, journal: bool) -> str:
    """Return what Python writes to a stderr that is a socket, as of a unit, which JOURNAL_STREAM names or not."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        about = os.fstat(theirs.fileno())
        stream = f"{about.st_dev}:{about.st_ino + (not journal)}"
        command = [sys.executable, "-c", code]
        subprocess.run(
            command, check=False, cwd=ROOT, env={**os.environ, "JOURNAL_STREAM": stream}, stderr=theirs.fileno()
        )
        theirs.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: ours.recv(1 << 16), b"")).decode()


EACH = """
from agent.observe.log import Log
for event in ("queue_stuck", "node_down", "ready", "arrived", "joined"):
    Log()(event)
"""


def test_the_journal_gets_the_level_of_each_line() -> None:
    """A line for the journal begins with its priority, by which `journalctl -p` selects; elsewhere none does."""
    assert re.findall(r"^(.*?)time=.* level=(\w+)", _in_a_unit(EACH, journal=True), re.MULTILINE) == [
        ("<3>", "err"),
        ("<4>", "warning"),
        ("<5>", "notice"),
        ("<6>", "info"),
        ("<7>", "debug"),
    ]
    assert re.findall(r"^(.*?)time=", _in_a_unit(EACH, journal=False), re.MULTILINE) == [""] * 5


@pytest.mark.parametrize(("command", "lines"), [("agent", 1), ("scheduler", 1), ("_serve", 2)])
def test_a_service_that_cannot_start_is_an_error_in_the_journal(command: str, lines: int, tmp_path: Path) -> None:
    """Sentences of a command that fails, and the lines of a traceback, have the priority of errors."""
    given = {
        "agent": ["agent", "--emulate", "2", "--runtime-dir", "/dev/null/x"],
        "scheduler": ["scheduler", "--state", f"{tmp_path}/no/folder", "--metrics", "nowhere"],
        "_serve": ["_serve", "no JSON"],
    }[command]
    code = f"import sys; sys.argv = {['drom', *given]!r}; from drom.__main__ import main; main()"
    said = [line for line in _in_a_unit(code, journal=True).splitlines() if " event=" not in line]

    assert len(said) >= lines
    assert [line[:3] for line in said] == ["<3>"] * len(said)
    assert not [line for line in _in_a_unit(code, journal=False).splitlines() if line.startswith("<")]


def _constants(node: ast.expr) -> set[str]:
    """Return the strings that an argument may be."""
    if isinstance(node, ast.IfExp):
        return _constants(node.body) | _constants(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _events_written() -> dict[str, str]:
    """Return all events that agent and scheduler write, by a place that does, from their sources."""
    found = dict.fromkeys(OUTCOMES, "Done.outcome") | {f"job_{state}": "FINAL" for state in FINAL}
    for folder in ("agent", "scheduler"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                at = f"{path.relative_to(ROOT)}:{node.lineno}"
                if name in SAYS or (name == "_record" and len(node.args) == 2):
                    found |= {event: at for arg in node.args[:2] for event in _constants(arg)}
                elif name == "record" and len(node.args) == 3:  # of a job's history
                    found |= {f"job_{what}": at for what in _constants(node.args[2])}
    return found


def test_every_event_is_in_the_table() -> None:
    """Each name at a call site has a level, each name of the table is written somewhere, and all are in snake_case."""
    found = _events_written()

    assert {event: at for event, at in found.items() if event not in EVENTS} == {}
    assert [event for event in EVENTS if event not in found] == []
    assert [event for event in EVENTS if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event)] == []
    with pytest.raises(KeyError):
        Log(quiet=True)("unheard_of")


def test_every_event_is_documented() -> None:
    """The table in docs/observing.md has each event once, with its level."""
    text = (ROOT / "docs" / "observing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \| (\w+) \|", text, re.MULTILINE)
    told = [(event, level) for names, level in rows for event in re.findall(r"`(\w+)`", names)]

    assert sorted(told) == sorted((event, level.word) for event, level in EVENTS.items())
    assert len(Level) == len({level for _, level in told})


def test_events_of_earlier_versions_are_read_by_their_names_of_today() -> None:
    """A stored name that was a phrase, or meant two things, is one of the table when it is read."""
    assert set(FORMER.values()) <= set(EVENTS)
    assert not set(FORMER) & set(EVENTS)


def test_a_history_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Names are those of today; what is not known stays as it was stored."""
    events = ["seated", "left the seat", "started", "warning", "applied"]
    lines = [json.dumps({"time": "2026-11-21T20:00:00.000Z", "event": event, "job": "a"}) for event in events]
    (tmp_path / "events").write_text("\n".join(lines) + "\n", encoding="utf-8")

    found = [record["event"] for record in read(tmp_path / "events")]
    assert found == ["responder_set", "responder_left", "task_started", "warning", "applied"]
    assert entry_of(1, 0.0, "not resized", '{"node": "n1"}') == Entry(1, 0.0, "resize_failed", {"node": "n1"})
