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
