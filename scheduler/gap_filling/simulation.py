# SPDX-License-Identifier: Apache-2.0
"""A simulation with its gaps filled: setup, run, and results as figures and as a table of the filler jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.scheduler.analysis.schedule import UNKNOWN
from drom.scheduler.engine.compiler import compile_part, is_compiled, load_policy
from drom.scheduler.engine.state import BUSY, FREE
from drom.scheduler.errors import SchedulerError
from drom.scheduler.gap_filling import containers, policy_a, policy_b
from drom.scheduler.gap_filling.containers import RUNS
from drom.scheduler.gap_filling.parameters import FillingOptions
from drom.scheduler.interface import ENDED, MILLION, NEVER, NOBODY, RUNNING
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.scheduler.analysis.schedule import Table
    from drom.scheduler.gap_filling.containers import Containers
    from drom.scheduler.interface import Ints

PAPERS_IDLE = 0.1
"""What the paper's bound counts as idle."""
AT_ONCE = 20_000_000
"""Slots of nodes that are filled between two looks at whether to go on: a tenth of a second or so."""
RUN = ("filler", "node", "begin", "end")
"""The columns of a run."""
SHIFTS = ("later_jobs", "earlier_jobs", "mean_shift_s", "longest_shift_s")
"""What filling does to the starts of regular jobs."""
_MODULES = (containers, policy_a, policy_b)


@dataclass
class FilledSimulation:
    """A simulation with filled gaps, created before its first event; policy A needs a machine with time slots."""

    run: Simulation
    filling: FillingOptions
    box: Containers
    empty: int = 0
    """Policy A: node-seconds of the slots without a regular job."""
    levels: list[tuple[int, int]] = field(default_factory=list)
    """Policy A on a pool: changes of the number of processors that regular jobs have, with their times."""

    @classmethod
    def of(cls, run: Simulation, filling: FillingOptions, seed: int) -> FilledSimulation:
        """Return a simulation with containers. Raises SchedulerError for policy B on a pool."""
        if run.policy.pooled and filling.policy == "B":
            msg = (
                f"Under B a job waits for the container on its node, and {run.policy.name} says how many processors "
                "jobs have, not which: choose --fill-set policy=A."
            )
            raise SchedulerError(msg)
        world, begin = run.world, int(run.work.submit.min())
        box = filling.containers(run.machine.nodes, len(run.work), len(world.nodes.place), begin, seed)
        filled = cls(run, filling, box)
        if filling.policy == "B":
            run.program = run.program._replace(advance=filled._advance)
        if run.policy.pooled:
            run.observer = filled._note_level
        return filled

    def _note_level(self, run: Simulation) -> None:
        self.levels.append((run.now, run.machine.nodes - int(run.world.scalars[FREE])))

    def _advance(self, decide: Callable[..., int], _: Callable[..., int], *rest: Any) -> int:  # noqa: ANN401 - as given
        """Continue as `event_loop.advance` does, without predictions: filling relies on the requested times."""
        world, *others = rest
        f = self.filling
        migrate = NEVER if math.isinf(f.migrate) else int(f.migrate)
        how = np.array([f.restore, f.save, self._speed, migrate, f.kill], np.int64)
        arguments = (decide, world, self.box, how, *others)
        return int(compile_part(policy_b.advance_filled, arguments, _MODULES)(*arguments))

    @property
    def _speed(self) -> int:
        return round(self.filling.efficiency * MILLION)

    @property
    def span(self) -> tuple[int, int]:
        """The first submission, and the last end of a regular job or the last event of a partial run."""
        run = self.run
        return int(run.work.submit.min()), int(run.world.end.max()) if run.is_over else run.now

    def finish(self, show: Callable[[float], None] = lambda _: None) -> None:
        """Fill the slots of a complete schedule (policy A), or end the containers that still run (policy B).

        `show` is called from time to time with the fraction that is done.
        """
        if self.filling.policy == "A":
            self._fill_slots(show)
        else:
            self._settle()

    def _fill_slots(self, show: Callable[[float], None]) -> None:
        run, f = self.run, self.filling
        taken = np.zeros(run.machine.nodes, np.int64)
        how = np.array([f.slot, f.restore, f.save, self._speed], np.int64)
        fill, regular = self._on_pool() if run.policy.pooled else self._on_nodes()
        cursor, (begin, until) = np.zeros(policy_a.CURSOR_SIZE, np.int64), self.span
        first, last = -(-begin // f.slot), until // f.slot
        self.empty, at_once = 0, max(1, AT_ONCE // run.machine.nodes)
        for number in range(first, max(last, first + 1), at_once):
            arguments = (self.box, *regular, taken, how, cursor, number, min(number + at_once, last))
            self.empty += f.slot * int(compile_part(fill, arguments, _MODULES)(*arguments))
            show((number - first) / max(1, last - first))
        policy_a.leave_all(self.box, last * f.slot)

    def _on_nodes(self) -> tuple[Callable[..., int], tuple[Ints, ...]]:
        """Return the function that fills the slots of nodes, and the arrays with the jobs on them."""
        jobs, house = self.run.world.jobs, self.run.world.nodes
        spans = np.stack((jobs.start, self.run.world.end), axis=1)
        started = np.flatnonzero(jobs.state >= RUNNING)
        starts, ends = (started[np.argsort(spans[started, which], kind="stable")] for which in (0, 1))
        return policy_a.fill_slots, (starts, ends, spans, house.first, house.place)

    def _on_pool(self) -> tuple[Callable[..., int], tuple[Ints, ...]]:
        """Return the function that fills the slots of a pool, and the processors held; make room for all runs."""
        times, held = np.array(self.levels, np.int64).reshape(-1, 2).T.copy()
        grown = int(np.maximum(np.diff(held, prepend=0), 0).sum())
        self.box = self.box._replace(runs=np.zeros((len(self.box.arrival) + grown, 4), np.int64))
        return policy_a.fill_pool, (times, held)

    def _settle(self) -> None:
        """Save every container before the end, which is known long before."""
        box, f, end = self.box, self.filling, self.span[1]
        for one in box.tenant[box.tenant != NOBODY].tolist():
            begin = int(box.begin[one])
            if begin + f.save <= end:
                containers.work(box, one, end - f.save - begin, self._speed)
                box.saved[one] = box.done[one]
                box.saves[one] += 1
                box.overhead[one] += f.save
                containers.detach(box, one, end)
            else:
                containers.drop(box, one, end, self._speed)

    @property
    def runs(self) -> Ints:
        """The runs, of shape ``(runs, 4)``: container, node, begin, end."""
        return self.box.runs[: self.box.scalars[RUNS]]

    def figures(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the results of filling; `metrics` are those of the regular jobs. Seconds are of single nodes."""
        f, box, (begin, end) = self.filling, self.box, self.span
        room = max(1, (end - begin) * self.run.machine.nodes)
        beyond = int(np.maximum(0, self.runs[:, 3] - end).sum())  # saves that go on after a partial run
        useful = float(box.saved.sum(dtype=np.float64)) / MILLION  # millionths are soon beyond 64 bits
        worked, overhead = int(box.worked.sum()), int(box.overhead.sum()) - beyond
        delays = box.delay[box.delay > 0]
        busy = (int(self.run.world.scalars[BUSY]) - self._waited(end)) / room
        regular = metrics["utilisation"] or 0.0
        by_slot = f.policy == "A"
        return {
            "parameters": f._asdict() | {"migrate": None if math.isinf(f.migrate) else f.migrate},
            "regular_utilisation": regular,
            "utilisation": regular + useful / room,
            "gain": useful / room,
            "bound": PAPERS_IDLE * f.part * f.efficiency if by_slot else None,
            "idle": 1 - busy,
            "idle_slots": self.empty / room if by_slot else None,
            "load": busy + (worked + overhead) / room,
            "useful_s": useful,
            "overhead_s": overhead,
            "lost_s": int(box.lost.sum()),
            "saves": int(box.saves.sum()),
            "migrations": int(box.migrations.sum()),
            "fillers": len(box.arrival),
            "completed": int((box.end != NEVER).sum()),
            "delayed_jobs": len(delays),
            "mean_delay_s": float(delays.mean()) if len(delays) else 0.0,
            "longest_delay_s": int(delays.max(initial=0)),
        }

    def _waited(self, until: int) -> int:
        """Return the node-seconds during which regular jobs had nodes but waited for containers."""
        world, delay = self.run.world, self.box.delay
        if not delay.any():
            return 0
        jobs, house = world.jobs, world.nodes
        job = np.repeat(np.arange(len(jobs.start)), np.diff(house.first))
        there = (house.place != NOBODY) & (jobs.state[job] >= RUNNING)
        job, node = job[there], house.place[there]
        end = np.minimum(np.where(jobs.state == ENDED, world.end, until), until)[job]
        start = jobs.start[job]
        given = np.minimum(start - delay[job], end)
        return _covered(node, given, end) - _covered(node, np.minimum(start, end), end)

    def tables(self) -> dict[str, Table]:
        """Return `fillers`, a row per filler job in order of arrival, -1 if not yet; and `filler_runs`."""
        box = self.box
        fillers = {
            "filler": np.arange(len(box.arrival)),
            "arrival": box.arrival,
            "start": np.where(box.start == NEVER, UNKNOWN, box.start),
            "end": np.where(box.end == NEVER, UNKNOWN, box.end),
            "length": np.where(box.need == NEVER, UNKNOWN, box.need // MILLION),
            "done": box.saved // MILLION,
            "runs": np.bincount(self.runs[:, 0], minlength=len(box.arrival)),
            "saves": box.saves,
            "migrations": box.migrations,
            "worked": box.worked,
            "overhead": box.overhead,
            "lost": box.lost,
        }
        return {"fillers": fillers, "filler_runs": dict(zip(RUN, self.runs.T, strict=True))}


def _covered(node: Ints, begin: Ints, end: Ints) -> int:
    """Return the seconds covered by intervals on each node, summed over all nodes."""
    begin, end = begin - begin.min(), end - begin.min()
    order = np.lexsort((begin, node))
    apart = node[order] * (int(end.max()) + 1)
    begin, end = begin[order] + apart, np.maximum.accumulate(end[order] + apart)
    before = np.concatenate(([0], end[:-1]))
    return int(np.maximum(0, end - np.maximum(begin, before)).sum())


def compile_all() -> None:
    """Compile all ways to fill, or load them, by filling the gaps of a job."""
    one = np.ones(1, np.int64)
    work = make_workload({"submit": one, "run_time": one, "requested_time": one, "allocated": one})
    for policy, way in (("fcfs", "A"), ("fcfs", "B"), ("equipartition", "A")):
        filling = FillingOptions(policy=way)
        machine = Machine(1, slot=filling.time_slot)
        filled = FilledSimulation.of(Simulation.of(work, machine, load_policy(policy)), filling, 1)
        filled.run.run()
        filled.finish()


def announcement() -> str:
    """Return a notice for users before a first compilation; empty if the code is in the cache."""
    parts = (policy_a.fill_slots, policy_a.fill_pool, policy_b.advance_filled)
    missing = [part for part in parts if not is_compiled(part, _MODULES)]
    return "compiling the gap filling, which may take a minute: the result is cached." if missing else ""


def compile_before(say: Callable[[str], None]) -> None:
    """Compile the filling functions unless they are cached, with a notice to `say`, before parallel runs each do."""
    if announced := announcement():
        say(announced)
        compile_all()


def without(filled: Simulation) -> Simulation:
    """Return the same simulation of regular jobs without filling, before its first event."""
    run = Simulation.of(filled.work, filled.machine, filled.policy, filled.world.jobs.cls)
    run.world = run.world._replace(contracts=filled.world.contracts)
    return run


def shifts(filled: Simulation, regular: Simulation) -> dict[str, Any]:
    """Return how much later, or earlier, regular jobs start than without filling; None if that run was interrupted."""
    if not regular.is_over:
        return dict.fromkeys(SHIFTS)
    started = (filled.world.jobs.state >= RUNNING) & (regular.world.jobs.state >= RUNNING)
    shift = (filled.world.jobs.start - regular.world.jobs.start)[started]
    return {
        "later_jobs": int((shift > 0).sum()),
        "earlier_jobs": int((shift < 0).sum()),
        "mean_shift_s": float(shift.mean()) if len(shift) else 0.0,
        "longest_shift_s": int(shift.max(initial=0)),
    }
