"""Decide which cores each task gets, once the number of cores per task is known: CPU masks in, CPU masks out.

The kernel makes the decision (`problem` states the objective). Importing this module imports neither numpy nor numba;
the kernel is compiled, or loaded from numba's cache, on first use. Set NUMBA_CACHE_DIR before that. If numba is
missing, or cannot compile or cache, the same code runs as plain Python: correct, with a smaller budget, and some
hundred times slower.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib
import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.model.cores import Core
from drom.agent.system.numba_cache import cache_folder, caching, is_switched_off

from dromlib.cpulist import cpus, mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

__all__ = [
    "DEFAULT_BUDGET",
    "UNLIMITED",
    "Core",
    "Distributor",
    "Infeasible",
    "Kernel",
    "Objective",
    "Placement",
    "TaskRequest",
    "is_needed",
    "kernel",
    "split_cores",
]


DEFAULT_BUDGET = 2500
UNLIMITED = 1 << 60
PLAIN_DIVISOR = 5  # plain Python searches this much less, so that an answer still comes within a second
MODULES = (
    "drom.agent.placement.kernel.problem",
    "drom.agent.placement.kernel.pairs",
    "drom.agent.placement.kernel.tree",
    "drom.agent.placement.kernel.search",
)


class Objective(NamedTuple):
    """What a placement costs, most important first; less is better."""

    sharing: int
    """Jobs beyond the first, summed over sockets."""
    sockets: int
    """Sockets beyond the first, summed over tasks."""
    leaves: int
    """Memory domains beyond the first, summed over tasks."""
    moved: int
    """Units that a task did not have before, summed over tasks that had some."""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A task to place: `cores` units for it; `current` is its CPU mask held or targeted today (0: a newcomer).

    A `fixed` task keeps exactly its mask; its `cores` must be the number of units it has.
    """

    task: Hashable
    job: Hashable
    cores: int
    current: int = 0
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """A CPU mask for each task, disjoint; `exact` says that no placement has a smaller objective."""

    masks: Mapping[Hashable, int]
    objective: Objective
    exact: bool


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No placement exists; `reason` is a sentence for people."""

    reason: str


class Kernel(NamedTuple):
    """The kernel's entry point, whether it is machine code, and if not, why."""

    place: Callable[..., Any]
    compiled: bool
    error: str


def is_needed(units: Sequence[Core], unit: str) -> bool:
    """Return whether a kernel has anything to choose: whole cores ("core") of one memory domain are all alike."""
    return unit != "core" or len({domain for _, domain, _ in units}) > 1


def split_cores(cores: Sequence[Core]) -> tuple[Core, ...]:
    """Return one unit per hardware thread, for when there are more tasks than cores."""
    return tuple((package, domain, 1 << cpu) for package, domain, mask in cores for cpu in cpus(mask))


@functools.cache
def kernel() -> Kernel:
    """Compile the kernel, or load it from numba's cache, and return it; return it as plain Python if that fails."""
    modules = [importlib.import_module(name) for name in MODULES]
    plain = [dict(vars(module)) for module in modules]
    try:
        _compile(modules)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with numba, an answer must come
        for module, names in zip(modules, plain, strict=True):
            vars(module).update(names)
        return Kernel(modules[-1].place, compiled=False, error=f"{type(error).__name__}: {error}")
    return Kernel(modules[-1].place, compiled=True, error="")


@contextlib.contextmanager
def _only_one(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Serialise the processes that fill a cache and mark it complete; a process that waited finds it complete."""
    mark = _mark(modules)
    if mark is None or mark.exists():
        yield
        return
    with mark.with_name("lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        mark.touch()


def plain_kernel() -> Kernel:
    """Return the kernel as plain Python, at once; after a call of `kernel`, the kernel that this returned."""
    if kernel.cache_info().currsize:
        return kernel()
    return Kernel(importlib.import_module(MODULES[-1]).place, compiled=False, error="not compiled yet")


def is_cached() -> bool:
    """Return, without importing numba, whether its cache has the kernel's machine code for this processor."""
    mark = _mark([importlib.import_module(name) for name in MODULES])
    return mark is not None and mark.exists()


def _mark(modules: Sequence[ModuleType]) -> Path | None:
    """Return the file that stands for a complete cache: made by this numba and Python for this kind of processor."""
    from importlib import metadata

    folder = _cache_folder(modules)
    if folder is None:
        return None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # masked, in some containers: their caches are not shared with other machines
        lines = []
    processor = "".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))
    who = f"{metadata.version('numba')} {sys.version} {processor} {os.environ.get('NUMBA_CPU_NAME')}"
    name = "complete-" + hashlib.sha256(who.encode()).hexdigest()[:16]
    return folder / name


def _compile(modules: Sequence[ModuleType]) -> None:
    """Replace each function named in the table of signatures by its compiled form, in every module that uses it.

    From a complete cache only the entry point is loaded: its machine code contains what it calls.
    """
    numba: Any = None if is_switched_off() else importlib.import_module("numba")  # which takes half a second
    if numba is None or numba.config.DISABLE_JIT:
        message = "numba is switched off by NUMBA_DISABLE_JIT"
        raise RuntimeError(message)
    with _only_one(modules), caching(_cache_folder(modules)):
        with contextlib.suppress(numba.NumbaError):  # what was marked complete has lost files
            if is_cached():
                _replace(modules, ("place",))
                return
        _replace(modules)


def _replace(modules: Sequence[ModuleType], only: Sequence[str] = ()) -> None:
    """Compile the functions named, or all, or load them from the cache."""
    numba: Any = importlib.import_module("numba")
    for name, signature in _signatures(numba.types, *modules).items():
        if only and name not in only:
            continue
        function = next(vars(module)[name] for module in modules if name in vars(module))
        inner = name != "place"  # wrappers for calls from Python take as long to compile as the function
        options = {
            "cache": _cache_folder(modules) is not None,
            "no_cpython_wrapper": inner,
            "no_cfunc_wrapper": inner,
            "error_model": "numpy",
        }
        compiled = numba.njit(signature, **options)(function)
        for module in modules:
            if vars(module).get(name) is function:
                setattr(module, name, compiled)


def _cache_folder(modules: Sequence[ModuleType]) -> Path | None:
    return cache_folder("distribution", [Path(str(module.__file__)) for module in modules])


def _signatures(
    types: Any,  # noqa: ANN401 - numba is untyped
    problems: ModuleType,
    pairs: ModuleType,
    trees: ModuleType,
    _: ModuleType,
) -> dict[str, Any]:
    """Return the signature of every function of the kernel, in an order in which each comes after those it calls."""
    i, truth, none = types.int64, types.boolean, types.none
    row, grid, flags, short = i[::1], i[:, ::1], truth[::1], types.int32[::1]
    two = types.UniTuple(i, 2)
    p = types.NamedTuple((row, row, i, row, row, row, flags, flags, grid, row, row, grid), problems.Problem)
    st = types.NamedTuple((grid, row, row, row, grid, grid), problems.State)
    tb = types.NamedTuple((grid, grid, row, grid, grid), pairs.Table)
    tree = types.NamedTuple((row, grid, flags, row, row, grid, row, row, flags), trees.Tree)
    return {
        "weights": row(i, i),
        "new_state": st(p),
        "put": none(p, st, i, i, i),
        "reset": none(p, st),
        "copy_state": none(p, grid, st),
        "minor": i(i, i, i, i),
        "cost_of": i(p, st),
        "job_order": row(p, i),
        "top_fit": i(i, i),
        "best_leaf": i(p, st, i, i, i, row, truth),
        "greedy": none(p, st, row),
        "keep": none(p, st),
        "refine": none(p, st, grid),
        "span": i(row, i),
        "task_bound": i(p, row, row, i),
        "job_bound": i(p, st, row, i),
        "bounds": i(p, st, row, row),
        "new_table": tb(p),
        "part_cost": i(grid, i, i),
        "gather": i(p, st, tb, i, i),
        "price": two(p, st, tb, i, i, i),
        "shift_min": none(row, row, i, i),
        "chain": i(tb, i, i),
        "sweep": i(tb, i, i, truth),
        "best_end": two(p, st, tb, i, i, i, i),
        "walk_back": none(tb, i, i, row),
        "pair": truth(p, st, tb, i, i, row),
        "polish": none(p, st, tb, row),
        "is_same": truth(p, i, i),
        "find_twins": none(p, st, grid),
        "prefer": none(p, i, row),
        "missing": i(p, st, row, i),
        "prepare_search": tree(p, st, row, row),
        "cell_cost": i(p, st, i, i, i),
        "cell_range": two(p, st, tree, i, i),
        "to_come": i(p, st, tree, row, i, i, i),
        "search": truth(p, st, tree, row, grid, i, row),
        "seed": none(p, st, i),
        "tie_break": grid(flags, i, row),
        "keep_best": i(p, st, grid, i),
        "improve": i(p, st, grid, i, i, row),
        "by_socket": p(p),
        "from_sockets": i(p, st, grid, row),
        "solve": truth(p, grid, row),
        "check": i(short, flags, row, i),
        "build_problem": p(row, row, short, short, flags, short, flags),
        "find_leaves": row(short, short, row),
        "assign_units": none(p, grid, row, short, short),
        "describe": none(p, grid, row),
        "place": types.Tuple((short, row))(short, short, short, short, flags, short, flags, i),
    }


class Distributor:
    """Place tasks on the units of one machine; `cores` may be whole cores, or threads made by `split_cores`."""

    def __init__(self, cores: Sequence[Core], budget: int = DEFAULT_BUDGET, use: Kernel | None = None) -> None:
        """Sort the units by package, memory domain and lowest CPU; `budget` bounds the search."""
        import numpy as np

        self._np = np
        self.kernel = use or kernel()
        self._wanted = budget
        self._cores = sorted(cores, key=lambda core: (core[0], core[1], core[2] & -core[2]))
        self._socket = np.array([core[0] for core in self._cores], np.int32)
        self._domain = np.array([core[1] for core in self._cores], np.int32)
        self._unit = {cpu: unit for unit, core in enumerate(self._cores) for cpu in cpus(core[2])}
        self._known = mask_of(self._unit)

    @property
    def _budget(self) -> int:
        unbounded = self.compiled or self._wanted >= UNLIMITED
        return self._wanted if unbounded else self._wanted // PLAIN_DIVISOR

    @property
    def compiled(self) -> bool:
        """Whether the kernel is machine code (otherwise plain Python, correct and slow)."""
        return self.kernel.compiled

    @property
    def compile_error(self) -> str:
        """Why the kernel is not machine code; empty if it is."""
        return self.kernel.error

    def place(self, demands: Sequence[TaskRequest]) -> Placement | Infeasible:
        """Choose a CPU mask for each demand; same demands in the same order, same answer."""
        arguments = self.prepare(demands)
        if isinstance(arguments, Infeasible):
            return arguments
        if not demands:
            return Placement({}, Objective(0, 0, 0, 0), exact=True)
        assign, info = self.kernel.place(*arguments)
        return self._answer(_by_job(demands), assign, info.tolist())

    def prepare(self, demands: Sequence[TaskRequest]) -> tuple[Any, ...] | Infeasible:
        """Return the kernel's arguments, with the tasks of each job together, or why there can be no answer."""
        np, ordered = self._np, _by_job(demands)
        held = self._held(ordered)
        if isinstance(held, Infeasible):
            return held
        number = {job: n for n, job in enumerate(dict.fromkeys(demand.job for demand in ordered))}
        current = np.array(held, np.int32)
        fresh = np.ones(len(ordered), np.bool_)
        fresh[current[current >= 0]] = False
        return (
            self._socket,
            self._domain,
            np.array([number[demand.job] for demand in ordered], np.int32),
            np.array([demand.cores for demand in ordered], np.int32),
            np.array([demand.fixed for demand in ordered], np.bool_),
            current,
            fresh,
            self._budget,
        )

    def _held(self, ordered: Sequence[TaskRequest]) -> list[int] | Infeasible:
        """Return the task of each unit today; if two claim a unit, a fixed one has it, otherwise the first."""
        held = [-1] * len(self._cores)
        for demand, number in sorted(zip(ordered, itertools.count(), strict=False), key=lambda pair: not pair[0].fixed):
            units = set(map(self._unit.__getitem__, cpus(demand.current & self._known)))
            taken = [unit for unit in units if held[unit] >= 0]
            if demand.fixed and taken:
                return Infeasible(f"tasks {ordered[held[taken[0]]].task} and {demand.task} are fixed on the same core")
            if demand.fixed and len(units) != demand.cores:
                return Infeasible(f"task {demand.task} is fixed on {len(units)} cores, but asks for {demand.cores}")
            if demand.cores < 1:
                return Infeasible(f"task {demand.task} needs at least one core, not {demand.cores}")
            for unit in units.difference(taken):
                held[unit] = number
        wanted, there = sum(demand.cores for demand in ordered), len(self._cores)
        return Infeasible(f"{wanted} cores are wanted, but there are {there}") if wanted > there else held

    def _answer(
        self, ordered: Sequence[TaskRequest], assign: NDArray[Any], info: Sequence[int]
    ) -> Placement | Infeasible:
        """Turn the kernel's arrays into masks; a fixed task keeps its exact mask."""
        from drom.agent.placement.kernel import problem as words

        if info[words.STATUS] != words.FEASIBLE:
            return Infeasible(f"a machine of {len(self._cores)} cores is beyond the kernel's arithmetic")
        masks = [demand.current if demand.fixed else 0 for demand in ordered]
        mobile = self._np.array([not demand.fixed for demand in ordered])
        units = self._np.flatnonzero((assign >= 0) & mobile[assign])
        for unit, number in zip(units.tolist(), assign[units].tolist(), strict=True):
            masks[number] |= self._cores[unit][2]
        by_task = {demand.task: mask for demand, mask in zip(ordered, masks, strict=True)}
        return Placement(by_task, Objective(*info[words.SHARING : words.MOVED + 1]), bool(info[words.EXACT]))


def _by_job(demands: Sequence[TaskRequest]) -> list[TaskRequest]:
    """Sort the tasks by job, jobs in order of first appearance."""
    number: dict[Hashable, int] = {}
    for demand in demands:
        number.setdefault(demand.job, len(number))
    return sorted(demands, key=lambda demand: number[demand.job])
