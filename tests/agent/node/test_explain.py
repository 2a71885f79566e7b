# SPDX-License-Identifier: Apache-2.0
"""What a job is told of its CPUs, one test per sentence. Eight cores of one CPU, two sockets, unless said otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from drom.agent.errors import Refused
from drom.agent.model.cores import Cores
from drom.agent.model.jobs import Arrival, Demand, Job, Reservation, Task
from drom.agent.model.layouts import Layout
from drom.agent.node.explain import explain
from drom.agent.node.node import Node
from drom.agent.policy.site_rules import SiteRules
from drom.agent.text import CORES_DIFFER, KINDS_ALIKE

from dromlib.cpulist import format_cpulist
from tests.support.nodes import MACHINES, make_node

ANN, BEN, CLO = 1000, 1001, 1002
THREADS = "threads, which stay as many as they are."


class Story:
    """A node on which things happen, one a second; pids are 100, 101, ... in the order of arrival."""

    def __init__(self, cores: list[int] = MACHINES[2], **options: Any) -> None:
        self.node = make_node(cores, **options)
        self.now = 0.0

    def arrive(self, job: str, user: int = ANN, *, settle: bool = True, **asked: Any) -> int:
        """Let a job arrive; return its slot."""
        self.now += 1
        pid = 100 + self.node.plan.arrivals + asked.get("rank", 0)
        slot = self.node.arrive(Arrival(pid, 1, user, job, **asked), self.now)[0].slot
        if settle:
            self.settle()
        return slot

    def settle(self) -> None:
        """Let everybody apply everything."""
        tasks = list(self.node.tasks.values())
        while late := [task for task in tasks if len(task.grants) > 1]:
            self.node.grants.applied(late[0].slot, late[0].epoch, self.now)

    def end(self, slot: int) -> None:
        """Let a task end."""
        self.now += 1
        self.node.ended(slot, self.now)
        self.settle()

    def resize(self, job: str, cpus: int | None, seconds: float | None = None) -> None:
        """Give an order as root."""
        self.now += 1
        self.node.resize(job, cpus, self.now, until=seconds and self.now + seconds, by=0)
        self.settle()

    def told(self, job: str, topic: str, later: float = 0.0) -> list[str]:
        """Return what is said of a job about a topic."""
        return [text for about, text in explain(self.node, job, self.now + later) if about == topic]


@pytest.fixture
def story() -> Story:
    """Return a node with Ann's job a, which has all of it and applies its grants itself."""
    story = Story()
    story.node.grants.set_responder(story.arrive("a"), 100, 1)
    return story


class TestWhatItAsked:
    """The first sentence."""

    def test_class_user_pid_and_bounds(self, story: Story) -> None:
        """A job is introduced as it came."""
        assert story.told("a", "asked") == ["a is a malleable job of user 1000: one task (pid 100) of 1 to 8 CPUs."]

    def test_memory_and_layout(self, story: Story) -> None:
        """What it declared and how it wants to lie is said too."""
        story.arrive("b", max_cpus=2, min_cpus=2, memory=2 << 30, layout=Layout("compact", strict=True))

        assert story.told("b", "asked")[0] == (
            "b is a malleable job of user 1000: one task (pid 101) of 2 CPUs and 2 GiB of memory, laid out compact! "
            "(or it waits)."
        )

    def test_ranks(self) -> None:
        """Several tasks are counted, and named by their pids."""
        story = Story()
        for rank in range(2):
            story.arrive("mpi", session=7, rank=rank, size=2)

        assert story.told("mpi", "asked") == [
            "mpi is a malleable job of user 1000: 2 tasks (pids 100 and 102) of 1 to 4 CPUs each."
        ]

    def test_attached(self, story: Story) -> None:
        """Who was taken in while it ran is told so."""
        story.arrive("b", attached=True)

        assert story.told("b", "asked")[0].endswith("of 1 to 8 CPUs. It ran before it was attached.")

    def test_an_unknown_job(self, story: Story) -> None:
        """A name that nobody has is one sentence."""
        with pytest.raises(Refused, match=r"^there is no job b: see `drom ps`\.$"):
            explain(story.node, "b", 0.0)


class TestWhereCoresDiffer:
    """Where some cores have two CPUs and some one, jobs are told of cores, and how many CPUs they have by that."""

    def test_a_rigid_job_has_more_cpus_than_it_asked_for(self) -> None:
        """Three cores of two CPUs and four of one: what surely holds four CPUs is four cores, which have seven here."""
        story = Story([0b11, 0b1100, 0b110000, *(1 << cpu for cpu in range(6, 10))])
        story.arrive("a", job_class="rigid", max_cpus=4)
        story.arrive("b", BEN, min_cpus=4)
        said = [text for _, text in explain(story.node, "a", story.now)]
        cpus = story.node.jobs["a"].planned

        assert said[:3] == [
            "a is a rigid job of user 1000: one task (pid 100) of 4 cores. " + CORES_DIFFER,
            "Its equal share is 4 of the 7 cores here, the most it can use.",
            f"It has {cpus.bit_count()} CPUs ({format_cpulist(cpus)}) on 4 cores, all its own.",
        ]
        assert story.told("b", "waits") == ["It waits: needs at least 4 cores: 3 free, running jobs may lend 0."]

    def test_the_kinds_of_its_cores_are_named(self) -> None:
        """A job on a hybrid machine is told which of its CPUs are of which kind, if they are of one."""
        story = Story()
        story.node = Node(Cores((1, 2, 4, 8), kinds=(("performance", 0b0011), ("efficiency", 0b1100))), lambda _: None)
        slot = story.arrive("a")
        story.arrive("b", BEN, job_class="rigid", max_cpus=1)

        both = f"It has CPUs 0-1 of performance cores and CPU 2 of efficiency cores. {KINDS_ALIKE}"
        assert story.told("a", "has")[1] == both
        story.end(slot)
        assert story.told("b", "has")[1:] == [f"It has CPU 3 of efficiency cores. {KINDS_ALIKE}"]


class TestAJobOfAScheduler:
    """The job is held at the ordered number of cores, whether its tasks are there or not."""

    def test_the_sentence_names_who_holds_the_job(self, story: Story) -> None:
        """Its share here plays no part, and nobody is told to order otherwise."""
        story.node.reservations.reserve(Reservation("drom-7", ANN, 3, 4, tasks=2), 0.0)

        assert [text for _, text in explain(story.node, "drom-7", 0.0)] == [
            "drom-7 is a malleable job of user 1000: 2 tasks of 1 to 2 CPUs each.",
            "A scheduler holds it at 3 CPUs here until it has ended, and may order up to 4.",
            "2 tasks of it have not arrived yet: their places are kept.",
        ]


class TestItsShare:
    """What would be equal."""

    def test_alone_with_more_than_it_can_use(self, story: Story) -> None:
        """A share is not more than the job can use."""
        assert story.told("a", "share") == ["Its equal share is 8 of the 8 CPUs here, the most it can use."]

    def test_among_users_and_jobs(self, story: Story) -> None:
        """Users first, then a user's jobs."""
        story.arrive("b", BEN)
        story.arrive("c", BEN)

        assert story.told("b", "share") == [
            "Its equal share is 2 of the 8 CPUs here: 2 users share them equally, and user 1001 has 2 running jobs."
        ]

    def test_among_the_jobs_of_one_user(self, story: Story) -> None:
        """Where there is one user, his jobs share the node."""
        story.arrive("b")

        assert story.told("b", "share") == [
            "Its equal share is 4 of the 8 CPUs here: user 1000, alone here, has 2 running jobs."
        ]

    def test_beside_jobs_that_keep_theirs(self, story: Story) -> None:
        """Rigid and held jobs take part with what they have."""
        story.arrive("b", BEN, job_class="rigid", max_cpus=2)

        assert story.told("a", "share")[0] == (
            "Its equal share is 6 of the 8 CPUs here: 2 users share them equally, and user 1000 has 1 running job; "
            "b keeps its 2."
        )

    def test_beside_many_jobs_of_another_user(self) -> None:
        """Minima that are more together than a user's equal part are counted with what rigid jobs of that user keep."""
        story = Story([1 << cpu for cpu in range(100)])
        story.arrive("a")
        story.arrive("d", job_class="rigid", max_cpus=50)
        story.arrive("b")
        story.arrive("n", BEN)

        assert story.told("n", "share") == [
            (
                "Its equal share is 48 of the 100 CPUs here: 2 users share them equally, and user 1001 has 1 running "
                "job; the 3 jobs of user 1000 keep at least 52 together."
            )
        ]
        assert story.told("a", "share") == [
            (
                "An equal share would be less than its minimum, so 1 of the 100 CPUs here is due to it: "
                "2 users share them equally, and user 1000 has 3 running jobs; d keeps its 50."
            )
        ]

    def test_beside_jobs_that_can_use_less(self) -> None:
        """What another user, or another job of the same user, cannot use is shared by the others."""
        story = Story([1 << cpu for cpu in range(32)])
        story.arrive("a")
        story.arrive("b", max_cpus=3)
        for name in ("c", "d"):
            story.arrive(name, BEN, max_cpus=2)
        story.arrive("e", CLO, max_cpus=5)

        assert story.told("a", "share") == [
            (
                "Its equal share is 20 of the 32 CPUs here: 3 users share them equally, and user 1000 has 2 running "
                "jobs; the 2 jobs of user 1001 can use no more than 4 together, e can use no more than 5 and "
                "b can use no more than 3."
            )
        ]

    def test_under_a_cap(self) -> None:
        """A site's cap bounds the share."""
        story = Story(rules=SiteRules(max_cpus_per_user=4))
        story.arrive("a")

        assert story.told("a", "share") == ["Its equal share is 4 of the 8 CPUs here, the most that one user may have."]

    def test_under_a_cap_that_was_lowered(self) -> None:
        """Jobs keep their minima where the next agent's cap has no room for them, and the cap is named."""
        story = Story()
        for name in ("a", "b", "c"):
            story.arrive(name, max_cpus=2, min_cpus=2)
        story.node.plan.rules = SiteRules(max_cpus_per_user=2)

        assert story.told("c", "share") == [
            (
                "An equal share would be less than its minimum, so 2 of the 8 CPUs here are due to it: "
                "user 1000, alone here, has 3 running jobs, which may have 2 CPUs together."
            )
        ]

    def test_users_have_names(self, story: Story) -> None:
        """Where somebody knows them."""
        (asked, *_) = explain(story.node, "a", story.now, user={ANN: "ann"}.__getitem__)

        assert "job of user ann: one task" in asked.text

    def test_nothing_where_there_is_no_cap(self) -> None:
        """On a node with more jobs than cores a share may be none; without a cap, none is blamed."""
        story = Story([1])
        story.arrive("a")
        story.arrive("b")

        assert story.told("b", "share") == [
            (
                "An equal share would be less than its minimum, so 1 of the 1 CPU here is due to it: "
                "user 1000, alone here, would have 2 running jobs."
            )
        ]


class TestWhatItHas:
    """Possession and property."""

    def test_its_own(self, story: Story) -> None:
        """What it owns and has needs no more words."""
        assert story.told("a", "has") == ["It has 8 CPUs (0-7), all its own."]

    def test_lending_and_borrowing(self, story: Story) -> None:
        """Owner and holder are both told."""
        story.arrive("b", BEN)

        assert story.told("a", "has") == ["It has 4 CPUs (0-3).", "It owns CPUs 0-7 and lends CPUs 4-7 to b."]
        assert story.told("b", "has") == [
            "It has 4 CPUs (4-7).",
            "It borrows CPUs 4-7 from a, until it ends or can do without.",
        ]

    def test_what_is_on_its_way(self, story: Story) -> None:
        """Until everybody has moved, a job is to have what it does not have yet."""
        story.arrive("b", BEN, settle=False)

        assert story.told("a", "has")[0] == "It is to have 4 CPUs (0-3)."

    def test_what_it_owns_and_nobody_uses(self, story: Story) -> None:
        """Cores that an order keeps from it are still its own."""
        story.resize("a", 2)

        assert story.told("a", "has")[1] == "It owns CPUs 2-7 as well, which nobody uses now."
        story.arrive("b", BEN, max_cpus=1)
        assert story.told("a", "has")[1] == "It owns CPUs 0-7 and lends CPU 7 to b; nobody uses CPUs 2-6 now."

    def test_task_by_task(self) -> None:
        """A job of several tasks is told which has what."""
        story = Story()
        for rank in range(2):
            story.arrive("mpi", session=7, rank=rank, size=2)

        (text,) = story.told("mpi", "has")
        assert text.startswith("It has 8 CPUs (0-7): ")
        assert text.endswith(" for task 1, all its own.")


class TestSinceWhen:
    """The last change."""

    def test_its_arrival(self, story: Story) -> None:
        """Who never changed started so."""
        assert story.told("a", "since", 180) == ["It started 3 min ago, when it arrived."]

    def test_anothers_arrival(self, story: Story) -> None:
        """Who shrank is told for whom."""
        story.arrive("b", BEN)

        assert story.told("a", "since", 5) == ["It shrank from 8 to 4 CPUs 5.0 s ago, when b arrived."]

    def test_the_admission_of_one_that_had_waited(self) -> None:
        """However many start at once, a job changed once, and a job that starts has never been elsewhere."""
        story = Story()
        story.arrive("a", min_cpus=2)
        big = story.arrive("big", min_cpus=8)
        story.arrive("b", max_cpus=2)
        story.arrive("rig", job_class="rigid", max_cpus=2)
        story.end(big)

        assert story.told("a", "since") == [
            "It shrank from 8 to 4 CPUs 0.0 s ago, when rig, which had waited, got its first CPUs."
        ]
        assert story.told("b", "since") == ["It started 0.0 s ago, when big ended."]
        assert story.told("rig", "since") == ["It started 0.0 s ago, when big ended."]

    def test_a_return(self, story: Story) -> None:
        """What was lent comes back."""
        story.end(story.arrive("b", BEN))

        assert story.told("a", "since", 12) == [
            "It grew from 4 to 8 CPUs 12 s ago, when b ended and what it owns came back."
        ]

    def test_an_order(self, story: Story) -> None:
        """An order for it, and one for a neighbour, are told with who gave them."""
        story.arrive("b", BEN)
        story.resize("a", 6)

        assert story.told("a", "since") == ["It grew from 4 to 6 CPUs 0.0 s ago, when user 0 gave an order for it."]
        assert story.told("b", "since") == ["It shrank from 4 to 2 CPUs 0.0 s ago, when user 0 gave an order for a."]

    def test_the_end_of_an_order(self, story: Story) -> None:
        """An order for a time says that the time was over."""
        story.resize("a", 2, 60)
        story.now += 60
        story.node.tick(story.now)
        story.settle()

        assert story.told("a", "since") == [
            "It grew from 2 to 8 CPUs 0.0 s ago, when the time of the order for it was over."
        ]

    def test_a_release(self, story: Story) -> None:
        """Cores of a job that is managed no longer are handed out, and this is why."""
        slot = story.arrive("b", BEN)
        story.node.release(slot, story.now, 0)
        story.settle()

        assert story.told("a", "since") == [
            "It grew from 4 to 8 CPUs 0.0 s ago, when user 0 released b and what it owns came back."
        ]

    def test_a_wait_that_is_over(self, story: Story) -> None:
        """Who waited started when something else happened."""
        slot = story.arrive("b", BEN, job_class="rigid", max_cpus=4)
        story.arrive("c", CLO, job_class="rigid", max_cpus=4)
        story.end(slot)

        assert story.told("c", "since") == ["It started 0.0 s ago, when b ended."]

    def test_an_earlier_agent(self, story: Story) -> None:
        """What was before a restart is not known."""
        story.node.jobs["a"].last = None

        assert story.told("a", "since") == ["It has had them since before this agent started."]


class TestWhatLimitsIt:
    """Why it has no more."""

    def test_its_maximum(self, story: Story) -> None:
        """A job has what it can use."""
        assert story.told("a", "limit") == ["It has the most it can use."]

    def test_neighbours(self, story: Story) -> None:
        """When no CPU is free the neighbours are named with what they keep."""
        story.arrive("b", BEN, min_cpus=2)
        story.resize("b", 3)

        assert story.told("a", "limit") == [
            "No CPU is free: b keeps its 3. Running jobs give some up only for an arrival or an order."
        ]
        story.resize("b", None)
        assert story.told("a", "limit") == [
            "No CPU is free: b has 4 and keeps at least 2. Running jobs give some up only for an arrival or an order."
        ]

    def test_the_sharing_factor(self) -> None:
        """A job below its share learns what held its arrival back."""
        story = Story(rules=SiteRules(sharing_factor=0.25))
        story.arrive("a")
        story.arrive("b", BEN)

        (text,) = story.told("b", "limit")
        assert text.endswith(
            " That is below its share: an arrival takes at most 25 % of a running job, and none below its minimum."
        )

    def test_an_order(self, story: Story) -> None:
        """An order holds until told otherwise, or for a time."""
        story.resize("a", 2)
        assert story.told("a", "limit") == ["An order of user 0 holds it at 2 CPUs until `drom resize a auto`."]
        story.resize("a", 3, 600)

        assert story.told("a", "limit", 60) == [
            "An order of user 0 holds it at 3 CPUs for another 9 min, or until `drom resize a auto`."
        ]

    def test_exact_cpus(self, story: Story) -> None:
        """A pin is told as such."""
        story.node.pin(0, 0b11, story.now, 0)

        assert story.told("a", "limit") == [
            "An order of user 0 fixes it at exactly these CPUs until `drom resize a auto`."
        ]

    def test_its_class(self, story: Story) -> None:
        """A rigid job keeps what it started with."""
        story.arrive("b", BEN, job_class="rigid", max_cpus=2)

        assert story.told("b", "limit") == ["It is rigid: it keeps these CPUs until it ends."]

    def test_its_layout(self) -> None:
        """A layout may allow less than the node has."""
        story = Story()
        for rank in range(2):
            story.arrive("a", session=7, rank=rank, size=2, layout=Layout("per_socket", 1))

        assert story.told("a", "limit") == ["It has the most that per-socket=1 allows here."]

    def test_a_cap(self) -> None:
        """A site may bound what a user has."""
        story = Story(rules=SiteRules(max_cpus_per_user=4))
        story.arrive("a")

        assert story.told("a", "limit") == [
            "It could use more, but the jobs of user 1000 have the 4 CPUs that one user may have here."
        ]

    def test_residence(self) -> None:
        """Who was resized lately does not grow again at once."""
        story = Story(rules=SiteRules(residence=30))
        story.arrive("a")
        story.end(story.arrive("b", BEN))

        assert story.told("a", "limit", 9) == ["It was resized lately: it does not grow for another 20 s (residence)."]

    def test_a_margin(self) -> None:
        """Who waits whether more comes free was not resized."""
        story = Story(rules=SiteRules(residence=30, margin=0.5))
        slot = story.arrive("c", BEN, max_cpus=1)
        story.arrive("a", max_cpus=4)
        story.arrive("b", BEN, max_cpus=4)
        story.now = 60
        story.end(slot)

        assert story.told("b", "limit", 9) == [
            "CPU 7 is free, fewer than 50 % of what it has: it waits for more to come free, for another 21 s (margin)."
        ]

    def test_the_residence_of_a_new_agent(self, story: Story) -> None:
        """A restart is no resize, though nobody grows after it either."""
        story.resize("a", 2)
        story.node.jobs["a"].last, story.node.jobs["a"].rest_until = None, story.now + 30
        story.node.jobs["a"].hold = None

        assert story.told("a", "limit")[0].startswith("This agent started lately: jobs from before do not grow for")

    def test_cpus_that_are_left_alone(self, story: Story) -> None:
        """What nobody is to use is named, and who stays on it learns why."""
        story.arrive("b", BEN, job_class="rigid", max_cpus=2)
        story.node.set_usable_cpus(0b00111111, story.now)
        story.settle()

        assert (
            "b keeps its 2. CPUs 6-7 are gone, not allowed or reserved now: "
            "they are handed out again once that is over. " in story.told("a", "limit")[0]
        )
        assert story.told("b", "limit")[1] == (
            "Some of its CPUs are to be left alone, but job b is rigid: it keeps its cores until it ends."
        )

    def test_cpus_that_unmanaged_programs_keep_busy(self, story: Story) -> None:
        """Who had to leave them, who could not start and who got them again is told why."""
        story.node.set_usable_cpus(0b01111111, story.now, busy=0b10000000)
        story.settle()
        story.arrive("b", BEN, min_cpus=8)
        busy = "CPU 7 is left to unmanaged programs, which keep it busy."

        assert story.told("a", "since") == [
            "It shrank from 8 to 7 CPUs 1.0 s ago, when unmanaged programs kept CPU 7 busy."
        ]
        assert story.told("a", "limit") == [
            f"No CPU is free: it has all there are. {busy} Running jobs give some up only for an arrival or an order."
        ]
        assert story.told("b", "waits")[1:] == [busy]
        story.node.set_usable_cpus(0b11111111, story.now)
        story.settle()
        assert story.told("a", "since") == [
            "It grew from 7 to 8 CPUs 0.0 s ago, when unmanaged programs kept CPUs busy no longer."
        ]

    def test_a_frozen_node(self, story: Story) -> None:
        """While the kill switch is there nothing else matters."""
        story.node.freeze(story.now, "/run/drom/freeze")

        assert story.told("a", "limit") == ["Nothing changes: the node is frozen until /run/drom/freeze is removed."]


class TestWhatItWaitsFor:
    """Before the first CPUs."""

    def test_its_place_in_the_queue(self, story: Story) -> None:
        """A reason, and who is before it."""
        story.arrive("b", BEN, job_class="rigid", max_cpus=8)
        story.arrive("c", CLO)

        assert story.told("b", "waits") == [
            "It waits: needs at least 8 CPUs: 0 free, running jobs may lend 4. It is number 1 of 2 that wait."
        ]
        assert story.told("c", "waits") == ["It waits: others arrived before it. It is number 2 of 2 that wait."]
        assert story.told("b", "limit") == []

    def test_cpus_that_are_being_given_up(self, story: Story) -> None:
        """Who has been planned for waits for others to leave."""
        story.arrive("b", BEN, settle=False)

        assert story.told("b", "waits") == ["It waits: CPUs 4-7 are being given up by a."]

    def test_what_runs_meanwhile(self, story: Story) -> None:
        """An attached program is not stopped."""
        story.arrive("b", BEN, job_class="rigid", max_cpus=8, attached=True)

        assert story.told("b", "waits")[0].endswith(" Until it has its first CPUs it runs on where it was.")

    def test_ranks_that_have_not_come(self) -> None:
        """Places are kept for a while."""
        story = Story()
        story.arrive("mpi", session=7, rank=0, size=3)

        assert story.told("mpi", "waits") == ["2 tasks of it have not arrived yet: their places are kept."]


class TestChangesUnderWay:
    """What is not done yet."""

    def test_a_grant_that_is_not_applied(self, story: Story) -> None:
        """Who is late is told when the agent binds it."""
        story.arrive("b", BEN, settle=False)

        assert story.told("a", "change", 0.3) == [
            "Task 0 (pid 100) has not applied CPUs 0-3 yet, granted 0.3 s ago: the agent binds it in 0.7 s."
        ]

    def test_cpus_still_to_come(self, story: Story) -> None:
        """Who is to grow learns who has not left."""
        story.arrive("b", BEN)
        story.node.resize("a", 6, story.now, by=0)

        assert story.told("a", "change") == ["Task 0 (pid 100) is to have CPUs 6-7 as well: b has not left them."]

    def test_a_settled_job(self, story: Story) -> None:
        """Nothing is said where nothing is under way."""
        assert story.told("a", "change") == []


class TestHowItIsManaged:
    """Who binds it."""

    def test_cooperative(self, story: Story) -> None:
        """A program that answers applies by itself."""
        assert story.told("a", "mode") == ["It takes its grants itself (pid 100)."]

    def test_bind_only(self, story: Story) -> None:
        """Others are bound from outside."""
        story.arrive("b", BEN)

        assert story.told("b", "mode") == [f"No process of it asks for grants: the agent binds its {THREADS}"]

    def test_unmanaged(self, story: Story) -> None:
        """What may not be bound may be anywhere."""
        story.node.grants.bind_failed(0, story.now)

        assert story.told("a", "mode")[0] == (
            "The agent may not bind all of its threads: they may run on CPUs of others."
        )

    def test_enforced(self, story: Story) -> None:
        """Who was too late was bound."""
        story.arrive("b", BEN, settle=False)
        story.node.grants.bound(0, story.node.tasks[0].epoch, story.now)

        assert story.told("a", "mode")[-1] == "It did not apply its newest grant within 1.0 s: the agent bound it."


class TestItsWish:
    """What a program says that it can use, and what came of that."""

    @pytest.mark.parametrize(
        ("wish", "told"),
        [
            (Demand(2), "needs at least 2 CPUs: arrivals leave it 2 CPUs where they can."),
            (Demand(0, 1), "can use up to 1 CPU: it gets no more."),
            (
                Demand(3, 3),
                "can use 3 CPUs, no more and no fewer: it gets no more, and arrivals leave it 3 CPUs where they can.",
            ),
            (Demand(9), "needs at least 9 CPUs: arrivals leave it 8 CPUs where they can, the most that it may have."),
            (Demand(1, 4), "can use 1 to 4 CPUs: it gets no more, and arrivals leave it 1 CPU where they can."),
        ],
    )
    def test_what_it_says_and_what_is_done(self, story: Story, wish: Demand, told: str) -> None:
        """A program that has said nothing is told nothing."""
        assert story.told("a", "wish") == []
        story.node.demands_reported({0: wish}, story.now)

        assert story.told("a", "wish") == [f"It says that it {told}"]

    def test_a_wish_is_the_limit(self, story: Story) -> None:
        """What it has follows from what it says, and the neighbour is told whose change it was."""
        story.arrive("b", BEN)
        story.node.demands_reported({0: Demand(0, 1)}, story.now)
        story.settle()

        assert story.told("a", "limit") == ["It has the most that it says it can use."]
        assert story.told("a", "share") == ["Its equal share is 1 of the 8 CPUs here, the most it says it can use."]
        assert story.told("a", "since") == [
            "It shrank from 4 to 1 CPU 0.0 s ago, when it said how many CPUs it can use."
        ]
        assert story.told("b", "since") == ["It grew from 4 to 7 CPUs 0.0 s ago, when a said how many CPUs it can use."]

    def test_one_that_waits_its_turn(self, story: Story) -> None:
        """The next one counts a second later."""
        story.node.demands_reported({0: Demand(0, 6)}, story.now)
        story.node.demands_reported({0: Demand(0, 2)}, story.now)

        assert story.told("a", "wish", later=0.25)[1:] == [
            "Now it says that it can use up to 2 CPUs: that counts in 0.8 s."
        ]

    def test_one_that_does_not_count(self, story: Story) -> None:
        """Because it cannot be met, the job does not change, or an order holds it."""
        story.node.demands_reported({0: Demand(5, 2)}, story.now)
        assert story.told("a", "wish") == [
            "It says that it needs 5 CPUs and that it can use 2: that cannot be, so neither counts."
        ]
        story.now += 1
        story.node.demands_reported({0: Demand(0, 2)}, story.now)
        story.resize("a", 4)
        assert story.told("a", "wish")[0].endswith("up to 2 CPUs: that counts when the order for it is over.")
        rigid = story.arrive("r", job_class="rigid", max_cpus=2)
        story.node.demands_reported({rigid: Demand(1)}, story.now)
        assert story.told("r", "wish")[0].endswith("at least 1 CPU: it is rigid, so that changes nothing.")


def test_every_story_reads_well_on_threads_and_many_neighbours() -> None:
    """Lists of neighbours are cut short, CPUs of wide cores are counted as CPUs."""
    story = Story(MACHINES[3] + [0b11 << 2 * n for n in range(4, 8)])
    for number in range(7):
        story.arrive(f"j{number}", 1000 + number)

    (text,) = story.told("j0", "limit")
    assert text.count(" keeps its 2") == 4
    assert " and 2 more." in text
    assert isinstance(story.node, Node)


def test_what_a_new_agent_did_at_its_start_is_that_long_ago() -> None:
    """A task that the last agent left waiting starts when the new one does, whatever the clock says by then."""
    node = make_node(MACHINES[2])
    task = Task(0, "a", 0, Arrival(100, 1, ANN, "a"), 0)
    job = Job("a", "a", ANN, session=0, job_class="malleable", arrived=1, task_min=1, task_max=8, ranks={})
    node.adopt([(task, job)], {}, 1, 5000.0)

    told = [text for topic, text in explain(node, "a", 5003.0) if topic == "since"]
    assert told == ["It started 3.0 s ago, when this agent started."]
