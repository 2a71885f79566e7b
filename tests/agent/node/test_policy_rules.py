# SPDX-License-Identifier: Apache-2.0
"""The rules of a node, one test each: who gets how many cores, who waits and for what, who is left alone and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.bench.simulated_day import restarted
from drom.agent.errors import Refused
from drom.agent.model.jobs import Publish
from drom.agent.node.admission import waiting_jobs
from drom.agent.node.areas import areas
from drom.agent.node.sharing import equal_share
from drom.agent.policy.fair_share import minimum_gain
from drom.agent.policy.site_rules import SiteRules
from drom.agent.text import in_words

from tests.agent.node.test_node import EIGHT, Stage
from tests.support.nodes import MACHINES

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task

GIB = 1 << 30


def node(cores: list[int] = EIGHT, *, memory: int = 0, **rules: Any) -> Stage:
    """Return a node of eight cores with these rules."""
    return Stage(cores, rules=SiteRules(**rules), memory=memory)


def waits(stage: Stage) -> dict[str, str]:
    """Return why each waiting job waits."""
    return {job.name: job.waits_for for job in stage.node.jobs.values() if job.waits_for}


def arrive(stage: Stage, job: str, **fields: Any) -> Task:
    """Let a program arrive and everybody follow."""
    task = stage.arrive(job, **fields)
    stage.settle()
    return task


HYBRID = [0b11, 0b1100, *(1 << cpu for cpu in range(4, 8))]
"""Two cores of two threads, four of one."""


class TestCoresThatDiffer:
    """Minima hold whichever cores a job gets, and orders as far as minima allow."""

    def test_a_minimum_is_one_of_cpus(self) -> None:
        """Two narrow cores are not enough for four CPUs."""
        stage = node(HYBRID, sharing_factor=1.0)
        arrive(stage, "a", min_cpus=4, max_cpus=4)
        arrive(stage, "b", uid=2)
        arrive(stage, "c", uid=3)

        assert stage.node.jobs["a"].planned.bit_count() >= 4
        assert stage.node.jobs["a"].task_min == 4

    def test_a_cap_on_minima_is_one_of_cpus(self) -> None:
        """What may be insisted on does not depend on how many cores that takes."""
        assert arrive(node(HYBRID, max_min=4), "a", min_cpus=4).granted == 0xFF
        with pytest.raises(Refused, match=r"a job may insist on at most 4 on this node"):
            node(HYBRID, max_min=4).arrive("a", min_cpus=5)

    def test_a_rigid_job_has_what_it_asks_for(self) -> None:
        """At least."""
        assert arrive(node(HYBRID), "a", job_class="rigid", max_cpus=4).granted.bit_count() >= 4

    @pytest.mark.parametrize("job_class", ["malleable", "moldable"])
    def test_a_maximum_is_as_many_cores_as_always_have_the_cpus(self, job_class: str) -> None:
        """A job that asks for four CPUs and may have less gets four where it gets cores of one CPU."""
        stage = node(HYBRID)
        task = arrive(stage, "a", job_class=job_class, max_cpus=4)

        assert stage.node.jobs["a"].task_max == 4
        assert task.granted.bit_count() >= 4

    def test_all_cpus_may_be_insisted_on_and_no_more(self) -> None:
        """The sentence counts the CPUs that were asked for, and those there are."""
        assert arrive(node(HYBRID), "a", min_cpus=8).granted == 0xFF
        with pytest.raises(Refused, match=r"^it needs at least 9 CPUs, this node has 8: ask for fewer\.$"):
            node(HYBRID).arrive("a", min_cpus=9)

    def test_tasks_get_equal_parts_where_cores_do_not_suffice(self) -> None:
        """Twice four of eight CPUs are three cores each."""
        stage = node(HYBRID)
        stage.arrive("a", session=9, size=2, min_cpus=4)

        assert stage.node.jobs["a"].task_min == 3

    def test_an_order_for_the_minimum_is_obeyed(self) -> None:
        """Though as many CPUs could be had on fewer cores."""
        stage = node(HYBRID)
        arrive(stage, "a", min_cpus=4)
        stage.node.resize("a", 4, 50.0)
        stage.settle()

        assert stage.node.jobs["a"].hold == 4


class TestEqualShares:
    """Cores are shared equally among users, then among each user's jobs."""

    def test_users_come_before_jobs(self) -> None:
        """A user's second job takes from the first, not from the other user."""
        stage = node(sharing_factor=1.0)
        arrive(stage, "a", uid=1)
        arrive(stage, "b", uid=2)
        arrive(stage, "c", uid=1)

        assert stage.counts == {"a": 2, "b": 4, "c": 2}

    def test_nobody_goes_below_the_minimum(self) -> None:
        """A job that insists on six of eight cores keeps them beside any number of others."""
        stage = node(sharing_factor=1.0)
        arrive(stage, "a", min_cpus=6)
        arrive(stage, "b")
        arrive(stage, "c", uid=2)

        assert stage.counts == {"a": 6, "b": 1, "c": 1}

    def test_one_arrival_takes_no_more_than_the_sharing_factor(self) -> None:
        """A quarter of a running job's cores may go to one arrival."""
        stage = node(sharing_factor=0.25)
        arrive(stage, "a")
        arrive(stage, "b")

        assert stage.counts == {"a": 6, "b": 2}


class TestUserCap:
    """What all jobs of one user may have together."""

    def test_a_cap_holds_on_an_idle_node(self) -> None:
        """The cap is a limit, not a share: the rest stays free for others."""
        stage = node(max_cpus_per_user=5)
        arrive(stage, "a")

        assert stage.counts == {"a": 5}
        arrive(stage, "b", uid=2)
        assert stage.counts == {"a": 4, "b": 4}

    def test_beyond_it_a_users_jobs_share_among_themselves(self) -> None:
        """A second job of a user at the cap takes from the first one, though cores are free."""
        stage = node(max_cpus_per_user=4)
        arrive(stage, "a")
        arrive(stage, "b")

        assert stage.counts == {"a": 2, "b": 2}

    def test_growth_stops_at_it(self) -> None:
        """Cores that come free do not take a user above the cap."""
        stage = node(max_cpus_per_user=4)
        arrive(stage, "a", uid=1)
        other = arrive(stage, "b", uid=2)
        stage.end(other)

        assert stage.counts == {"a": 4}

    def test_a_job_beyond_it_waits_and_is_told(self) -> None:
        """A minimum that its user's other jobs leave no room for waits for them."""
        stage = node(max_cpus_per_user=4)
        first = arrive(stage, "a", job_class="rigid", max_cpus=3)
        arrive(stage, "b", min_cpus=2)

        assert waits(stage) == {"b": "needs at least 2 CPUs: its user's jobs may have 4 CPUs together."}
        stage.end(first)
        assert stage.counts == {"b": 4}

    def test_who_waits_for_it_holds_up_no_other_user(self) -> None:
        """Other users' jobs go past; later jobs of the same user stay behind."""
        stage = node(max_cpus_per_user=4)
        arrive(stage, "a", job_class="rigid", max_cpus=3)
        arrive(stage, "b", min_cpus=2)
        arrive(stage, "c", uid=2, max_cpus=2)
        arrive(stage, "d", max_cpus=1)

        assert stage.counts == {"a": 3, "b": 0, "c": 2, "d": 0}
        assert waits(stage)["d"] == "others arrived before it."

    def test_a_minimum_above_it_is_refused(self) -> None:
        """What can never be is said at once."""
        stage = node(max_cpus_per_user=4)

        with pytest.raises(
            Refused,
            match=r"^this needs 5 CPUs, the jobs of one user get at most 4 on this node: ask for fewer\.$",
        ):
            stage.arrive("a", min_cpus=5)

    def test_an_order_may_exceed_it(self) -> None:
        """An admin's word counts for more than a site's habit, until it is taken back."""
        stage = node(max_cpus_per_user=4)
        arrive(stage, "a")
        stage.resize("a", 7)

        assert stage.counts == {"a": 7}
        stage.resize("a", None)
        assert stage.counts == {"a": 4}

    def test_a_cap_counts_cpus(self) -> None:
        """On cores of two threads a cap of five CPUs is two cores."""
        stage = node(MACHINES[3], max_cpus_per_user=5)

        assert arrive(stage, "a").granted.bit_count() == 4


class TestSiteCaps:
    """What a site lets nobody insist on."""

    def test_a_minimum_above_the_cap_is_refused(self) -> None:
        """The sentence says the cap and what to do."""
        stage = node(max_min=2)

        with pytest.raises(
            Refused,
            match=r"^this needs 3 CPUs, a job may insist on at most 2 .*: ask for a smaller --min",
        ):
            stage.arrive("a", min_cpus=3)
        assert arrive(stage, "b", min_cpus=2).granted == 0xFF

    def test_the_minimum_is_that_of_all_tasks(self) -> None:
        """Three tasks need three cores, whatever they say."""
        with pytest.raises(Refused, match=r"fewer tasks\.$"):
            node(max_min=2).arrive("a", session=9, size=3)

    def test_a_rigid_request_above_the_cap_is_refused(self) -> None:
        """The sentence says that a malleable job may be larger."""
        stage = node(max_rigid=4)

        with pytest.raises(
            Refused, match=r"^this needs 5 CPUs, a rigid job gets at most 4 .*, or let it be malleable\.$"
        ):
            stage.arrive("a", job_class="rigid", max_cpus=5)
        assert arrive(stage, "b").granted == 0xFF

    def test_a_rigid_job_that_names_no_number_gets_what_the_cap_allows(self) -> None:
        """All of the node means all that a site gives a rigid job."""
        stage = node(max_rigid=4)

        assert arrive(stage, "a", job_class="rigid").granted.bit_count() == 4

    def test_a_moldable_job_starts_within_the_cap(self) -> None:
        """A moldable job keeps the size that it starts with, so this is bounded by the cap."""
        stage = node(max_rigid=4)

        assert arrive(stage, "a", job_class="moldable").granted.bit_count() == 4


class TestMemory:
    """Declared memory decides who may start beside whom."""

    def test_what_does_not_fit_beside_the_running_waits(self) -> None:
        """Memory is not shared out: the second job waits until the first one's is free again."""
        stage = node(memory=16 * GIB)
        a = arrive(stage, "a", memory=12 * GIB)
        arrive(stage, "b", memory=5 * GIB)

        assert waits(stage) == {"b": "needs 5 GiB of memory: running jobs leave 4 GiB of 16 GiB."}
        stage.end(a)
        assert stage.counts == {"b": 8}

    def test_memory_counts_for_every_task(self) -> None:
        """Two tasks of six are twelve."""
        stage = node(memory=16 * GIB)
        arrive(stage, "mpi", session=9, size=2, memory=6 * GIB)
        arrive(stage, "b", memory=5 * GIB)

        assert list(waits(stage)) == ["b"]

    def test_tasks_that_never_came_need_none(self) -> None:
        """When a place is given up its memory is free."""
        stage = node(memory=16 * GIB)
        arrive(stage, "mpi", session=9, size=2, memory=6 * GIB)
        arrive(stage, "b", memory=5 * GIB)
        stage.tick(2.0)

        assert waits(stage) == {}

    def test_more_than_the_node_has_is_refused(self) -> None:
        """What can never be is said at once."""
        with pytest.raises(
            Refused, match=r"^this needs 20 GiB of memory, this node has 16 GiB: declare less with --mem\.$"
        ):
            node(memory=16 * GIB).arrive("a", memory=10 * GIB, session=9, size=2)

    def test_on_a_node_of_unknown_memory_nothing_is_asked(self) -> None:
        """Without a total there is no rule."""
        stage = node()
        arrive(stage, "a", memory=12 * GIB)
        arrive(stage, "b", memory=12 * GIB)

        assert stage.counts == {"a": 4, "b": 4}

    def test_who_waits_for_it_holds_up_only_who_wants_some(self) -> None:
        """A job that declares none goes past; one that does would make the first wait for ever."""
        stage = node(memory=16 * GIB)
        arrive(stage, "a", memory=12 * GIB)
        arrive(stage, "b", memory=5 * GIB)
        arrive(stage, "c", max_cpus=1)
        arrive(stage, "d", memory=1 * GIB)

        assert stage.counts == {"a": 7, "b": 0, "c": 1, "d": 0}
        assert waits(stage)["d"] == "others arrived before it."

    @pytest.mark.parametrize(
        ("size", "text"), [(12, "12 bytes"), (1536, "1.5 KiB"), (GIB // 2, "512 MiB"), (3 << 40, "3072 GiB")]
    )
    def test_sizes_are_told_in_round_numbers(self, size: int, text: str) -> None:
        """A size is said in the largest unit below it."""
        assert in_words(size) == text


class TestWaiting:
    """Shared between users as running is; each user's jobs in the order of arrival."""

    def test_who_has_least_is_next(self) -> None:
        """Of twenty tasks of one user on two cores those that run end one by one: another user's first is next."""
        stage = node(MACHINES[0])
        tasks = [arrive(stage, f"a{n}", uid=1) for n in range(20)]
        arrive(stage, "b", uid=2)
        queue = [job.name for job in waiting_jobs(*areas(stage.node.plan))]
        said = stage.node.grants.why_waiting(tasks[2])

        assert queue == ["b", *(f"a{n}" for n in range(2, 20))]
        assert stage.node.jobs["b"].waits_for == "needs at least 1 CPU: 0 free, running jobs may lend 0."
        assert said == "users who have fewer CPUs come first."
        stage.end(tasks[0])
        assert {name for name, cores in stage.counts.items() if cores} == {"a1", "b"}

    def test_users_take_turns(self) -> None:
        """Two users who want all of a node for long have half of it each, whoever came first."""
        stage = node(MACHINES[1])
        names = [(uid, f"{name}{n}") for uid, name in enumerate("ab") for n in range(8)]
        tasks = {name: arrive(stage, name, uid=uid, max_cpus=1) for uid, name in names}
        for name in [f"a{n}" for n in range(4)]:
            stage.end(tasks[name])
            running = [job.user for job in stage.node.jobs.values() if job.cores]
            assert len(running) == 4
        assert sorted(running) == [0, 0, 1, 1]

    def test_who_has_least_is_overtaken_by_nobody_either(self) -> None:
        """A job that needs more than is free, of a user who has nothing, keeps others from what comes free."""
        stage = node(MACHINES[1])
        tasks = [arrive(stage, f"a{n}", uid=1, max_cpus=1) for n in range(6)]
        arrive(stage, "b", uid=2, job_class="rigid", max_cpus=2)
        stage.end(tasks[0])

        assert stage.counts["a4"] == stage.counts["b"] == 0
        assert stage.node.grants.why_waiting(tasks[4]) == "users who have fewer CPUs come first."
        assert stage.node.grants.why_waiting(tasks[5]) == "users who have fewer CPUs come first."
        stage.end(tasks[1])
        assert stage.counts["b"] == 2

    def test_who_stands_behind_an_equal_is_told_so(self) -> None:
        """The second job of a user who has nothing comes after the first one of another who has nothing either."""
        stage = node(memory=GIB)
        arrive(stage, "r", uid=3, job_class="rigid", max_cpus=7, memory=GIB)
        for name, uid, memory in (("a", 1, GIB), ("b", 1, 0), ("c", 2, 0)):
            arrive(stage, name, uid=uid, job_class="rigid", max_cpus=2, memory=memory)

        assert [job.name for job in waiting_jobs(*areas(stage.node.plan))] == ["a", "c", "b"]
        assert waits(stage)["b"] == "users take turns: a job of another user is next."

    @pytest.mark.parametrize("cores", [3, 8, 64])
    def test_something_is_left_to_lend_to_a_user_who_has_nothing(self, cores: int) -> None:
        """However many tasks without end one user has, a core less of them run, on all cores, and a newcomer starts."""
        stage = node([1 << cpu for cpu in range(cores)], spare_for_newcomers=1)
        tasks = [arrive(stage, f"a{n}", uid=1) for n in range(cores + 5)]

        counts = stage.counts
        assert sum(counts.values()) == cores
        assert sum(map(bool, counts.values())) == cores - 1
        assert stage.node.grants.why_waiting(tasks[cores - 1]) == (
            "the last CPUs that running jobs can lend are kept for users without running jobs."
        )
        arrive(stage, "b", uid=2)
        assert stage.counts["b"] == 1

    def test_a_second_job_of_a_user_takes_what_it_can(self) -> None:
        """Two jobs of one user share two cores, and a third waits for one of them."""
        stage = node(MACHINES[0], spare_for_newcomers=1)
        for name in "abc":
            arrive(stage, name, uid=1)

        assert stage.counts == {"a": 1, "b": 1, "c": 0}

    def test_free_cores_are_left_idle_for_nobody(self) -> None:
        """One user alone fills the node with jobs of one core, and so do root and the agent's own user with any."""
        stage = node(spare_for_newcomers=1)
        for n in range(8):
            arrive(stage, f"a{n}", uid=1, max_cpus=1)
        assert stage.counts == {f"a{n}": 1 for n in range(8)}
        stage = node(spare_for_newcomers=1, free=frozenset({0}))
        for n in range(8):
            arrive(stage, f"a{n}", uid=0)
        assert stage.counts == {f"a{n}": 1 for n in range(8)}

    def test_nobody_goes_past_a_job_that_waits_for_cores(self) -> None:
        """A later job that would fit takes what the first one waits for, so it stays behind."""
        stage = node()
        arrive(stage, "a", job_class="rigid", max_cpus=6)
        arrive(stage, "b", job_class="rigid", max_cpus=4, uid=2)
        arrive(stage, "c", max_cpus=1, uid=3)

        assert waits(stage) == {
            "b": "needs at least 4 CPUs: 2 free, running jobs may lend 0.",
            "c": "others arrived before it.",
        }


class TestBesideJobsThatKeepTheirs:
    """What rigid jobs have, and what minima need, is kept; the rest is shared equally."""

    def test_a_newcomer_shares_what_a_rigid_job_leaves(self) -> None:
        """Beside a rigid job with half of the node two others have a quarter each, whoever came first."""
        stage = node([1 << cpu for cpu in range(100)])
        arrive(stage, "a")
        arrive(stage, "d", job_class="rigid", max_cpus=50)
        arrive(stage, "b")

        assert stage.counts == {"a": 25, "d": 50, "b": 25}

    def test_a_newcomer_shares_what_a_large_minimum_leaves(self) -> None:
        """A malleable job that insists on half of the node is no different."""
        stage = node([1 << cpu for cpu in range(100)])
        arrive(stage, "a")
        arrive(stage, "d", min_cpus=50, max_cpus=50)
        arrive(stage, "b")

        assert stage.counts == {"a": 25, "d": 50, "b": 25}

    def test_a_rigid_job_counts_for_its_user(self) -> None:
        """What the rigid job of a user has is of that user's part: others have half of the node."""
        stage = node([1 << cpu for cpu in range(100)])
        arrive(stage, "d", uid=1, job_class="rigid", max_cpus=30)
        arrive(stage, "a", uid=1)
        arrive(stage, "b", uid=2)

        assert equal_share(stage.node.plan, stage.node.jobs["b"]) == 50
        assert equal_share(stage.node.plan, stage.node.jobs["a"]) == 20


class TestWholeJobs:
    """All tasks of a job are laid out when the first one comes."""

    def test_the_first_task_brings_places_for_all(self) -> None:
        """The others start at once when they come, and nobody moves for them."""
        stage = node()
        first = arrive(stage, "mpi", session=9, size=4)

        assert stage.counts == {"mpi": 8}
        assert first.granted.bit_count() == 2
        others = [arrive(stage, "mpi", session=9, size=4, rank=rank) for rank in (3, 1, 2)]
        assert all(task.started and task.epoch == 1 for task in (first, *others))

    def test_a_job_waits_for_room_for_all_its_tasks(self) -> None:
        """None of four tasks starts while three cores are to be had."""
        stage = node()
        arrive(stage, "a", job_class="rigid", max_cpus=5)
        first = arrive(stage, "mpi", session=9, size=4)

        assert not first.started

    def test_places_are_kept_for_a_while_and_then_dropped(self) -> None:
        """A task that never comes leaves its cores to those who can use them."""
        stage = node()
        arrive(stage, "mpi", session=9, size=2, max_cpus=8)
        arrive(stage, "b", max_cpus=1)

        assert stage.node.next_deadline() == 2.0
        stage.tick(2.0)
        stage.settle()
        assert stage.counts == {"mpi": 7, "b": 1}


class TestResidence:
    """A job that was resized does not grow again for a while, so that short guests do not tug at it."""

    @pytest.fixture
    def stage(self) -> Stage:
        """Return a node on which a resized job rests for ten seconds, with one job that has all of it."""
        stage = node(residence=10.0)
        arrive(stage, "a")
        return stage

    def test_what_a_short_guest_leaves_waits_for_its_owner(self, stage: Stage) -> None:
        """The cores are not handed to and fro: they come back when the owner has rested, by the clock alone."""
        guest = arrive(stage, "b")
        stage.tick(2.0)
        stage.end(guest)

        assert stage.counts == {"a": 4}
        assert stage.node.next_deadline() == 10.0
        stage.tick(8.0)
        stage.settle()
        assert stage.counts == {"a": 8}

    def test_the_next_guest_takes_them_and_disturbs_nobody(self, stage: Stage) -> None:
        """A stream of short guests leads to one shrink."""
        epochs = stage.node.tasks[0].epoch
        for _ in range(5):
            stage.end(arrive(stage, "b"))

        assert stage.counts == {"a": 4}
        assert stage.node.tasks[0].epoch == epochs + 1

    def test_another_job_does_not_grow_into_what_its_owner_waits_for(self, stage: Stage) -> None:
        """Who rests loses nothing by it."""
        b = arrive(stage, "b", max_cpus=2)
        arrive(stage, "c", max_cpus=2)
        stage.resize("c", 1)
        stage.end(b)

        assert stage.counts == {"a": 4, "c": 1}
        stage.tick(10.0)
        assert stage.counts == {"a": 7, "c": 1}

    def test_after_a_long_guest_the_owner_has_rested(self, stage: Stage) -> None:
        """Rest is counted from the resize, not from when cores come free."""
        guest = arrive(stage, "b")
        stage.tick(60.0)
        stage.end(guest)

        assert stage.counts == {"a": 8}

    def test_an_arrival_is_served_at_once(self, stage: Stage) -> None:
        """Rest is from growth alone: a job shrinks for every arrival's share, however lately it was resized."""
        arrive(stage, "b", uid=2)
        arrive(stage, "c", uid=3)

        assert stage.counts == {"a": 3, "b": 3, "c": 2}

    def test_an_order_is_obeyed_at_once(self, stage: Stage) -> None:
        """Who orders does not wait."""
        stage.end(arrive(stage, "b"))
        stage.resize("a", 7)

        assert stage.counts == {"a": 7}
        stage.resize("a", None)
        assert stage.counts == {"a": 8}

    def test_a_job_that_was_not_resized_grows_at_once(self, stage: Stage) -> None:
        """Nobody's cores idle because of somebody else's rest."""
        b = arrive(stage, "b", uid=2)
        stage.end(stage.node.tasks[0])

        assert (stage.counts, b.epoch) == ({"b": 8}, 2)

    def test_a_new_agent_lets_everybody_rest(self, stage: Stage) -> None:
        """A restart is no reason to resize anybody."""
        guest = arrive(stage, "b")
        stage.end(guest)
        new, actions = restarted(stage.node, 5.0)

        assert actions == []
        assert new.next_deadline() == 15.0
        new.tick(15.0)
        assert new.jobs["a"].cores == 8


class TestMargin:
    """A growth that gains little waits whether more comes free."""

    @pytest.fixture
    def stage(self) -> Stage:
        """Return a node where five cores are to gain two at least, or to wait for ten seconds."""
        stage = node(residence=10.0, margin=0.4)
        arrive(stage, "x", job_class="rigid", max_cpus=1)
        arrive(stage, "y", job_class="rigid", max_cpus=1)
        arrive(stage, "z", job_class="rigid", max_cpus=1)
        arrive(stage, "a")
        return stage

    def test_a_small_gain_is_made_when_nothing_more_came(self, stage: Stage) -> None:
        """No core idles for ever."""
        stage.tick(100.0)
        stage.end(stage.node.tasks[0])

        assert stage.counts["a"] == 5
        assert stage.node.next_deadline() == 110.0
        stage.tick(10.0)
        assert stage.counts["a"] == 6
        stage.settle()
        stage.tick(10.0)
        assert stage.node.next_deadline() is None

    def test_a_gain_of_the_margin_is_made_at_once(self, stage: Stage) -> None:
        """Two small gains are one large one."""
        stage.tick(100.0)
        stage.end(stage.node.tasks[0])
        stage.tick(1.0)
        stage.end(stage.node.tasks[1])

        assert stage.counts["a"] == 5
        stage.tick(9.0)
        assert stage.counts["a"] == 7

    def test_the_margin_does_not_concern_owners(self, stage: Stage) -> None:
        """What a job had lent comes back to the core."""
        guest = arrive(stage, "b", max_cpus=1)
        stage.tick(100.0)
        stage.end(guest)

        assert stage.counts["a"] == 5

    @pytest.mark.parametrize(
        ("cores", "margin", "gain"), [(5, 0.0, 1), (5, 0.2, 1), (6, 0.2, 2), (30, 0.1, 3), (31, 0.1, 4), (3, 1.0, 3)]
    )
    def test_the_margin_is_a_part_of_what_the_job_has(self, cores: int, margin: float, gain: int) -> None:
        """The least gain is rounded up to whole cores, at least one."""
        assert minimum_gain(cores, margin) == gain


class TestTimedOrders:
    """An order may end by itself."""

    def test_an_order_ends_by_the_clock(self) -> None:
        """After its time the job has its share again, as if it had been let go."""
        stage = node()
        arrive(stage, "a")
        stage.take(stage.node.resize("a", 2, 0.0, until=600.0))
        stage.settle()

        assert stage.node.next_deadline() == 600.0
        stage.tick(599.0)
        assert stage.counts == {"a": 2}
        stage.tick(1.0)
        stage.settle()
        assert (stage.counts, stage.node.next_deadline()) == ({"a": 8}, None)

    @pytest.mark.parametrize("newer", ["resize", "auto", "pin"])
    def test_a_newer_order_takes_its_place(self, newer: str) -> None:
        """The clock of an order that does not hold any more ends nothing."""
        stage = node()
        a = arrive(stage, "a")
        stage.take(stage.node.resize("a", 2, 0.0, until=600.0))
        stage.settle()
        if newer == "pin":
            stage.pin(a, 0b1110)
        else:
            stage.resize("a", 3 if newer == "resize" else None)
        before = stage.counts

        stage.tick(600.0)

        assert stage.counts == before

    def test_a_timed_order_survives_the_agent(self) -> None:
        """The next agent ends it at its time."""
        stage = node()
        arrive(stage, "a")
        stage.take(stage.node.resize("a", 2, 0.0, until=600.0))
        stage.settle()
        new, _ = restarted(stage.node, 5.0)

        assert new.next_deadline() == 600.0
        new.tick(600.0)
        assert new.jobs["a"].cores == 8


class TestNestedLaunches:
    """A launch from within a task."""

    def within(self, task: Task) -> dict[str, Any]:
        """Return what says that a launch came from this task."""
        return {"within": (task.arrival.pid, task.arrival.start_time), "uid": task.arrival.uid}

    def test_a_launch_never_waits_for_its_own_task(self) -> None:
        """Below a rigid job that has all cores a launch is part of that job."""
        stage = node()
        outer = arrive(stage, "outer", job_class="rigid")
        before = stage.counts

        assert stage.knock("inner", **self.within(outer)) is outer
        assert (stage.actions, stage.counts, len(stage.node.tasks)) == ([], before, 1)

    def test_a_launch_does_not_wait_for_others_either(self) -> None:
        """Its task holds cores meanwhile, which it can use."""
        stage = node()
        outer = arrive(stage, "outer", max_cpus=2)
        arrive(stage, "big", job_class="rigid", max_cpus=8)

        assert stage.knock("inner", **self.within(outer)) is outer

    def test_a_launch_is_a_job_of_its_own_where_there_is_room(self) -> None:
        """What the node can start it starts, beside its task."""
        stage = node()
        outer = arrive(stage, "outer", max_cpus=2)

        assert arrive(stage, "inner", **self.within(outer)).job == "inner"

    @pytest.mark.parametrize("other", [{"uid": 2}, {"within": (4711, 1)}])
    def test_nobody_joins_by_saying_so(self, other: dict[str, Any]) -> None:
        """Another user's task, or one that is not there, is joined by nobody."""
        stage = node()
        outer = arrive(stage, "outer", job_class="rigid")

        assert stage.knock("inner", **{**self.within(outer), **other}) is not outer

    def test_all_tasks_of_a_job_that_would_wait_join(self) -> None:
        """The ranks of an MPI program below a rigid job are part of it."""
        stage = node()
        outer = arrive(stage, "outer", job_class="rigid")
        ranks = [stage.knock("mpi", session=9, size=2, rank=rank, **self.within(outer)) for rank in range(2)]

        assert ranks == [outer, outer]


class TestUsableCores:
    """CPUs that are to be left alone for a while: reserved, taken by programs nobody manages, or out of the cpuset."""

    def use(self, stage: Stage, mask: int) -> None:
        """Hand out these CPUs from now on, and let everybody follow."""
        stage.take(stage.node.set_usable_cpus(mask, stage.now))
        stage.settle()

    def test_jobs_leave_them(self) -> None:
        """A job moves to free cores if there are some, and is told why."""
        stage = node()
        a = arrive(stage, "a", max_cpus=4)
        self.use(stage, 0xFF & ~a.granted)

        assert (a.granted.bit_count(), a.reason) == (4, "avoid")
        assert stage.counts == {"a": 4}

    def test_where_nothing_is_free_the_largest_shrink(self) -> None:
        """Cores that go are missed by who has most, down to the minima."""
        stage = node()
        a = arrive(stage, "a", min_cpus=3)
        b = arrive(stage, "b", max_cpus=2)
        self.use(stage, 0b0111_1100)

        assert stage.counts == {"a": 3, "b": 2}
        assert (a.granted | b.granted) == 0b0111_1100

    def test_what_comes_back_is_handed_out(self) -> None:
        """Jobs grow again as far as they can."""
        stage = node()
        arrive(stage, "a")
        self.use(stage, 0x0F)
        assert stage.counts == {"a": 4}
        self.use(stage, 0xFF)

        assert stage.counts == {"a": 8}

    def test_rigid_and_pinned_jobs_keep_theirs(self) -> None:
        """What may not move stays, with a reason; others are moved around it."""
        stage = node()
        r = arrive(stage, "r", job_class="rigid", max_cpus=2)
        p = arrive(stage, "p", max_cpus=2)
        stage.pin(p, 0b0011 if not r.granted & 0b0011 else 0b1100_0000)
        rigid, pinned = r.granted, p.granted
        a = arrive(stage, "a")
        self.use(stage, 0xFF & ~rigid & ~pinned & ~0b0001_0000)

        assert (r.granted, p.granted) == (rigid, pinned)
        plan, jobs = stage.node.plan, stage.node.jobs
        assert plan.why_kept(jobs["r"]) == "job r is rigid: it keeps its cores until it ends."
        assert "drom resize p auto" in plan.why_kept(jobs["p"])
        assert (a.granted & ~plan.usable, plan.why_kept(jobs["a"])) == (0, "")

    def test_who_would_fall_below_the_minimum_stays_until_there_is_room(self) -> None:
        """The reason says so; when cores come free the job moves off."""
        stage = node()
        a = arrive(stage, "a", min_cpus=5)
        b = arrive(stage, "b", job_class="rigid", max_cpus=3)
        self.use(stage, 0xFF & ~(a.granted & -a.granted))

        assert stage.counts == {"a": 5, "b": 3}
        assert stage.node.plan.why_kept(stage.node.jobs["a"]).endswith("it would have less than its minimum.")
        stage.end(b)
        assert stage.node.plan.why_kept(stage.node.jobs["a"]) == ""
        assert stage.counts == {"a": 7}

    def test_only_whole_cores_are_handed_out(self) -> None:
        """A core of which one thread is to be left alone is left alone."""
        stage = node(MACHINES[3])
        arrive(stage, "a")
        self.use(stage, 0b1111_1101)

        assert stage.masks == {"a": 0b1111_1100}

    def test_arrivals_wait_for_what_is_usable(self) -> None:
        """They start when cores come back."""
        stage = node()
        self.use(stage, 0x0F)
        arrive(stage, "a", job_class="rigid", max_cpus=6)

        assert waits(stage) == {"a": "needs at least 6 CPUs: this node hands out 4 now."}
        self.use(stage, 0xFF)
        assert stage.counts == {"a": 6}

    def test_a_rigid_job_that_names_no_number_gets_what_is_usable_when_it_comes(self) -> None:
        """Such a job does not wait for cores that may never come back."""
        stage = node()
        self.use(stage, 0x3F)

        assert arrive(stage, "a", job_class="rigid").granted == 0x3F

    def test_they_cannot_be_ordered(self) -> None:
        """An exact order names the CPUs that are left alone."""
        stage = node()
        a = arrive(stage, "a")
        self.use(stage, 0x3F)

        with pytest.raises(Refused, match=r"^CPUs 6-7 are to be left alone now: choose others\.$"):
            stage.node.pin(a.slot, 0b1110_0000, 0.0)

    def test_an_order_to_shrink_moves_off_who_stayed(self) -> None:
        """A job that stays may still be resized, onto usable cores."""
        stage = node()
        a = arrive(stage, "a", min_cpus=2)
        r = arrive(stage, "r", job_class="rigid", max_cpus=4)
        stage.resize("a", 4)
        rest = 0xFF & ~r.granted
        self.use(stage, r.granted | (rest & -rest) | (1 << rest.bit_length() - 1))
        assert stage.node.plan.why_kept(stage.node.jobs["a"])

        stage.resize("a", 2)

        assert stage.node.plan.why_kept(stage.node.jobs["a"]) == ""
        assert a.granted.bit_count() == 2


class TestFork:
    """Trying something on a copy."""

    def test_what_happens_to_a_copy_stays_there(self) -> None:
        """An order tried on a copy shows what it would do and changes nothing."""
        stage = node()
        arrive(stage, "a")
        before = stage.state()

        fork = stage.node.copy()
        actions = fork.resize("a", 3, 0.0)

        assert [action.mask.bit_count() for action in actions if isinstance(action, Publish)] == [3]
        assert fork.jobs["a"].cores == 3
        assert stage.state() == before
