# SPDX-License-Identifier: Apache-2.0
"""Fillers run in gaps, give way to regular jobs, and go on from what was saved."""

from __future__ import annotations

import math
import signal
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from drom.agent.execution import protocol as say
from drom.agent.text import LONGEST
from drom.scheduler.allocation.gaps import Gaps
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER
from drom.scheduler.live.cluster import explain
from drom.scheduler.live.cluster.controller import JobRequest
from drom.scheduler.live.cluster.jobs import User
from drom.scheduler.live.cluster.partitions import Partition
from drom.scheduler.live.cluster.resource_controller import MOST_RUNS, ResourceController
from drom.scheduler.live.cluster.spec import Spec, check

from tests.support.fake_cluster import ANN, SETTINGS, FakeCluster, Size

if TYPE_CHECKING:
    from pathlib import Path

    from drom.scheduler.live.cluster.jobs import Job

RESOURCES = load_policy("resources")
BOB = User(1001, 1001, "bob")
SIZES: list[Size] = [(4, 8 << 30, {}), (4, 8 << 30, {})]
REGULAR = Spec(command=("job",), folder="/", time=600, nodes=1, threads=4)
SHORT = Partition("short", max_time=60, default_time=30, default=True)
FILLER = replace(REGULAR, threads=1, saving="container", time=0, memory=1 << 30)


def cluster(folder: Path, gaps: Gaps | None = None, nodes: int = 2) -> FakeCluster:
    """Return a cluster of equal nodes whose agents have said hello."""
    here = FakeCluster(folder, RESOURCES, nodes, replace(SETTINGS, gaps=gaps or Gaps()), SIZES)
    here.settle()
    return here


def submit(here: FakeCluster, asked: Spec) -> Job:
    """Submit a job and let everything happen that follows from it."""
    return here.submit_and_settle(asked)


def works(here: FakeCluster, job: Job, work: int) -> None:
    """Let a running filler have done some work."""
    here.nodes[job.launcher].known[job.number, job.attempt].work = work


def pass_time(here: FakeCluster, until: float, takes: float) -> list[float]:
    """Let time pass on a cluster of one node, on which saves take so long; return when saves were ordered."""
    node, ordered, due = here.nodes["n0"], list[float](), math.inf
    while here.now < until:
        here.turn(max(0.0, min(here.now + 1.0, until, due, here.cluster.next_look()) - here.now))
        node.read_all()
        if not node.welcome:
            here.join(node)
        saving = [key for key, one in node.running.items() if one.save]
        if saving and due == math.inf:
            ordered.append(here.now)
            due = here.now + takes
        if here.now >= due:
            node.finish_save(saving[0])
            due = math.inf
        while node.outbox:
            here.hear(node)
    return ordered


def work_of(here: FakeCluster, job: Job) -> int:
    """Return the work that a running filler has done."""
    return here.nodes[job.launcher].known[job.number, job.attempt].work


def test_a_filler_gives_way_and_goes_on_elsewhere_with_its_state(tmp_path: Path) -> None:
    """The regular job starts once the filler has been saved; the filler restores its image on the other node."""
    here = cluster(tmp_path)
    filler = submit(here, FILLER)
    first = filler.launcher
    works(here, filler, 7)
    regular = submit(here, replace(REGULAR, nodelist=(first,)))

    assert (regular.state, regular.launcher) == ("running", first)
    assert (filler.state, filler.saves, filler.image_on) == ("running", 1, first)
    assert filler.launcher != first
    assert work_of(here, filler) == 7
    assert here.nodes[first].images == {filler.number: (1, 7)}, "it would be lost with the other node"
    events = [entry.what for entry in here.store.history(filler.number, filler.number)]
    assert events.index("saving") < events.index("saved") < events.index("requeued")

    here.settle(ends=True)
    assert filler.state == "completed"
    assert not any(node.images for node in here.nodes.values()), "images of jobs that are over are removed"


def test_a_newer_image_replaces_the_one_on_another_node(tmp_path: Path) -> None:
    """A filler that moves has one image at a time, the last one."""
    here = cluster(tmp_path)
    filler = submit(here, FILLER)
    first = filler.launcher
    one = submit(here, replace(REGULAR, nodelist=(first,)))
    second = filler.launcher
    works(here, filler, 9)
    other = submit(here, replace(REGULAR, nodelist=(second,)))

    assert (one.state, other.state, filler.state) == ("running", "running", "pending")
    assert (filler.saves, filler.image_on) == (2, second)
    assert (here.nodes[first].images, here.nodes[second].images) == ({}, {filler.number: (2, 9)})
    assert explain.explain(filler, here.cluster, here.now)[1:3] == [
        f"Last time: a regular job needed its node: it was saved on {second}.",
        f"It was saved 2 times, the last time on {second}.",
    ]


def test_a_regular_job_waits_until_the_filler_has_left_also_for_its_memory(tmp_path: Path) -> None:
    """Cores may be enough for both while the filler is saved: memory is not."""
    here = cluster(tmp_path, nodes=1)
    filler = submit(here, replace(FILLER, memory=6 << 30))
    regular = here.cluster.submit(replace(REGULAR, threads=2, memory=4 << 30), ANN, here.now)
    here.turn()
    here.nodes["n0"].read_all()
    here.turn()

    assert (filler.state, regular.state) == ("running", "starting")
    assert here.cluster.fillers.is_saving(filler)
    assert here.cluster.dispatch.waiting_for(regular.number) == [filler.number]
    here.check_cores()
    here.settle()
    assert (filler.state, regular.state) == ("pending", "running")


def test_a_filler_that_cannot_be_saved_goes_on_from_its_last_image(tmp_path: Path) -> None:
    """It is killed, says why, and is held when that happens again and again."""
    here = cluster(tmp_path, nodes=1)
    filler = submit(here, FILLER)
    node = here.nodes["n0"]
    for turn in range(5):
        works(here, filler, 10 + turn)
        regular = here.cluster.submit(REGULAR, ANN, here.now)
        here.turn()
        node.read_all()
        node.finish_save((filler.number, filler.attempt), succeeds=False)
        here.settle()
        assert regular.state == "running"
        assert (filler.state, filler.saves) == ("pending", 0)
        here.nodes["n0"].end((regular.number, 1), 0)
        here.settle()

    assert filler.held
    assert filler.reason == "it could not be saved, and begins again: it has an open connection."


def test_a_program_that_its_save_ends_begins_again(tmp_path: Path) -> None:
    """It had no handler for the signal yet; one that never has one is held."""
    here = cluster(tmp_path, nodes=1)
    filler = submit(here, replace(FILLER, saving="program"))
    for turn in range(1, 6):
        regular = here.cluster.submit(REGULAR, ANN, here.now)
        here.turn()
        here.nodes["n0"].read_all()
        here.nodes["n0"].end((filler.number, filler.attempt), -signal.SIGUSR1)
        here.settle()
        assert (regular.state, filler.state, filler.losses) == ("running", "pending", turn)
        here.nodes["n0"].end((regular.number, 1), 0)
        here.settle()

    assert filler.held
    why = "SIGUSR1 ended its program, which has no handler for it, or had none yet."
    assert filler.reason == f"it could not be saved, and begins again: {why}"


@pytest.mark.parametrize("time", [0, 600])
def test_a_change_of_a_saved_filler_gives_back_no_time(tmp_path: Path, time: int) -> None:
    """What it has run counts as before, and its history has no limit that nobody has set."""
    here = cluster(tmp_path, nodes=1)
    filler = submit(here, replace(FILLER, time=time))
    here.turn(100.0)
    here.settle()
    regular = submit(here, REGULAR)
    left = filler.limit
    here.cluster.update(filler.number, here.cluster.changed(filler.number, {"name": "x"}), here.now, "ann", "")

    assert (regular.state, filler.state, filler.saves) == ("running", "pending", 1)
    assert filler.ran > 99
    assert (left, filler.limit) == ((time or LONGEST) - int(filler.ran), left)
    here.settle(ends=True)
    assert "limit" not in [entry.what for entry in here.store.history(filler.number, filler.number)]


def test_a_lost_node_costs_the_work_since_the_last_image(tmp_path: Path) -> None:
    """The image is on the node where it was saved, until there is a newer one."""
    here = cluster(tmp_path)
    filler = submit(here, FILLER)
    first = filler.launcher
    works(here, filler, 5)
    regular = submit(here, replace(REGULAR, nodelist=(first,)))
    works(here, filler, 50)
    lost = here.nodes[filler.launcher]
    here.nodes[first].end((regular.number, 1), 0)
    here.settle()
    del lost.known[filler.number, filler.attempt]
    here.join(lost)
    here.settle()

    assert filler.state == "running"
    assert filler.attempt == 3
    assert work_of(here, filler) == 5


def test_a_filler_waits_for_the_node_that_has_its_image(tmp_path: Path) -> None:
    """Not for ever: once an administrator has removed the node, it begins again."""
    here = cluster(tmp_path)
    filler = submit(here, FILLER)
    blockers = [submit(here, replace(REGULAR, nodelist=(name,))) for name in ("n0", "n1")]
    image_on = filler.image_on
    assert filler.state == "pending"
    for blocker in blockers:
        here.nodes[blocker.launcher].end((blocker.number, blocker.attempt), 0)
    lost = here.nodes.pop(image_on)
    for name in here.nodes:
        while here.nodes[name].outbox:
            here.hear(here.nodes[name])
    here.cluster.members.next_look = 0.0
    here.turn(SETTINGS.silence + 1)
    assert filler.state == "pending"
    assert explain.why(filler, here.cluster) == f"what was saved of it is on {image_on}, which is silent or down"

    here.nodes[image_on] = lost
    here.settle()
    assert filler.state == "running"
    assert filler.launcher == image_on, "no image is moved where there is room at home"


def test_fillers_never_stand_in_the_way_of_a_reservation(tmp_path: Path) -> None:
    """Policy B: they are saved before it begins, so that its job starts at once."""
    here = cluster(tmp_path, Gaps(0, 10), nodes=1)
    short = submit(here, replace(REGULAR, threads=3, time=100))
    filler = submit(here, FILLER)
    assert filler.state == "running"
    begin = short.started
    assert begin is not None
    waits = submit(here, REGULAR)
    assert (waits.state, filler.state) == ("pending", "running")
    assert pass_time(here, begin + 89, takes=6.0) == []
    assert pass_time(here, begin + 97, takes=6.0) == [begin + 90]
    assert (filler.state, short.state) == ("pending", "running")
    here.nodes["n0"].end((short.number, 1), 0)
    here.settle()
    assert waits.state == "running"


def test_under_policy_a_fillers_are_saved_before_each_slot_ends(tmp_path: Path) -> None:
    """Regular jobs start at the beginnings of slots, and find all nodes free of fillers."""
    here = cluster(tmp_path, Gaps(60, 10), nodes=1)
    filler = submit(here, FILLER)
    assert pass_time(here, 1079, takes=5.0) == [1070]
    assert (filler.state, filler.saves) == ("pending", 1)
    assert len(pass_time(here, 1139, takes=5.0)) == 1
    assert (filler.state, filler.saves) == ("pending", 2)
    pass_time(here, 1160, takes=5.0)
    assert filler.state == "running"
    regular = submit(here, replace(REGULAR, time=60))
    pass_time(here, 1202, takes=5.0)
    assert regular.started == 1200


def test_the_lead_of_saves_follows_those_that_were_measured(tmp_path: Path) -> None:
    """A quick filler is saved just before a slot ends, a slow one in time, also after a restart of the scheduler."""
    here = cluster(tmp_path, Gaps(60, 10), nodes=1)
    filler = submit(here, FILLER)
    assert pass_time(here, 1085, takes=0.4) == [1070, pytest.approx(1080 - 1.792, abs=0.002)]
    assert filler.save_times == [400, 400]
    assert pass_time(here, 1145, takes=0.4) == [pytest.approx(1140 - 1.280, abs=0.002)]
    here.crash()
    here.settle()
    assert pass_time(here, 1210, takes=3.0) == [pytest.approx(1200 - 0.896, abs=0.002)]
    for end in range(1260, 1680, 60):
        assert pass_time(here, end + 10, takes=0.4) == [pytest.approx(end - 6.144, abs=0.002)]
    again = [pytest.approx(1680 - 6.144, abs=0.002), pytest.approx(1680 - 0.896, abs=0.002)]
    assert pass_time(here, 1690, takes=0.4) == again
    (filler,) = here.cluster.jobs.values()
    assert filler.save_times == [400] * 8


def test_a_node_that_was_silent_does_not_make_saves_long(tmp_path: Path) -> None:
    """No save takes longer than it may, and one that a scheduler has not ordered itself has no known time."""
    here = cluster(tmp_path, Gaps(0, 10), nodes=1)
    filler = submit(here, FILLER)
    for late in (0.0, 2 * SETTINGS.save_within):
        regular = here.cluster.submit(REGULAR, ANN, here.now)
        here.turn()
        here.nodes["n0"].read_all()
        here.now += late
        if not late:
            here.crash()
        here.settle()
        here.nodes["n0"].end((regular.number, 1), 0)
        here.settle()
    (filler,) = (job for job in here.cluster.jobs.values() if job.spec.saving)
    assert filler.saves == 2
    assert filler.save_times == [1000 * SETTINGS.save_within]


def test_each_filler_is_saved_its_own_lead_ahead() -> None:
    """A quick one works on beside a slow one that is being saved; near the end of a slot only a quick one starts."""
    controller = ResourceController(RESOURCES, Gaps(60, 10))
    controller.describe(0, 2, 0, {})
    controller.node_up(0)
    amounts = (("cores", 1), ("memory", 0))
    slow, quick = (JobRequest(1, 10**6, amounts=amounts, fills=True, save_times=(took,) * 3) for took in (8_000, 400))
    controller.submit(1, slow, 0)
    controller.submit(2, quick, 0)
    assert sorted(controller.turn(0)) == [1, 2]
    assert controller.fillers_to_save(0) == []
    assert controller.save_at == 60_000 - 16_384
    assert controller.fillers_to_save(60_000 - 16_384) == [1]
    controller.ended(1, 52)
    controller.submit(1, slow, 52)
    controller.submit(3, quick, 52)
    assert controller.turn(52) == [3]
    assert controller.fillers_to_save(52_000) == []
    assert controller.fillers_to_save(60_000 - 896) == [2, 3]
    assert controller.save_at == NEVER


def test_who_is_to_leave_later_does_not_leave_earlier() -> None:
    """Where one of two fillers has to go, it is the last one, although the first one would have to go sooner."""
    controller = ResourceController(RESOURCES, Gaps(0, 10))
    controller.describe(0, 4, 0, {})
    controller.node_up(0)
    one, two, three = ((("cores", cores), ("memory", 0)) for cores in (1, 2, 3))
    controller.submit(0, JobRequest(1, 100, amounts=two), 0)
    controller.turn(0)
    for number, took in ((1, 8_000), (2, 400)):
        controller.submit(number, JobRequest(1, 10**6, amounts=one, fills=True, save_times=(took,) * 3), number)
        assert controller.turn(number) == [number]
    controller.submit(3, JobRequest(1, 10, amounts=three), 3)
    assert controller.turn(3) == []
    assert controller.planned(3) == 100
    assert controller.fillers_to_save(3_000) == []
    assert controller.fillers_to_save(100_000 - 16_384) == []
    assert controller.save_at == 100_000 - 896
    assert controller.fillers_to_save(100_000 - 896) == [2]


def test_many_fillers_with_different_leads_start_in_their_order() -> None:
    """Beyond a number of changes in the queue the longest lead of the rest counts, which holds up nobody else."""
    controller = ResourceController(RESOURCES, Gaps(60, 10))
    controller.describe(0, 30, 0, {})
    controller.node_up(0)
    amounts = (("cores", 1), ("memory", 0))
    for number in range(100):
        took = 8_000 if number % 2 else 400
        controller.submit(number, JobRequest(1, 10**6, amounts=amounts, fills=True, save_times=(took,) * 3), 0)
    assert controller.turn(30) == list(range(0, MOST_RUNS, 2))
    assert sorted(controller.turn(60)) == list(range(1, MOST_RUNS, 2)) + list(range(MOST_RUNS, 30))


def test_a_job_that_comes_within_a_slot_waits_for_the_next(tmp_path: Path) -> None:
    """The scheduler wakes at the beginning of each slot although nothing happens, and decides only then."""
    here = cluster(tmp_path, Gaps(60, 10), nodes=1)
    controller = here.cluster.controller
    assert controller
    while here.now % 60:
        here.turn(1.0)
    assert controller.wake == here.now + 60
    regular = here.cluster.submit(replace(REGULAR, time=60), ANN, here.now)
    here.turn()
    assert (regular.state, controller.wake) == ("pending", here.now + 60)
    here.turn(60.0)
    assert regular.state == "starting"


def test_an_image_is_restored_only_on_cpus_of_its_type(tmp_path: Path) -> None:
    """Elsewhere the filler waits."""
    here = cluster(tmp_path)
    here.nodes["n1"].cpu = "arm"
    here.join(here.nodes["n1"])
    here.settle()
    filler = submit(here, replace(FILLER, nodelist=()))
    first = filler.launcher
    submit(here, replace(REGULAR, nodelist=(first,)))
    assert filler.state == "pending"
    assert filler.image_on == first


def test_a_cancelled_filler_leaves_no_image(tmp_path: Path) -> None:
    """Whether it waits, runs, or waits for its image to come."""
    here = cluster(tmp_path)
    waits, runs = submit(here, replace(FILLER, threads=4)), submit(here, FILLER)
    for name in ("n0", "n1"):
        submit(here, replace(REGULAR, nodelist=(name,)))
    assert {waits.state, runs.state} == {"pending"}
    here.cluster.cancel(waits.number, here.now, "cancelled by ann")
    here.send()
    here.settle()
    assert waits.state == "cancelled"
    moves = runs
    blocker = next(job for job in here.cluster.jobs.values() if job.launcher and job.launcher != moves.image_on)
    here.nodes[blocker.launcher].end((blocker.number, blocker.attempt), 0)
    here.hear(here.nodes[blocker.launcher])
    here.turn()
    here.turn()
    assert moves.number in here.cluster.executions.offers
    assert f"It waits for its image from {moves.image_on}." in explain.explain(moves, here.cluster, here.now)
    here.cluster.cancel(moves.number, here.now, "cancelled by ann")
    here.send()
    here.settle(ends=True)
    assert moves.state == "cancelled"
    assert not any(node.images for node in here.nodes.values())


def test_an_image_that_does_not_come_makes_the_filler_wait_again(tmp_path: Path) -> None:
    """After a minute, or when the node says that it has none."""
    here = cluster(tmp_path)
    filler = submit(here, FILLER)
    first = filler.launcher
    here.nodes[first].images.clear()
    submit(here, replace(REGULAR, nodelist=(first,)))
    here.nodes[first].images.clear()
    second = filler.launcher
    del here.nodes[second].known[filler.number, filler.attempt]
    here.join(here.nodes[second])
    here.settle()
    assert filler.held
    assert filler.reason == f"node {first} cannot send its image: it was removed."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"saving": "magic"}, "--checkpoint 'magic' is not a way to save a filler: choose container or program."),
        ({"nodes": 2}, "a filler is one task on one node: leave out --nodes, --ntasks and --tasks-per-node."),
        ({"ranks": 2}, "a filler is one task on one node: leave out --nodes, --ntasks and --tasks-per-node."),
        (
            {"resources": {"gpu": 1}},
            "a filler gives its node up at any time, and has no --resources: submit a regular job.",
        ),
        (
            {"terminal": "host:1 secret"},
            "a filler may be anywhere, and has no terminal: leave out --pty, or --filler.",
        ),
        ({"requeue": False}, "a filler starts again and again: leave out --no-requeue, or --filler."),
    ],
)
def test_a_filler_that_could_not_be_saved_is_refused(change: dict[str, object], sentence: str) -> None:
    """In one sentence that says what to do."""
    with pytest.raises(SchedulerError) as caught:
        check(replace(FILLER, **change))  # type: ignore[arg-type]
    assert str(caught.value) == sentence


def test_fillers_need_a_policy_and_nodes_that_can(tmp_path: Path) -> None:
    """A scheduler of whole nodes, and agents that cannot save, say so at submission."""
    here = FakeCluster(tmp_path / "easy", load_policy("easy"), 1)
    here.settle()
    with pytest.raises(SchedulerError, match=r"^policy easy gives jobs whole nodes, and fillers need gaps in nodes: "):
        here.cluster.submit(FILLER, ANN, here.now)

    here = FakeCluster(tmp_path / "none", RESOURCES, 1, sizes=SIZES)
    node = here.nodes["n0"]
    here.cluster.agents.hello(replace(node.hello(), saves=("program",)), here.now)
    with pytest.raises(SchedulerError, match=r"^none of the nodes can save a filler by container: choose another "):
        here.cluster.submit(FILLER, ANN, here.now)
    assert here.cluster.submit(replace(FILLER, saving="program"), ANN, here.now).state == "pending"


def test_times_of_partitions_are_for_regular_jobs(tmp_path: Path) -> None:
    """Fillers hold up nobody, however long they run."""
    here = FakeCluster(tmp_path, RESOURCES, 2, replace(SETTINGS, partitions=(SHORT,)), SIZES)
    here.settle()
    with pytest.raises(SchedulerError, match=r"^the job asks for 10 min, and partition short allows 60 s: "):
        here.cluster.submit(REGULAR, ANN, here.now)

    assert submit(here, replace(REGULAR, threads=1, time=0)).limit == 30
    assert [submit(here, replace(FILLER, time=time)).limit for time in (0, 600)] == [LONGEST, 600]


def test_a_node_that_is_back_is_told_what_it_missed(tmp_path: Path) -> None:
    """Images of jobs that are over are removed, and a save is ordered again."""
    here = cluster(tmp_path, nodes=1)
    node = here.nodes["n0"]
    node.images[77] = 1, 1
    filler = submit(here, FILLER)
    here.cluster.submit(REGULAR, ANN, here.now)
    here.turn()
    here.turn()
    assert [type(one) for one in node.inbox][-1] is say.Save
    here.join(node)
    assert say.Save(filler.number, 1, 1, SETTINGS.save_within) in node.inbox
    node.read_all()
    assert 77 not in node.images
    here.settle()
    assert filler.saves == 1


def test_fillers_cost_their_users_no_share(tmp_path: Path) -> None:
    """Neither while they run nor while they wait, for however long they ask."""
    settings = replace(SETTINGS, half_life=3600.0)
    here = FakeCluster(tmp_path, RESOURCES, 1, settings, SIZES)
    here.settle()
    submit(here, FILLER)
    submit(here, replace(FILLER, threads=4))
    assert here.cluster.usage
    here.turn(1000.0)
    hers = here.cluster.submit(REGULAR, ANN, here.now)
    his = here.cluster.submit(REGULAR, BOB, here.now)
    here.turn(11.0)

    assert here.cluster.usage.of(ANN.uid) == 0
    assert here.cluster.controller
    assert hers.state == "starting"
    assert here.cluster.controller.waiting[0] == his.number


def test_fillers_of_a_user_leave_gaps_to_those_of_others(tmp_path: Path) -> None:
    """Under fair share, however many a user has submitted before; the order of regular jobs does not change."""
    here = FakeCluster(tmp_path, RESOURCES, 1, replace(SETTINGS, half_life=3600.0), SIZES)
    here.settle()
    many = [submit(here, FILLER) for _ in range(8)]
    his = here.cluster.submit(FILLER, BOB, here.now)
    here.settle()
    assert his.state == "pending"
    regular = submit(here, REGULAR)
    later = [here.cluster.submit(REGULAR, user, here.now) for user in (ANN, BOB)]
    here.turn(11.0)
    assert here.cluster.controller
    assert here.cluster.controller.waiting[:3] == [later[1].number, later[0].number, many[0].number]
    assert here.cluster.controller.waiting[3] == his.number
    for job in later:
        here.cluster.cancel(job.number, here.now, "cancelled")
    here.nodes["n0"].end((regular.number, regular.attempt), 0)
    here.settle()

    assert his.state == "running"
    assert [job.state for job in many].count("running") == 3


def lacks_room_for_others(here: FakeCluster, name: str) -> None:
    """Leave a node no room for images of other nodes."""
    here.nodes[name].has_room = lambda start: not start.source


def beside_a_node_without_room(here: FakeCluster) -> tuple[Job, str, str]:
    """Start a filler on one of two nodes; return it, that node, and the other one, which has no room for its image."""
    filler = submit(here, FILLER)
    (other,) = here.nodes.keys() - {filler.launcher}
    lacks_room_for_others(here, other)
    return filler, filler.launcher, other


def attempts_on(here: FakeCluster, job: Job, name: str) -> int:
    """Return how often a job was placed on a node."""
    entries = here.store.history(job.number, job.number)
    return sum(entry.what == "placed" and name in entry.detail["shares"] for entry in entries)


def test_a_filler_goes_where_its_image_fits(tmp_path: Path) -> None:
    """A node without room for it is tried once, and is no fault of the job."""
    here = cluster(tmp_path, nodes=3)
    filler = submit(here, FILLER)
    home = filler.launcher
    small, large = (name for name in here.nodes if name != home)
    lacks_room_for_others(here, small)
    submit(here, replace(REGULAR, nodelist=(home,)))

    assert (filler.state, filler.launcher, filler.losses) == ("running", large, 0)
    assert attempts_on(here, filler, small) == 1


def test_a_filler_whose_image_fits_nowhere_waits_until_there_is_room(tmp_path: Path) -> None:
    """It says so, is not held, and tries more and more seldom; its own node needs no more room."""
    here = cluster(tmp_path)
    filler, home, other = beside_a_node_without_room(here)
    regular = submit(here, replace(REGULAR, nodelist=(home,), time=100_000))

    assert (filler.state, filler.held, filler.losses) == ("pending", False, 0)
    assert explain.explain(filler, here.cluster, here.now)[:2] == [
        f"It waits: {other} has no room for its image, and no other node has 1 core and 1 GiB of memory free.",
        f"Last time: node {other}: an image of 2 GiB does not fit: raise the quota.",
    ]
    assert here.cluster.nodes[other].state == "up"
    until = here.now + 3000.0
    while here.now < until:
        here.turn(max(1.0, here.cluster.next_look() - here.now))
        here.settle()
    entries = here.store.history(filler.number, filler.number)
    tried = [entry.at for entry in entries if entry.what == "placed" and other in entry.detail["shares"]]
    pauses = [round((after - before) / 60) for before, after in pairwise(tried)]
    assert pauses == [1, 2, 4, 8, 16, 16]
    assert (filler.held, filler.losses) == (False, 0)
    here.nodes[home].end((regular.number, regular.attempt), 0)
    here.settle()
    assert (filler.state, filler.launcher) == ("running", home)


def test_a_filler_that_waits_for_room_starts_once_the_agent_begins_again(tmp_path: Path) -> None:
    """As when an administrator has raised its quota."""
    here = cluster(tmp_path)
    filler, home, other = beside_a_node_without_room(here)
    submit(here, replace(REGULAR, nodelist=(home,)))
    here.nodes[other].has_room = lambda _: True
    here.join(here.nodes[other])
    here.settle()

    assert (filler.state, filler.launcher) == ("running", other)


def test_an_image_without_room_on_a_node_keeps_no_other_filler_away(tmp_path: Path) -> None:
    """Those of other users, and smaller ones, may fit."""
    here = cluster(tmp_path)
    filler, home, other = beside_a_node_without_room(here)
    submit(here, replace(REGULAR, nodelist=(home,)))
    fresh = submit(here, FILLER)

    assert (filler.state, fresh.state, fresh.launcher) == ("pending", "running", other)


def test_a_full_disk_for_images_keeps_regular_jobs_from_no_node(tmp_path: Path) -> None:
    """Fillers in containers wait, and are accepted; regular jobs and fillers that save themselves start there."""
    here = cluster(tmp_path, nodes=1)
    here.nodes["n0"].has_room = lambda _: False
    filler = submit(here, FILLER)
    later = submit(here, FILLER)

    assert (filler.state, later.state, filler.losses) == ("pending", "pending", 0)
    assert attempts_on(here, filler, "n0") + attempts_on(here, later, "n0") == 1
    assert explain.why(filler, here.cluster) == "n0 has no room for its image, and no other node can run it"
    assert here.cluster.nodes["n0"].to_json()["full"] == "an image of 2 GiB does not fit: raise the quota."
    assert [event for event, _ in here.warnings] == ["images_full"]
    own = submit(here, replace(FILLER, saving="program"))
    regular = submit(here, replace(REGULAR, threads=1))
    assert (own.state, regular.state) == ("running", "running")
    here.nodes["n0"].has_room = lambda _: True
    here.turn(60.0)
    here.settle()
    assert (filler.state, later.state) == ("running", "running")
    assert here.cluster.nodes["n0"].full == ""


def test_a_scheduler_that_begins_again_tries_a_full_node(tmp_path: Path) -> None:
    """What it has stored of a node does not keep fillers away for ever."""
    here = cluster(tmp_path, nodes=1)
    here.nodes["n0"].has_room = lambda _: False
    filler = submit(here, FILLER)
    here.nodes["n0"].has_room = lambda _: True
    here.crash()
    here.settle()

    assert here.cluster.jobs[filler.number].state == "running"
