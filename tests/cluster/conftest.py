# SPDX-License-Identifier: Apache-2.0
"""Where clusters can be: on Linux, as root, with what machines are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.scheduler.testbed.cluster import why_no_mpi
from drom.scheduler.testbed.namespaces import why_not

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.rig import Rig


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


@pytest.fixture
def here(running: Rig) -> Iterator[Rig]:
    """Return the cluster `running` of a module without a job, with all nodes up; each test leaves it so."""
    running.await_nodes(up=running.names)
    yield running
    running.await_nodes(up=running.names)
    running.clear()
