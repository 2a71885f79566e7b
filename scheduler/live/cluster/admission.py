# SPDX-License-Identifier: Apache-2.0
"""Whether a job can ever run on a cluster, on which nodes, next to whom, and after what. Pure.

Memory and counted resources are not divided between jobs that share a node: a job shares only where any other that may
share would find room beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.execution.protocol import CONTAINER
from drom.agent.text import counted, duration, in_words
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import units
from drom.scheduler.live.cluster.controller import ANYWHERE
from drom.scheduler.live.cluster.jobs import COMPLETED, FINAL, PENDING, ROOM, STARTING, restoring, saving
from drom.scheduler.live.cluster.spec import notice_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.jobs import Node
    from drom.scheduler.live.cluster.settings import Settings
    from drom.scheduler.live.cluster.spec import Dependency, Spec

MOST_KNOWN = 4096
"""Kinds of jobs for which the result of `may_share` is cached."""


def group_of(spec: Spec) -> str:
    """Return a name for all jobs that may be on the same nodes."""
    wants = [*spec.constraint, *(f"{name}={amount}" for name, amount in sorted(spec.resources.items()))]
    if spec.memory:
        wants.append(f"memory={spec.memory}")
    if spec.partition:
        wants.append(f"%{spec.partition}")
    wants += [f"@{name}" for name in spec.nodelist] + [f"!{name}" for name in spec.exclude]
    return ",".join(wants) or ANYWHERE


def hosts(spec: Spec, nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that lack nothing for a job: there may be thousands, and each submission looks at them."""
    memory, features, amounts = spec.memory, frozenset(spec.constraint), spec.resources.items()
    nodelist, exclude = frozenset(spec.nodelist), frozenset(spec.exclude)
    found = [node for node in nodes if memory <= node.memory or not node.memory] if memory else list(nodes)
    if nodelist or exclude:
        found = [node for node in found if node.name not in exclude and (not nodelist or node.name in nodelist)]
    if spec.partition:
        found = [node for node in found if spec.partition in node.partitions]
    if features:
        found = [node for node in found if features <= node.can]
    if amounts:
        found = [node for node in found if all(node.resources.get(name, 0) >= amount for name, amount in amounts)]
    return found


def _lacks(spec: Spec, node: Node) -> Iterator[str]:
    """Yield what a node lacks for a job; a node of unknown memory has enough."""
    for feature in spec.constraint:
        if feature not in node.features:
            yield f"feature {feature}"
    if node.memory and spec.memory > node.memory:
        yield "so much memory"
    for name, amount in spec.resources.items():
        if node.resources.get(name, 0) < amount:
            yield f"{name}={amount}"


def why_not_under(policy: Policy, spec: Spec) -> str:
    """Return why a policy cannot place a job, which an earlier policy may have accepted; empty if it can."""
    if policy.pooled:
        fits = spec.most and not spec.saving and group_of(spec) == ANYWHERE
        return "" if fits else f"policy {policy.name} gives each task one core, on any node"
    if spec.saving and not policy.divides_nodes:
        return f"policy {policy.name} gives jobs whole nodes, and fillers need gaps in nodes"
    if spec.most:
        return f"policy {policy.name} gives jobs no range of cores"
    if not spec.nodes and spec.ranks > 1 and not policy.divides_nodes:
        return f"policy {policy.name} gives jobs whole nodes, and it does not say how many"
    if group_of(spec) == ANYWHERE or policy.knows_nodes or policy.divides_nodes:
        return ""
    return f"policy {policy.name} treats all nodes as equal"


def placed(spec: Spec) -> Spec:
    """Return a specification in which a filler asks for nodes that can save it."""
    return replace(spec, constraint=(*spec.constraint, saving(spec.saving))) if spec.saving else spec


def placed_now(spec: Spec, cpu: str, lacking: Iterable[str]) -> Spec:
    """Return a specification in which a filler in a container asks for nodes where it can start now.

    They restore its image of a `cpu` (empty: it has none), and are not among those `lacking` room for it.
    """
    if spec.saving != CONTAINER:
        return spec
    features = [*spec.constraint, ROOM, *([restoring(cpu)] if cpu else [])]
    return replace(spec, constraint=tuple(features), exclude=(*spec.exclude, *lacking))


def may_span(spec: Spec, policy: Policy) -> bool:
    """Return whether a job may get nodes of several home partitions: one that may run on any nodes."""
    return group_of(spec) == ANYWHERE and not policy.shares_nodes


def check(
    spec: Spec, fit: Sequence[Node], nodes: Collection[Node], settings: Settings, policy: Policy, *, reach: int = 0
) -> None:
    """Raise SchedulerError, with the reason, for a job that can never run on the nodes that `fit` it.

    `reach` is the most nodes of other home partitions that a job can get.
    """
    reach = reach if may_span(spec, policy) else 0
    if why_not := why_not_under(policy, spec):
        wants = "--constraint, --mem, --resources, --nodelist, --exclude and --partition"
        msg = f"{why_not}: omit {wants}, or run the scheduler with --policy sd."
        raise SchedulerError(msg)
    _check_names(spec, nodes)
    if spec.saving and not any(spec.saving in node.saves for node in nodes):
        ways = f"none of the nodes can save a filler by {spec.saving}"
        msg = f"{ways}: choose another --checkpoint, or see docs/cluster.md for what agents need."
        raise SchedulerError(msg)
    if spec.memory and spec.memory > (most := max((node.memory for node in nodes), default=0)) > 0:
        msg = (
            f"the job asks for {in_words(spec.memory)} of memory on each node, and the largest here has "
            f"{in_words(most)}: request less with --mem."
        )
        raise SchedulerError(msg)
    if policy.divides_nodes and fit:
        units.check(spec, fit)
    elif len(fit) + reach < (least := max(1, spec.nodes)):
        lacking = {what for node in nodes for what in _lacks(spec, node)}
        having = (counted(len(fit), "node") if fit else "no node") + (
            f" with {', '.join(sorted(lacking))}" if lacking else ""
        )
        having += f" in partition {spec.partition}" if spec.partition else ""
        having += " in --nodelist" if spec.nodelist else ""
        having += " outside --exclude" if spec.exclude else ""
        having += f", and all together {len(fit) + reach}" if reach else ""
        where = f"home partition {settings.home}" if settings.home else "this cluster"
        advice = "ask for less" if fit or reach else "see drom nodes"
        msg = f"the job asks for {counted(least, 'node')}, and {where} has {having}: {advice}."
        raise SchedulerError(msg)
    if settings.max_time and spec.time > settings.max_time and not spec.saving:
        longest = duration(settings.max_time)
        msg = f"the job asks for {duration(spec.time)}, and jobs here may take {longest}: request less with --time."
        raise SchedulerError(msg)
    if spec.signal and (before := notice_of(spec.signal).before) >= spec.time:
        has = f"--signal asks for a signal {duration(before)} before the limit of the job, which is"
        msg = f"{has} {duration(spec.time)}: give a longer --time, or fewer seconds after an @ in --signal."
        raise SchedulerError(msg)


def _check_names(spec: Spec, nodes: Iterable[Node]) -> None:
    """Raise SchedulerError for nodes in a job's lists that do not exist, and for a list that is too short."""
    known = {node.name for node in nodes} if spec.nodelist or spec.exclude else set()
    for option, names in (("--nodelist", spec.nodelist), ("--exclude", spec.exclude)):
        for name in names:
            if name not in known:
                msg = f"{option} names node {name[:64]}, which does not exist: see drom nodes."
                raise SchedulerError(msg)
    listed = len(frozenset(spec.nodelist))
    if 0 < listed < spec.nodes:
        asks = f"the job asks for {counted(spec.nodes, 'node')}, and --nodelist names {listed}"
        msg = f"{asks}: name more, or ask for fewer with --nodes."
        raise SchedulerError(msg)


def warnings(specs: Iterable[Spec], nodes: Iterable[Node]) -> list[str]:
    """Return warnings for the user of accepted jobs, each a sentence."""
    wanting, known = {group_of(spec): spec for spec in specs if spec.memory}, list(nodes)
    told = []
    if wanting and not any(node.memory for node in known):
        told.append("no node here reports its memory, so --mem excludes no node.")
    fitting = [hosts(spec, known) for spec in wanting.values()]
    if any(fit and not any(node.limits_memory for node in fit) for fit in fitting):
        told.append("no node that fits limits the memory of jobs, so --mem stops no job that uses more.")
    return told


_BOUNDS = ("least_factor", "most_factor")
"""Parameters that bound the SharingFactor chosen by a policy that measures."""


def may_share(spec: Spec, fit: Iterable[Node], policy: Policy, cores: int) -> bool:
    """Return whether a job may be guest or mate of any other that may, on the nodes that fit it.

    Each task then has a core, and all find room.
    """
    names = ("sharing_factor", *(_BOUNDS if policy.measures else ()))
    factors = [float(policy.options.get(name, 0.5)) for name in names]
    shares = [int(factor * cores + 1e-9) for factor in factors]
    if min(*shares, cores - max(shares)) < spec.tasks:
        return False
    if not spec.memory and not spec.resources:
        return True
    part, amounts = min(*factors, 1 - max(factors)), spec.resources.items()
    return all(
        (not node.memory or spec.memory <= part * node.memory)
        and (not amounts or all(amount <= part * node.resources.get(name, 0) for name, amount in amounts))
        for node in fit
    )


class Fitting:
    """A cache of the nodes that fit jobs and of the jobs that may share nodes, by what the jobs ask for.

    The caller clears it when a node joins, changes or goes.
    """

    def __init__(self) -> None:
        self._hosts: tuple[str | None, list[Node]] = (None, [])
        """The group asked about last, and the nodes that fit its jobs."""
        self._sharing: dict[tuple[str, int], bool] = {}
        """Whether jobs may share nodes, by group and by tasks on each node."""

    def clear(self) -> None:
        """Clear the cache."""
        self._hosts = (None, [])
        self._sharing.clear()

    def hosts(self, spec: Spec, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes that lack nothing for a job."""
        group = group_of(spec)
        if self._hosts[0] != group:
            self._hosts = group, hosts(spec, nodes)
        return self._hosts[1]

    def may_share(self, spec: Spec, group: str, nodes: Iterable[Node], policy: Policy, cores: int) -> bool:
        """Return whether a job of a group may share nodes; see the function of this name."""
        asked = group, spec.tasks
        if asked not in self._sharing:
            if len(self._sharing) >= MOST_KNOWN:
                self._sharing.clear()
            self._sharing[asked] = may_share(spec, self.hosts(spec, nodes), policy, cores)
        return self._sharing[asked]


def dependencies(after: Iterable[Dependency], state_of: Callable[[int], str | None]) -> tuple[list[int], str]:
    """Return the jobs for which a job with the dependencies `after` still waits, and why it can never start.

    The reason is empty if it can. Arrays of which one job has to fail are left to `without_failure`.
    """
    blocking = []
    for dependency in after:
        state = state_of(dependency.job)
        outcome = _met(dependency, state)
        if outcome is None:
            blocking.append(dependency.job)
        elif not outcome:
            return [], f"it was to start {_WORDS[dependency.kind]} job {dependency.job}, which is {state}"
    return blocking, ""


def without_failure(after: Iterable[Dependency], state_of: Callable[[int], str | None]) -> str:
    """Return why a job can never start that waits for the failure of a job of an array: all have succeeded.

    It is empty if one has failed or may still fail.
    """
    completed: dict[int, bool] = {}
    for one in after:
        if one.array is not None:
            completed[one.array] = completed.get(one.array, True) and state_of(one.job) == COMPLETED
    found = (array for array, whole in completed.items() if whole)
    return next((f"it was to start after failure of a job of array {one}, which is completed" for one in found), "")


def check_dependencies(spec: Spec, state_of: Callable[[int], str | None]) -> None:
    """Raise SchedulerError, with the reason, for a job that waits for a job that never existed, or waits forever."""
    for dependency in spec.after:
        if state_of(dependency.job) is None:
            msg = f"there is no job {dependency.job} to wait for: see drom queue --all."
            raise SchedulerError(msg)
    _, hopeless = dependencies(spec.after, state_of)
    if hopeless := hopeless or without_failure(spec.after, state_of):
        msg = f"the job could never start, as {hopeless}: leave that out of --dependency, or name another job."
        raise SchedulerError(msg)


def check_order(number: int, spec: Spec) -> None:
    """Raise SchedulerError if the job `number` would wait for itself or a later job: jobs could wait in a circle."""
    for dependency in spec.after:
        if dependency.job >= number:
            why = f"job {number} can wait only for jobs submitted before it, not for job {dependency.job}"
            msg = f"{why}: cancel it and submit it again."
            raise SchedulerError(msg)


_WORDS = {"after": "after", "afterany": "after", "afterok": "after success of", "afternotok": "after failure of"}


def _met(dependency: Dependency, state: str | None) -> bool | None:
    """Return whether a dependency is met; None while that is open."""
    if dependency.kind == "after":
        return None if state in (PENDING, STARTING) else True
    if state is not None and state not in FINAL:
        return None
    if dependency.kind == "afterany" or dependency.array is not None:
        return True
    return (state == COMPLETED) == (dependency.kind == "afterok")
