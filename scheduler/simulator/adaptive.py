# SPDX-License-Identifier: Apache-2.0
"""The model of adaptive jobs: their processor ranges, their speedup, and the cost of a change of processors.

Speedup is Downey's (`drom.workloads.speedup`), or linear. The cost is that of `allotment`. Its defaults give what Kale,
Kumar and DeSouza (CCGRID 2002) measured for 1 MB per processor on 128 processors with Myrinet, taken as 100 MB/s: 86 ms
to shrink to 64, and 67.6 ms to expand again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.engine.state import EXPAND, SHRINK, STALL, TRANSFER, Pool
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, MILLION, MOLDABLE, NEVER, Ints
from drom.scheduler.policies.change_cost import LONGEST
from drom.workloads.choices import number, read_choices
from drom.workloads.speedup import downey

if TYPE_CHECKING:
    from collections.abc import Iterable

SCALE = 10_000
"""The work of a job per second on one processor."""
LARGEST = 10_000_000
"""The most processors of a pool."""
MOST = 1e9
"""The largest parallelism and sigma."""
DEAREST = 31_536_000.0
"""The most seconds that a change of processors may cost."""


class PoolModel(NamedTuple):
    """The parameters of all adaptive jobs of a simulation; times are in seconds."""

    minimum: float = 0.5
    """The fewest processors, as a fraction of the job's size."""
    maximum: float = 2.0
    """The most processors, as a multiple of the job's size."""
    parallelism: float = math.inf
    """Downey's A; infinite: linear speedup."""
    sigma: float = 1.0
    """Downey's sigma."""
    stall: float = 0.0
    """The cost of any change."""
    shrink: float = 0.00059375
    """The cost of shrinking per processor before it."""
    expand: float = 0.00045
    """The cost of expanding per processor after it."""
    memory: float = 128.0
    """Megabytes of data of a job."""
    bandwidth: float = 100.0
    """Megabytes that a processor sends or receives per second."""
    residual: float = 0.0
    """The fraction of a processor that a process left on it takes."""

    def by_ticks(self, ticks: int) -> PoolModel:
        """Return the same parameters for a log in which a second has `ticks` ticks."""
        return self._replace(
            stall=self.stall * ticks,
            shrink=self.shrink * ticks,
            expand=self.expand * ticks,
            bandwidth=self.bandwidth / ticks,
        )

    def dearest(self, processors: int) -> float:
        """Return an upper bound of the cost of a change of processors, in seconds."""
        return self.stall + max(self.shrink, self.expand) * processors + self.memory / self.bandwidth

    def pool(self, sizes: Ints, seconds: Ints, classes: Ints, processors: int) -> Pool:
        """Return a pool of `processors` for jobs of these sizes, none of which takes longer than its `seconds`.

        Rigid jobs have their size. Others have at least one processor, and at most those of the machine.
        Raises SchedulerError for a machine or jobs that are too large, and for changes that cost too much.
        """
        if processors > LARGEST:
            msg = f"A pool has at most {LARGEST:,} processors, not {processors:,}: choose fewer --nodes or --cores."
            raise SchedulerError(msg)
        if not self.dearest(processors) <= DEAREST:
            msg = (
                f"A change of processors would cost up to {self.dearest(processors):,.4g} s, more than {DEAREST:,.0f}: "
                "choose less of stall, shrink, expand or memory, or more bandwidth, for --adaptive."
            )
            raise SchedulerError(msg)
        flexible = (classes == MALLEABLE) | (classes == MOLDABLE)
        least = np.clip(np.ceil(min(self.minimum, processors) * sizes - 1e-9), 1, processors).astype(np.int64)
        most = np.clip(np.floor(min(self.maximum, processors) * sizes + 1e-9), least, processors).astype(np.int64)
        least, speed = np.where(flexible, least, sizes), speeds(processors, self.parallelism, self.sigma)
        _check_work(sizes, seconds, speed, least)
        terms = np.zeros(4)
        terms[[STALL, SHRINK, EXPAND, TRANSFER]] = self.stall, self.shrink, self.expand, self.memory / self.bandwidth
        return Pool(
            least=least,
            most=np.where(flexible, most, sizes),
            speed=speed,
            stall=np.rint(terms * MILLION).astype(np.int64),
            residual=round(self.residual * MILLION),
        )


def _check_work(sizes: Ints, seconds: Ints, speed: Ints, least: Ints) -> None:
    """Raise SchedulerError if the work of a job, or the part lost on its fewest processors, exceeds 64 bits."""
    work = seconds.astype(np.float64) * speed[sizes]
    too_much = np.flatnonzero(work * np.maximum(1, speed[sizes] / speed[least]) >= NEVER)
    if len(too_much):
        size, length = int(sizes[too_much[0]]), int(seconds[too_much[0]])
        msg = (
            f"The work of {size:,} processors in {length:,} s is more than a pool can count: leave such jobs out of "
            "the log, or choose a larger minimum for --adaptive."
        )
        raise SchedulerError(msg)


def speeds(processors: int, parallelism: float, sigma: float) -> Ints:
    """Return the work per second of a job on 0, 1, ... processors, of shape ``(processors + 1,)``."""
    counts = np.arange(1, processors + 1)
    curve = counts if math.isinf(parallelism) else downey(counts, parallelism, sigma)
    return np.concatenate(([0], np.rint(SCALE * curve))).astype(np.int64)


def parse_adaptive(choices: Iterable[str]) -> PoolModel:
    """Return the parameters in texts ``NAME=VALUE``, with defaults for those that are not named.

    Raises SchedulerError for an unknown name and for an invalid value.
    """
    chosen = read_choices("--adaptive", choices, PoolModel._fields, _value, SchedulerError)
    adaptive = PoolModel(**chosen)
    if adaptive.minimum > adaptive.maximum:
        msg = (
            f"--adaptive: the minimum {adaptive.minimum:g} is above the maximum {adaptive.maximum:g}: "
            "write for example minimum=0.5 and maximum=2."
        )
        raise SchedulerError(msg)
    return adaptive


def _value(name: str, text: str) -> tuple[float | None, str]:
    """Return a value, None for an invalid one, and the rule that it must satisfy."""
    value = number(text)
    good, wanted = rule_of(name, value)
    return (value if good else None), wanted


def rule_of(name: str, value: float) -> tuple[bool, str]:
    """Return whether a value of a parameter of `PoolModel` is valid, and the rule that it must satisfy."""
    positive, finite = value > 0, abs(value) < math.inf
    return {
        "minimum": (positive and finite, "a number above 0"),
        "bandwidth": (positive and finite, "a number above 0"),
        "maximum": (positive, "a number above 0, or infinite"),
        "parallelism": (1 <= value <= MOST or value == math.inf, f"a number from 1 to {MOST:,.0f}, or infinite"),
        "sigma": (0 <= value <= MOST, f"a number from 0 to {MOST:,.0f}"),
        "memory": (value >= 0 and finite, "a number of at least 0"),
        "residual": (0 <= value <= 1, "a fraction from 0 to 1"),
    }.get(name, (0 <= value <= LONGEST, f"a number of seconds from 0 to {LONGEST}"))
