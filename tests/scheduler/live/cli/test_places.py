# SPDX-License-Identifier: Apache-2.0
"""Orders to several schedulers: the one that leads answers, and no order that may have arrived is sent again."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.control import client, local_client
from drom.agent.control.zmtp import frame
from drom.agent.errors import ControlError, ElsewhereError, NotYetError, UnreachableError
from drom.scheduler.live.cli import places

from dromlib.subscription import COMMAND, GREETING, READY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from drom.agent.control.remote import RemoteAddress

GONE, WAITS = UnreachableError("no scheduler answers."), NotYetError("this scheduler stands by.")


def asked(monkeypatch: pytest.MonkeyPatch, *answers: ControlError | None) -> list[str]:
    """Have schedulers answer in turn with these errors, or an answer, the last one again and again."""
    left, found = list(answers), []

    def order(place: Path, name: str, **_: Any) -> dict[str, Any]:
        found.append(f"{place}")
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer:
            raise answer
        return {"order": name}

    monkeypatch.setattr(client, "order", order)
    return found


def test_the_scheduler_that_leads_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is gone and one that stands by are passed over, and asked again until one leads."""
    found = asked(monkeypatch, GONE, WAITS, WAITS, None)
    assert places.ask(places.parse("/a,/b"), "nodes") == {"order": "nodes"}
    assert found == ["/a", "/b", "/a", "/b"]


def test_an_order_that_may_have_arrived_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that is silent may have carried it out."""
    found = asked(monkeypatch, ControlError("it has not answered for 30 s."))
    with pytest.raises(ControlError, match=r"^it has not answered for 30 s\.$"):
        places.ask(places.parse("/a,/b"), "submit")
    assert found == ["/a"]


def test_waiting_for_a_leader_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last reason is told; a single scheduler is asked once."""
    monkeypatch.setattr(places, "PATIENCE", 0.01)
    found = asked(monkeypatch, GONE)
    with pytest.raises(UnreachableError):
        places.ask(places.parse("/a,/b"), "nodes")
    assert len(found) >= 4
    found = asked(monkeypatch, WAITS)
    with pytest.raises(NotYetError):
        places.ask(places.parse("/a"), "nodes")
    assert found == ["/a"]


def test_the_reason_of_the_scheduler_that_leads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that refers to another one, or cannot be reached, says less, whichever is asked first."""
    monkeypatch.setattr(places, "PATIENCE", 0.01)
    why = NotYetError("the queue cannot be written now, so nothing was changed: etcd does not answer.")
    refers = ElsewhereError("home partition p1 is led by the scheduler on s1: ask that one.")
    for answers in ((why, refers), (refers, why), (why, GONE)):
        asked(monkeypatch, *answers * 100)
        with pytest.raises(NotYetError, match=r"^the queue cannot be written now, .* does not answer\.$"):
            places.ask(places.parse("/a,/b"), "cancel")


def test_one_that_may_have_been_replaced_answers_if_no_other_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are asked before it; one alone is asked at once."""
    found: list[str] = []

    def order(place: Path, name: str, *, certain: bool = False, **_: Any) -> dict[str, Any]:
        found.append(f"{place} {certain}")
        if certain or place.name == "b":
            raise WAITS
        return {"order": name}

    monkeypatch.setattr(client, "order", order)
    assert places.ask(places.parse("/a,/b"), "queue") == {"order": "queue"}
    assert found == ["/a True", "/b True", "/a False"]
    found.clear()
    assert places.ask(places.parse("/a"), "queue") == {"order": "queue"}
    assert found == ["/a False"]


def test_a_scheduler_that_does_not_answer_hardly_delays_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several each has a second at first, and twice as long in the next round; one alone has longer."""
    waited: list[int | None] = []

    def order(_: Path | RemoteAddress, __: str, *, patience_ms: int | None, **___: Any) -> None:
        waited.append(patience_ms)
        raise GONE if len(waited) < 8 else ControlError("enough")

    monkeypatch.setattr(client, "order", order)
    for schedulers in ("a:1,/b", "a:1"):
        with pytest.raises(ControlError, match=r"^enough$"):
            places.ask(places.parse(schedulers), "nodes")
    assert waited == [1000] * 4 + [2000] * 4 + [None]


@pytest.mark.parametrize("backlog", [0, 8])
def test_a_local_scheduler_that_is_paused_is_sent_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, backlog: int
) -> None:
    """It accepts no connection, whether or not the kernel has room for it, and another one gets the order, once."""
    monkeypatch.setattr(places, "FIRST_MS", 50)
    found: list[bytes] = []
    paused, runs = folder / "a", folder / "b"
    with listening(paused) as waits, listening(runs) as listens, ThreadPoolExecutor(1) as pool:
        waits.listen(backlog)
        with local_client.connect(paused / "control", 30):  # all that there is room for without a backlog
            served = pool.submit(serve, listens, found)
            assert places.ask([paused, runs], "submit", jobs=[{}]) == {"jobs": [1]}
            served.result(30)
        waits.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                with waits.accept()[0] as accepted:
                    found.append(accepted.recv(1000))
    assert [b'"submit"' in one for one in found] == [True, *[False] * (len(found) - 1)]
    assert {*found[1:]} == {b""}


@contextmanager
def listening(state: Path) -> Iterator[socket.socket]:
    """Listen as a scheduler with this folder does."""
    state.mkdir(mode=0o711)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(state / "control"))
        made.listen()
        made.settimeout(30)
        yield made


def serve(listens: socket.socket, found: list[bytes]) -> None:
    """Answer one order, which is added to `found`."""
    with listens.accept()[0] as accepted:
        accepted.sendall(GREETING + frame(READY, COMMAND))
        found.append(accepted.recv(1000))
        accepted.sendall(frame(b'{"value": {"jobs": [1]}}'))


def test_a_lent_node_is_drained_at_both_home_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is removed from that of the borrower first; a node that does not exist is asked for at the first one."""
    asked: list[tuple[str, str]] = []

    def order(_: Path, name: str, **fields: Any) -> dict[str, Any]:
        if "home" not in fields:
            return {"ask_homes": {"p1": 1, "p2": 2}}
        asked.append((name, fields["home"]))
        rows = [
            {"name": "n1", "state": "up", "home": "", "borrower": ""},
            {"name": "n2", "state": "up", "home": "p2", "borrower": "p1"},
        ]
        return {"nodes": rows if fields["home"] == "p1" else []}

    monkeypatch.setattr(client, "order", order)
    for node, more, homes in (
        ("n1", {}, ["p1"]),
        ("n2", {}, ["p1", "p2"]),
        ("n2", {"forget": True}, ["p1"]),
        ("n9", {}, ["p1"]),
    ):
        places.ask(places.parse("/a"), "drain", node=node, reason="", **more)
        assert [home for name, home in asked if name == "drain"] == homes
        asked.clear()
