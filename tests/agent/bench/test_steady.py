# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import os
import sys

import psutil
import pytest
from drom.agent.bench import steady
from drom.agent.errors import ControlError

COUNTS = """
import itertools, os, time
for burst in itertools.count(1):
    os.write(1, b"%f\\n" % ({first} + burst / 1024))
    time.sleep(0.001)
"""


def python(code: str) -> list[str]:
    """Return a command that runs Python code."""
    return [sys.executable, "-c", code]


def test_programs_take_turns_and_each_tells_of_its_own() -> None:
    """A turn's time is that of a burst that was not interrupted; both are stopped in between, and gone at the end."""
    with (
        steady.running(python(COUNTS.format(first=1)), os.environ) as one,
        steady.running(python(COUNTS.format(first=2)), os.environ) as other,
    ):
        one.stop()
        other.stop()
        seen = [one.turn() for _ in range(5)]
        assert {psutil.Process(program.pid).status() for program in (one, other)} == {psutil.STATUS_STOPPED}
        turns = steady.turns(one, other, 4)
        assert [(int(first), int(second)) for first, second in turns] == [(1, 2)] * 4
    bursts = [round((time - 1) * 1024) for time in seen]

    assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(bursts)), bursts
    assert not psutil.pid_exists(one.pid)


def test_a_program_that_has_ended_is_one_sentence() -> None:
    """Nobody waits for it."""
    with (
        steady.running(python(r"import os; os.write(1, b'1\n')"), os.environ) as program,
        pytest.raises(ControlError, match=r"^a program of the benchmark has ended or stands still: "),
    ):
        program.turn()


def test_the_interval_holds_the_median_and_is_the_same_each_time() -> None:
    """The interval is narrow where values agree, and wide where they do not."""
    near, far = [1.0, 1.01, 0.99] * 20, [0.5, 1.0, 1.5] * 20

    assert steady.interval(near) == (1.0, 1.0)
    low, high = steady.interval(far)
    assert 0.5 <= low <= 1.0 <= high <= 1.5
    assert steady.interval(far) == (low, high)
