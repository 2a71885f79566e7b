# SPDX-License-Identifier: Apache-2.0
"""Folders above a path in which other users could replace it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from drom.agent.system.ancestors import fault_above

if TYPE_CHECKING:
    from pathlib import Path

SOMEBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")


@pytest.mark.parametrize(("mode", "is_fault"), [(0o755, False), (0o1777, False), (0o777, True), (0o775, True)])
def test_a_folder_in_which_others_may_write_is_a_fault_unless_it_is_sticky(
    tmp_path: Path, mode: int, is_fault: bool
) -> None:
    """In a sticky folder users can replace only their own entries."""
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    fault = f"others may write in {above} (mode {mode:04o})"
    assert fault_above(above / "missing" / "run", os.geteuid()) == (fault if is_fault else "")


@needs_root
def test_a_folder_of_another_user_is_a_fault_for_everybody_else(tmp_path: Path) -> None:
    """Its owner may use it."""
    above = tmp_path / "above"
    above.mkdir()
    os.chown(above, SOMEBODY, SOMEBODY)
    assert fault_above(above / "run", 0) == f"{above} belongs to another user"
    assert fault_above(above / "run", SOMEBODY) == ""


@needs_root
def test_a_link_is_checked_with_the_folders_that_it_leads_to(tmp_path: Path) -> None:
    """Whoever owns the link, or may write where it leads, chooses what is found behind it."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    assert fault_above(link / "run", 0) == ""
    os.chown(link, SOMEBODY, SOMEBODY, follow_symlinks=False)
    assert fault_above(link / "run", 0) == f"{link} belongs to another user"
    os.chown(link, 0, 0, follow_symlinks=False)
    target.chmod(0o777)
    assert fault_above(link / "run", 0) == f"others may write in {target} (mode 0777)"


def test_a_folder_itself_is_not_checked(tmp_path: Path) -> None:
    """The caller does that, with the folder open."""
    tmp_path.chmod(0o777)
    assert fault_above(tmp_path, os.geteuid()) == ""
