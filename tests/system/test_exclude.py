"""Users and programs that a real agent leaves alone, and cores it leaves to the system."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Programs, affinity, start_agent

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1")


def test_an_excluded_program_runs_unmanaged(tmp_path: Path, start: Programs, program: Path) -> None:
    """drom-run says why and runs it; one that attaches by itself is unmanaged; others are managed as ever."""
    file = tmp_path / "drom.toml"
    file.write_text(f'reserved = "1"\n[exclude]\nprograms = ["sleep", "{program.parent}/*"]\n', encoding="utf-8")
    with start_agent(tmp_path, *TWO, "--config", file) as agent:
        a = start.start(*agent.run("--job", "other", "--", "sleep", "1000"))
        a.await_err(r"^drom: running unmanaged: the agent leaves sleep alone \(exclude\.programs\)\.$")
        alone = start.start(program, DROM_RUNTIME_DIR=str(agent.dir))
        alone.await_out("attached .* unmanaged")
        assert not alone.err
        start.start(*agent.run("--job", "shell", "--", "/bin/sh", "-c", "read nothing"))
        agent.await_tasks(shell="0")

        assert affinity(a.pid) == affinity(os.getpid())
        agent.await_log("(?s)event=excluded.*event=excluded")
        assert agent.log.count("event=excluded") == 2


def test_an_excluded_user_runs_unmanaged(tmp_path: Path, start: Programs) -> None:
    """A name that is no user here is told at the start, and the rest holds."""
    with start_agent(tmp_path, *TWO, "--exclude-users", f"{os.getuid()},nobody-has-this-name") as agent:
        start.start(*agent.run("--", "sleep", "1000")).await_err(r"alone \(exclude\.users\)\.$")
        assert agent.order("ps")["tasks"] == []
        assert 'reason="nobody-has-this-name is not a user of this node' in agent.log
