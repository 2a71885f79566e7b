from __future__ import annotations

import array
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from drom.agent.bench import agent as bench_agent
from drom.agent.bench import report, resize
from drom.agent.bench.resize import Step, changes, read_steps
from drom.agent.errors import ControlError
from drom.agent.topology.machine import usable_cores
from drom.agent.topology.sysfs import read_topology

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MS = 1_000_000
two_cores = pytest.mark.skipif(len(usable_cores(read_topology())) < 2, reason="needs two cores")


def run_of(segments: list[tuple[int, list[float]]]) -> Iterator[Step]:
    """Make the steps of a program: for each grant the milliseconds in the call, then those of each step."""
    now = 0
    for call, works in segments:
        for number, work in enumerate(works):
            region = now + (call * MS if number == 0 else 0)
            end = region + int(work * MS)
            yield Step(now, region, end, 2, int(number == 0))
            now = end


class TestChanges:
    """From steps to costs."""

    def test_cost_is_the_call_and_what_later_steps_lack(self) -> None:
        """Two milliseconds in the call, three more in the first step, one in the second: six are lost."""
        steps = list(run_of([(0, [1.0] * 9), (2, [13.0, 11.0] + [10.0] * 40)]))

        (change,) = changes(steps, ["shrink"])

        assert change == ("shrink", 2 * MS, 3 * MS, 6 * MS, 0, 10 * MS)

    def test_kinds_take_turns_after_the_first_change(self) -> None:
        """The first change only takes the program to where the others begin."""
        steps = list(run_of([(0, [10.0] * 40)] * 5))

        assert [change.kind for change in changes(steps, ["shrink", "move", "grow"])] == [
            "shrink",
            "move",
            "grow",
            "shrink",
        ]

    def test_control_is_what_noise_alone_would_lose(self) -> None:
        """Where every window has a slow step, the control has one too."""
        noisy = ([10.0] * 4 + [15.0]) * 12

        (change,) = changes(list(run_of([(0, [1.0]), (0, noisy)])), ["grow"])

        assert change.lost == change.control == 5 * MS

    def test_too_few_steps_tell_nothing(self) -> None:
        """Without a steady part there is no ideal."""
        assert changes(list(run_of([(0, [1.0]), (0, [10.0] * 12)])), ["grow"]) == []


def test_steps_are_read_as_they_were_written() -> None:
    """Five words a step."""
    words = array.array("Q", [1, 2, 3, 4, 1, 5, 6, 7, 8, 0])

    assert read_steps(words.tobytes()) == [(1, 2, 3, 4, 1), (5, 6, 7, 8, 0)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["jacobi", "100", "FILE"], "no agent manages this program"),
        (["jacobi", "1", "FILE"], "usage: resize jacobi|triad SIZE FILE [MS CPUS...]"),
        (["jacobi", "100", "FILE", "10"], "usage: resize jacobi|triad SIZE FILE [MS CPUS...]"),
        ([], "usage: resize jacobi|triad SIZE FILE [MS CPUS...]"),
    ],
)
def test_program_says_why_it_measures_nothing(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    """Without an agent, or told nonsense, the program fails with a sentence."""
    done = subprocess.run(
        [native.bench_path("resize"), *arguments],
        env={"DROM_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"resize: {sentence}\n")


def test_one_core_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program on one core cannot shrink."""
    monkeypatch.setattr(resize, "usable_cores", lambda _: [(0, 0, 1)])

    with pytest.raises(ControlError, match="cannot shrink on one core"):
        resize.resize_cost(5)


@two_cores
@pytest.mark.system
@pytest.mark.parametrize("name", ["jacobi", "stream", "blas"])
def test_program_is_resized_as_ordered(name: str) -> None:
    """On all cores, half, the other half, all: the steps tell how many CPUs they had."""
    program = next(program for program in resize.programs() if program.name == name)
    rows = usable_cores(read_topology())
    half = len(rows) // 2
    masks = [sum(mask for _, _, mask in part) for part in (rows[:half], rows[half:], rows)]

    steps = resize._trace(program, masks, 1)

    had = [step.ncpus for step in steps if step.changed]
    assert had[-4:] == [masks[n].bit_count() for n in (2, 0, 1, 2)][-len(had) :]
    assert len(had) >= 3
    assert all(step.begin <= step.region <= step.end for step in steps)


@two_cores
@pytest.mark.system
@pytest.mark.parametrize("name", ["jacobi", "blas"])
def test_program_changes_by_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an agent it goes through the same masks, by its clock."""
    monkeypatch.setattr(resize, "ALONE_S", 1.0)
    program = next(program for program in resize.programs() if program.name == name)

    steps = resize._trace_alone(program, (0b1, 0b10, 0b11), 1)

    had = [step.ncpus for step in steps if step.changed]
    assert had[:3] == [2, 1, 1]


@two_cores
@pytest.mark.system
def test_costs_are_measured_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each change of a program has a row with its cost, and the table ends with what it means."""
    value = resize.resize_cost(5, ["jacobi"])
    report.resize_cost(value, as_json=False)

    assert [(row["program"], row["change"]) for row in value["costs"]] == [
        ("jacobi", kind) for kind in ("shrink", "grow", "move")
    ]
    assert all(
        row["call_ms"]["median"] > 0 and row["step_ms"]["median"] > 0 and "median" in row["alone_ms"]
        for row in value["costs"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("jacobi ") for line in lines) == 3
    assert lines[-1].startswith("The papers call the cost negligible.")


@pytest.mark.system
def test_unchanged_grant_is_compared_with_running_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both runs end, whatever the difference."""
    monkeypatch.setattr(resize, "ITERATIONS", 20)
    before = os.sched_getaffinity(0)
    with bench_agent.running_agent() as agent:
        assert resize.slower_percent(agent, pairs=1) > -100

    assert os.sched_getaffinity(0) == before
