# SPDX-License-Identifier: Apache-2.0
"""A queue in etcd: one scheduler leads and writes, others follow, and nothing is stored for one that was replaced."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.live.cluster.jobs import COMPLETED, Entry, Node
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.live.server import etcd as etcd_client
from drom.scheduler.live.server import lease, shared_rows
from drom.scheduler.live.server.etcd import Etcd, StoreError, put, to_wire
from drom.scheduler.live.server.store import Store, UnreadableError, UnwritableError
from drom.scheduler.live.server.watch import Watch

from tests.scheduler.live.server.test_store import job
from tests.support.agents import wait_until
from tests.support.etcd import LEASE, Member, address_of, lead, rows_of, running, shared_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.scheduler.live.server.etcd import StoreAddress

NODES = [Node("n1", 0, 4)]


@pytest.fixture
def opened(tmp_path: Path, address: StoreAddress) -> Iterator[Callable[[str], Store]]:
    """Return what opens the queue for a scheduler of a name, in a folder of its own."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(closing(shared_store(tmp_path / name, address, name)))


def wrote(store: Store, number: int) -> bool:
    """Say whether a job can be stored, by a scheduler that takes over again if its lease has ended."""
    rows = rows_of(store)
    try:
        if not (rows.leads or rows.advance()):
            return False
        store.write([job(number)], [], [])
    except StoreError:
        return False
    except UnwritableError:
        if not rows.leads:
            rows.stand_by()
        return False
    return True


def same(one: Store, other: Store) -> bool:
    """Say whether two copies have the same rows."""
    return [*one._db.iterdump()] == [*other._db.iterdump()]


def test_the_next_scheduler_has_what_the_last_one_stored(opened: Callable[[str], Store]) -> None:
    """A standby follows each change, and takes over when the leader has closed the queue."""
    first, second = lead(opened("a")), opened("b")
    entries = [Entry(1, 1.0, "submitted", {}), Entry(2, 2.0, "placed", {"shares": {"n1": 2}})]
    first.write([job(1), job(2)], NODES, entries)
    first.write([job(2, COMPLETED)], [], [Entry(2, 3.0, "completed", {})], ["n1"])
    wait_until(lambda: not rows_of(second).advance() and same(first, second), lambda: rows_of(second).leader)
    assert rows_of(second).leader == "a"
    assert second.living() == [job(1)]

    first.close()
    lead(second)
    assert (second.living(), second.nodes(), second.next_number, second.latest) == ([job(1)], [], 3, 3.0)
    second.write([job(3)], [], [])
    assert rows_of(second).epoch > rows_of(first).epoch


def test_a_scheduler_whose_lease_has_ended_stores_nothing(
    opened: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was paused for longer than its lease is refused by etcd, and follows its successor."""
    monkeypatch.setattr(lease.Lease, "_keep", lambda _: None)  # as in a process that is stopped
    first, second = lead(opened("a")), opened("b")
    first.write([job(1)], [], [])
    begin = time.monotonic()
    lead(second)
    assert time.monotonic() - begin < 5.0
    second.write([job(2)], [], [])

    with pytest.raises(
        UnwritableError, match=r"cannot be written: its lease has ended, so that another scheduler leads"
    ):
        first.write([job(1, COMPLETED)], [], [])
    assert not first.leads
    with pytest.raises(UnwritableError):
        first.check()
    rows_of(first).stand_by()
    wait_until(lambda: not rows_of(first).advance() and same(first, second), lambda: rows_of(first).leader)
    assert second.living() == [job(1), job(2)]


def test_a_scheduler_that_cannot_renew_its_lease_sends_nothing(
    opened: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own clock tells it before etcd does."""
    first = lead(opened("a"))
    first.check()
    monkeypatch.setattr(lease, "now", lambda: 1e9)
    with pytest.raises(UnwritableError, match=r"the lease of 2 s could not be renewed: see whether etcd://.* answers"):
        first.check()


def test_a_large_change_is_stored_as_a_whole(opened: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that ends in the middle leaves all of it or nothing, whichever transaction was its last."""
    many = [job(number) for number in range(1, 251)]
    entries = [Entry(one.number, 1.0, "submitted", {"name": "x" * 5000}) for one in many]
    transact = shared_rows.SharedRows._transact
    found = set()
    for last in range(1, 14):
        left = iter(range(last))

        def ends(rows: shared_rows.SharedRows, operations: list[dict[str, object]], left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise StoreError("the process has ended")
            transact(rows, operations)

        store = lead(opened(f"a{last}"))
        before = len(store.living())
        monkeypatch.setattr(shared_rows.SharedRows, "_transact", ends)
        try:
            store.write(many, [], entries)
        except UnwritableError:
            assert len(store.living()) == before
        monkeypatch.undo()
        store.close()
        store = lead(opened(f"b{last}"))
        assert len(store.living()) == len(store.history()) in {0, 250}
        found.add(len(store.living()))
        store.write([], NODES, [])
        with closing(opened(f"c{last}")) as copy:
            assert same(copy, store)
        store._delete(range(1, 251))
        store.close()
    assert found == {0, 250}


def test_an_answer_that_was_lost_is_no_second_write(
    opened: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that arrives twice counts once, as does the first of a leader.

    The rows of one without an answer are stored as they are later.
    """
    call = Etcd.call

    def deaf(etcd: Etcd, path: str, body: dict[str, object], seconds: float) -> dict[str, object]:
        answer = call(etcd, path, body, seconds)
        return call(etcd, path, body, seconds) if path == "/v3/kv/txn" else answer

    store = opened("a")
    monkeypatch.setattr(Etcd, "call", deaf)
    lead(store)
    store.write([job(1)], [], [])
    store.write([job(2)], [], [Entry(2, 1.0, "submitted", {})])

    def silent(etcd: Etcd, path: str, body: dict[str, object], seconds: float) -> dict[str, object]:
        call(etcd, path, body, seconds)
        raise StoreError("it does not answer")

    monkeypatch.setattr(Etcd, "call", silent)
    with pytest.raises(UnwritableError):
        store.write([job(3)], [], [Entry(3, 1.0, "submitted", {})])
    assert [one.number for one in store.living()] == [1, 2]
    monkeypatch.undo()
    store.write([job(1, COMPLETED)], [], [])
    with closing(opened("b")) as copy:
        assert [one.number for one in copy.living()] == [2]
        assert same(copy, store)


def test_a_standby_reads_anew_what_etcd_has_forgotten(opened: Callable[[str], Store], etcd: list[Member]) -> None:
    """A watch from a revision that was compacted begins again with all rows."""
    first, second = lead(opened("a")), opened("b")
    rows_of(second)._unwatch()
    for number in range(1, 5):
        first.write([job(number)], [], [])
    revision = etcd[0].ask("/v3/kv/range", key="AA==")["header"]["revision"]
    etcd[0].ask("/v3/kv/compaction", revision=revision)
    rows = rows_of(second)
    rows._watch = Watch(rows.etcd, f"{rows._prefix}/", 1, 1.0, rows._wake)
    wait_until(lambda: not rows.advance() and same(first, second), lambda: rows.leader)


def test_a_prefix_belongs_to_one_cluster(opened: Callable[[str], Store], tmp_path: Path, address: StoreAddress) -> None:
    """Another cluster, and something that is not of drom, are told so; nothing is changed."""
    opened("a")
    with pytest.raises(UnreadableError, match=r"belongs to the cluster 'drom', not 'other': give another /PREFIX, or"):
        shared_store(tmp_path / "b", address, cluster="other")
    foreign = replace(address, prefix=f"{address.prefix}-foreign")
    key = {"request_put": {"key": to_wire(f"{foreign.prefix}/x"), "value": ""}}
    Etcd(foreign).transact([], [key], "x", 5.0)
    with pytest.raises(UnreadableError, match=r"keys below .* that are not of drom: give another /PREFIX\.$"):
        shared_store(tmp_path / "c", foreign)
    Etcd(address).transact([], [put(f"{address.prefix}/rows/jobs/x", b"{}")], "x", 5.0)
    with pytest.raises(UnreadableError, match=r"no drom has written .*/rows/jobs/x: delete it, or restore the store"):
        shared_store(tmp_path / "d", address)


def test_a_script_of_any_characters_fits(opened: Callable[[str], Store]) -> None:
    """The longest script that a scheduler takes is stored, however its characters are written in JSON."""
    store = lead(opened("a"))
    text = "".join(chr(0x4E00 + (n * 7919) % 20000) for n in range(170_000))
    long = Spec(command=("true",), folder="/", script=text)
    store.write([replace(job(1), spec=long)], [], [])
    with closing(opened("b")) as copy:
        assert [one.spec for one in copy.living()] == [long]


def test_a_store_that_does_not_answer_is_told(tmp_path: Path) -> None:
    """Writes wait for a bounded time, the second one less; what was refused is stored once etcd answers again."""
    with running(tmp_path, 3) as members, ExitStack() as stack:
        address = address_of(members, "drom")
        store = stack.enter_context(closing(shared_store(tmp_path / "a", address)))
        lead(store)
        store.write([job(1)], [], [])
        epoch = rows_of(store).epoch
        for member in members[1:]:
            member.send(signal.SIGSTOP)
        times = [time.monotonic()]
        for number in (2, 3):
            with pytest.raises(UnwritableError, match=r"^the queue etcd://.* cannot be written: .*\.$") as told:
                store.write([job(number)], [], [])
            assert told.value.is_uncertain
            times.append(time.monotonic())
        assert times[1] - times[0] < shared_rows.PATIENCE + 1.5
        assert times[2] - times[1] < shared_rows.IMPATIENCE + 1.5
        for member in members[1:]:
            member.send(signal.SIGCONT)
        wait_until(lambda: wrote(store, 4), lambda: members[0].log)
        later = {2, 3} if rows_of(store).epoch != epoch else set()  # its lease has ended: it cannot take them back
        assert {1, 4} <= {one.number for one in store.living()} <= {1, 4} | later


def test_the_leader_of_etcd_is_killed(tmp_path: Path) -> None:
    """A write waits until the members have elected another one, and none is lost."""
    with running(tmp_path, 3) as members, closing(shared_store(tmp_path / "a", address_of(members, "drom"))) as store:
        lead(store)
        store.write([job(1)], [], [])
        leader = next(member for member in members if member.is_leader)
        leader.end()
        begin = time.monotonic()
        store.write([job(2)], [], [])
        assert time.monotonic() - begin < 3.0
        leader.start()
        store.write([job(3)], [], [])
        assert len(store.living()) == 3


def test_a_full_store_names_the_remedy(tmp_path: Path) -> None:
    """The sentence names what an administrator has to run. The lease is long, as filling etcd takes a while."""
    detail = {str(n): f"{n * 7919 % 10007}" for n in range(9000)}
    with ExitStack() as stack:
        members = stack.enter_context(running(tmp_path, 1, "--quota-backend-bytes", "2000000"))
        store = stack.enter_context(closing(shared_store(tmp_path / "a", address_of(members, "drom"), lease=60)))
        lead(store)
        told = "database space exceeded: compact and defragment it, then run `etcdctl alarm disarm`"

        def fill() -> None:
            for number in range(1, 500):
                store.write([], [], [Entry(number, 1.0, "x", detail)])

        with pytest.raises(UnwritableError, match=told):
            fill()


def test_an_answer_has_a_bound(address: StoreAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer is not read, whoever sends it."""
    monkeypatch.setattr(etcd_client, "LARGEST", 10)
    with pytest.raises(StoreError, match=r"^what answers there is no etcd, or one that wants TLS: check the address"):
        Etcd(address).first("x", 5.0)


def test_nothing_listens(tmp_path: Path) -> None:
    """The sentence names the address."""
    address = address_of([Member(tmp_path, "m", 1, ())], "drom")
    with pytest.raises(
        UnreadableError, match=r"etcd://127.0.0.1:1/drom cannot be opened: nothing listens at 127.*:1\.$"
    ):
        shared_store(tmp_path / "a", address)


def test_a_change_takes_one_message(opened: Callable[[str], Store]) -> None:
    """All rows of a turn go in one transaction."""
    store = lead(opened("a"))
    before = rows_of(store).etcd.messages
    store.write([job(number) for number in range(1, 30)], NODES, [Entry(n, 1.0, "submitted", {}) for n in range(1, 30)])
    renewals = 1
    assert rows_of(store).etcd.messages - before <= 1 + renewals
    assert LEASE / 3 > 0.1
