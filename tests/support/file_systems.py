# SPDX-License-Identifier: Apache-2.0
"""Real file systems that are small, so that they can be filled."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def tiny_tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system in a new folder, as the options say."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=755,{options}", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def folder_in_memory() -> TemporaryDirectory[str]:
    """Return a folder for what is written through to its disk thousands of times, on none where that can be."""
    memory = "/dev/shm"
    return TemporaryDirectory(prefix="drom-test-", dir=memory if os.access(memory, os.W_OK) else None)


def fill(file: Path, *, leaving: int = 0) -> None:
    """Write to a file until no room is left beyond so many bytes."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while shutil.disk_usage(file).free > leaving or not leaving:
            out.write(bytes(4096))
