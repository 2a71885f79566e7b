# SPDX-License-Identifier: Apache-2.0
"""A simulation from a cleaned workload to a schedule; it can stop, be saved, and resume to the same result."""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.engine.compiler import Policy, Program, compile_program, values
from drom.scheduler.engine.event_loop import FAILED, MORE, OVER, STOPPED, next_instant
from drom.scheduler.engine.policy_errors import policy_errors_as_sentences
from drom.scheduler.engine.state import (
    BAD_SHARE,
    CHECKPOINT,
    CULPRIT,
    EVENT_RULES,
    FAILURES,
    FAULT,
    IN_THE_PAST,
    LOSES,
    NO_OUTAGES,
    NO_ROOM,
    NOT_ITS_NODE,
    NOT_RUNNING,
    NOT_WAITING,
    NOW,
    PENDING,
    QUEUED,
    RESTART,
    RUNTIME_MODELS,
    SPEED_UNIT,
    STARTS,
    TOO_MANY_ROWS,
    TOO_SHORT,
    UNKNOWN_ACTION,
    WRONG_CLASS,
    WRONG_MACHINE,
    WRONG_PARTITION,
    World,
    make_actions,
    make_world,
    view,
)
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, NEVER
from drom.scheduler.predictors.knowledge import PREDICTORS, USER
from drom.scheduler.simulator.adaptive import PoolModel
from drom.scheduler.simulator.contracts import table_of
from drom.scheduler.simulator.evolving import with_phases
from drom.scheduler.simulator.leaving import NodeModel
from drom.scheduler.simulator.measurement import measure
from drom.scheduler.simulator.partitions import Partitions, nodes_of_partitions, partition_of_jobs
from drom.scheduler.simulator.resource_guide import ResourceGuide
from drom.scheduler.simulator.sleep import sleep_of
from drom.scheduler.simulator.speeds import Speeds, speed_of_nodes
from drom.workloads.errors import counted
from drom.workloads.files import check_writable, replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from drom.scheduler.engine.state import Outages, Sleep
    from drom.scheduler.interface import Actions, Floats, Ints
    from drom.workloads.contracts import Contracts
    from drom.workloads.workload import Workload


BUDGET = 5000
"""The most instants between two checks of progress and of Ctrl-C."""
SLICE_S = 0.2
"""The seconds that these instants may take if a policy is slow."""

FAULTS = {
    TOO_MANY_ROWS: "returns more actions in one call than there is room for",
    UNKNOWN_ACTION: "returns an unknown action, or names an unknown job",
    NOT_WAITING: "starts or plans a job that is not waiting",
    NO_ROOM: "starts a job on nodes that have no room for it",
    NOT_RUNNING: "resizes or extends a job that is not running",
    NOT_ITS_NODE: "resizes a job on a node that is not its own",
    BAD_SHARE: "gives a job less than one core of a node, more than there are, or fewer nodes or cores than it needs",
    TOO_SHORT: "gives a job a limit that has passed",
    IN_THE_PAST: (
        "asks for its next call at a time that is not in the future, without having started a job or shortened a limit"
    ),
    WRONG_CLASS: "gives a rigid job another size than it asks for, or resizes one that is not malleable",
    WRONG_PARTITION: "starts a job on nodes that may be outside its partition",
    WRONG_MACHINE: "allots processors without POOL = True, or starts and resizes jobs on nodes with it",
}


class Machine(NamedTuple):
    """The simulated machine: its nodes, their cores, and the rules of the simulation."""

    nodes: int
    cores: int = 1
    event_rule: str = "instant"
    runtime_model: str = "worst"
    layers: int = 2
    """The number of jobs that may share a node, at least 2."""
    partitions: Partitions = ()
    """The nodes on which the jobs of partitions of the log may run; jobs of other partitions may run on all."""
    slot: int = 1
    """The policy is called at multiples of this number of seconds, and requested times are rounded to whole slots."""
    speeds: Speeds = ()
    """The nodes whose speed is not 1."""


@dataclass
class Simulation:
    """A simulation that can be continued. `work` is cleaned, in order of submission, then of job number.

    For a policy that allots processors the machine is a pool of all its cores, represented as nodes of one core.
    """

    work: Workload
    machine: Machine
    policy: Policy
    program: Program
    world: World
    given: Machine
    """The machine before its cores became a pool."""
    seconds: float = 0.0
    adaptive: PoolModel | NodeModel | None = None
    """The parameters of jobs that share a pool, or that may leave whole nodes."""
    evolving: str = ""
    """The jobs that evolve: a fraction or the name of a file; empty for none."""
    predictor: str = USER
    """The predictor of the run times with which the policy plans."""
    guide: Callable[[World, int], Floats] | None = None
    """A function of the world and of the second of a call of the policy; it returns more parameters for the call."""
    observer: Callable[[Simulation], None] | None = None
    """A function that is called after each call of the policy."""
    measure: Callable[[World], None] = measure
    """The function that measures running jobs after each call, for a policy that uses measurements."""
    budget: int = 1
    """Instants until the next check of progress and of Ctrl-C."""

    @classmethod
    def of(
        cls,
        work: Workload,
        machine: Machine,
        policy: Policy,
        classes: Ints | None = None,
        adaptive: PoolModel | NodeModel | None = None,
        *,
        evolving: str = "",
        seed: int = 1,
        contracts: Contracts | None = None,
        predictor: str = USER,
        outages: Outages = NO_OUTAGES,
        sleep: Sleep | None = None,
    ) -> Simulation:
        """Return a simulation before its first event; jobs submitted together are in order of job number.

        `classes` and `contracts` are in the order of `work`; by default all jobs are malleable. `adaptive` is a
        PoolModel for policies that allot processors, otherwise a NodeModel, whose jobs are drawn by `seed`. `evolving`,
        a fraction of the jobs drawn by `seed` or a file, is for policies that allot processors.
        Raises SchedulerError for rules and predictors that are unknown or unsuitable for this policy, and for a policy
        that cannot be compiled.
        """
        check_predictor(predictor, machine, policy)
        _check_machine(machine, policy)
        order, pool, leaving, given = np.lexsort((work.job, work.submit)), None, None, machine
        terms = None if contracts is None else table_of(contracts, work.submit)[order]
        work = work.take(order)
        classes = np.full(len(work), MALLEABLE, np.int64) if classes is None else classes[order].astype(np.int64)
        speeds = speed_of_nodes(machine.speeds, machine.nodes, work)
        if isinstance(adaptive, NodeModel):
            leaving = adaptive.leaving(work, classes, machine.nodes, machine.cores, seed)
            if not adaptive.is_linear and not len(speeds):
                speeds = np.full(machine.nodes, SPEED_UNIT)
        if policy.pooled:
            adaptive = adaptive if isinstance(adaptive, PoolModel) else PoolModel()
            machine = machine._replace(nodes=machine.nodes * machine.cores, cores=1)
            seconds = np.maximum(work.run_time, work.requested_time)
            pool = adaptive.pool(work.allocated, seconds, classes, machine.nodes)
            pool = with_phases(pool, work, classes, evolving, seed) if evolving else pool
        allowed = nodes_of_partitions(machine.partitions, machine.nodes)
        world = make_world(
            work,
            machine.nodes,
            machine.cores,
            EVENT_RULES[machine.event_rule],
            cls=classes,
            layers=machine.layers,
            model=RUNTIME_MODELS[machine.runtime_model],
            allowed=allowed,
            pool=pool,
            slot=machine.slot,
            contracts=terms,
            foresees=predictor != USER,
            measured=policy.measures,
            outages=outages,
            sleep=sleep,
            node_speed=speeds,
            leaving=leaving,
        )
        world.jobs.partition[:] = partition_of_jobs(machine.partitions, allowed, work, world.jobs.nodes)
        if machine.partitions and not policy.knows_nodes:
            msg = f"The policy {policy.name} counts nodes: partitions need slurm or sd with reservations=nodes."
            raise SchedulerError(msg)
        program = compile_program(policy, predictor, ordered=predictor == USER)
        adaptive = adaptive if policy.pooled or leaving else None
        run = cls(
            work, machine, policy, program, world, given, adaptive=adaptive, evolving=evolving, predictor=predictor
        )
        run.guide = guide_of(run)
        run._put_in_order()
        return run

    def _put_in_order(self) -> None:
        """Give jobs priorities in the order of a fixed score. Raises SchedulerError if it cannot be computed."""
        if self.program.scores is None:
            return
        found = np.empty(len(self.work))
        try:
            self.program.scores(_read_only(view(self.world)), values(self.policy.options), found)
        except Exception as error:
            msg = f"The score of policy {self.policy.name} cannot be computed: {type(error).__name__}: {error}."
            raise SchedulerError(msg) from error
        self.world.jobs.priority[np.argsort(found, kind="stable")] = -np.arange(len(found))

    @property
    def now(self) -> int:
        """The time of the last event."""
        return int(self.world.scalars[NOW])

    @property
    def is_over(self) -> bool:
        """Whether every job has ended."""
        return self.done == len(self.work)

    @property
    def done(self) -> int:
        """The number of jobs that have ended."""
        s = self.world.scalars
        return int(s[STARTS] - s[PENDING] - (0 if s[LOSES] else s[FAILURES]))

    def run(self, until: int = NEVER - 1, progress: Callable[[float], None] | None = None) -> None:
        """Handle all events up to and including a time.

        `progress` is called regularly with the fraction of the jobs that have ended; if it raises, the simulation stays
        at a point from which it can continue. Raises SchedulerError if the policy makes an impossible decision or
        leaves jobs waiting forever.
        """
        options, actions, outcome = values(self.policy.options), make_actions(self.world), MORE
        begun = time.perf_counter()
        try:
            while outcome == MORE:
                since = time.perf_counter()
                with policy_errors_as_sentences(self.policy, lambda: self.now):
                    outcome = self._advance(options, actions, until)
                self.budget = next_budget(self.budget, time.perf_counter() - since)
                if progress:
                    progress(self.done / len(self.work))
        finally:
            self.seconds += time.perf_counter() - begun
        if outcome == FAILED:
            raise SchedulerError(self._fault())
        waiting = int(self.world.scalars[QUEUED])
        if outcome == OVER and waiting:
            first = self.work.job[self.world.queue[0]]
            msg = f"Policy {self.policy.name} leaves {counted(waiting, 'job')} waiting forever, the first is {first}."
            raise SchedulerError(msg)

    def _advance(self, options: Floats, actions: Actions, until: int) -> int:
        """Continue up to `until`; only to the next call of the policy if there is a guide, an observer or measuring."""
        advance, decide, predict, *_ = self.program
        turn = next_turn(self) if self.guide or self.observer or self.policy.measures else NEVER
        if turn > until or turn == NEVER:
            return advance(decide, predict, self.world, options, actions, until, self.budget)
        if self.guide:
            options = np.concatenate((options, self.guide(self.world, turn)))
        outcome = advance(decide, predict, self.world, options, actions, turn, self.budget)
        if self.policy.measures:
            self.measure(self.world)
        if self.observer:
            self.observer(self)
        return MORE if outcome == STOPPED else outcome

    def _fault(self) -> str:
        s = self.world.scalars
        culprit = int(s[CULPRIT])
        about = f" (job {self.work.job[culprit]})" if 0 <= culprit < len(self.work) and s[FAULT] != IN_THE_PAST else ""
        return f"Policy {self.policy.name}, at {self.now} s: it {FAULTS[int(s[FAULT])]}{about}."

    def digest(self) -> str:
        """Return a digest of the simulated jobs: of their numbers, times and sizes."""
        work = self.work
        return _digest(work.job, work.submit, work.run_time, work.requested_time, work.allocated)

    def identity(self) -> dict[str, Any]:
        """Return the values that must be the same for a saved run to be resumed."""
        return {
            "machine": self.machine._asdict(),
            "policy": self.policy.name,
            "policy file": self.policy.digest,
            "predictions": self.predictor,
            "parameters": self.policy.parameters(),
            "adaptive": self.adaptive and self.adaptive._asdict(),
            "evolving": self.evolving,
            "phases of evolving jobs": _digest(self.world.phases),
            "job classes": _digest(self.world.jobs.cls),
            "contracts": _digest(self.world.contracts),
            "failures": _digest(self.world.outages, self.world.scalars[[CHECKPOINT, RESTART, LOSES]]),
            "sleep": sleep_of(self.world),
            "jobs": len(self.work),
            "workload": self.digest(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the simulation to a file, completely or not at all. Raises SchedulerError if that is not possible."""
        check_saving(Path(path))
        text = json.dumps(self.identity())
        arrays: dict[str, Any] = dict(_arrays(self.world))
        try:
            with replacing(path) as stream:
                np.savez_compressed(stream, identity=np.array(text), **arrays)
        except OSError as error:
            raise _not_saved(path, error.strerror) from error

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Load the state of a saved simulation of the same jobs, machine and policy, to continue from it.

        Raises SchedulerError for any other file.
        """
        strange = f"{path} is not a saved simulation of this version: write one with --save."
        try:
            with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as saved:
                found = dict(json.loads(str(saved["identity"])))
                arrays = {name: saved[name] for name, _ in _arrays(self.world)}
        except (ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise SchedulerError(strange) from error
        except OSError as error:
            msg = f"The saved simulation {path} cannot be read: {error.strerror}: name another file with --resume."
            raise SchedulerError(msg) from error
        difference = _difference(found, json.loads(json.dumps(self.identity())))
        if difference:
            msg = f"{path} was saved with {difference}: give the same log and options."
            raise SchedulerError(msg)
        if any(
            (arrays[name].shape, arrays[name].dtype) != (mine.shape, mine.dtype) for name, mine in _arrays(self.world)
        ):
            raise SchedulerError(strange)
        for name, mine in _arrays(self.world):
            mine[...] = arrays[name]


def next_budget(budget: int, seconds: float) -> int:
    """Return how many instants to handle next if the last `budget` took `seconds`: at most twice as many."""
    return max(1, min(BUDGET, 2 * budget, int(budget * SLICE_S / max(seconds, SLICE_S / BUDGET))))


def check_saving(path: Path) -> None:
    """Raise SchedulerError if a simulation cannot be saved to a path."""
    if path.suffix == ".gz":
        raise _not_saved(path, "its format is not gzip")
    try:
        check_writable(path)
    except OSError as error:
        raise _not_saved(path, error.strerror) from error


def _not_saved(path: str | os.PathLike[str], reason: str | None) -> SchedulerError:
    return SchedulerError(f"The simulation cannot be saved to {path}: {reason}: name another file with --save.")


def next_turn(run: Simulation) -> int:
    """Return the second of the next call of the policy; NEVER if there is none."""
    now, slot = next_instant(run.world), run.machine.slot
    return NEVER if now == NEVER else -(-now // slot) * slot


def guide_of(run: Simulation) -> Callable[[World, int], Floats] | None:
    """Return the function to call before each call of the policy; None for a policy that decides by itself.

    Raises SchedulerError if OR-tools is missing, for partitions, and for event rules other than `instant`.
    """
    name = run.policy.built_in
    if name not in GUIDED:
        return None
    if run.machine.event_rule != "instant" or run.machine.partitions:
        msg = f"The policy {name} plans for the instant rule and the whole machine: omit the option."
        raise SchedulerError(msg)
    if name == "resources":
        return ResourceGuide(run.policy.options)
    from drom.scheduler.cp.guide import CpPlanner

    return CpPlanner(run.world, run.policy.options)


def _difference(saved: Any, mine: Any, name: str = "") -> str:  # noqa: ANN401 - values of JSON
    """Return the first difference, with both values; empty if there is none."""
    if not (isinstance(saved, dict) and isinstance(mine, dict)):
        return "" if saved == mine else f"{name} {saved}, not {mine}"
    found = (_difference(saved.get(key), value, f"{name} {key}".strip()) for key, value in mine.items())
    return next(filter(None, found), "")


def _digest(*columns: Ints | Floats) -> str:
    """Return a short digest of the contents of arrays."""
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()[:16]


def _check_machine(machine: Machine, policy: Policy) -> None:
    """Raise SchedulerError if a policy cannot be simulated on a machine with its rules."""
    _choice("event rule", machine.event_rule, EVENT_RULES)
    _choice("runtime model", machine.runtime_model, RUNTIME_MODELS)
    _check_slot(machine, policy)
    if policy.pooled and machine.event_rule == "pyss":
        msg = (
            f"Under the pyss rule no policy is called for a job that does not fit, and {policy.name} shrinks jobs for "
            "it: choose --event-rule instant or cqsim."
        )
        raise SchedulerError(msg)
    if machine.layers - 1 > machine.cores:
        msg = (
            f"A node of {counted(machine.cores, 'core')} has no room for {machine.layers - 1:,} guests: "
            "set fewer guests, or more --cores."
        )
        raise SchedulerError(msg)


def _check_slot(machine: Machine, policy: Policy) -> None:
    """Raise SchedulerError for time slots in which a policy with its own passes would make none."""
    interval, phase = (int(policy.options.get(name, 0)) for name in ("interval", "phase"))
    if machine.slot > 1 and interval and (machine.slot % interval or phase % interval):
        msg = (
            f"{policy.name} makes passes at {phase} + k * {interval} s, not at the end of each slot of "
            f"{machine.slot} s: choose a slot that is a multiple of {interval} s, and phase=0."
        )
        raise SchedulerError(msg)


def _choice(what: str, name: str, known: dict[str, int]) -> None:
    if name not in known:
        msg = f"{name!r} is not a known {what}: choose {', '.join(known)}."
        raise SchedulerError(msg)


def _arrays(value: Any, name: str = "world") -> Iterator[tuple[str, Ints]]:  # noqa: ANN401 - tuples of tuples
    """Yield every array of a world with its name."""
    for field in value._fields:
        inner = getattr(value, field)
        if isinstance(inner, tuple):
            yield from _arrays(inner, f"{name}.{field}")
        else:
            yield f"{name}.{field}", inner


def _read_only(value: Any) -> Any:  # noqa: ANN401 - tuples of tuples
    """Return a state with views of its arrays that cannot be written."""
    if isinstance(value, tuple):
        return type(value)(*map(_read_only, value))
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


GUIDED = ("cp", "resources")
"""The policies whose decisions are made outside the compiled loop."""
PLANLESS = ("fcfs", "firstfit")
"""The policies whose decisions do not depend on predictions."""


def check_predictor(name: str, machine: Machine, policy: Policy) -> None:
    """Raise SchedulerError for an unknown predictor, and for one that this machine or policy cannot use."""
    if name not in PREDICTORS:
        msg = f"{name!r} is not a prediction: choose {', '.join(PREDICTORS)}."
    elif name == USER:
        return
    elif machine.event_rule != "instant":
        msg = f"--predict {name} is for --event-rule instant, not {machine.event_rule}: leave one of them out."
    elif machine.slot > 1:
        msg = f"--predict {name} is for machines without time slots: leave one of them out."
    elif policy.pooled or policy.built_in in GUIDED:
        msg = f"--predict {name} is for policies that plan with run times: choose easy, conservative, slurm or sd."
    elif policy.options.get("recompute", 0):
        msg = f"--predict {name} and recompute=1 both change limits of running jobs: leave one of them out."
    else:
        return
    raise SchedulerError(msg)
