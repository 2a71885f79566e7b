# SPDX-License-Identifier: Apache-2.0
"""Explanations, in sentences, of why a job waits or has the cores that it has. Pure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from drom.agent.execution.protocol import CONTAINER
from drom.agent.text import LONGEST, counted, duration, span_of
from drom.scheduler.interface import NEVER
from drom.scheduler.live.cluster import admission, units
from drom.scheduler.live.cluster.executions import MOST_LOSSES
from drom.scheduler.live.cluster.image_room import ALL
from drom.scheduler.live.cluster.jobs import (
    CANCELLED,
    ENDING,
    FAILED,
    PENDING,
    RUNNING,
    STARTING,
    TIMEOUT,
    how_it_ended,
)
from drom.scheduler.live.cluster.pool_controller import PoolController
from drom.scheduler.live.cluster.resource_controller import ResourceController
from drom.scheduler.live.cluster.spec import array_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from drom.scheduler.live.cluster.cluster import Cluster
    from drom.scheduler.live.cluster.driver import Driver
    from drom.scheduler.live.cluster.jobs import Job, Node
    from drom.scheduler.live.cluster.placements import Placement


def why(job: Job, cluster: Cluster) -> str:
    """Return in a few words why a job is in its state."""
    if job.state != PENDING:
        return _survives(job, cluster) or job.reason or _ended(job)
    if job.held:
        return _held(job)
    if others := cluster.queue.waits_for(job.number):
        return f"waits for {_named(others)}"
    controller = cluster.controller
    outside = cluster.queue.why_not(job.spec) or _outside(job, cluster)
    if why_not := outside or (controller and controller.fault_of(job.number)):
        return why_not
    if controller and controller.waits(job.number) and not controller.is_first(job.number):
        return _beside_lack(_lacking(job, cluster), "others are before it")
    return _shortage(job, cluster)


def _outside(job: Job, cluster: Cluster) -> str:
    """Return why a job was not submitted to the policy: its image, size, array or user. Empty if it was."""
    if away := cluster.queue.image_away(job):
        return f"what was saved of it is on {away}, which is silent or down"
    if job.number in cluster.queue.too_large:
        return f"fewer than {job.spec.nodes} nodes are free at once, here and in other home partitions"
    if cluster.queue.throttles.waits(job):
        most = array_of(job.spec.array).most
        return f"array {job.array} may run {counted(most, 'job')} at once, as its --array says"
    if not cluster.queue.turns.waits(job):
        return ""
    inside = cluster.queue.turns.inside(job)
    waiting = [number for number in inside if cluster.jobs[number].state == PENDING]
    goes = "goes" if len(waiting) == 1 else "go"
    why = f"{_named(waiting)} of the same user {goes} first" if waiting else "has as many"
    return f"user {job.user.name} may run {counted(cluster.settings.max_running, 'job')} at once here, and {why}"


def _survives(job: Job, cluster: Cluster) -> str:
    """Return on which nodes a job does not end although it was killed; empty if it does."""
    return (
        f"it was killed and does not end on {', '.join(job.left)}"
        if job.number in cluster.executions.survivors.jobs
        else ""
    )


def _ended(job: Job) -> str:
    """Return why a job that is over failed, if its program or its limit is the reason; else empty."""
    if job.state == TIMEOUT:
        killed = ", and it was killed, as it did not end on SIGTERM" if job.status == -signal.SIGKILL else ""
        return f"its limit of {_limit(job)} was over{killed}"
    return f"it {how_it_ended(job.status)}" if job.state == FAILED and job.status is not None else ""


def _limit(job: Job) -> str:
    return f"{job.limit} s" if job.limit < 100 else duration(job.limit)


def _held(job: Job) -> str:
    """Return why a job is held: by a user, or because it was lost too often."""
    lost = f", as it was lost {job.losses} times soon after its start" if job.losses >= MOST_LOSSES else ""
    by = f" by {job.holder}" if job.holder not in ("", job.user.name) else ""
    return f"held{lost or by}: release it with drom hold --release {job.number}"


def _shortage(job: Job, cluster: Cluster) -> str:
    """Return why there are not enough nodes for a job."""
    mine = admission.hosts(job.spec, cluster.state.own)
    away, busy = _away(mine), [node.busy for node in mine if node.state == "busy"]
    if not cluster.nodes:
        return "no node has joined yet"
    if cluster.policy.shares_nodes and cluster.controller and cluster.controller.waits(job.number):
        return _shortage_of_parts(job, cluster, cluster.controller)
    if len(mine) < job.spec.nodes:
        return f"the cluster has {counted(len(mine), 'node')} with what it asks for"
    if len(mine) - away < job.spec.nodes:
        return f"{away} of its nodes {'is' if away == 1 else 'are'} {_why_away(mine)}"
    if len(mine) - away - len(busy) < job.spec.nodes:
        return f"{len(busy)} of its nodes cannot start jobs now: {busy[0].removesuffix('.')}"
    return "not enough nodes are free"


def _lacking(job: Job, cluster: Cluster) -> list[str]:
    """Return the nodes that had no room for the image of a filler and are avoided for this."""
    if job.spec.saving != CONTAINER:
        return []
    names = {name for one in (job.number, ALL) for name in cluster.state.image_room.lacking(one)}
    nodes = [cluster.nodes[name] for name in sorted(names & cluster.nodes.keys())]
    return [node.name for node in admission.hosts(job.spec, nodes)]


def _beside_lack(names: Sequence[str], why: str) -> str:
    """Return why a job waits, after the nodes that have no room for its image if there are any."""
    some = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
    return f"{some} {'has' if len(names) == 1 else 'have'} no room for its image, and {why}" if names else why


def _shortage_of_parts(job: Job, cluster: Cluster, controller: Driver) -> str:
    """Return why a job does not start that gets parts of nodes."""
    if isinstance(controller, PoolController):
        return _shortage_of_cores(job, controller)
    assert isinstance(controller, ResourceController)  # noqa: S101 - no other divides nodes
    (count, _), (now, ever) = units.units(job.spec), controller.room(job.number)
    if lacking := _lacking(job, cluster):
        found = "can run it" if ever < count else f"has {units.in_sentence(job.spec)} free" if now < count else ""
        why = f"no other node {found}" if found else "regular jobs are expected elsewhere"
        return _beside_lack(lacking, why)
    if ever < count:
        return "nodes that it needs are drained, silent or down"
    if now < count:
        return f"{'no node has' if count == 1 else 'too few nodes have'} {units.in_sentence(job.spec)} free"
    return "regular jobs are expected where there is room" if job.spec.saving else "it would delay others"


def _shortage_of_cores(job: Job, controller: PoolController) -> str:
    """Return why a job does not start that gets cores of any nodes."""
    spare, total = controller.spare
    if total < job.spec.least:
        return "nodes that it needs are drained, silent or down"
    return f"it needs {counted(job.spec.least, 'core')}, and the minima of running jobs leave {spare} of {total}"


def _away(nodes: Sequence[Node]) -> int:
    """Return how many of these nodes are lent, drained, silent or down."""
    return sum(node.state not in ("up", "busy") for node in nodes)


def _why_away(nodes: Sequence[Node]) -> str:
    return ("lent, " if any(node.lent for node in nodes) else "") + "drained, silent or down"


MOST_NAMED = 4
"""Jobs that a sentence names at most; if there are more, it names the first and counts the others."""


def _named(jobs: Sequence[int]) -> str:
    some = jobs if len(jobs) <= MOST_NAMED else jobs[: MOST_NAMED - 1]
    more = f" and {len(jobs) - len(some)} more" if len(jobs) > len(some) else ""
    return f"{'jobs' if len(jobs) > 1 else 'job'} {', '.join(map(str, some))}{more}"


def expected_start(
    job: Job, cluster: Cluster, now: float, soonest_of: Callable[[int], int] | None = None
) -> float | None:
    """Return when a waiting job starts if nothing changes; None if that is unknown.

    `soonest_of` is the function that `Controller.soonest` returned; callers with many jobs pass it to share its work.

    The time is the policy's plan. A policy replans only when it could start a job, so that the plan may be older than
    the expected ends of running jobs. The first job therefore starts no earlier than these ends allow, and for the
    others a planned time before them is not returned.
    """
    controller = cluster.controller
    if controller is None or not controller.waits(job.number):
        return None
    planned, is_first = controller.planned(job.number), controller.is_first(job.number)
    if planned == NEVER and not is_first:
        return None
    soonest = (soonest_of or controller.soonest())(job.number)
    if is_first:
        planned = soonest if planned == NEVER else max(planned, soonest)
    return float(planned) if now < planned < NEVER and soonest <= planned else None


def explain(job: Job, cluster: Cluster, now: float) -> list[str]:
    """Return sentences for the user of a job."""
    if job.state == PENDING:
        return _waiting(job, cluster, now)
    if job.state == ENDING:
        return [_has(job, cluster), _ending(job, cluster)]
    if job.state in (STARTING, RUNNING):
        return _on_nodes(job, cluster, now)
    took = "" if job.started is None or job.ended is None else f" after {duration(job.ended - job.started)}"
    about = why(job, cluster).removesuffix(".")
    return [f"It is over: {job.state}{took}{about and f': {about}'}."]


def _waiting(job: Job, cluster: Cluster, now: float) -> list[str]:
    said = [f"It waits: {why(job, cluster)}."]
    if job.reason:
        said.append(f"Last time: {job.reason.removesuffix('.')}.")
    if job.saves:
        where = f", the last time on {job.image_on}" if job.image_on else ""
        said.append(f"It was saved {counted(job.saves, 'time')}{where}.")
    controller = cluster.controller
    if controller and controller.waits(job.number):
        said += [_place(job, controller), *_share(job, cluster), _room(job, cluster)]
        expected = expected_start(job, cluster, now)
        if expected is not None:
            said.append(f"It is expected to start in {duration(expected - now)}, if nothing changes.")
        elif not controller.is_first(job.number):
            said.append("No start is planned for it yet.")
    return said


def _place(job: Job, controller: Driver) -> str:
    """Return a sentence with a job's place in the queue."""
    waiting, _ = controller.counts
    if waiting == 1:
        return "It is the only job that waits."
    return f"It is number {controller.place(job.number)} of {waiting} jobs that wait."


def _share(job: Job, cluster: Cluster) -> list[str]:
    """Return how much the user of a waiting job has used, if that decides the order of the queue."""
    usage, controller = cluster.usage, cluster.controller
    if usage is None or controller is None:
        return []
    numbers = controller.waiting
    before = [cluster.jobs[number] for number in numbers[: numbers.index(job.number)]]
    others = sum(other.user.uid != job.user.uid for other in before)
    used = f"{usage.of(job.user.uid) / 3600:.3g} of the {usage.total / 3600:.3g} core-hours that count now"
    first = f"{counted(others, 'job')} of other users {'goes' if others == 1 else 'go'} first"
    return [f"User {job.user.name} has used {used}, and {first}."]


def _room(job: Job, cluster: Cluster) -> str:
    """Return a sentence with the number of nodes that a job needs, and of those that it could have now."""
    if isinstance(cluster.controller, ResourceController):
        (count, _), (now, _) = units.units(job.spec), cluster.controller.room(job.number)
        times = f", {count} times" if count > 1 else ""
        return f"It needs {units.in_sentence(job.spec)}{times}; there is room for {min(now, count)} now."
    if isinstance(cluster.controller, PoolController):
        spare, total = cluster.controller.spare
        needs = span_of(job.spec.least, job.spec.most, "core")
        return f"It needs {needs}; the minima of running jobs leave {spare} of {total}."
    mine = admission.hosts(job.spec, cluster.state.own)
    free = sum(node.state == "up" and not cluster.placements.on(node.index) for node in mine)
    where = "" if len(mine) == cluster.state.size else f" of the {len(mine)} that have what it asks for"
    away = f", {_away(mine)} {_why_away(mine)}" if _away(mine) else ""
    unable = sum(node.state == "busy" for node in mine)
    away += f", {unable} cannot start jobs now" if unable else ""
    is_free = f"{free}{where} {'is' if free == 1 else 'are'} free{away}"
    return f"It needs {counted(job.spec.nodes, 'node')}; {is_free}."


def _measured(known: Mapping[int, float], total: int) -> list[str]:
    """Return how fast a job was with fewer cores, if it was measured with more than one number of cores."""
    if len(known) < 2:
        return []
    most = max(known)
    parts = [f"{known[cores] / known[most]:.2f} with {cores}" for cores in known if cores != most]
    return [f"Of its speed with {most} of {total} cores it was measured to have {', '.join(parts)}."]


def _has(job: Job, cluster: Cluster) -> str:
    """Return the cores that a job has of the nodes that it has not left."""
    parts = [
        f"{job.shares[name]} of {counted(cluster.nodes[name].cores, 'core')} of {name}{_devices(job, name)}"
        for name in job.left
        if job.shares[name]
    ]
    return f"It has {', '.join(parts) or 'no cores'}."


def _devices(job: Job, node: str) -> str:
    """Return the identities of the counted resources that a job has on a node: `` with gpu 0,1``."""
    found = job.devices.get(node, {})
    return "".join(f" with {name} {','.join(map(str, which))}" for name, which in found.items())


def _ending(job: Job, cluster: Cluster) -> str:
    """Return why a job ends, and how it is ended."""
    if job.verdict == CANCELLED:
        ends = f"It was {job.reason}"
    elif job.verdict == TIMEOUT:
        ends = f"Its limit of {_limit(job)} is over"
    elif job.reason:
        ends = f"It is to end, as {job.reason.removesuffix('.')}"
    else:
        ends = "Its own program has ended"
    if job.number in cluster.executions.survivors.jobs:
        hangs = "a process of it may hang in the kernel, for example on a file system that is gone"
        survives = "it was killed and does not end, and has its cores until it does"
        return f"{ends}: {survives}. See its agents' logs: {hangs}."
    if job.launcher in job.left:
        return f"{ends}: it received SIGTERM, and is killed within {duration(cluster.settings.kill_wait)}."
    return f"{ends}: what is left of it is killed."


def _drained(job: Job, cluster: Cluster) -> list[Placement]:
    """Return the parts of a job on drained nodes."""
    return [part for part in cluster.placements.of(job.number) if part.node.drained]


def _leaving(part: Placement) -> str:
    """Return whether a job leaves the drained node of one of its parts, and what that waits for, as a clause."""
    name = part.node.name
    if not part.job.ranks:
        return f"job {part.job.number} runs on {name} until it ends"
    if not part.job.ranks[name] and part.has_ranks is False:
        return f"no rank of job {part.job.number} is on {name}, and what its MPI library keeps there ends with the job"
    if part.planned:
        return f"job {part.job.number} stays on {name}, as the minima of all jobs do not fit on the other nodes"
    begins = name != part.job.launcher and part.job.ranks[name] and not part.has_ranks
    if part.held or begins:
        once = "it has cores elsewhere" if part.held else "its ranks there have begun"
        return f"job {part.job.number} leaves {name} once {once}"
    rest = f"the ranks of job {part.job.number} on {name} rest"
    if name == part.job.launcher:
        return f"{rest} until it ends, as mpirun does, which has started it there"
    return f"{rest}, and end at its next malleability point if its MPI library can end some ranks before others"


def _awaited(name: str, due: float) -> str:
    """Return a sentence about a node that a job has joined, and on which its ranks have not reported."""
    if due:
        return f"It waits for its ranks on {name}."
    return f"Its ranks did not come on {name}: it has given that node back, and joins no other."


def leaving(node: Node, cluster: Cluster) -> str:
    """Return which jobs a drained node waits for, and why, as clauses; empty if it waits for none."""
    parts = cluster.placements.on(node.index) if node.drained and cluster.policy.pooled else []
    return "; ".join(_leaving(part) for part in parts)


def _on_whole_nodes(job: Job, cluster: Cluster) -> Iterator[str]:
    """Yield which nodes a job has left for others, which others have left for it, and with whom it shares nodes."""
    parts, has_all = cluster.placements.of(job.number), "has all cores of a node again when those have ended"
    if left := [part for part in parts if not part.planned]:
        does = "is leaving" if any(part.held for part in left) else "has left"
        names = ", ".join(part.node.name for part in left)
        yield f"It {does} {names} for {_named(_beside(left, cluster))}, and {has_all}."
    if shared := _beside([part for part in parts if 0 < part.planned < part.node.cores], cluster):
        yield f"It shares nodes with {_named(shared)}, and {has_all}."
    there = [other for part in parts if part.planned for other in cluster.placements.on(part.node.index)]
    if owners := sorted({other.job.number for other in there if not (other.planned or other.held)}):
        yield f"Some of its nodes were left by {_named(owners)}, and go back when it ends."
    if job.stays:
        yield "It leaves no more nodes, as its ranks did not leave one in time."
    elif job.fewest_nodes > job.spec.min_nodes:
        yield f"It keeps {counted(job.fewest_nodes, 'node')}, as its program needs the ranks of so many."
    if job.needed_cores > 1:
        yield f"While it shares nodes it keeps {job.needed_cores} cores of each, as its program needs so many ranks."


def _beside(parts: Iterable[Placement], cluster: Cluster) -> list[int]:
    """Return the other jobs on the nodes of these parts of a job."""
    found = [other.job.number for part in parts for other in cluster.placements.on(part.node.index) if other != part]
    return sorted(set(found))


def _on_nodes(job: Job, cluster: Cluster, now: float) -> list[str]:
    said = [_has(job, cluster)]
    if job.ranks:
        can, has = span_of(job.least, job.most, "core"), sum(job.sizes.values())
        rest = f"the other {job.tasks - has} of its {job.tasks} ranks rest" if has < job.tasks else "all its ranks run"
        said.append(f"It runs on {can}, and has {has} now: {rest}.")
        said += [f"{about[0].upper()}{about[1:]}." for part in _drained(job, cluster) if (about := _leaving(part))]
        said += [_awaited(name, due) for name, due in job.awaited.items()]
    if cluster.fillers.is_saving(job):
        said.append("It is being saved, because a regular job needs its node.")
    if job.number in cluster.executions.offers:
        said.append(f"It waits for its image from {job.image_on}.")
    elif job.state == STARTING:
        waits = cluster.dispatch.waiting_for(job.number)
        said.append(f"It starts once {_named(waits)} made room." if waits else "Its nodes have been asked to start it.")
    if not cluster.policy.shares_nodes:
        said += _on_whole_nodes(job, cluster)
    total = max((part.node.cores for part in cluster.placements.of(job.number)), default=0)
    said += _measured(cluster.executions.known_rates(job.number), total)
    if job.started is not None and not (job.spec.saving and job.spec.time == LONGEST):
        left = job.started + job.limit - now
        said.append(f"It may take {duration(max(0.0, left))} more.")
    return said
