# SPDX-License-Identifier: Apache-2.0
"""What jobs of a storm write down themselves, and whether the queue agrees with it. Shares no code with the scheduler.

A job appends lines to a file of its own, which the kernel keeps whole::

    begin ATTEMPT NODE           it runs, and nobody else has its lock
    twice ATTEMPT NODE           another attempt of it still runs
    end ATTEMPT STATUS           it is about to exit with this status
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPT = """\
#!/bin/sh
exec 9>>lock.$DROM_JOB_ID
flock -n 9 && word=begin || word=twice
echo $word $DROM_JOB_ATTEMPT $(hostname) >> ledger.$DROM_JOB_ID
sleep {seconds}
echo end $DROM_JOB_ATTEMPT {status} >> ledger.$DROM_JOB_ID
exit {status}
"""


@dataclass
class Known:
    """What was done to a job by others: the attempts whose program or step was killed, and whether it was cancelled."""

    status: int
    requeue: bool
    programs: set[int] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    cancelled: bool = False


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
    if last in known.steps and not known.requeue:
        expected.add(("node_fail", status))
    if known.cancelled:
        expected.add(("cancelled", status))
    if (state, status) in expected:
        return []
    what = f"it is {state} with status {status} after attempt {last} of {sorted(begun)}"
    return [f"{what}, its end being {own}, and {known} having been done to it"]
