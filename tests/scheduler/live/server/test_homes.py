# SPDX-License-Identifier: Apache-2.0
"""What a scheduler does with a real directory: it adopts and gives back, and passes on what concerns others."""

from __future__ import annotations

from contextlib import ExitStack, closing
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

import pytest
from drom.agent.errors import ControlError, ElsewhereError, NotYetError
from drom.agent.execution import protocol as say
from drom.agent.observe.log import Log
from drom.scheduler.live.cli import tables
from drom.scheduler.live.cluster.home_rules import parse_rule
from drom.scheduler.live.cluster.lending import FreeList
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.server.agent_server import AgentMessage, AgentServer, Peer
from drom.scheduler.live.server.directory import Directory
from drom.scheduler.live.server.etcd import StoreError
from drom.scheduler.live.server.homes import Homes

from tests.support.agents import wait_until
from tests.support.etcd import LEASE
from tests.support.scheduler_requests import ROOT, scheduler, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.agent.model.caller import Caller
    from drom.scheduler.live.cluster.home_rules import HomeRule
    from drom.scheduler.live.server.etcd import StoreAddress
    from drom.scheduler.live.server.shared_rows import SharedRows

CALLER = cast("Caller", None)
NEXT = 200_000_001


class Stub:
    """A scheduler of a home partition that leads as soon as it is advanced."""

    def __init__(self, home: str, *, leads: bool = True) -> None:
        self.home, self.leads, self.messages = home, leads, 1
        self.heard: list[say.FromAgent] = []
        self.made: dict[str, Stub] = {}
        self.is_closed = False

    def beside(self, home: str, _: SharedRows, first_job: int) -> Stub:
        """Return another one."""
        if home in self.made and not self.made[home].is_closed:
            raise StoreError("it does not answer")
        assert first_job == NEXT
        self.made[home] = Stub(home, leads=False)
        return self.made[home]

    def advance(self) -> bool:
        """Begin to lead."""
        before, self.leads = self.leads, True
        return not before

    def receive(self, said: AgentMessage) -> None:
        """Record a message."""
        self.heard.append(said.message)

    def answer(self, order: dict[str, Any], _: Caller) -> str:
        """Say where an order has arrived."""
        return f"{order['order']} at {self.home}"

    def admit(self, order: dict[str, Any], _: Caller) -> None:
        """Refuse an order for a scheduler that is certain to lead."""
        raise NotYetError(f"{order['order']}: it is cut off.")

    def close(self) -> None:
        """Record that it was closed."""
        self.is_closed = True


class Desk:
    """Connections of agents, each of the node that welcomes name."""

    def __init__(self) -> None:
        self.names: dict[Peer, str] = {}
        self.said: list[tuple[Peer, say.ToAgent]] = []

    def name_of(self, peer: Peer) -> str | None:
        """Return the name of a node."""
        return self.names.get(peer)

    def peer_of(self, name: str) -> Peer | None:
        """Return the connection of a node."""
        return next((peer for peer, node in self.names.items() if node == name), None)

    def answer(self, peer: Peer, message: say.ToAgent) -> None:
        """Record a message."""
        self.said.append((peer, message))

    def reject(self, peer: Peer, _: str, reason: str) -> None:
        """Record a refusal."""
        self.answer(peer, say.No(reason))


class Place:
    """The home partitions of a scheduler of p1, and the directory of one of p2."""

    def __init__(self, stack: ExitStack, address: StoreAddress) -> None:
        self.other = Directory(address, "drom", "s2", "p2", LEASE)
        directory = Directory(address, "drom", "s1", "p1", LEASE)
        directory.open()
        self.other.open()
        others = stack.enter_context(ExitStack())
        others.callback(self.other.close)
        self.leave = others.close
        self.own, self.desk, self.log = Stub("p1"), Desk(), StringIO()
        self.rules: list[HomeRule] = []
        self.homes: Homes[Stub] = Homes(
            self.own, cast("AgentServer", self.desk), directory, Log(self.log), lambda: self.rules
        )
        stack.enter_context(closing(self.homes))

    def until(self, condition: Callable[[], bool]) -> None:
        """Advance until something holds."""

        def holds() -> bool:
            self.homes.advance()
            return condition()

        wait_until(holds, lambda: self.homes.adopted)

    def hello(self, number: int, home: str = "", why_not: str = "", node: str = "") -> Peer:
        """Have the agent of a node introduce itself."""
        node, peer = node or f"n{number}", Peer(0, bytes([number]))
        message = say.Hello(say.PROTOCOL, "1", node, node, "b", 4, 1, 0, {}, (), False, 0.0, (), home=home)
        self.homes.receive(AgentMessage(peer, message, lambda _: why_not))
        return peer

    @property
    def heard(self) -> list[say.Hello]:
        """The introductions that the scheduler of p1 has received."""
        return [message for message in self.own.heard if isinstance(message, say.Hello)]

    def last_refusal(self) -> str:
        """Return the last answer to an agent that was not let in."""
        message = self.desk.said[-1][1]
        assert isinstance(message, say.No)
        return message.reason


@pytest.fixture
def place(address: StoreAddress) -> Iterator[Place]:
    """Return a scheduler of p1 that sees one of p2."""
    with ExitStack() as stack:
        found = Place(stack, address)
        found.other.announce(["p2"])
        found.until(lambda: bool(found.homes._directory.me) and len(found.homes._directory.present) == 2)
        yield found


def test_orders_reach_the_home_partition_that_they_concern(place: Place) -> None:
    """Those for another scheduler are to be sent there; those for all are to be sent to each."""
    answer = place.homes.answer
    assert answer({"order": "submit", "jobs": [{}]}, CALLER) == "submit at p1"
    assert answer({"order": "job", "job": 100_000_007}, CALLER) == "job at p1"
    assert answer({"order": "cancel", "job": "x"}, CALLER) == "cancel at p1"
    assert answer({"order": "queue", "home": "p1"}, CALLER) == "queue at p1"
    assert answer({"order": "queue"}, CALLER)["ask_homes"] == {"p1": 1, "p2": 2}
    leaders = [(row["home"], row["led_by"], row["leader_home"]) for row in answer({"order": "homes"}, CALLER)["homes"]]
    with pytest.raises(NotYetError, match=r"^homes: it is cut off\.$"):
        answer({"order": "homes", "certain": True}, CALLER)
    assert leaders == [("p1", "s1", "p1"), ("p2", "s2", "p2")]
    there = r"^home partition p2 is led by the scheduler on s2: ask that one\.$"
    orders: list[dict[str, Any]] = [
        {"order": "submit", "home": "p2"},
        {"order": "submit", "jobs": [{"after": [["afterok", NEXT]]}]},
        {"order": "job", "array": NEXT, "index": 3},
    ]
    for order in orders:
        with pytest.raises(ElsewhereError, match=there):
            answer(order, CALLER)
    with pytest.raises(ControlError, match=r"^there is no home partition .*: choose --home-partition from p1, p2\.$"):
        answer({"order": "nodes", "home": ["p1"]}, CALLER)
    with pytest.raises(ControlError, match=r"^there is no job 300000000: see drom queue --all\.$"):
        answer({"order": "job", "job": 3 * 10**8}, CALLER)


def test_agents_reach_their_home_partition(place: Place) -> None:
    """Those of another one are turned away, and asked again as soon as it is led here, until it is given back."""
    mine, theirs, lost = place.hello(1, "p1"), place.hello(2, "p2"), place.hello(3, "p9")
    assert [type(message) for message in place.own.heard] == [say.Hello]
    assert place.desk.said == [
        (theirs, say.No("home partition p2 is led by the scheduler on s2: ask that one.")),
        (lost, say.No("there is no home partition p9: choose --home-partition from p1, p2.")),
    ]
    place.leave()
    place.until(lambda: "p2" in place.homes.adopted)
    adopted = place.own.made["p2"]
    assert adopted.leads
    assert place.desk.said[2:] == [(theirs, say.Who())]
    place.desk.names[theirs] = "n2"
    place.hello(2, "p2")
    alive = say.Alive("n2", 0.0, ())
    place.homes.receive(AgentMessage(theirs, alive, lambda _: ""))
    assert adopted.heard[1:] == [alive]
    assert place.homes.answer({"order": "job", "job": NEXT}, CALLER) == "job at p2"
    assert place.homes.messages > 1

    place.own.leads = False
    assert place.homes.answer({"order": "submit", "jobs": [{}]}, CALLER) == "submit at p2"
    with ExitStack() as stack:
        back = Directory(place.homes._directory._address, "drom", "s2", "p2", LEASE)
        stack.callback(back.close)
        back.open()
        back.announce([])
        place.until(lambda: adopted.is_closed)
        assert place.homes.adopted == {}
        place.homes.receive(AgentMessage(theirs, alive, lambda _: ""))
        assert place.own.heard[1:] == [alive]  # which does not know it
        place.until(lambda: place.homes._leader("p2") is None)
        with pytest.raises(NotYetError, match="no scheduler leads home partition p2 at present: try again in a moment"):
            place.homes.answer({"order": "job", "job": NEXT}, CALLER)
    said = place.log.getvalue()
    assert ("event=home_adopted home=p2" in said, "event=home_returned home=p2" in said) == (True, True)
    assert mine not in dict(place.desk.said)


def test_agents_that_name_no_home_partition_get_one(place: Place) -> None:
    """It is that with fewest nodes, or by a rule, and stays until the node is removed."""
    for number in range(1, 5):
        place.hello(number)
    assert place.homes.nodes.seen == {"n1": "p1", "n2": "p2", "n3": "p1", "n4": "p2"}
    assert [(hello.node, hello.home) for hello in place.heard] == [("n1", "p1"), ("n3", "p1")]
    assert place.log.getvalue().count("event=home_chosen") == 4

    place.rules[:] = [parse_rule("n[1-8]=p1"), parse_rule("n9=p3")]
    place.hello(3)
    assert "home_kept" not in place.log.getvalue()
    place.rules[:] = [parse_rule("n[1-8]=p2"), parse_rule("n9=p3")]
    place.hello(3)
    assert place.heard[-1].home == "p1"
    assert 'event=home_kept node=n3 home=p1 reason="the rule n[1-8]=p2 does not move a node' in place.log.getvalue()
    place.homes.forget("n3")
    place.hello(3)
    assert place.last_refusal() == "home partition p2 is led by the scheduler on s2: ask that one."
    place.hello(3, "p1")
    assert place.last_refusal().startswith("node n3 belongs to home partition p2, not p1: start its agent with that")
    place.hello(9)
    assert place.last_refusal().startswith("home partition p3 of the rule n9=p3 has never had a scheduler: start one")
    place.hello(10)
    assert place.last_refusal().startswith("no rule is for node n10 (--home-rule): add one such as '*=p1', or")
    assert {"n9", "n10"}.isdisjoint(place.homes.nodes.seen)


def test_an_agent_that_may_not_act_for_its_node_gets_no_home_partition(place: Place) -> None:
    """Neither does one with a name that no node can have, which the scheduler of this process refuses."""
    place.hello(1, why_not="this agent may not act for node n1: ask root.")
    assert place.last_refusal() == "this agent may not act for node n1: ask root."
    place.hello(2, node="a/b")
    assert [(hello.node, hello.home) for hello in place.heard] == [("a/b", "p1")]
    assert place.homes.nodes.seen == {}


def test_no_home_partition_is_given_while_the_store_does_not_answer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once a second, however many agents come; nodes that have one are not concerned."""
    place.hello(1)
    asked: list[object] = []

    def fail(*about: object) -> None:
        asked.append(about)
        raise StoreError("it does not answer")

    monkeypatch.setattr(place.homes.nodes._etcd, "transact", fail)
    for number in range(2, 6):
        place.hello(number)
    place.hello(1)
    assert len(asked) == 1
    assert [message.reason for _, message in place.desk.said if isinstance(message, say.No)] == [
        "no home partition can be given to node n2: it does not answer.",
        *["the store does not answer at present: try again in a moment."] * 3,
    ]
    assert [hello.node for hello in place.heard] == ["n1", "n1"]
    with pytest.raises(ControlError, match=r"^the node was not removed: it does not answer\.$"):
        place.homes.forget("n1")
    assert place.homes.nodes.seen == {"n1": "p1"}


def test_an_agent_reaches_the_home_partition_that_has_its_node(place: Place) -> None:
    """Those of borrowed nodes are welcome, those of lent ones are referred to the borrower."""
    theirs, mine = place.hello(2, "p2"), place.hello(1, "p1")
    place.desk.names[mine] = "n1"
    place.homes.free.seen |= {"p1": FreeList(nodes={"n1": "p2", "n3": ""}), "p2": FreeList(nodes={"n2": "p1"})}
    place.homes.call([])
    place.homes.call(["n1", "n2", "n9"])
    asked = place.desk.said[1:]
    assert sorted(asked) == [(mine, say.Who()), (theirs, say.Who())]
    place.own.heard.clear()
    place.hello(2, "p2")
    place.hello(1, "p1")
    place.hello(3, "p1")
    assert [message.node for message in place.own.heard if isinstance(message, say.Hello)] == ["n2", "n3"]
    assert place.desk.said[3:] == [(mine, say.No("home partition p2 is led by the scheduler on s2: ask that one."))]


def test_a_home_partition_that_cannot_be_adopted_is_told_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again, and the log says when it has succeeded."""
    place.own.made["p2"] = Stub("p2")
    monkeypatch.setattr("drom.scheduler.live.server.homes.RETRY", 0.01)
    place.leave()
    place.until(lambda: "event=queue_stuck" in place.log.getvalue())
    for _ in range(20):
        place.homes.advance()
    place.own.made.clear()
    place.until(lambda: "event=queue_unstuck" in place.log.getvalue())
    reason = 'reason="no home partition can be taken over: it does not answer."'
    assert place.log.getvalue().count(reason) == place.log.getvalue().count("event=queue_stuck") == 1


def test_a_cluster_without_home_partitions_has_none_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users and agents that name one are refused; the list of home partitions is one line."""
    with scheduler() as server:
        with pytest.raises(ControlError, match=r"^this cluster has no home partitions: omit --home-partition\.$"):
            server.answer({"order": "submit", "home": "p1"}, ROOT)
        submit(server)
        value = server.answer({"order": "homes"}, ROOT)
        assert [line.split() for line in tables.homes(value)] == [
            ["HOME", "LED", "BY", "NODES", "UP", "CORES", "HELD", "RUNNING", "WAITING"],
            ["-", "-", "1", "1", "4", "0", "0", "1"],
        ]
        refused: list[str] = []
        monkeypatch.setattr(server._desk, "reject", lambda *about: refused.append(about[-1]))
        hello = say.Hello(say.PROTOCOL, "1", "n2", "n2", "b", 4, 1, 0, {}, (), False, 0.0, (), home="p1")
        server.receive(AgentMessage(Peer(0, b"x"), hello, lambda _: ""))
        assert refused == ["this cluster has no home partitions: start the agent without --home-partition."]


def test_numbers_of_jobs_begin_with_those_of_the_home_partition() -> None:
    """Also after the scheduler has read its configuration again."""
    with scheduler(settings=Settings(home="p2", first_job=NEXT)) as server:
        assert server.configure(Settings(max_jobs=7))
        assert (server.stored.settings.home, server.stored.settings.max_jobs) == ("p2", 7)
        assert [*submit(server, 2), *submit(server)] == [NEXT, NEXT + 1, NEXT + 2]


def test_a_node_with_jobs_of_another_home_partition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be ended as unknown; a node with jobs of this one, or that came back without any, is welcome."""
    with scheduler(settings=Settings(home="p2", first_job=NEXT)) as server:
        refused: list[str] = []
        monkeypatch.setattr(server._desk, "reject", lambda *about: refused.append(about[-1]))
        for job in (NEXT, NEXT - 100_000_000):
            known = (say.Known(job, 1, "running", 4),)
            hello = say.Hello(say.PROTOCOL, "1", "n2", "n2", "b", 4, 1, 0, {}, (), False, 0.0, known, home="p2")
            server.receive(AgentMessage(Peer(0, b"x"), hello, lambda _: ""))
        assert "n2" in server.cluster.nodes
        over = (say.Known(NEXT - 100_000_000, 1, "ended", 4),)
        for node, peer in (("n2", Peer(0, b"x")), ("n3", Peer(0, b"y"))):
            hello = say.Hello(say.PROTOCOL, "1", node, node, "b", 4, 1, 0, {}, (), False, 0.0, over, home="p2")
            server.receive(AgentMessage(peer, hello, lambda _: ""))
        server.cluster.members.borrow("n9", "p3", 4, 0.0)
        hello = say.Hello(say.PROTOCOL, "1", "n9", "n9", "b", 4, 1, 0, {}, (), False, 0.0, (), home="p2")
        server.receive(AgentMessage(Peer(0, b"z"), hello, lambda _: ""))
        assert refused.pop() == "home partition p2 does not have node n9 now: its agent tries again."
        assert refused == [
            f"node {node} has job 100000001 of another home partition: start its agent there until that has ended."
            for node in ("n2", "n3")
        ]


def test_a_home_partition_that_was_adopted_is_told_with_its_scheduler() -> None:
    """One without a scheduler has no figures."""
    about = {"nodes": 2, "up": 1, "cores": 4, "held": 4, "running": 1, "waiting": 0}
    rows = [
        {"home": "p1", "led_by": "s1", "leader_home": "p1", **about},
        {"home": "p2", "led_by": "s1", "leader_home": "p1", **about},
        {"home": "p3", "led_by": None, "leader_home": None},
    ]
    assert [line.split()[1:5] for line in tables.homes({"homes": rows})[1:]] == [
        ["s1", "2", "1", "4"],
        ["s1", "(of", "p1)", "2"],
        ["-", "-", "-", "-"],
    ]
