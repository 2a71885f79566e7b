# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

from drom.agent.system import cpu_times


def test_cpu_times() -> None:
    """Busy ticks leave out idle and waiting, guests are counted once, and old kernels have fewer columns."""
    text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 50 6 7 8 1 2\ncpu12 1 1 1 1 1\nintr 5\n\ncpux 1\n"

    assert cpu_times.parse_proc_stat(text) == {0: (27, 117), 12: (3, 5)}


def test_cpu_times_of_this_machine() -> None:
    """Each CPU we may run on has times, and none was busy for longer than it was there."""
    times = cpu_times.of_cpus()

    assert os.sched_getaffinity(0) <= times.keys()
    assert all(0 <= busy <= total for busy, total in times.values())
