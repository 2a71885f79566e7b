# SPDX-License-Identifier: Apache-2.0
"""The home partitions of nodes in a real etcd: the first that is written counts, for all and for good."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.live.server import node_homes
from drom.scheduler.live.server.directory import Directory
from drom.scheduler.live.server.etcd import StoreError, put

from tests.support.agents import wait_until
from tests.support.etcd import LEASE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drom.scheduler.live.server.etcd import StoreAddress


@pytest.fixture
def both(address: StoreAddress, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Directory]]:
    """Return the directories of two schedulers."""
    monkeypatch.setattr(node_homes, "IMPATIENCE", 60.0)  # other tests run beside it
    with ExitStack() as stack:
        found = [stack.enter_context(closing(Directory(address, "drom", one, one, LEASE))) for one in ("p1", "p2")]
        for one in found:
            one.open()
        yield found


def await_nodes(one: Directory, count: int) -> None:
    """Wait until a scheduler has seen that so many nodes have home partitions."""

    def has_seen() -> bool:
        one.advance()
        return len(one.nodes.seen) == count

    wait_until(has_seen, lambda: one.nodes.seen)


def persist(one: Directory, node: str, homes: Sequence[str]) -> None:
    """Settle the home partition of a node, again while others are faster, as an agent does that is told to wait."""
    while node not in one.nodes.seen:
        with contextlib.suppress(StoreError):
            one.nodes.settle(node, homes)


def test_schedulers_that_decide_at_once_agree(both: list[Directory]) -> None:
    """Both give home partitions to the same nodes, and to nodes of their own: none gets more than others."""
    names = [f"n{number}" for number in range(50)]

    def settle(one: Directory) -> list[str]:
        for name in names:
            persist(one, f"{name}-of-{one.home}", ("p1", "p2", "p3"))
            persist(one, name, ("p3", "p2", "p1"))
        return [one.nodes.seen[name] for name in names]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(settle, both)
    assert first == second
    for one in both:
        await_nodes(one, 150)
        assert one.nodes.sizes == {"p1": 50, "p2": 50, "p3": 50}
    assert both[0].nodes.seen == both[1].nodes.seen


def test_a_home_partition_that_was_chosen_by_name_is_written_once(both: list[Directory]) -> None:
    """Of two schedulers that write different ones the first decides, and only that one reports that it has chosen."""
    names = [f"n{number}" for number in range(50)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda one: [one.nodes.settle(name, (one.home,)) for name in names], both)
    assert [one != other for one, other in zip(first, second, strict=True)] == [True] * 50
    assert [both[0].nodes.seen[name] for name in names] == [both[1].nodes.seen[name] for name in names]
    assert [both[0].nodes.seen[name] for name in names] == ["p1" if one else "p2" for one in first]


def test_nodes_of_others_count_also_when_they_come_late(both: list[Directory]) -> None:
    """A scheduler that has written a node by name in between has not seen those of others."""
    one, other = both
    one.nodes.settle("a", ("p1",))
    for name in ("b", "c"):
        other.nodes.settle(name, ("p2",))
    one.nodes.settle("d", ("p1",))
    assert not one.nodes.settle("b", ("p1",))
    assert one.nodes.seen["b"] == "p2"
    assert all(one.nodes.settle(name, ("p1", "p2", "p3")) for name in "efg")
    assert [one.nodes.seen[name] for name in "efg"] == ["p3", "p3", "p1"]


def test_a_node_keeps_its_home_partition_until_it_is_removed(both: list[Directory]) -> None:
    """Another scheduler learns of both, a late watch undoes neither, and the revision grows."""
    one, other = both
    assert one.nodes.settle("n1", ("p1",))
    before = one.nodes.written_at("n1")
    await_nodes(other, 1)
    assert not other.nodes.settle("n1", ("p2",))
    assert other.nodes.seen == {"n1": "p1"}
    one.nodes.remove("n1")
    one.advance()
    assert one.nodes.seen == {}
    await_nodes(other, 0)
    assert other.nodes.settle("n1", ("p2",))
    assert other.nodes.written_at("n1") > one.nodes.written_at("n1") > before
    one._load()
    assert (one.nodes.seen, +one.nodes.sizes) == ({"n1": "p2"}, {"p2": 1})


def test_what_is_wrong_is_told(both: list[Directory], monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of something else is named, and there are bounded numbers of nodes."""
    one, other = both
    key = f"{one.nodes.at}n1"
    other.etcd.transact([], [put(key, b"\xff")], key, 5.0)
    with pytest.raises(StoreError, match=r"^no drom has written .*/directory/nodes/n1: delete it$"):
        one.nodes.settle("n1", ("p1",))
    monkeypatch.setattr(node_homes, "MOST_NODES", 1)
    assert one.nodes.settle("n2", ("p1",))
    with pytest.raises(StoreError, match=r"^there are 1 nodes, the most for a cluster: remove some"):
        one.nodes.settle("n3", ("p1",))
