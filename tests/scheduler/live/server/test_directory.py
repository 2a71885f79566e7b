# SPDX-License-Identifier: Apache-2.0
"""The directory of a cluster in etcd: schedulers find each other there, and their home partitions have numbers."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.live.cluster.homes import MOST_HOMES, Present
from drom.scheduler.live.cluster.lending import EMPTY, FreeList
from drom.scheduler.live.server import directory as module
from drom.scheduler.live.server.directory import Directory
from drom.scheduler.live.server.etcd import Etcd, StoreError, put
from drom.scheduler.live.server.lease import Lease
from drom.scheduler.live.server.watch import Watch

from tests.support.agents import wait_until
from tests.support.etcd import LEASE, Member, address_of, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.scheduler.live.server.etcd import StoreAddress


@pytest.fixture
def opened(address: StoreAddress) -> Iterator[Callable[[str, str], Directory]]:
    """Return what opens the directory for a scheduler, by its name and its home partition."""
    with ExitStack() as stack:

        def enter(name: str, home: str) -> Directory:
            found = stack.enter_context(closing(Directory(address, "drom", name, home, LEASE)))
            found.open()
            return found

        yield enter


def sees(one: Directory, *present: Present) -> bool:
    """Say whether these schedulers are present."""
    one.advance()
    return sorted(one.present.values()) == sorted(present)


def is_told_of_nothing(one: Directory) -> bool:
    """Say whether all keys are drom's, as far as the directory has been followed."""
    try:
        one.advance()
    except StoreError:
        return False
    return True


def test_schedulers_see_each_other(opened: Callable[[str, str], Directory], address: StoreAddress) -> None:
    """What each leads, and that it has left."""
    first = opened("s1", "a")
    first.announce(["a"])
    with closing(Directory(address, "drom", "s2", "b", LEASE)) as second:
        second.open()
        second.announce([])
        wait_until(lambda: sees(first, Present("s1", "a", ("a",)), Present("s2", "b")), lambda: first.present)
        wait_until(lambda: sees(second, Present("s1", "a", ("a",)), Present("s2", "b")), lambda: second.present)
        assert (first.homes, second.homes) == ({"a": 1, "b": 2}, {"a": 1, "b": 2})
        assert first.me is not None
        assert first.me < (second.me or 0)
        second.announce(["b"])
        wait_until(lambda: sees(first, Present("s1", "a", ("a",)), Present("s2", "b", ("b",))), lambda: first.present)
    wait_until(lambda: sees(first, Present("s1", "a", ("a",))), lambda: first.present)
    assert opened("s3", "b").homes == {"a": 1, "b": 2}


def test_a_scheduler_whose_lease_has_ended_comes_anew(
    opened: Callable[[str, str], Directory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the last one then."""
    first = opened("s1", "a")
    with monkeypatch.context() as changed:
        changed.setattr(Lease, "_keep", lambda _: None)  # as in a process that is stopped
        first.announce(["a"])
    wait_until(lambda: sees(first, Present("s1", "a", ("a",))), lambda: first.present)
    before = first.me
    wait_until(lambda: sees(first), lambda: first.present)
    assert (first.me, first._lease and first._lease.is_over) == (None, False)
    first._lease.is_over = True  # type: ignore[union-attr] # as its next renewal says
    first.announce(["a"])
    wait_until(lambda: sees(first, Present("s1", "a", ("a",))), lambda: first.present)
    assert (first.me or 0) > (before or 0)


def test_numbers_are_given_once(
    opened: Callable[[str, str], Directory], address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that add a home partition at the same time agree on the first number, and there is a bound."""
    first = opened("s1", "a")
    Etcd(address).transact([], [put(f"{address.prefix}/directory/homes/2", b"a")], "x", 5.0)
    assert opened("s2", "b").homes == {"a": 1, "b": 3}
    wait_until(lambda: sees(first) and first.homes == {"a": 1, "b": 3}, lambda: first.homes)
    monkeypatch.setattr(module, "MOST_HOMES", 3)
    with pytest.raises(StoreError, match=r"^there are 3 home partitions, the most for a cluster: choose one of them$"):
        opened("s3", "c")
    assert MOST_HOMES == 1000


def elect(address: StoreAddress, home: str) -> int:
    """Have a scheduler lead a home partition, and return its epoch."""
    key, etcd = f"{address.prefix}/home/{home}/leader", Etcd(address)
    etcd.transact([], [put(key, None)], key, 5.0)
    return etcd.transact([], [put(key, b"x")], key, 5.0)[1]


def test_pools_are_changed_together_if_they_are_as_they_were_seen(
    opened: Callable[[str, str], Directory], address: StoreAddress
) -> None:
    """Others see that by their watch; who has seen less learns what its own list is, and changes nothing."""
    first, second = opened("s1", "a"), opened("s2", "b")
    epoch, other = elect(address, "a"), elect(address, "b")
    offers, taken = FreeList(2, 4, nodes={"n1": ""}), FreeList(2, 4, nodes={"n1": "b"})
    assert first.free.swap("a", f"{address.prefix}/home/a/leader", epoch, {"a": offers})
    assert not second.free.swap("b", f"{address.prefix}/home/b/leader", other, {"a": taken, "b": EMPTY})
    assert second.free.seen == {}
    wait_until(lambda: sees(second) and second.free.seen == {"a": offers}, lambda: second.free.seen)
    assert second.free.swap("b", f"{address.prefix}/home/b/leader", other, {"a": taken, "b": EMPTY})
    assert second.free.seen == {"a": taken, "b": EMPTY}
    assert not first.free.swap("a", f"{address.prefix}/home/a/leader", epoch, {"a": EMPTY})
    assert first.free.seen == {"a": taken}
    wait_until(lambda: sees(first) and first.free.seen == second.free.seen, lambda: first.free.seen)
    assert first.free.written_at("a") == second.free.written_at("a") == first.free.written_at("b") > epoch
    version = second.free.version
    second.advance()  # its own changes arrive once more
    assert (second.free.version, second.free.seen["a"]) == (version, taken)
    first._load()
    assert first.free.swap("a", f"{address.prefix}/home/a/leader", epoch, {"a": offers})


def test_a_scheduler_that_no_longer_leads_changes_no_pool(
    opened: Callable[[str, str], Directory], address: StoreAddress
) -> None:
    """Its epoch is that of an earlier leader."""
    first, epoch = opened("s1", "a"), elect(address, "a")
    assert first.free.swap("a", f"{address.prefix}/home/a/leader", epoch, {"a": EMPTY})
    elect(address, "a")
    assert not first.free.swap("a", f"{address.prefix}/home/a/leader", epoch, {"a": EMPTY})


def test_a_pool_that_no_drom_has_written_is_told(
    opened: Callable[[str, str], Directory], address: StoreAddress
) -> None:
    """Once it is deleted, the scheduler goes on."""
    first, epoch, key = opened("s1", "a"), elect(address, "a"), f"{address.prefix}/directory/free/a"
    Etcd(address).transact([], [put(key, b"[]")], "x", 5.0)
    with pytest.raises(StoreError, match=r"^no drom has written .*/directory/free/a: delete it$"):
        wait_until(first.advance, lambda: first.free.seen)
    Etcd(address).transact([], [put(key, None)], "x", 5.0)
    wait_until(partial(is_told_of_nothing, first), lambda: first._foreign)
    assert (sees(first), first.free.seen) == (True, {"a": EMPTY})
    assert first.free.swap("a", f"{address.prefix}/home/a/leader", epoch, {"a": EMPTY})


@pytest.mark.parametrize(
    ("key", "value"),
    [("homes/x", b"a"), ("homes/1", b"\xff"), ("schedulers/7", b"[]"), ("nodes/n1", b"\xff"), ("free/a", b"[]")],
)
def test_keys_of_something_else_are_told(address: StoreAddress, key: str, value: bytes) -> None:
    """They stop the start. What comes with one is seen, and the sentence is repeated until the key is deleted."""
    one = replace(address, prefix=f"{address.prefix}/{key.replace('/', '-')}")
    at, told = f"{one.prefix}/directory", rf"^no drom has written {one.prefix}/directory/{key}: delete it$"
    with closing(Directory(one, "drom", "s1", "a", LEASE)) as found:
        found.open()
        writes = [put(f"{at}/{key}", value), put(f"{at}/nodes/n2", b"b"), put(f"{at}/homes/2", b"b")]
        Etcd(one).transact([], writes, "x", 5.0)
        with pytest.raises(StoreError, match=told):
            wait_until(found.advance, lambda: found.homes)
        assert (found.nodes.seen, "b" in found.homes) == ({"n2": "b"}, True)
        with pytest.raises(StoreError, match=told):
            found.advance()
        with closing(Directory(one, "drom", "s2", "a", LEASE)) as late, pytest.raises(StoreError, match=told):
            late.open()
        Etcd(one).transact([], [put(f"{at}/{key}", None)], "x", 5.0)
        wait_until(partial(is_told_of_nothing, found), lambda: found._foreign)
        assert sees(found)


def test_what_etcd_has_forgotten_is_read_anew(opened: Callable[[str, str], Directory], etcd: list[Member]) -> None:
    """A watch from a revision that was compacted begins again with the whole directory."""
    first, second = opened("s1", "a"), opened("s2", "b")
    first._unwatch()
    second.announce(["b"])
    revision = etcd[0].ask("/v3/kv/range", key="AA==")["header"]["revision"]
    etcd[0].ask("/v3/kv/compaction", revision=revision)
    first._watch = Watch(first.etcd, first._at, 1, 1.0, first._wake)
    wait_until(lambda: sees(first, Present("s2", "b", ("b",))), lambda: first.present)


def test_an_etcd_that_does_not_answer_is_told(tmp_path: Path) -> None:
    """Within a bounded time."""
    with running(tmp_path) as members:
        directory = Directory(address_of(members, "drom"), "drom", "a", "a", LEASE)
        with closing(directory):
            directory.open()
            members[0].send(signal.SIGSTOP)
            with pytest.raises(StoreError, match=r"does not answer|has not answered"):
                directory.announce(["a"])
            members[0].send(signal.SIGCONT)
