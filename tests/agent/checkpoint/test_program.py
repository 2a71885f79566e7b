# SPDX-License-Identifier: Apache-2.0
"""Programs that save themselves when they are asked."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint import program
from drom.agent.system import proc

if TYPE_CHECKING:
    from collections.abc import Iterator

CODE = """
import os, signal, sys
def save(*_):
    print("saved", flush=True)
    {action}
signal.signal(signal.SIGUSR1, save)
print(os.environ.get("DROM_RESTART", "first"), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Return a program that takes an action at the signal, and its start time."""
    command = [sys.executable, "-c", CODE.format(action=request.param)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "first\n"
        start = proc.start_time(process.pid)
        assert start is not None
        yield process, start
        process.kill()


@pytest.mark.parametrize(
    ("started", "found"),
    [("os._exit(85)", program.SAVED), ("os._exit(1)", program.ENDED)],
    indirect=["started"],
)
def test_the_exit_status_says_whether_a_program_saved_itself(
    started: tuple[subprocess.Popen[str], int], found: str
) -> None:
    """Only the agreed status means that the program can be started again from its own files."""
    process, start = started

    assert program.ask(process.pid, start, 60)
    assert program.outcome(process.wait()) == found


@pytest.mark.parametrize("started", ["pass"], indirect=True)
def test_a_program_that_does_not_end_in_time_runs_on(started: tuple[subprocess.Popen[str], int]) -> None:
    """The grace time ends without an end of the program: it lost nothing."""
    process, start = started

    assert not program.ask(process.pid, start, 0.05)
    assert program.outcome(process.poll()) == program.RUNS


@pytest.mark.parametrize("started", ["os._exit(85)"], indirect=True)
def test_a_program_that_has_ended_is_not_asked(started: tuple[subprocess.Popen[str], int]) -> None:
    """Another process that has got the process number receives no signal."""
    process, start = started

    assert program.ask(process.pid, start + 1, 60)
    assert process.poll() is None
    process.kill()
    process.wait()
    assert program.ask(process.pid, start, 60)
