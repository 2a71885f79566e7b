# SPDX-License-Identifier: Apache-2.0
"""The bridge from the requests of ranks to those of the kernel's tasks, and the kernel's compilation.

A kernel that was never compiled for this processor takes half a minute. The agent does not wait for it: it starts with
the same code as plain Python, while another process compiles into numba's cache, and then loads the result.

Whole cores of one memory domain are all alike: there `drom.agent.placement.reachable.place_in_place` already has the
best objective, since it moves fewest tasks. So a machine with one domain loads neither kernel nor numba, which would
take most of the start of an agent and of its memory.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, cast

from drom.agent.placement.kernel import distributor
from drom.agent.placement.kernel.distributor import Distributor, Infeasible, TaskRequest
from drom.agent.system import numba_cache, python_command
from drom.agent.topology.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.agent.placement.ranks import RankKey, RankRequest
    from drom.agent.topology.machine import Topology


COMPILE = """
import os
from drom.agent.system.process_title import set_title
set_title("drom-compile")
os.nice(19)
from drom.agent.placement.kernel.distributor import kernel
kernel()
"""
"""What the process does that compiles the kernel."""


class CompiledKernel:
    """The distribution kernel of one machine, an `drom.agent.placement.ranks.PlacementKernel`.

    Its unit is "core" or "thread".
    """

    def __init__(self, machine: Topology, unit: str = "core") -> None:
        units = usable_cores(machine, unit)
        self._distributor: Distributor | None = None
        self.compiler: subprocess.Popen[bytes] | None = None
        if not distributor.is_needed(units, unit):
            return
        warm = numba_cache.is_switched_off() or distributor.is_cached()
        self._distributor = Distributor(units, use=None if warm else distributor.plain_kernel())
        if not warm:
            command = python_command.python(COMPILE)
            # In a session of its own: Ctrl-C is for the agent, which then ends this process.
            self.compiler = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )

    def __call__(self, requests: Sequence[RankRequest]) -> dict[RankKey, int] | None:
        """Return a mask for each request; None if the counts do not fit, or the machine leaves nothing to choose."""
        if self._distributor is None:
            return None
        pinned = 0
        for request in requests:
            pinned |= request.fixed
        answer = self._distributor.place([_task_request(request, pinned) for request in requests])
        if isinstance(answer, Infeasible):
            return None
        masks = cast("dict[RankKey, int]", dict(answer.masks))
        # The kernel places whole cores; a pin may name some of a core's threads.
        return masks | {request.key: request.fixed for request in requests if request.fixed}

    @property
    def warning(self) -> str:
        """Why the kernel is not machine code; empty if it is."""
        return self._distributor.compile_error if self._distributor else ""

    def load(self) -> None:
        """Load the machine code that the compiling process left in the cache, if it succeeded."""
        if self.compiler:
            self.compiler.wait()
        if self._distributor and distributor.is_cached():
            self._distributor.kernel = distributor.kernel()

    def close(self) -> None:
        """End the compiling process, if it still runs."""
        if self.compiler:
            self.compiler.kill()
            self.compiler.wait()


def _task_request(request: RankRequest, pinned: int) -> TaskRequest:
    return TaskRequest(
        task=request.key,
        job=request.key[0],
        cores=request.cores,
        current=request.fixed or request.held & ~pinned,
        fixed=bool(request.fixed),
    )
