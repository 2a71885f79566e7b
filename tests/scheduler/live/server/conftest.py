# SPDX-License-Identifier: Apache-2.0
"""Queues in a file and in etcd, for tests that hold for both."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.live.server.store import Store

from tests.support.etcd import Member, address_of, lead, running, shared_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.scheduler.live.server.etcd import StoreAddress

_numbers = itertools.count()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    """Return the one member of an etcd."""
    with running(tmp_path_factory.mktemp("etcd")) as members:
        yield members


@pytest.fixture
def address(etcd: list[Member]) -> StoreAddress:
    """Return where a queue of this test is."""
    return address_of(etcd, f"test/{next(_numbers)}")


@pytest.fixture(params=["file", "etcd"])
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], Store]]:
    """Return what opens a queue, the same one again once it was closed: in a file, and in etcd."""
    address = request.getfixturevalue("address") if request.param == "etcd" else None
    with ExitStack() as stack:
        yield lambda: stack.enter_context(
            closing(lead(shared_store(tmp_path, address)) if address else Store(tmp_path))
        )
