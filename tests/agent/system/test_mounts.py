# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from drom.agent.system.mounts import below, detach_below, remove_folder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_folder_is_removed_without_what_is_mounted_below_it(tmp_path: Path) -> None:
    """The files of the other folder stay, also where one mount is below another."""
    other, image = tmp_path / "other", tmp_path / "an image"
    (other / "deep").mkdir(parents=True)
    (other / "kept").touch()
    inner = image / "yard" / "deep"
    inner.parent.mkdir(parents=True)
    for source, point in ((other, inner.parent), (other, inner)):
        done = subprocess.run(["mount", "--bind", source, point], capture_output=True, text=True, check=False)
        if done.returncode:
            detach_below(image)
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")

    assert below(image) == [inner, inner.parent]
    remove_folder(image)
    assert below(image) == []
    assert not image.exists()
    assert (other / "kept").exists()


def test_a_folder_with_other_folders_is_not_emptied(tmp_path: Path) -> None:
    """Only its files and empty folders are removed: nothing is reached through a mount that comes late."""
    (tmp_path / "bundle" / "etc").mkdir(parents=True)
    (tmp_path / "bundle" / "etc" / "passwd").touch()
    (tmp_path / "bundle" / "empty").mkdir()
    (tmp_path / "bundle" / "link").symlink_to(tmp_path / "bundle" / "etc")
    remove_folder(tmp_path / "bundle")

    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["etc"]
    assert (tmp_path / "bundle" / "etc" / "passwd").exists()
