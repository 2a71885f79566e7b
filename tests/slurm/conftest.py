# SPDX-License-Identifier: Apache-2.0
"""One Slurm for all tests here."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.slurm.rig import Slurm, reason_to_skip

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, and skip it with the reason where it cannot run."""
    here = [item for item in items if "/tests/slurm/" in str(item.path)]
    reason = reason_to_skip() if here else ""
    for item in here:
        item.add_marker(pytest.mark.slurm)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Return a Slurm with one node of two CPUs. pytest's folders are closed to the user slurm."""
    with TemporaryDirectory(prefix="drom-slurm-") as folder:
        Path(folder).chmod(0o755)
        with Slurm(Path(folder)) as cluster:
            yield cluster
