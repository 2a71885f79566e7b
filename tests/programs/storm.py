"""What real programs are put through: run alone, at another size, and under a storm of shrinks and grows."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
from drom.agent.system import proc

from dromlib.cpulist import mask_of
from tests.support.agents import Agent, Program, Programs, wait_until
from tests.support.example_programs import finish

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ORDERS = 100
"""Shrinks and grows that a program follows, in turns."""
THREADS = 2
RESULT = re.compile(r"^result (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A program that prints `result NUMBER` after each repetition of the same work, and ends once a file exists.

    `quantity` names the number, and `tolerance` how far it may be from that of a run alone, relative to it.
    `command` goes without that file, which is its last argument; `other` is the same at another size, or with one
    thread where there is none. `late`: the storm begins after the first repetition, as the program's start is long.
    """

    name: str
    version: str
    quantity: str
    tolerance: float
    command: Sequence[str | Path]
    environment: dict[str, str] = field(default_factory=dict)
    other: Sequence[str | Path] | None = None
    late: bool = False


@dataclass(frozen=True)
class Row:
    """What came of it. Deviations are relative to the run alone; `applied` orders the program put in force itself."""

    program: str
    version: str
    quantity: str
    tolerance: float
    control: float
    storm: float
    applied: int
    bound: int

    def __str__(self) -> str:
        numbers = f"{self.tolerance:.0e} | {self.control:.1e} | {self.storm:.1e}"
        return f"| {self.program} | {self.version} | {self.quantity} | {numbers} | {self.applied} + {self.bound} |"


def put_through(case: Case, agent: Agent, start: Programs, folder: Path) -> Row:
    """Run a program alone, at another size, and under the storm; check that its results agree."""
    stop = folder / "stop"
    stop.touch()
    alone = run_alone(case.command, THREADS, case, start, stop)
    control = run_alone(case.other or case.command, 1, case, start, stop)
    stop.unlink()
    program = start.start(*agent.run("--job", "p", "--", *case.command, stop), **case.environment)
    if case.late:
        program.await_out(RESULT.pattern)
    applied, bound = storm(agent, program)
    stop.touch()
    results = finish_right(program)
    row = Row(
        case.name,
        case.version,
        case.quantity,
        case.tolerance,
        deviation([control], alone),
        deviation(results, alone),
        applied,
        bound,
    )
    check(row)
    agent.await_tasks()
    return row


def check(row: Row) -> None:
    """Assert that the storm changed the result no more than said before, and that this much is not slack."""
    assert row.storm <= row.tolerance, row
    assert row.control <= row.tolerance, row
    assert row.applied + row.bound == ORDERS, row


def run_alone(command: Sequence[str | Path], threads: int, case: Case, start: Programs, stop: Path) -> float:
    """Return the result of one repetition without an agent."""
    return finish_right(start.start(*command, stop, **case.environment, OMP_NUM_THREADS=str(threads)))[0]


def finish_right(program: Program) -> list[float]:
    """Wait for the end of a program that must end well; return its results."""
    assert finish(program)[0] == 0, program.show()
    results = [float(number) for number in RESULT.findall(program.out)]
    assert results, program.show()
    return results


def deviation(results: Sequence[float], right: float) -> float:
    """Return how far the farthest result is from the right one, relative to it."""
    return max(abs(result - right) for result in results) / abs(right)


def storm(agent: Agent, program: Program, orders: int = ORDERS) -> tuple[int, int]:
    """Shrink job p to one CPU and grow it to two in turns; return how often it applied that itself, and was bound.

    Each order is awaited until it is in force and the masks of all threads show it. The program runs all the time.
    """
    agent.await_tasks(p="0-1")
    before = len(agent.log)
    for turn in range(orders):
        resize(agent, program, 1 + turn % 2)
    told = agent.log[before:]
    return tuple(len(re.findall(rf"event=(?:{outcome}) job=p ", told)) for outcome in ("applied", "bound|enforced"))  # type: ignore[return-value]


def resize(agent: Agent, program: Program, cpus: int) -> None:
    """Resize job p; wait until that is in force in every thread of every process of it."""
    agent.order("resize", job="p", cpus=cpus)
    agent.await_tasks(p="0" if cpus == 1 else "0-1")
    wanted = {mask_of(range(cpus))}
    wait_until(lambda: masks(program.pid) == wanted, lambda: f"masks {masks(program.pid)} of {program.show()}")
    assert program.process.poll() is None, program.show()


def masks(pid: int) -> set[int]:
    """Return the different masks of the threads of a process and its descendants."""
    program = psutil.Process(pid)
    return set(proc.thread_masks([pid, *(child.pid for child in program.children(recursive=True))]).values())


def median_ms(program: Program, count: int = 200) -> float:
    """Return the median of the next times that a program prints, one a line, in milliseconds."""
    said = len(program.out.splitlines())
    wait_until(lambda: len(program.out.splitlines()) > said + count, program.show)
    return statistics.median(float(line) for line in program.out.splitlines()[said : said + count])
