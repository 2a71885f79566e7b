# SPDX-License-Identifier: Apache-2.0
"""The process that compiles the distribution kernel while the agent runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from drom.agent.placement.kernel import background, distributor
from drom.agent.placement.kernel.background import CompiledKernel
from drom.agent.topology.synthetic import synthetic_topology

if TYPE_CHECKING:
    import pytest


def test_a_compiling_process_gets_no_signals_from_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the agent alone, which ends the process; otherwise a traceback of it would be printed."""
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    monkeypatch.setattr(distributor, "is_cached", lambda: False)
    monkeypatch.setattr(background, "COMPILE", "import signal; signal.pause()")
    kernel = CompiledKernel(synthetic_topology("core:2"))
    try:
        assert kernel.compiler is not None
        assert os.getsid(kernel.compiler.pid) == kernel.compiler.pid != os.getsid(0)
    finally:
        kernel.close()
    assert kernel.compiler.returncode is not None
