# SPDX-License-Identifier: Apache-2.0
"""A story for tests of pictures."""

from __future__ import annotations

from drom.agent.observe.timeline import TimelineChange

FOUR_CPUS = [(0, 0b0001), (0, 0b0010), (1, 0b0100), (1, 0b1000)]
"""Two sockets of two cores with one hardware thread."""

GUEST = [
    TimelineChange(0, "jacobi", 0b1111, 0, "start"),
    TimelineChange(4, "jacobi", 0b0011, 5, "shrink"),
    TimelineChange(5, "primes", 0b1100, 5, "start"),
    TimelineChange(8, "primes", 0, None, "end"),
    TimelineChange(8, "jacobi", 0b1111, 8.5, "grow"),
    TimelineChange(10, "jacobi", 0, None, "end"),
]
"""A guest takes a socket of a running job for three seconds."""
