# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.control.access import Operators
from drom.agent.errors import ControlError
from drom.agent.model.caller import Caller
from drom.agent.model.jobs import Arrival, Bind, Publish
from drom.agent.model.layouts import ANY, Layout
from drom.agent.node.orders import Attach, Order, Release, Resize, Set, apply, check_right, parse, told
from drom.agent.policy.site_rules import SiteRules

from tests.support.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from drom.agent.node.node import Node

AGENT, ALICE, BOB = 500, 1, 2
MASTERS = Operators(AGENT)
"""The user of the agent, and two others."""


@pytest.fixture
def node() -> Node:
    """Return four cores, all of them Alice's job a's."""
    node = make_node(MACHINES[1])
    node.arrive(Arrival(100, 1, ALICE, "a"), 0.0)
    return node


def order(name: str, **fields: Any) -> dict[str, Any]:
    """Return an order as it comes from the socket."""
    return {"protocol": 1, "order": name, **fields}


class TestParsing:
    """What orders say."""

    @pytest.mark.parametrize(
        ("given", "read"),
        [
            (order("resize", job="a", cpus=2), Resize("a", 2, None)),
            (order("resize", job="a", cpus=None), Resize("a", None, None)),
            (order("resize", job="a", cpus=2, **{"for": 90}), Resize("a", 2, 90.0)),
            (order("set", job="a", cpus="1-2"), Set("a", 0b110)),
            (order("release", job="100"), Release("100")),
            (order("attach", pid=7), Attach(7, "", "malleable", 0, 0, Layout(), 0)),
            (
                order("attach", pid=7, job="x\ny", cpus=4, min=2, distribution="compact!", mem=5, **{"class": "rigid"}),
                Attach(7, "x_y", "rigid", 2, 4, Layout("compact", strict=True), 5),
            ),
        ],
    )
    def test_what_is_right_is_read(self, given: dict[str, Any], read: object) -> None:
        """Each order becomes a value."""
        assert parse(given) == read

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            (order("dance"), "has no order 'dance'"),
            (order("\ud800" * 99), "has no order"),
            (order("resize", job="a"), "resize takes a job name, and `auto` or a positive number"),
            (order("resize", job="a", cpus=True), "resize takes a job name, and `auto` or a positive number"),
            (
                order("resize", job="a", cpus=1 << 70),
                "resize takes a job name, and `auto` or a positive number of CPUs, at most 1048576.",
            ),
            (order("resize", job="", cpus=1), "resize takes a job name, and `auto` or a positive number"),
            (order("resize", job=7, cpus=1), "resize takes a job name, and `auto` or a positive number"),
            (order("resize", job="a", cpus=1, **{"for": math.inf}), "--for takes seconds"),
            (order("resize", job="a", cpus=1, **{"for": math.nan}), "--for takes seconds"),
            (order("resize", job="a", cpus=1, **{"for": -1}), "--for takes seconds"),
            (order("resize", job="a", cpus=1, **{"for": True}), "--for takes seconds"),
            (order("resize", job="a", cpus=None, **{"for": 9}), "`auto` has no end"),
            (order("set", job="a"), "set takes a job name or pid"),
            (order("set", cpus="1"), "set takes a job name or pid"),
            (order("set", job="a", cpus="x"), "'x' is not a CPU number"),
            (order("release"), "release takes a job name or pid"),
            (order("attach"), "attach takes the pid of a process"),
            (order("attach", pid=-1), "attach takes the pid of a process"),
            (order("attach", pid="7"), "attach takes the pid of a process"),
            (order("attach", pid=7, job=7), "a job's name and a distribution as text"),
            (order("attach", pid=7, distribution=["compact"]), "a job's name and a distribution as text"),
            (order("attach", pid=7, distribution="round"), "'round' is not a distribution"),
            (order("attach", pid=7, **{"class": ["rigid"]}), "is not a class"),
            (order("attach", pid=7, cpus=0), "--cpus takes a positive number"),
            (order("attach", pid=7, min=1.5), "--min takes a positive number"),
            (order("attach", pid=7, mem=1 << 63), "--mem takes a size in bytes"),
        ],
    )
    def test_what_is_wrong_is_one_sentence(self, given: dict[str, Any], sentence: str) -> None:
        """Forged, huge and odd orders are refused in words."""
        with pytest.raises(ControlError, match=sentence) as refusal:
            parse(given)

        text = str(refusal.value)
        assert text.endswith(".")
        assert len(text) < 200
        assert "\n" not in text

    def test_a_name_fits_a_slot(self) -> None:
        """An attached job's name is as long as the registry keeps, cut between characters."""
        read = parse(order("attach", pid=7, job="\N{SNOWMAN}" * 99))

        assert isinstance(read, Attach)
        assert read.job == "\N{SNOWMAN}" * 21


class TestTelling:
    """What the log says of an order."""

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (Resize("a", 2, 60.0), {"job": "a", "cpus": 2, "for": 60.0}),
            (Resize("a\n" + "b" * 60_000, None, None), {"job": "a_" + "b" * 61}),
            (Set("7" * 60_000, 0b1011), {"job": "7" * 63, "cpus": "0-1,3"}),
            (Attach(7, "", "malleable", 0, 0, ANY, 0), {"pid": 7}),
            (Attach(7, "b", "malleable", 1, 4, ANY, 0), {"pid": 7, "job": "b", "cpus": 4}),
            (Release("b" * 60_000), {"job": "b" * 63}),
        ],
    )
    def test_only_what_an_order_means_is_told(self, given: Order, said: dict[str, object]) -> None:
        """No field that it does not have, and names that are no longer than those of jobs."""
        assert told(given) == said


class TestRights:
    """Who may order what."""

    def check(self, node: Node, uid: int, given: dict[str, Any]) -> None:
        """Check the right of user `uid` to an order."""
        caller = Caller(1, uid)
        check_right(parse(given), caller, node, master=MASTERS.include(caller), masters=MASTERS.described)

    @pytest.mark.parametrize("uid", [0, AGENT])
    def test_root_and_the_agents_user_may_all(self, node: Node, uid: int) -> None:
        """They order whatever belongs to anybody."""
        self.check(node, uid, order("set", job="a", cpus="1"))
        self.check(node, uid, order("resize", job="a", cpus=9))
        self.check(node, uid, order("release", job="a"))

    def test_others_may_shrink_and_release_what_is_theirs(self, node: Node) -> None:
        """A user's own job may be held at fewer CPUs than it has, and released."""
        self.check(node, ALICE, order("resize", job="a", cpus=3))
        self.check(node, ALICE, order("release", job="a"))
        self.check(node, ALICE, order("release", job="100"))

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            (order("resize", job="a", cpus=1), "job a belongs to another user"),
            (order("resize", job="a", cpus=None), "job a belongs to another user"),
            (order("set", job="100", cpus="1"), "job a belongs to another user"),
            (order("release", job="a"), "job a belongs to another user"),
            (order("release", job="b"), "there is no job or pid b"),
        ],
    )
    def test_nobody_else_touches_a_job(self, node: Node, given: dict[str, Any], sentence: str) -> None:
        """Another user's jobs are out of reach."""
        with pytest.raises(ControlError, match=sentence):
            self.check(node, BOB, given)

    def test_nobody_orders_more_for_himself(self, node: Node) -> None:
        """Neither more CPUs than the job has, nor particular ones."""
        apply(Resize("a", 2, None), node, 0.0, ALICE)

        with pytest.raises(ControlError, match=r"^job a has 2 CPUs: only root and the agent's own user may order more"):
            self.check(node, ALICE, order("resize", job="a", cpus=3))
        with pytest.raises(ControlError, match=r"^only root and the agent's own user may choose CPUs"):
            self.check(node, ALICE, order("set", job="a", cpus="0"))

    def test_nobody_insists_by_an_order_on_more_than_may_be_insisted_on(self, node: Node) -> None:
        """An order holds a job against others: a user's own holds no more than --min could, or than its minimum."""
        node.plan.rules = SiteRules(max_min=3)
        self.check(node, ALICE, order("resize", job="a", cpus=3))
        with pytest.raises(ControlError, match=r"^a job may insist on 3 CPUs here \(max_min\): only root"):
            self.check(node, ALICE, order("resize", job="a", cpus=4))
        self.check(node, 0, order("resize", job="a", cpus=4))

    def test_an_order_is_ended_by_who_gave_it(self, node: Node) -> None:
        """A user lets his own order go, but not an admin's."""
        apply(Resize("a", 2, None), node, 0.0, ALICE)
        self.check(node, ALICE, order("resize", job="a", cpus=None))
        apply(Set("a", 0b11), node, 1.0, 0)

        with pytest.raises(ControlError, match=r"^job a is under an order of another user"):
            self.check(node, ALICE, order("resize", job="a", cpus=None))
        with pytest.raises(ControlError, match=r"^job a is under an order of another user"):
            self.check(node, ALICE, order("resize", job="a", cpus=1))

    @pytest.mark.parametrize(
        ("uid", "given"),
        [
            (BOB, order("release", job="a")),
            (ALICE, order("resize", job="a", cpus=5)),
            (ALICE, order("resize", job="a", cpus=None)),
            (ALICE, order("set", job="a", cpus="0")),
        ],
    )
    def test_a_refusal_names_the_group_that_may_as_well(self, node: Node, uid: int, given: dict[str, Any]) -> None:
        """Where masters have a group, each sentence about who may says so."""
        who = "root, the agent's own user and members of the group ops"
        apply(Resize("a", 2, None), node, 0.0, 0)

        with pytest.raises(ControlError, match=rf"only {who} may "):
            check_right(parse(given), Caller(1, uid), node, master=False, masters=Operators(AGENT, 77, "ops").described)


class TestMeaning:
    """What orders do to the node."""

    def test_resize_holds_a_job_at_a_number(self, node: Node) -> None:
        """A resize leads to a grant of that many CPUs, and `null` lets the job go again."""
        actions = apply(Resize("a", 2, None), node, 0.0, 0)

        assert [type(action) for action in actions] == [Publish, Bind]
        assert (node.jobs["a"].cores, node.jobs["a"].hold_by) == (2, 0)
        node.grants.bound(0, node.tasks[0].epoch, 0.0)
        apply(Resize("a", None, None), node, 1.0, 0)
        assert (node.jobs["a"].cores, node.jobs["a"].hold_by) == (4, None)

    def test_a_resize_for_a_time_ends_by_itself(self, node: Node) -> None:
        """At its time the job is let go as by `auto`, and the reason of the change is known."""
        apply(Resize("a", 2, 60.0), node, 10.0, 0)
        node.grants.bound(0, node.tasks[0].epoch, 11.0)

        assert node.next_deadline() == 70.0
        assert node.tick(69.9) == []
        assert [type(action) for action in node.tick(70.0)] == [Publish, Bind]
        job = node.jobs["a"]
        assert (job.cores, job.hold, job.hold_until) == (4, None, None)
        assert job.last
        assert (job.last.event.kind, job.last.before) == ("expiry", 0b11)

    @pytest.mark.parametrize("what", ["a", "100"])
    def test_set_names_a_job_or_a_pid(self, node: Node, what: str) -> None:
        """A set gives the task just these CPUs."""
        apply(Set(what, 0b110), node, 0.0, 0)

        assert node.plan.target(node.tasks[0]) == 0b110

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            (Resize("b", 1, None), "there is no job b"),
            (Resize("a", 5, None), "job a can have 1 to 4 CPUs, not 5"),
            (Set("a", 1 << 9), "not managed here"),
            (Set("99", 1), "there is no job or pid 99"),
            (Release("99"), "there is no job or pid 99"),
        ],
    )
    def test_what_cannot_be_changes_nothing(self, node: Node, given: Resize | Set | Release, sentence: str) -> None:
        """Impossible orders are refused with a reason, and the plan stays."""
        with pytest.raises(ControlError, match=sentence):
            apply(given, node, 0.0, 0)

        assert node.plan.target(node.tasks[0]) == 0b1111

    def test_a_job_of_several_tasks_is_set_by_pid(self, node: Node) -> None:
        """A name that stands for two tasks does not say whose CPUs are meant."""
        node.ended(0, 0.0)
        for rank in (0, 1):
            node.arrive(Arrival(200 + rank, 1, 1, "m", session=7, rank=rank, size=2), 0.0)

        with pytest.raises(ControlError, match="has 2 tasks: name one by its pid"):
            apply(Set("m", 1), node, 0.0, 0)

    def test_a_release_hands_out_the_cores(self, node: Node) -> None:
        """The job is gone from the plan at once, and who waited for its cores has them."""
        apply(Resize("a", 4, None), node, 0.0, 0)
        node.arrive(Arrival(200, 1, BOB, "b"), 1.0)
        apply(Release("a"), node, 2.0, 0)

        assert (list(node.jobs), node.jobs["b"].cores) == (["b"], 4)

    def test_a_launcher_that_waits_is_not_released(self, node: Node) -> None:
        """A released launcher would wait for ever: there is no affinity to give back."""
        apply(Resize("a", 4, None), node, 0.0, 0)
        node.arrive(Arrival(200, 1, BOB, "b"), 1.0)

        with pytest.raises(ControlError, match="job b still waits for its first cores"):
            apply(Release("b"), node, 2.0, 0)

    @pytest.mark.parametrize("given", [Resize("a", 2, None), Resize("a", None, None), Set("a", 1), Release("a")])
    def test_nothing_is_ordered_of_a_frozen_node(self, node: Node, given: Resize | Set | Release) -> None:
        """The kill switch stands above orders."""
        node.freeze(0.0, "/run/freeze")

        with pytest.raises(ControlError, match=r"^the node is frozen: remove /run/freeze first\.$"):
            apply(given, node, 0.0, 0)
