# SPDX-License-Identifier: Apache-2.0
"""Control groups of containers, with real processes."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint import containers
from drom.agent.checkpoint.freezer import GROUPS

from tests.support.agents import lives, programs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = f"drom-test-{os.getpid()}"


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a new control group, or skip the test."""
    parent = next((path for path in (GROUPS / "freezer", GROUPS) if path.is_dir()), GROUPS)
    path = parent / NAME
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    yield path
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()


@pytest.mark.system
@pytest.mark.parametrize("attempt", range(5))
def test_the_group_goes_of_a_container_that_starts_programs_meanwhile(
    group: Path, tmp_path: Path, attempt: int
) -> None:
    """What a process has just started is killed too, and the control group is removed once all have ended."""
    with programs(tmp_path / "programs") as start:
        endless = f"echo $$ > {group}/cgroup.procs; while :; do sleep 10{attempt} & sleep 0; done"
        program = start.start("sh", "-c", endless)
        wait_until(lambda: len((group / "cgroup.procs").read_text(encoding="ascii").split()) > 2, program.show)

        containers._kill_group(NAME)

        assert not group.exists()
        assert not lives(program.pid)
