# SPDX-License-Identifier: Apache-2.0
"""The log of agent and scheduler: one line per event on stderr, as logfmt or JSON, and in the history of events.

Each event has one name and one level, both from `EVENTS`; docs/observing.md describes them. If stderr is the journal,
lines and sentences begin with ``<N>``, the priority as sd-daemon(3) defines it.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, TextIO

from drom.agent.text import counted, escaped, iso

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drom.agent.observe.event_log import EventLog

Record = dict[str, object]
"""An event: "time" (ISO-8601, UTC), "level" and "event" first, then its fields."""


class Level(IntEnum):
    """The importance of an event, with the numbers of syslog(3)."""

    ERR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7

    @property
    def word(self) -> str:
        """The level as it is written: one word in lower case."""
        return self.name.lower()


_NAMES = {
    Level.ERR: "fault policy_fault queue_damaged queue_stuck spool_unreadable",
    Level.WARNING: """
        bind_failed cgroup_failed claim_conflict clock_ahead compile_failed config_rejected events_lost history_failed
        home_kept images_full images_unusable job_kill_failed job_node_fail job_not_saved job_refused job_resize_failed
        job_unknown message_dropped node_busy node_clock_off node_down node_drained node_refused node_silent
        planner_failed ranks_missing request_failed slurm_failed spool_failed store_unprotected topology_unclear
        unit_kept user_unknown
    """,
    Level.NOTICE: """
        adopted cluster_joined confined cpus_avoided cpus_changed enforced foreign_jobs frozen handed_over home_adopted
        home_chosen home_returned job_requeued memory_not_limited node_given_back node_joined nodes_borrowed order
        queue_unstuck ready recovered reloaded repaired request_refused standing_by stopped thawed
    """,
    Level.INFO: """
        applied arrived bound compiled compiling excluded job_cancelled job_completed job_ended job_ending job_failed
        job_held job_left job_limit job_ordered job_placed job_range job_ranks job_released job_resized job_saved
        job_saving job_signalled job_started job_submitted job_timeout job_updated job_vacated kept metrics remote
        slurm_limit slurm_released slurm_taken_back slurm_use task_ended task_started
    """,
    Level.DEBUG: "joined responder_left responder_set",
}
EVENTS: dict[str, Level] = {name: level for level, names in _NAMES.items() for name in names.split()}
"""The level of each event."""


def logfmt(record: Record) -> str:
    """Return a record as ``key=value`` pairs; values with blanks are quoted."""
    return " ".join(f"{key}={quoted(value)}" for key, value in record.items())


FORMATS: dict[str, Callable[[Record], str]] = {"logfmt": logfmt, "json": json.dumps}


AT_ONCE = select.PIPE_BUF
"""Most bytes of one write: Linux reports a pipe as writable only if it has room for as many."""


class _Output:
    """Writes lines to a stream, but never waits for its reader: a line that is not accepted is lost, and counted."""

    def __init__(self, stream: TextIO) -> None:
        self.lost = 0
        self._stream = stream
        self._torn = False
        """Whether the last line was written in part."""
        self._file: int | None = None
        with suppress(OSError, ValueError):  # of io.UnsupportedOperation, for a stream that is no file
            self._file = stream.fileno()
            self._poll = select.poll()
            self._poll.register(self._file, select.POLLOUT)

    @property
    def is_writable(self) -> bool:
        """Whether the stream accepts at least `AT_ONCE` bytes now, or an error."""
        return self._file is None or bool(self._poll.poll(0))

    def write(self, line: str) -> None:
        """Write a line. Raises OSError."""
        if self._file is None:
            print(line, file=self._stream, flush=True)
            return
        data = ("\n" * self._torn + line + "\n").encode(errors="backslashreplace")
        written = 0
        while written < len(data) and self.is_writable:
            written += os.write(self._file, data[written : written + AT_ONCE])
        self.lost += written < len(data)
        if written:
            self._torn = written < len(data)


class Log:
    """Writes events in one of `FORMATS`, and to a history if there is one."""

    def __init__(self, stream: TextIO | None = None, *, form: str = "logfmt", quiet: bool = False) -> None:
        self.history: EventLog | None = None
        stream = sys.stderr if stream is None else stream
        self._output = _Output(stream)
        self._format = FORMATS[form]
        self._quiet = quiet
        self._prefixed = is_journal(stream)

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event. Raises KeyError for a name that `EVENTS` lacks."""
        record = _record(event, fields)
        self._write(record)
        if self.history and (trouble := self.history.append(json.dumps(record))):
            self._write(_record("events_lost", {"reason": trouble}))

    def keep(self, history: EventLog | None) -> None:
        """Open a history, which gets all events from now on. Raises `HistoryError`."""
        if history:
            history.open()
        self.history = history

    def close(self) -> None:
        """Close the history."""
        if self.history:
            self.history.close()
        self.history = None

    def _write(self, record: Record) -> None:
        if self._quiet:
            return
        output = self._output
        with suppress(OSError):  # the reader has closed the pipe, or the disk is full: continue without the line
            if output.lost and output.is_writable:
                reason = f"stderr accepted no more for a time: the log lacks {counted(output.lost, 'line')}."
                output.lost = 0
                output.write(self._line(_record("events_lost", {"reason": reason})))
            output.write(self._line(record))

    def _line(self, record: Record) -> str:
        prefix = f"<{EVENTS[str(record['event'])]}>" if self._prefixed else ""
        return prefix + self._format(record)


def is_journal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a stream is the journal's socket, which ``$JOURNAL_STREAM`` names by device and inode."""
    with suppress(OSError, ValueError):  # of io.UnsupportedOperation, for a stream that is no file
        about = os.fstat(stream.fileno())
        return environ.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}"
    return False


def failure(text: str) -> str:
    """Return an error message of a command for stderr: if that is the journal, each line has the priority of errors."""
    if not is_journal(sys.stderr):
        return text
    return "\n".join(f"<{Level.ERR}>{line}" for line in text.split("\n"))


def _record(event: str, fields: Record) -> Record:
    plain = {key: _plain(value) for key, value in fields.items()}
    return {"time": iso(time.time(), "milliseconds"), "level": EVENTS[event].word, "event": event, **plain}


def _plain(value: object) -> float | str:
    """Return a number as it is, lists and mappings as ``1,2`` and ``n1:4,n2:4``, and all else as text."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, dict):
        value = [f"{key}:{one}" for key, one in value.items()]
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_SPECIAL = re.compile('[ "=]')


def quoted(value: object) -> str:
    """Return a value quoted for logfmt: it cannot look like another field, break the line or move a cursor."""
    text = str(value)
    if text and text.isprintable() and not _SPECIAL.search(text):
        return text
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
