# SPDX-License-Identifier: Apache-2.0
"""Where clusters can be: on Linux, as root, with what machines are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.scheduler.testbed.cluster import why_no_mpi
from drom.scheduler.testbed.namespaces import why_not

if TYPE_CHECKING:
    from pathlib import Path


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, and skip it with the reason where it cannot run."""
    here = [item for item in items if "/tests/cluster/" in str(item.path)]
    reason = (why_not() or why_no_mpi()) if here else ""
    for item in here:
        item.add_marker(pytest.mark.cluster)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program of MPI that counts the core-seconds it holds."""
    from drom.scheduler.testbed.cluster import build_ring

    return build_ring(tmp_path_factory.mktemp("program"))
