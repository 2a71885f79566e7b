# SPDX-License-Identifier: Apache-2.0
"""A reader of Slurm that has a long-lived child do what is frequent: contrib/slurm/drom_slurm_helper.c, on libslurm.

It reads jobs and nodes, and changes jobs. Everything else is done by Slurm's commands, and so is everything while
there is no working helper.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import subprocess
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from drom.agent.errors import SlurmError
from drom.agent.text import duration, in_words
from drom.scheduler.slurm import text_records
from drom.scheduler.slurm.reader import MOST_BYTES, PATIENCE_S, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from drom.scheduler.slurm.records import Job, Node, Reading

T = TypeVar("T")

PROTOCOL = 1
RETRY = 600.0
"""Seconds after which a helper that was given up is started again."""
_HELLO = re.compile(r"drom-slurm-helper (\d+) ([\d.]+)")
_HEADER = re.compile(rb"(ok|same|failed|bad) ([0-9]{1,10})")
_LONGEST_LINE = 4096


class HelperReader(Reader):
    """A reader with the helper `file`; `tell` is given one sentence whenever it is given up.

    Methods raise SlurmError as those of `Reader`.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        file: Path,
        tell: Callable[[str], None],
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(environ)
        self._file, self._tell, self._answers_within_s = file, tell, patience_s
        self._child: _Child | None = None
        self._failure = ""
        """What Slurm answered to the helper's last question, if that failed."""
        self._retry_at = 0.0
        self._separator = f"|{secrets.token_hex(8)};"
        self._last_jobs: Reading[Job] | None = None
        self._last_nodes: Reading[Node] | None = None

    def close(self) -> None:
        """End the helper."""
        if self._child:
            self._child.end()
        self._child = self._last_jobs = self._last_nodes = None

    def jobs(self) -> Reading[Job]:
        """Return all jobs that slurmctld has, also those that ended less than MinJobAge ago."""
        answer = self._ask(f"jobs {self._separator}")
        if answer and answer.word == "ok":
            self._last_jobs = self._parser.parse_records(answer.text, self._separator)
        return (answer and self._last_jobs) or self._instead(super().jobs)

    def nodes(self) -> Reading[Node]:
        """Return all nodes."""
        answer = self._ask("nodes")
        if answer and answer.word == "ok":
            self._last_nodes = text_records.parse_nodes(answer.text)
        return (answer and self._last_nodes) or self._instead(super().nodes)

    def update(self, *words: str) -> None:
        """Change the job that the first of `words` names, such as ``jobid=7``."""
        if any(len(word.split()) != 1 for word in words):  # the helper takes blanks for ends of words
            super().update(*words)
        elif not self._ask(f"update {' '.join(words)}"):
            self._instead(partial(super().update, *words))

    def _ask(self, question: str) -> _Answer | None:
        """Return the helper's answer, ``ok`` or ``same``; None if there is none."""
        self._failure = ""
        if self._child is None and time.monotonic() < self._retry_at:
            return None
        try:
            if self._child is None:
                self._child = _Child(self._file, self._environment, self._answers_within_s)
            answer = self._child.ask(question)
        except _BrokenHelperError as error:
            self._give_up(str(error))
            return None
        if answer.word == "bad":
            self._give_up(f"it does not know {question.partition(' ')[0]} with {answer.text[:80]!r}")
        elif answer.word == "failed":
            self._failure = answer.text
        return answer if answer.word in {"ok", "same"} else None

    def _instead(self, command: Callable[[], T]) -> T:
        """Return what a command of Slurm returns. A helper that failed where the command does not is given up."""
        done = command()
        if self._failure:
            self._give_up(f"Slurm's answer to it is: {self._failure[:200]}")
        return done

    def _give_up(self, reason: str) -> None:
        self.close()
        self._failure = ""
        self._retry_at = time.monotonic() + RETRY
        self._tell(
            f"the helper {self._file} does not work ({reason}): Slurm's commands are used for {duration(RETRY)}; build"
            " it for this drom and this Slurm."
        )


class _Answer(NamedTuple):
    """An answer of the helper: ``ok``, ``same``, ``failed`` or ``bad``, and a text."""

    word: str
    text: str


class _BrokenHelperError(SlurmError):
    """Raised when the helper does not answer as it must; the message is a clause."""


class _Child:
    """A helper that runs. Raises _BrokenHelperError if it does not work, as `ask` does."""

    def __init__(self, file: Path, environment: Mapping[str, str], patience_s: float) -> None:
        self._patience_s = patience_s
        self._unread = bytearray()
        try:
            self._process = subprocess.Popen(
                [file.absolute()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise _BrokenHelperError(str(error.strerror)) from error
        try:
            self._greet()
        except _BrokenHelperError:
            self.end()
            raise

    def _greet(self) -> None:
        said = self._line(time.monotonic() + self._patience_s).decode(errors="replace")
        found = _HELLO.fullmatch(said)
        if not found:
            raise _BrokenHelperError(f"it printed {said[:200]!r}")
        if int(found[1]) != PROTOCOL:
            raise _BrokenHelperError(f"it has version {found[1]} of the protocol, this drom has {PROTOCOL}")

    def end(self) -> None:
        """End the helper."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):
                    stream.close()

    def ask(self, question: str) -> _Answer:
        """Return the answer to a question, which has no line end."""
        deadline = time.monotonic() + self._patience_s
        try:
            if self._process.stdin:
                self._process.stdin.write(f"{question}\n".encode())
        except OSError as error:
            raise _BrokenHelperError(self._end_of_it()) from error
        line = self._line(deadline)
        header = _HEADER.fullmatch(line)
        if not header:
            raise _BrokenHelperError(f"it printed {line[:200].decode(errors='replace')!r}")
        length = int(header[2])
        if length > MOST_BYTES:
            raise _BrokenHelperError(f"it prints more than {in_words(MOST_BYTES)}")
        while len(self._unread) < length:
            self._read_more(deadline)
        text = self._unread[:length].decode(errors="replace")
        del self._unread[:length]
        return _Answer(header[1].decode(), text)

    def _line(self, deadline: float) -> bytes:
        while (end := self._unread.find(b"\n")) < 0:
            if len(self._unread) > _LONGEST_LINE:
                raise _BrokenHelperError("it printed no answer")
            self._read_more(deadline)
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _read_more(self, deadline: float) -> None:
        stream = self._process.stdout
        if not stream or not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise _BrokenHelperError(f"it did not answer within {duration(self._patience_s)}")
        part = os.read(stream.fileno(), 1 << 20)
        if not part:
            raise _BrokenHelperError(self._end_of_it())
        self._unread += part

    def _end_of_it(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            return f"it ended with status {self._process.wait(1)}"
        return "it closed its output"
