# SPDX-License-Identifier: Apache-2.0
"""Real members of an etcd on the loopback, which end with the test; queues in it, and their schedulers' copies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from drom.scheduler.live.server.etcd import StoreAddress
from drom.scheduler.live.server.shared_rows import SharedRows
from drom.scheduler.live.server.store import Store
from drom.scheduler.testbed import etcd
from drom.scheduler.testbed.etcd import Member, free_ports

from tests.support.agents import wait_until
from tests.support.prometheus import tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Member", "free_ports"]
LEASE = 2


@contextlib.contextmanager
def running(folder: Path, count: int = 1, *options: str) -> Iterator[list[Member]]:
    """Run the members of an etcd, and end them; skip the test where etcd is not installed."""
    tool("etcd", "etcd-server")
    with etcd.running(folder, count, *options) as members:
        yield members


def address_of(members: Sequence[Member], prefix: str, **more: Any) -> StoreAddress:
    """Return the address of a queue below a prefix."""
    return StoreAddress(tuple(member.at for member in members), prefix, **more)


def shared_store(
    folder: Path, address: StoreAddress, name: str = "n1", cluster: str = "drom", lease: int = LEASE
) -> Store:
    """Open the queue of a scheduler that stands by."""
    return Store(folder, medium=SharedRows(address, cluster, name, lease))


def rows_of(store: Store) -> SharedRows:
    """Return the rows of a queue in etcd."""
    assert isinstance(store._medium, SharedRows)
    return store._medium


def lead(store: Store) -> Store:
    """Let a scheduler take over as soon as none leads."""
    wait_until(rows_of(store).advance, lambda: rows_of(store).leader)
    store.take_over()
    return store
