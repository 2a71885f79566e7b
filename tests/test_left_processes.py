# SPDX-License-Identifier: Apache-2.0
"""Processes that tests leave running make them fail, and are killed."""

from __future__ import annotations

import subprocess
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import lives, wait_until
from tests.support.left_processes import LeftProcesses

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def test_an_orphan_is_found_by_its_working_directory(tmp_path: Path) -> None:
    """It has no variable of its parent; it is named and killed."""
    (tmp_path / "work").mkdir()
    left = LeftProcesses(tmp_path)
    script = "env -i sleep 1000 >/dev/null 2>&1 & echo $!"
    pid = int(subprocess.check_output(["sh", "-c", script], cwd=tmp_path / "work"))

    with pytest.raises(AssertionError, match=rf"left processes running:\n{pid}: .*sleep 1000 in {tmp_path}/work$"):
        left.assert_none(orphans=True, seconds=0)

    wait_until(lambda: not lives(pid), lambda: pid)
    left.assert_none()


def test_a_child_is_left_at_the_end_alone(tmp_path: Path) -> None:
    """While the parent runs, a program may serve tests of several modules."""
    left = LeftProcesses(tmp_path)
    with subprocess.Popen(["sleep", "1000"]) as process:
        left.assert_none(orphans=True, seconds=0)

        with pytest.raises(AssertionError, match=rf"left processes running:\n{process.pid}: sleep 1000 "):
            left.assert_none(seconds=0)

    left.assert_none()


@pytest.mark.parametrize(("module", "name"), [(resource_tracker, "_resource_tracker"), (forkserver, "_forkserver")])
def test_the_helpers_of_multiprocessing_may_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    """They start with the first pool or forked process, and end with the tests."""
    monkeypatch.setenv("FOLDER", f"{tmp_path}/")
    helper = type(getattr(module, name))()
    monkeypatch.setattr(module, name, helper)
    left = LeftProcesses(tmp_path)
    helper.ensure_running()

    left.assert_none(seconds=0)

    helper._stop()
    left.assert_none()
