# SPDX-License-Identifier: Apache-2.0
"""The kernel of a machine, and the process that compiles it while the agent runs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from drom.agent.model.cores import Cores
from drom.agent.placement.kernel import background, distributor
from drom.agent.placement.kernel.background import CompiledKernel
from drom.agent.placement.kernel.distributor import Distributor, Infeasible, TaskRequest
from drom.agent.placement.ranks import RankRequest
from drom.agent.placement.reachable import place_in_place
from drom.agent.topology.synthetic import synthetic_topology
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def test_a_compiling_process_gets_no_signals_from_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the agent alone, which ends the process; otherwise a traceback of it would be printed."""
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    monkeypatch.setattr(distributor, "is_cached", lambda: False)
    monkeypatch.setattr(background, "COMPILE", "import signal; signal.pause()")
    kernel = CompiledKernel(synthetic_topology("socket:2 core:1"))
    try:
        assert kernel.compiler is not None
        assert os.getsid(kernel.compiler.pid) == kernel.compiler.pid != os.getsid(0)
    finally:
        kernel.close()
    assert kernel.compiler.returncode is not None


ONE_DOMAIN = """
import sys
from drom.agent.placement.kernel.background import CompiledKernel
from drom.agent.topology.synthetic import synthetic_topology
kernel = CompiledKernel(synthetic_topology("pack:1 core:8 pu:2"))
assert (kernel([]), kernel.compiler, kernel.warning) == (None, None, "")
print(sorted({"numba", "numpy"} & sys.modules.keys()))
"""


def test_a_machine_with_one_memory_domain_loads_no_kernel() -> None:
    """An agent on it starts without numba and numpy."""
    done = subprocess.run([sys.executable, "-c", ONE_DOMAIN], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("[]\n", "")


@given(st.permutations(range(6)), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=4))
def test_tasks_that_stay_have_the_objective_of_the_kernel_in_one_domain(
    order: Sequence[int], drawn: list[tuple[int, int, bool]]
) -> None:
    """With one memory domain `place_in_place` moves as few cores as the kernel, and finds a placement if that does."""
    free, ranks = list(order), list[RankRequest]()
    for n, (cores, holds, fixed) in enumerate(drawn):
        held = sum(1 << free.pop() for _ in range(min(len(free), holds)))
        mask = held if fixed else 0
        ranks.append(RankRequest((f"j{n}", 0), mask.bit_count() or cores, held=held, granted=held, fixed=mask))
    tasks = [TaskRequest(r.key, r.key[0], r.cores, r.fixed or r.held, bool(r.fixed)) for r in ranks]

    best = Distributor([(0, 0, 1 << cpu) for cpu in range(6)]).place(tasks)
    found = place_in_place(ranks, Cores(tuple(1 << cpu for cpu in range(6))))

    if isinstance(best, Infeasible):
        assert found is None
        return
    assert found is not None
    assert {r.key: found[r.key].bit_count() for r in ranks} == {r.key: r.cores for r in ranks}
    assert sum((found[r.key] & ~r.held).bit_count() for r in ranks if r.held) == best.objective.moved
