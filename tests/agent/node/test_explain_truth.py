# SPDX-License-Identifier: Apache-2.0
"""Every sentence of `drom explain` is true of the numbers beside it, on random nodes with random jobs."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model.jobs import Arrival, Job
from drom.agent.node.admission import waiting_jobs
from drom.agent.node.areas import area_of
from drom.agent.node.explain import explain
from drom.agent.policy import fair_share
from drom.agent.policy.site_rules import SiteRules
from hypothesis import given, settings
from hypothesis import strategies as st

from dromlib.cpulist import parse_cpulist
from tests.support import reference_shares
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.node.node import Node
    from drom.agent.policy.fair_share import JobCores

END = 12.0
"""When sentences are asked for: after the last event."""
CLASSES = ("malleable", "malleable", "malleable", "moldable", "rigid")


ACTS = st.tuples(
    st.sampled_from(["arrive", "arrive", "arrive", "end", "hold", "auto"]),
    st.integers(0, 11),
    st.integers(1, 3),
    st.sampled_from(CLASSES),
    st.integers(0, 3),
    st.sampled_from([0, 0, 1, 2, 5]),
)
"""What happens, to which of the jobs there are, or of which user, class, minimum and maximum one comes."""
RULES = st.builds(
    SiteRules,
    sharing_factor=st.sampled_from([0.25, 0.5, 1.0]),
    max_cpus_per_user=st.sampled_from([0, 0, 0, 3]),
    spare_for_newcomers=st.integers(0, 1),
    residence=st.sampled_from([0.0, 0.0, 3.0]),
    margin=st.sampled_from([0.0, 0.3]),
)


def played(cores: int, rules: SiteRules, acts: list[tuple[str, int, int, str, int, int]]) -> Node:
    """Return a node on which jobs of all classes have come, ended, and been held, and everybody follows."""
    node = make_node([1 << cpu for cpu in range(cores)], rules=rules)
    for now, (what, which, uid, kind, least, most) in enumerate(acts, 12 - len(acts)):
        running = [job.name for job in node.jobs.values() if job.cores]
        with suppress(Refused):
            if what == "arrive":
                node.arrive(Arrival(100 + now, 1, uid, "job", kind, 0, min(least, most or least), most), now)
            elif what == "end" and node.tasks:
                node.ended(sorted(node.tasks)[which % len(node.tasks)], now)
            elif running:
                node.resize(running[which % len(running)], 1 + least if what == "hold" else None, now, by=0)
        node.tick(now)
        while late := [task for task in node.tasks.values() if len(task.grants) > 1]:
            node.grants.applied(late[0].slot, late[0].epoch, now)
    return node


NODES = st.builds(played, st.integers(1, 12), RULES, st.lists(ACTS, min_size=1, max_size=12))


class Reader:
    """Checks sentences about job `job` of a node of cores with one thread each: what they claim is counted anew."""

    def __init__(self, node: Node, job: Job) -> None:
        self.node = node
        self.job = job
        views = [node.plan.view(other) for other in node.jobs.values() if other.cores]
        self.others = [view for view in views if view.name != job.name]
        self.mine = replace(node.plan.view(job), fixed=False)
        self.total = len(node.cores)
        self.cap = min(self.total, node.plan.rules.max_cpus_per_user)
        self.shares = self.shares_with(self.mine)
        self.share = self.shares[job.name]
        self.free = self.total - sum(view.cores for view in views)

    def shares_with(self, mine: JobCores) -> dict[str, int]:
        """Return the equal shares of the running jobs and of this one, in the order that the node has them in."""
        by_name = {view.name: view for view in [*self.others, mine]}
        return reference_shares.shares([*self.others, by_name[mine.name]], self.total, self.cap)

    def of_user(self) -> list[JobCores]:
        """Return the running jobs of the job's user, and this one."""
        return [self.mine, *(view for view in self.others if view.user == self.job.user)]

    def check(self, topic: str, text: str) -> None:
        """Check one sentence or several that stand together."""
        {"asked": self.asked, "share": self.shared, "has": self.has, "limit": self.limit, "waits": self.waits}.get(
            topic, lambda _: None
        )(text)

    def asked(self, text: str) -> None:
        """What it asked for."""
        found = re.fullmatch(
            r"(\S+) is a (\w+) job of user (\d+): one task \(pid \d+\) of (?:(\d+) to )?(\d+) CPUs?\.", text
        )
        assert found, text
        assert found[1] == self.job.name
        assert found[2] == self.job.job_class
        assert int(found[3]) == self.job.user
        assert (int(found[4] or found[5]), int(found[5])) == (self.job.task_min, self.job.task_max)

    def shared(self, text: str) -> None:
        """What would be equal, and among whom."""
        share = re.match(r"Its equal share is (\d+) of the (\d+) CPUs? here", text)
        due = re.match(r"An equal share would be less than its minimum, so (\d+) of the (\d+) CPUs? here", text)
        found = share or due
        assert found, text
        assert (int(found[1]), int(found[2])) == (self.share, self.total), text
        equal = self.shares_with(replace(self.mine, minimum=0))[self.job.name]
        assert (equal < self.mine.minimum) is bool(due), text
        rest = text[found.end() :]
        if rest == ", the most it can use.":
            assert self.share == self.mine.maximum
        elif rest == ", the most that one user may have.":
            assert self.share == self.cap
        elif rest != ": it is alone.":
            self.among(rest)
        else:
            assert not self.others

    def among(self, text: str) -> None:
        """Among whom."""
        users = {view.user for view in [self.mine, *self.others]}
        if several := re.search(r"(\d+) users share them equally, and user (\d+)", text):
            assert int(several[1]) == len(users) > 1
        else:
            several = re.search(r"(user) (\d+), alone here,", text)
            assert len(users) == 1
        assert several, text
        assert int(several[2]) == self.job.user, text
        many = re.search(r" (has|would have) (\d+) running jobs?", text)
        assert many, text
        assert (many[1] == "has", int(many[2])) == (bool(self.job.cores), len(self.of_user())), text
        self.unequal(text)
        if "may have" in text:
            assert f"which may have {self.cap} CPU" in text

    def unequal(self, text: str) -> None:
        """Each reason why a part is not equal is true, and one is there wherever a part is not."""
        mine = sum(self.shares[view.name] for view in self.of_user())
        by_name = {view.name: view for view in self.others}
        for name, cpus in re.findall(r"(\S+) keeps its (\d+)", text):
            assert by_name[name].fixed, text
            assert by_name[name].cores == int(cpus), text
        for name, cpus in re.findall(r"(\S+) needs at least (\d+)", text):
            assert by_name[name].minimum == int(cpus) == self.shares[name] > self.share, text
        for name, cpus in re.findall(r"(?<!\d )(?!jobs)(\S+) can use no more than (\d+)(?! together)", text):
            assert by_name[name].maximum == int(cpus) == self.shares[name], text
        for many, uid, verb, cpus in re.findall(
            r"the (\d+) jobs of user (\d+) (keep at least|can use no more than) (\d+) together", text
        ):
            theirs = [view for view in self.others if view.user == int(uid) != self.job.user]
            bounds = [(v.cores, v.cores) if v.fixed else (v.minimum, v.maximum) for v in theirs]
            least, most = (sum(column) for column in zip(*bounds, strict=True))
            has = sum(self.shares[view.name] for view in theirs)
            assert len(theirs) == int(many), text
            assert has == int(cpus), text
            assert (has == least > mine) if verb.startswith("keep") else (has == most < mine), text
        if "; " not in text and "may have" not in text and self.share > self.mine.minimum:
            amounts = Counter[int]()
            for view in [*self.others, self.mine]:
                amounts[view.user] += self.shares[view.name]
            assert max(amounts.values()) - min(amounts.values()) <= 1, text
            assert all(abs(self.shares[view.name] - self.share) <= 1 for view in self.of_user()), text

    def has(self, text: str) -> None:
        """What it has, borrows and lends."""
        if found := re.match(r"It has (\d+) CPUs? \(([-,0-9]+)\)", text):
            cpus = parse_cpulist(found[2])
            assert (cpus, cpus.bit_count()) == (self.job.planned, int(found[1])), text
        ledger = self.node.plan.ledger
        if found := re.match(r"It borrows (.*), until", text):
            for cpus, owner in re.findall(r"CPUs? ([-,0-9]+) from (\S+?)(?:,|$| and)", found[1]):
                numbers = self.node.cores.numbers(parse_cpulist(cpus.rstrip(",")))
                assert {ledger.owners[n] for n in numbers} == {owner}, text
                assert {ledger.holders[n] for n in numbers} == {self.job.name}, text

    def limit(self, text: str) -> None:
        """What keeps it from more."""
        view = self.node.plan.view(self.job)
        if text.startswith(("It is rigid", "It is moldable")):
            assert self.job.job_class in text
            assert view.fixed
        elif text.startswith("An order"):
            assert self.job.hold == int(re.findall(r"at (\d+) CPU", text)[0])
        elif text == "It has the most it can use.":
            assert self.job.cores == self.mine.maximum
        elif text.startswith("It could use more"):
            assert sum(view.cores for view in self.of_user()) >= self.cap > 0
        elif found := re.match(r"It was resized lately: it does not grow for another ([\d.]+) s \(residence\)\.", text):
            assert self.job.rest_until is not None
            assert float(found[1]) == self.job.rest_until - END
            assert self.job.last is not None
            assert self.job.last.before
        elif "CPU" in text and " free, " in text and not text.startswith("No CPU"):
            self.idle(text)
        elif text.startswith("No CPU is free: "):
            self.crowded(text)
        else:
            raise AssertionError(f"who checks {text!r}?")

    def idle(self, text: str) -> None:
        """Which CPUs are free, and why it has not grown into them."""
        idle = self.node.cores.all & ~self.node.plan.ledger.planned
        found = re.match(r"CPUs? ([-,0-9]+) (?:is|are) free, (.*)$", text)
        assert found, text
        assert parse_cpulist(found[1]) == idle, text
        rules = self.node.plan.rules
        waits = r"fewer than (\d+) % of what it has: it waits .* for another ([\d.]+) s \(margin\)\."
        if small := re.match(waits, found[2]):
            assert int(small[1]) == 100 * rules.margin
            assert idle.bit_count() < rules.margin * self.job.cores, text
            assert self.job.rest_until is not None
            assert float(small[2]) == self.job.rest_until - END
        else:
            owners = {self.node.plan.ledger.owners[n] for n in self.node.cores.numbers(idle)} - {None}
            assert found[2] == "kept for who owns them or for a larger growth.", text
            assert owners or rules.margin, text

    def crowded(self, text: str) -> None:
        """Who has the CPUs."""
        assert self.free == 0
        by_name = {view.name: view for view in self.others}
        for name, cpus in re.findall(r"(\S+) keeps its (\d+)", text):
            assert by_name[name].cores == int(cpus)
            assert by_name[name].fixed or by_name[name].cores == by_name[name].minimum
        for name, cpus, least in re.findall(r"(\S+) has (\d+) and keeps at least (\d+)", text):
            assert (by_name[name].cores, by_name[name].minimum) == (int(cpus), int(least))
            assert not by_name[name].fixed
        assert ("it has all there are" in text) is (not self.others)
        assert ("That is below its share" in text) is (self.job.cores < self.share), text
        if found := re.search(r"an arrival takes at most (\d+) % of a running job, and none below its minimum", text):
            assert int(found[1]) == 100 * self.node.plan.rules.sharing_factor
            self.took_all()

    def took_all(self) -> None:
        """Whoever has more than its share has lent the new job the most that it might, or is at its minimum."""
        factor = self.node.plan.rules.sharing_factor
        for view in self.others:
            if view.fixed or view.cores <= max(view.minimum, self.shares[view.name]):
                continue
            last = self.node.jobs[view.name].last
            assert last is not None
            assert self.job.last is not None
            assert last.event == self.job.last.event
            had = last.before.bit_count()
            assert had - view.cores == int(had * factor)

    def waits(self, text: str) -> None:
        """What it waits for, and its place."""
        found = re.match(r"It waits: (.*?\.)(?: It is number (\d+) of (\d+) that wait\.)?$", text)
        assert found, text
        queue = [job for job in self.node.jobs.values() if not job.cores]
        if found[2]:
            assert int(found[3]) == len(queue)
            assert waiting_jobs(area_of(self.job, self.node.plan))[int(found[2]) - 1] is self.job
        else:
            assert len(queue) == 1
        held: Counter[int] = Counter()
        for view in self.others:
            held[view.user] += view.cores
        reasons: dict[str, Callable[[], bool]] = {
            "others arrived before it.": lambda: any(job.arrived < self.job.arrived for job in queue),
            "users who have fewer CPUs come first.": lambda: any(held[job.user] < held[self.job.user] for job in queue),
            "users take turns: a job of another user is next.": lambda: any(job.user != self.job.user for job in queue),
            "the last CPUs that running jobs can lend are kept for users without running jobs.": self.spared,
        }
        if found[1] in reasons:
            assert reasons[found[1]](), text
        else:
            self.needs(found[1])

    def needs(self, text: str) -> None:
        """Fewer CPUs than its minimum can be had, or may be by its user."""
        needs = re.match(r"needs at least (\d+) CPUs?: ", text)
        assert needs, text
        assert int(needs[1]) == self.mine.minimum
        factor = self.node.plan.rules.sharing_factor
        lent = sum(min(v.cores - v.minimum, int(v.cores * factor)) for v in self.others if not v.fixed)
        if found := re.search(r": (\d+) free, running jobs may lend (\d+)\.$", text):
            assert (int(found[1]), int(found[2])) == (self.free, lent), text
            assert self.free + lent < self.mine.minimum
        else:
            assert text.endswith(f"its user's jobs may have {self.cap} CPU{'s' * (self.cap > 1)} together."), text

    def spared(self) -> bool:
        """Its user has jobs, nothing is free, and with it nobody could lend anything any more."""
        counts = fair_share.admit(self.mine, self.others, self.total, self.node.plan.rules.sharing_factor, self.cap)
        assert not isinstance(counts, fair_share.Wait)
        left = [
            min(counts[view.name] - view.minimum, int(counts[view.name] * self.node.plan.rules.sharing_factor))
            for view in [*self.others, self.mine]
            if not view.fixed and self.node.jobs[view.name].job_class == "malleable"
        ]
        return len(self.of_user()) > 2 and sum(counts.values()) == self.total and not any(left)


@given(NODES)
@settings(max_examples=300)
def test_every_sentence_is_true(node: Node) -> None:
    """What is said of each job of a node is counted anew, by other means."""
    for job in list(node.jobs.values()):
        reader = Reader(node, job)
        for topic, text in explain(node, job.name, END):
            reader.check(topic, text)


@given(NODES, st.integers(0, 4))
def test_shares_are_those_of_the_reference(node: Node, cap: int) -> None:
    """Shares worked out level by level are those that cores handed out one by one lead to."""
    views = [node.plan.view(job) for job in node.jobs.values()]
    if sum(view.cores if view.fixed else view.minimum for view in views) <= len(node.cores):
        assert fair_share.equal_shares(views, len(node.cores), cap) == reference_shares.shares(
            views, len(node.cores), cap
        )
