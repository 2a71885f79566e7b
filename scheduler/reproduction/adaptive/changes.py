# SPDX-License-Identifier: Apache-2.0
"""Tables 1 to 4 and Figure 2 of Kale, Kumar and DeSouza: the time to leave half of the processors, and to return.

Real ranks of Open MPI on one node of 64 emulated cores are ordered onto half of them and back by its agent. A change
takes from the malleability point at which ranks have the news until all have their data and a new communicator. Beside
it stands MPI_Alltoallv of the same bytes, and the time that a network would at least add.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.bench import agent as bench_agent
from drom.agent.control import client
from drom.agent.errors import ControlError
from drom.agent.execution.mpi_hosts import AS_ROOT
from drom.agent.testbed.agent_process import clean_environment
from drom.agent.text import table
from drom.scheduler.testbed.cluster import build_adaptive

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drom.agent.bench.agent import Agent

PROCESSORS = (8, 16, 32, 64)
MEGABYTES = (1, 10)
DATA = ("objects", "arrays", "constants")
CYCLES = 5
"""Shrinking and growing back, so many times in each case."""
WARM = 1
"""Cycles before these, which are not counted."""
NODE = 2
"""Processors of a node of the paper."""
GIGABITS = 10.0
"""Assumed speed of a network, in 10^9 bits a second and direction."""
PAPER = {"shrink": 0.086, "grow": 0.0676}
"""Seconds from 128 processors to 64 and back in the paper, 1 MB migrated a processor; values of its tables are lost."""


class Case(NamedTuple):
    """What moves, the ranks while all run, and the megabytes (10^6 bytes) of each."""

    data: str
    ranks: int
    megabytes: float


class Changes(NamedTuple):
    """The seconds of each change, the points of the program that it took, and the seconds of plain exchanges."""

    shrink: tuple[float, ...]
    grow: tuple[float, ...]
    points: tuple[int, ...]
    plain_shrink: tuple[float, ...]
    plain_grow: tuple[float, ...]


def cases() -> list[Case]:
    """Return all cases."""
    return [Case(data, ranks, megabytes) for data, megabytes, ranks in product(DATA, MEGABYTES, PROCESSORS)]


def run_all(show: Callable[[float], None], wanted: Sequence[Case] = (), cycles: int = CYCLES) -> dict[Case, Changes]:
    """Measure the cases, or all, one after the other; `show` gets the fraction that is done.

    Raises `MachineError` without a compiler, and `ControlError`, which names the case, if the agent or a program fails.
    """
    wanted = wanted or cases()
    found = {}
    with TemporaryDirectory(prefix="drom-changes-") as folder:
        program = build_adaptive(Path(folder), "migration")
        for number, case in enumerate(wanted):
            try:
                with bench_agent.running_agent("--emulate", f"core:{case.ranks}", "--grace", "600") as agent:
                    found[case] = _measure(agent, program, case, cycles, Path(folder))
            except ControlError as error:
                raise ControlError(f"{case.data}, {case.ranks} ranks, {case.megabytes:g} MB: {error}") from error
            show((number + 1) / len(wanted))
    return found


def _measure(agent: Agent, program: Path, case: Case, cycles: int, folder: Path) -> Changes:
    size = str(int(case.megabytes * 1e6))
    launch = [shutil.which("mpirun") or "mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(case.ranks)]
    managed = [str(native.run_path()), "--require", "--job", "migration", "--"]
    words = [*launch, *managed, str(program), case.data, size, str(2 * (WARM + cycles))]
    said = folder / "said"
    variables = {"TMPDIR": str(folder), "OMPI_MCA_btl_vader_backing_directory": str(folder)}
    yields = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    environment = clean_environment() | agent.environment | AS_ROOT | variables | yields
    with said.open("wb") as out, subprocess.Popen(words, env=environment, stdout=out) as process:
        try:
            return _drive(agent, process, said, case, cycles)
        finally:
            process.terminate()


def _drive(agent: Agent, process: subprocess.Popen[bytes], said: Path, case: Case, cycles: int) -> Changes:
    """Order the changes, each once the one before is over, and return what the program has reported."""

    def reported(kind: str) -> list[list[str]]:
        return [words[1:] for line in said.read_text().splitlines() if (words := line.split())[:1] == [kind]]

    def wait(condition: Callable[[], bool], what: str) -> None:
        bench_agent.await_condition(lambda: condition() or process.poll() is not None, what)

    wait(lambda: _may_rest(agent) == case.ranks, f"{case.ranks} ranks to take part")
    for change in range(2 * (WARM + cycles)):
        client.order(agent.folder, "resize", job="migration", cpus=case.ranks if change % 2 else case.ranks // 2)
        what = f"change {change + 1} of ranks"
        wait(lambda: len(reported("change")) > change, what)  # noqa: B023 - it is awaited here
    wait(lambda: False, "the end of the program")
    if process.wait():
        raise ControlError("a program of MPI has failed: its last words stand above.")
    changes, plain = reported("change")[2 * WARM :], reported("plain")[WARM:]
    return Changes(
        tuple(float(seconds) for _, seconds, _ in changes[::2]),
        tuple(float(seconds) for _, seconds, _ in changes[1::2]),
        tuple(int(points) for *_, points in changes),
        tuple(float(shrink) for shrink, _ in plain),
        tuple(float(grow) for _, grow in plain),
    )


def _may_rest(agent: Agent) -> int:
    """Return the number of ranks that have registered and may rest."""
    return sum(task["min_tasks"] > 0 for task in client.order(agent.folder, "ps")["tasks"])


def network_seconds(case: Case) -> float:
    """Return the seconds that the busiest node of `NODE` processors sends or receives on a network of `GIGABITS`."""
    share = [[0.0] * case.ranks for _ in range(case.ranks)]
    half = case.ranks // 2
    for rank in range(case.ranks):
        for other in range(half):
            if case.data == "objects":
                share[rank][other] = float(rank - half == other)
            else:
                share[rank][other] = max(0.0, min(rank + 1, 2 * (other + 1)) - max(rank, 2 * other))
    nodes = range(0, case.ranks, NODE)
    between = {
        (one, other): sum(share[i][j] for i in range(one, one + NODE) for j in range(other, other + NODE))
        for one in nodes
        for other in nodes
        if one != other
    }
    sent = max(sum(between[one, other] for other in nodes if other != one) for one in nodes)
    received = max(sum(between[other, one] for other in nodes if other != one) for one in nodes)
    return max(sent, received) * case.megabytes * 1e6 * 8 / (GIGABITS * 1e9)


def lines(found: dict[Case, Changes]) -> Iterator[str]:
    """Yield the tables: medians in ms, with the least and the most."""
    for number, (megabytes, way) in enumerate(((mb, way) for mb in MEGABYTES for way in ("shrink", "grow")), 1):
        rows = [
            [
                case.data,
                f"{case.ranks} to {case.ranks // 2}" if way == "shrink" else f"{case.ranks // 2} to {case.ranks}",
                _spread(took),
                _spread(plain),
                f"{statistics.median(took) / statistics.median(plain):.2f}",
                f"{1e3 * network_seconds(case):.2f}",
            ]
            for case, changes in found.items()
            if case.megabytes == megabytes
            for took, plain in [_of(changes, way)]
        ]
        if rows:
            yield f"Table {number}: {way}, {megabytes} MB a processor, ms (in the paper {_paper(megabytes, way)})"
            heads = ["data", "processors", "change", "MPI_Alltoallv", "ratio", f"{GIGABITS:g} Gb/s adds"]
            yield from table(heads, rows, "< >>>>")
            yield ""


def _of(changes: Changes, way: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (changes.shrink, changes.plain_shrink) if way == "shrink" else (changes.grow, changes.plain_grow)


def _paper(megabytes: float, way: str) -> str:
    return f"{1e3 * PAPER[way]:g} between 128 and 64" if megabytes == 1 else "lost"


def _spread(values: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(values):.2f} ({1e3 * min(values):.2f} to {1e3 * max(values):.2f})"


def to_json(found: dict[Case, Changes]) -> list[dict[str, Any]]:
    """Return all values as JSON values."""
    return [
        case._asdict() | changes._asdict() | {"network_s": network_seconds(case)} for case, changes in found.items()
    ]
