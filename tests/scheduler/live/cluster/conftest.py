# SPDX-License-Identifier: Apache-2.0
"""A cluster for tests of jobs below the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.fake_cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeCluster]:
    """Return a cluster with the nodes and the policy of the module, its SIZES and its POLICY."""
    sizes = request.module.SIZES
    found = FakeCluster(tmp_path, request.module.POLICY, len(sizes), sizes=sizes)
    found.settle()
    yield found
    found.store.close()
