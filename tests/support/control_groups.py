# SPDX-License-Identifier: Apache-2.0
"""Real control groups for tests, where this machine lets us make them: version 1, or 2 with delegated controllers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/sys/fs/cgroup")


def _parent(controller: str) -> Path:
    """Return the group below which we may make others with this controller; skip the test where there is none."""
    own = ROOT / controller
    found = own if (own / "cgroup.procs").exists() else ROOT
    with contextlib.suppress(OSError):
        delegated = found == own or controller in (ROOT / "cgroup.subtree_control").read_text(encoding="ascii").split()
        if delegated and os.access(found / "cgroup.procs", os.W_OK):
            return found
    pytest.skip(f"needs a control group below which we may make others with {controller}")


@contextlib.contextmanager
def box(controller: str, pid: int, **files: str) -> Iterator[Path]:
    """Move a process into a new group with these files (dots are underscores); it is back, and the group gone, after.

    Names of files that this version of control groups has not are passed over.
    """
    parent = _parent(controller)
    group = parent / f"drom-test-{os.getpid()}-{pid}"
    group.mkdir()
    try:
        for name, text in files.items():
            file = group / name.replace("_", ".", 1)
            if file.exists():
                file.write_text(text, encoding="ascii")
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        yield group
    finally:
        for inside in (group / "cgroup.procs").read_text(encoding="ascii").split():
            (parent / "cgroup.procs").write_text(inside, encoding="ascii")
        wait_until(lambda: _remove(group), lambda: f"{group} cannot be removed")


def _remove(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()
