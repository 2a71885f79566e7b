# SPDX-License-Identifier: Apache-2.0
"""An agent's node and a Slurm of which the commands are scripts, real processes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from tests.support.agents import wait_until
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from pathlib import Path

    from drom.agent.execution.slurm_jobs import SlurmJobs


class SlurmStage:
    """A node of four cores, and `squeue` and `scontrol` in a folder. A subclass sets `jobs`, what is tested.

    `scontrol` writes what it was asked into scontrol.calls, beside it.
    """

    jobs: SlurmJobs

    def __init__(self, folder: Path, squeue: str, scontrol: str) -> None:
        self.folder = folder
        self.log = io.StringIO()
        for name, text in (("squeue", squeue), ("scontrol", scontrol)):
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)
        self.node = make_node([1, 2, 4, 8])

    def calls_until(self, now: float) -> list[str]:
        """Go on to this second, until no command is left to run; return what scontrol was asked since the last call."""
        calls = self.folder / "scontrol.calls"
        calls.unlink(missing_ok=True)

        def done() -> bool:
            self.jobs.run(now)
            self.jobs._next = 0.0
            return not self.jobs._commands.is_busy

        wait_until(done, self.log.getvalue)
        return calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
