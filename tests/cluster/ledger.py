# SPDX-License-Identifier: Apache-2.0
"""What jobs of a storm write down themselves, and whether the queue agrees with it. Shares no code with the scheduler.

A job appends lines to a file of its own, which the kernel keeps whole::

    begin ATTEMPT NODE           it runs, and nobody else has its lock
    twice ATTEMPT NODE           another attempt of it still runs
    end ATTEMPT STATUS           it is about to exit with this status

In an MPI job that is no script rank 0 does so; all ranks have locks of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROGRAM = """\
exec 9>>lock.$DROM_JOB_ID
flock -n 9 && word=begin || word=twice
echo $word $DROM_JOB_ATTEMPT $(hostname) >> ledger.$DROM_JOB_ID
{what}
status=$?
[ $status != 0 ] || status={status}
echo end $DROM_JOB_ATTEMPT $status >> ledger.$DROM_JOB_ID
exit $status
"""
RANK = """\
exec 8>>lock.$DROM_JOB_ID.$OMPI_COMM_WORLD_RANK
flock -n 8 || echo twice $DROM_JOB_ATTEMPT $(hostname) >> ledger.$DROM_JOB_ID
"""


def script(seconds: float, status: int) -> str:
    """Return a script that takes so long and ends so."""
    return "#!/bin/sh\n" + PROGRAM.format(what=f"sleep {seconds}", status=status)


def mpi_script(ring: Path, work: float, status: int) -> str:
    """Return a script that has mpirun start two ranks, which do so much, and ends so."""
    launch = "mpirun --allow-run-as-root --host $DROM_HOSTS -n 2 --bind-to none drom-run --await"
    return "#!/bin/sh\n" + PROGRAM.format(what=f"{launch} -- sh -c '{RANK}exec {ring} {work}'", status=status)


def mpi_command(ring: Path, work: float, status: int) -> tuple[str, ...]:
    """Return what each of two ranks is to be, which do so much; rank 0 ends so."""
    first = PROGRAM.format(what=f"{ring} {work}", status=status)
    return "sh", "-c", f"{RANK}[ $OMPI_COMM_WORLD_RANK = 0 ] || exec {ring} {work}\n{first}"


@dataclass
class Known:
    """What a job is, and was done to it by others: the attempts whose program or step was killed, or what of a launch.

    It is to end with `status`.
    """

    status: int
    requeue: bool
    mpi: bool = False
    programs: set[int] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    launches: dict[int, list[str]] = field(default_factory=dict)
    cancelled: bool = False

    def harmed(self, attempt: int) -> bool:
        """Say whether anything was done to an attempt, which may have ended otherwise by that."""
        return self.cancelled or any(attempt in kind for kind in (self.programs, self.steps, self.launches))


def violations(job: Mapping[str, Any], known: Known, lines: Sequence[str]) -> list[str]:
    """Return what must not be of a job that is over; `job` is what the scheduler says of it."""
    name, rows = f"job {job['job']}", [line.split() for line in lines]
    begun = Counter(int(row[1]) for row in rows if row[0] != "end")
    ended = {int(row[1]): int(row[2]) for row in rows if row[0] == "end"}
    found = [f"{name}: attempt {row[1]} ran beside another one" for row in rows if row[0] == "twice"]
    found += [f"{name}: attempt {attempt} was started {count} times" for attempt, count in begun.items() if count > 1]
    found += [
        f"{name}: attempt {attempt} came to its end, and the job was started again"
        for attempt in ended
        if attempt < max(begun, default=0) and attempt not in known.steps
    ]
    found += [
        f"{name}: attempt {attempt} was given up, though nobody has killed what keeps it"
        for attempt in range(1, int(job["attempt"]))
        if attempt in begun and attempt not in known.steps
    ]
    found += [
        f"{name}: attempt {attempt} ended with {status}, though nothing was done to it"
        for attempt, status in ended.items()
        if status != known.status and not known.harmed(attempt)
    ]
    return found + [f"{name}: {text}" for text in _end(job, known, begun, ended)]


def _end(job: Mapping[str, Any], known: Known, begun: Mapping[int, int], ended: Mapping[int, int]) -> list[str]:
    """Return how the end of a job is other than its own lines say."""
    state, status, last = job["state"], job["status"], int(job["attempt"])
    own = ended.get(last)
    expected: set[tuple[str, int | None]] = set()
    if own is not None:
        expected.add(("failed" if own else "completed", own))
    if last in known.programs:
        expected.add(("failed", -9))
    if last in known.launches and status:  # mpirun has many for that, and may not have that of its rank
        expected.add(("failed", status))
    if last in known.steps and not known.requeue:
        expected.add(("node_fail", status))
    if known.cancelled:
        expected.add(("cancelled", status))
    if (state, status) in expected:
        return []
    what = f"it is {state} with status {status} after attempt {last} of {sorted(begun)}"
    return [f"{what}, its end being {own}, and {known} having been done to it"]
