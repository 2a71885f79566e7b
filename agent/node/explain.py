# SPDX-License-Identifier: Apache-2.0
"""Why a job has the CPUs it has, in sentences. Pure: a node and the time in, sentences out.

Each sentence has a topic: asked, share, has, since, limit, waits, change, wish, mode. CPUs are OS numbers as kernel
lists.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.errors import Refused
from drom.agent.model.jobs import NO_DEMAND, Demand, action_name
from drom.agent.model.layouts import layout_name
from drom.agent.node.admission import waiting_jobs
from drom.agent.node.areas import area_of
from drom.agent.policy import fair_share
from drom.agent.policy.demand import applies_at
from drom.agent.text import (
    CORES_DIFFER,
    KINDS_ALIKE,
    counted,
    cpu_names,
    cpus_are,
    duration,
    in_words,
    left_alone,
    span_of,
)

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from drom.agent.model.jobs import Event, Job, Task
    from drom.agent.node.node import Node
    from drom.agent.policy.fair_share import JobCores

NAMED = 4
"""The number of neighbours or pids that a sentence names before it counts the rest."""


class Sentence(NamedTuple):
    """A sentence and its topic."""

    topic: str
    text: str


def explain(
    node: Node,
    name: str,
    now: float,
    user: Callable[[int], str] = str,
) -> list[Sentence]:
    """Return why job `name` has its CPUs at `now` (seconds of CLOCK_MONOTONIC). Raises `Refused` with a sentence.

    `user` returns the name of a uid.
    """
    job = node.jobs.get(name)
    if job is None:
        msg = f"there is no job {name[:60]}: see `drom ps`."
        raise Refused(msg)
    found = [Sentence("asked", _asked(node, job, user))]
    if not job.reserved:
        found.append(Sentence("share", _share(node, job, user)))
    if job.started and not job.cores:
        found.append(Sentence("has", "It has no CPUs here: all its tasks rest."))
    elif job.started:
        found += [Sentence("has", text) for text in _has(node, job)]
        found.append(Sentence("since", _since(job, now, user)))
    if job.reserved:
        found.append(Sentence("limit", _reserved(node, job)))
    elif job.started:
        found.append(Sentence("limit", _limit(node, job, now, user)))
    if job.started and (stays := node.plan.why_kept(job)):
        lost = job.planned & node.plan.lost
        found.append(Sentence("limit", stays if lost else f"Some of its CPUs are to be left alone, but {stays}"))
    found += [Sentence("waits", text) for text in _waits(node, job)]
    found += [Sentence("change", text) for task in job.present for text in _change(node, task, now)]
    found += [Sentence("wish", text) for text in _wishes(node, job, now)]
    return [*found, *(Sentence("mode", text) for text in _mode(node, job))]


def _asked(node: Node, job: Job, user: Callable[[int], str]) -> str:
    least, most = node.cores.shown(job.task_min), node.cores.shown(job.task_max)
    bounds, ranks = span_of(least, most, node.cores.noun), len(job.ranks)
    pids = _listed(str(task.arrival.pid) for task in job.present)
    who = f" (pid{'s' * (ranks > 1)} {pids})" if pids else ""
    tasks = f"one task{who} of {bounds}" if ranks == 1 else f"{ranks} tasks{who} of {bounds} each"
    layout, strict = layout_name(job.layout), job.layout.strict
    wishes = f", laid out {layout}{' (or it waits)' if strict else ''}" if layout else ""
    memory = f" and {in_words(job.memory)} of memory" + (" each" if ranks > 1 else "") if job.memory else ""
    attached = " It ran before it was attached." if any(t.arrival.attached for t in job.present) else ""
    attached += f" {CORES_DIFFER}" if node.cores.differ else ""
    attached += f" Its control group lets it use {cpu_names(job.cpuset)}." if job.cpuset else ""
    return f"{job.name} is a {job.job_class} job of user {user(job.user)}: {tasks}{memory}{wishes}.{attached}"


def _reserved(node: Node, job: Job) -> str:
    has, most = _many(node, job.cores), node.cores.shown(job.reserved)
    return f"A scheduler holds it at {has} here until it has ended, and may order up to {most}."


def _share(node: Node, job: Job, user: Callable[[int], str]) -> str:
    area = area_of(job, node.plan)
    others = [view for view in area.running() if view.name != job.name]
    mine = replace(node.plan.view(job), fixed=False)
    total, cap, shown = area.total(), node.plan.cap, node.cores.shown
    shares = fair_share.equal_shares([*others, mine], total, cap)
    equal = fair_share.equal_shares([*others, replace(mine, minimum=0)], total, cap)[job.name]
    share, here = shares[job.name], f"of the {_many(node, total)} here"
    text = f"Its equal share is {shown(share)} {here}"
    if equal < mine.minimum:
        due = shown(share)
        are = "is" if due == 1 else "are"
        text = f"An equal share would be less than its minimum, so {due} {here} {are} due to it"
    elif share >= mine.maximum:
        return f"{text}, the most it {'says it can use' if mine.maximum < node.plan.most(job) else 'can use'}."
    elif cap and share == cap:
        return f"{text}, the most that one user may have."
    return f"{text}: {_among(node, job, shares, user)}."


def _among(node: Node, job: Job, shares: Mapping[str, int], user: Callable[[int], str]) -> str:
    """Return a text that says which users and jobs share the CPUs that a job gets a part of."""
    jobs = [other for other in node.jobs.values() if other.name in shares]
    users = {other.user for other in jobs}
    mine = [other for other in jobs if other.user == job.user]
    if len(jobs) == 1:
        return "it is alone"
    has = f"{'has' if job.cores else 'would have'} {counted(len(mine), 'running job')}"
    among = f"{len(users)} users share them equally, and user {user(job.user)} {has}"
    if len(users) == 1:
        among = f"user {user(job.user)}, alone here, {has}"
    cap = node.plan.cap
    if cap and len(mine) > 1 and sum(shares[other.name] for other in mine) >= cap:
        among += f", which may have {_many(node, cap)} together"
    unequal = _listed(_unequal(node, job, shares, user))
    return f"{among}; {unequal}" if unequal else among


def _unequal(node: Node, job: Job, shares: Mapping[str, int], user: Callable[[int], str]) -> Iterator[str]:
    """Yield why other users, and other jobs of the job's user, do not get equally many CPUs."""
    by_user: dict[int, list[JobCores]] = {job.user: []}
    for other in node.jobs.values():
        if other.name in shares:
            by_user.setdefault(other.user, []).append(node.plan.view(other))
    mine = sum(shares[view.name] for view in by_user[job.user])
    for uid, theirs in by_user.items():
        has = sum(shares[view.name] for view in theirs)
        least = sum(view.cores if view.fixed else view.minimum for view in theirs)
        most = sum(view.cores if view.fixed else view.maximum for view in theirs)
        if uid != job.user and len(theirs) == 1:
            yield from _bound(node, theirs[0], has, mine)
        elif has == least > mine:
            yield f"the {len(theirs)} jobs of user {user(uid)} keep at least {_few(node, least)} together"
        elif has == most < mine:
            yield f"the {len(theirs)} jobs of user {user(uid)} can use no more than {_few(node, most)} together"
    for view in by_user[job.user]:
        yield from _bound(node, view, shares[view.name], shares[job.name])


def _bound(node: Node, view: JobCores, share: int, mine: int) -> Iterator[str]:
    """Yield why the share of a job is not as large as `mine`."""
    if view.fixed and share != mine:
        yield f"{view.name} keeps its {_few(node, view.cores)}"
    elif share == view.minimum > mine:
        yield f"{view.name} needs at least {_few(node, view.minimum)}"
    elif share == view.maximum < mine:
        yield f"{view.name} can use no more than {_few(node, view.maximum)}"


def _kinds(node: Node, has: int) -> Iterator[str]:
    """Yield which of these CPUs are of which kind of core, on a hybrid machine."""
    if kinds := [f"{cpu_names(mask & has)} of {kind} cores" for kind, mask in node.cores.kinds if mask & has]:
        yield f"It has {_listed(kinds)}. {KINDS_ALIKE}"


def _has(node: Node, job: Job) -> Iterator[str]:
    ledger = node.plan.ledger
    has = _there(node, job.planned)
    states = {"waiting" if task is None else node.grants.state(task) for task in job.ranks.values()}
    owns = ledger.owned.get(job.name, 0)
    holds = "has" if states <= {"running", "enforced", "resting"} else "is to have"
    text = f"It {holds} {_cpus(has.bit_count())} ({format_cpulist(has)})"
    text += f" on {counted(node.cores.count(has), 'core')}" if node.cores.differ else ""
    if len(job.ranks) > 1:
        text += f": {_by_task(job)}"
    borrowed: dict[str, int] = {}
    lent: dict[str, int] = {}
    idle = 0
    for core, owner, holder in zip(node.cores, ledger.owners, ledger.holders, strict=True):
        if owner == holder or owner is None or job.name not in (owner, holder):
            continue
        if holder is None:
            idle |= core
        elif holder == job.name:
            borrowed[owner] = borrowed.get(owner, 0) | core & has
        else:
            lent[holder] = lent.get(holder, 0) | core
    if owns and not borrowed and not lent and not idle:
        text += ", all its own" if has.bit_count() > 1 else ", its own"
    yield text + "."
    yield from _kinds(node, has)
    if borrowed:
        whom = _listed(f"{cpu_names(mask)} from {owner}" for owner, mask in borrowed.items())
        yield f"It borrows {whom}, until it ends or can do without."
    if lent:
        whom = _listed(f"{cpu_names(mask)} to {holder}" for holder, mask in lent.items())
        rest = f"; nobody uses {cpu_names(idle)} now" if idle else ""
        yield f"It owns {cpu_names(owns)} and lends {whom}{rest}."
    elif idle:
        yield f"It owns {cpu_names(idle)} as well, which nobody uses now."


def _by_task(job: Job) -> str:
    """Return a text that says which CPUs each task of a job has, and which tasks rest."""
    targets = sorted(job.targets.items())
    text = _listed(f"{format_cpulist(mask)} for task {rank}" for rank, mask in targets if mask)
    resting = [str(rank) for rank, mask in targets if not mask]
    if len(resting) == 1:
        return f"{text}; task {resting[0]} rests"
    return f"{text}; tasks {_listed(resting)} rest" if resting else text


def _there(node: Node, mask: int) -> int:
    """Return the CPUs in `mask` that are present; all of them if none is."""
    return mask & ~node.plan.gone or mask


def _since(job: Job, now: float, user: Callable[[int], str]) -> str:
    last = job.last
    if last is None:
        return "It has had them since before this agent started."
    ago, has = duration(now - last.event.at) + " ago", job.planned
    if not last.before:
        own = last.event.kind == "arrival" and last.event.job == job.name
        return f"It started {ago}, when {'it arrived' if own else _happened(last.event, job, user)}."
    old, new = last.before.bit_count(), has.bit_count()
    action = action_name(last.before, has)
    if old != new:
        change = f"{'shrank' if new < old else 'grew'} from {old} to {_cpus(new)}"
    elif action == "keep":
        return f"Its tasks exchanged CPUs {ago}, when {_happened(last.event, job, user)}."
    else:
        change = f"moved from {cpu_names(last.before)} to {cpu_names(has)}"
    what = " and what it owns came back" if last.reason == "return" else ""
    return f"It {change} {ago}, when {_happened(last.event, job, user)}{what}."


def _happened(event: Event, job: Job, user: Callable[[int], str]) -> str:
    mine = event.job == job.name
    by = "somebody" if event.by is None else f"user {user(event.by)}"
    return {
        "arrival": f"{event.job} arrived",
        "admission": f"{event.job}, which had waited, got its first CPUs",
        "end": "one of its tasks ended" if mine else f"{event.job} ended",
        "order": f"{by} gave an order for {'it' if mine else event.job}",
        "expiry": f"the time of the order for {'it' if mine else event.job} was over",
        "release": f"{by} released {'a task of it' if mine else event.job}",
        "use": f"{cpu_names(event.lost)} could not be used any more" if event.lost else "CPUs could be used again",
        "load": "unmanaged programs kept " + (f"{cpu_names(event.lost)} busy" if event.lost else "CPUs busy no longer"),
        "foreign": "Slurm gave "
        + (f"{cpu_names(event.lost)} to a job that runs no program under drom" if event.lost else "CPUs back"),
        "rest": "the residence of jobs that had been resized was over",
        "wish": f"{'it' if mine else event.job} said how many CPUs it can use",
        "start": "this agent started",
        "rules": "the rules of this node were changed",
    }[event.kind]


def _limit(node: Node, job: Job, now: float, user: Callable[[int], str]) -> str:
    if node.grants.frozen:
        return f"Nothing changes: the node is frozen until {node.grants.frozen_by} is removed."
    return _ordered(node, job, now, user) or _bounded(node, job, now, user) or _crowded(node, job)


def _ordered(node: Node, job: Job, now: float, user: Callable[[int], str]) -> str:
    by = "An order" if job.hold_by is None else f"An order of user {user(job.hold_by)}"
    pins = [f"task {task.rank} at {cpu_names(task.pin)}" for task in job.present if task.pin]
    if pins and len(job.ranks) == 1:
        return f"{by} fixes it at exactly these CPUs until `drom resize {job.name} auto`."
    if pins:
        return f"{by} fixes {_listed(pins)} until `drom resize {job.name} auto`."
    if job.hold is None:
        return ""
    until = "" if job.hold_until is None else f"for another {duration(job.hold_until - now)}, or "
    return f"{by} holds it at {_many(node, job.hold)} {until}until `drom resize {job.name} auto`."


def _bounded(node: Node, job: Job, now: float, user: Callable[[int], str]) -> str:
    view, plan = node.plan.view(job), node.plan
    if job.job_class != "malleable":
        return f"It is {job.job_class}: it keeps these CPUs until it ends."
    if job.cores >= view.maximum:
        if view.maximum < plan.most(job):
            return "It has the most that it says it can use."
        narrow = view.maximum < job.task_max * len(job.ranks)
        return (
            f"It has the most that {layout_name(job.layout)} allows here." if narrow else "It has the most it can use."
        )
    if job.rest_until is not None and (text := _rests(node, job, job.rest_until, now)):
        return text
    area = area_of(job, plan)
    if plan.cap and not fair_share.user_headroom(job.user, area.running(), area.total(), plan.cap):
        most = _many(node, plan.cap)
        return f"It could use more, but the jobs of user {user(job.user)} have the {most} that one user may have here."
    return ""


def _rests(node: Node, job: Job, until: float, now: float) -> str:
    """Return for how long, and why, a job does not grow yet; an empty text if resting does not keep it from growing."""
    left, rules, free = duration(until - now), node.plan.rules, _free(node)
    if until <= now:
        return ""
    if job.last is None:
        return f"This agent started lately: jobs from before do not grow for another {left} (residence)."
    if job.last.before and until <= job.last.event.at + rules.residence:
        return f"It was resized lately: it does not grow for another {left} (residence)."
    if free and rules.margin and not job.layout.strict:
        few = f"fewer than {100 * rules.margin:g} % of what it has"
        return f"{cpus_are(free)} free, {few}: it waits for more to come free, for another {left} (margin)."
    return ""


def _free(node: Node) -> int:
    return node.plan.usable & ~node.cores.whole(node.plan.ledger.planned)


def _crowded(node: Node, job: Job) -> str:
    plan, free = node.plan, _free(node)
    if free and job.layout.strict:
        return f"{cpus_are(free)} free, but with no more of them would it lie {job.layout}."
    if free:
        return f"{cpus_are(free)} free, kept for who owns them or for a larger growth."
    area = area_of(job, plan)
    others = [view for view in area.running() if view.name != job.name]
    they = _listed(
        f"{view.name} keeps its {_few(node, view.cores)}"
        if view.fixed or view.cores <= view.minimum
        else f"{view.name} has {_few(node, view.cores)} and keeps at least {_few(node, view.minimum)}"
        for view in sorted(others, key=lambda view: -view.cores)
    )
    less = ""
    shares = fair_share.equal_shares([*others, replace(plan.view(job), fixed=False)], area.total(), plan.cap)
    if job.cores < shares[job.name]:
        less = " That is below its share: it may grow when CPUs come free."
        if _took_all(node, job, shares):
            part = f"{100 * plan.rules.sharing_factor:g} %"
            bounds = f"an arrival takes at most {part} of a running job, and none below its minimum"
            less = f" That is below its share: {bounds}."
    alone = "".join(f" {text}" for text in _left_alone(node))
    whose = they or "it has all there are"
    return f"No CPU is free: {whose}.{alone} Running jobs give some up only for an arrival or an order.{less}"


def _took_all(node: Node, job: Job, shares: Mapping[str, int]) -> bool:
    """Return whether a job took, at its arrival, all that it might of each job with more than its share."""
    came = job.last.event if job.last and not job.last.before else None
    others = [other for other in node.jobs.values() if other is not job and other.cores > shares.get(other.name, 0)]
    lenders = [other for other in others if not (view := node.plan.view(other)).fixed and view.cores > view.minimum]
    if came is None or came.job != job.name:
        return False
    for other in lenders:
        had = node.cores.count(other.last.before) if other.last and other.last.event == came else 0
        if not had or had - other.cores < int(had * node.plan.rules.sharing_factor + 1e-9):
            return False
    return bool(lenders)


def _left_alone(node: Node) -> Iterator[str]:
    plan = node.plan
    return left_alone(plan.busy, plan.avoided & ~(plan.busy | plan.foreign), plan.foreign)


def _waits(node: Node, job: Job) -> Iterator[str]:
    if job.waits:
        queue = [other.name for other in waiting_jobs(area_of(job, node.plan))]
        place = f" It is number {queue.index(job.name) + 1} of {len(queue)} that wait." if len(queue) > 1 else ""
        attached = any(task.arrival.attached for task in job.present)
        runs = " Until it has its first CPUs it runs on where it was." if attached else ""
        yield f"It waits: {node.grants.why_waiting(job.present[0])}{place}{runs}"
        yield from _left_alone(node)
        return
    for task in job.present:
        if not task.started:
            who = "It" if len(job.ranks) == 1 else f"Task {task.rank} (pid {task.arrival.pid})"
            yield f"{who} waits: {node.grants.why_waiting(task)}"
    missing = [rank for rank, task in job.ranks.items() if task is None]
    if missing:
        have = "has" if len(missing) == 1 else "have"
        yield f"{counted(len(missing), 'task')} of it {have} not arrived yet: their places are kept."


def _change(node: Node, task: Task, now: float) -> Iterator[str]:
    who = f"Task {task.rank} (pid {task.arrival.pid})"
    if len(task.grants) > 1:
        newest = task.grants[-1]
        then = ""
        if task.deadline is not None and not node.grants.frozen:
            then = f": the agent binds it in {duration(task.deadline - now)}"
        failed = " could not be bound to" if task.denied else " has not applied"
        ago = duration(now - newest.at)
        yield f"{who}{failed} {cpu_names(newest.mask)} yet, granted {ago} ago{then}."
    missing = node.plan.target(task) & ~task.granted
    if task.started and missing:
        holders = sorted({t.job for t in node.tasks.values() if t is not task and t.held & missing})
        them = "it" if missing.bit_count() == 1 else "them"
        left = f": {_listed(holders)} {'has' if len(holders) == 1 else 'have'} not left {them}" if holders else ""
        yield f"{who} is to have {cpu_names(missing)} as well{left}."


def _wishes(node: Node, job: Job, now: float) -> Iterator[str]:
    counted = {task.wish for task in job.present} - {NO_DEMAND}
    for wish in sorted(counted, key=lambda wish: (wish.least, wish.most)):
        if wish.is_contradictory:
            both = f"that it needs {_cpus(wish.least)} and that it can use {wish.most}"
            yield f"It says {both}: that cannot be, so neither counts."
        else:
            yield f"It says that it {_in_words(wish)}: {_demanded(node, job, wish)}."
    for task in job.present:
        if task.said != task.wish:
            says = "takes that back" if task.said == NO_DEMAND else f"says that it {_in_words(task.said)}"
            yield f"Now it {says}: that counts in {duration(max(0.0, applies_at(task, job) - now))}."


def _in_words(wish: Demand) -> str:
    if not (wish.least or wish.most):
        most = f" to {wish.max_tasks}" if wish.max_tasks > wish.min_tasks else ""
        return f"can run on {wish.min_tasks}{most} of its tasks"
    if not wish.most:
        return f"needs at least {_cpus(wish.least)}"
    if wish.least == wish.most:
        return f"can use {_cpus(wish.most)}, no more and no fewer"
    return f"can use {span_of(wish.least, wish.most)}" if wish.least else f"can use up to {_cpus(wish.most)}"


def _demanded(node: Node, job: Job, wish: Demand) -> str:
    if job.job_class != "malleable":
        return f"it is {job.job_class}, so that changes nothing"
    if not (wish.least or wish.most):
        return "the others rest while there are too few CPUs for all"
    if job.hold is not None or job.pinned:
        return "that counts when the order for it is over"
    keeps = node.plan.view(job).keeps
    left = f"arrivals leave it {_many(node, keeps)} where they can"
    if keeps < node.cores.sure_of(wish.least) * len(job.ranks):
        bounded = keeps < job.task_max * len(job.ranks)
        left += f", the most that {'a job may insist on here' if bounded else 'it may have'}"
    if not wish.least:
        return "it gets no more"
    return f"it gets no more, and {left}" if wish.most else left


def _mode(node: Node, job: Job) -> Iterator[str]:
    tasks = [task for task in job.present if task.started]
    if any(task.mode == "unmanaged" for task in tasks):
        yield "The agent may not bind all of its threads: they may run on CPUs of others."
    answering = [task.responder[0] for task in tasks if task.responder]
    silent = len(tasks) - len(answering)
    if answering:
        yield f"It takes its grants itself (pid {_listed(map(str, answering))})."
    if silent:
        whose = "its" if not answering else f"the other {counted(silent, 'task')}'s"
        yield f"No process of it asks for grants: the agent binds {whose} threads, which stay as many as they are."
    if any(task.enforced for task in tasks):
        yield f"It did not apply its newest grant within {duration(node.grants.grace)}: the agent bound it."


def _many(node: Node, cores: int) -> str:
    """Return a number of cores as text, with its noun."""
    return node.cores.amount(cores)


def _few(node: Node, cores: int) -> str:
    """Return a number of cores as text, without the noun if that is CPUs."""
    return _many(node, cores) if node.cores.differ else str(node.cores.shown(cores))


def _cpus(count: int) -> str:
    return counted(count, "CPU")


def _listed(words: Iterable[str]) -> str:
    """Return the words as an English list: the first `NAMED` by name, the others counted."""
    found = list(words)
    if len(found) > NAMED:
        return f"{', '.join(found[:NAMED])} and {len(found) - NAMED} more"
    return " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))
