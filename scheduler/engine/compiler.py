# SPDX-License-Identifier: Apache-2.0
"""The engine and a policy as machine code, compiled or loaded from numba's cache.

The engine is compiled once and gets the policy as a function of a stated type (numba's first-class functions). Both are
cached separately, so a new policy costs only its own compilation. A call through the pointer takes about 0.1 us. If
numba is disabled, both run as plain Python, with the same results.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import drom.scheduler
import numpy as np
from drom.agent.system.numba_cache import cache_folder, caching
from drom.scheduler import interface
from drom.scheduler.engine import end_order, event_loop, node_shares, pool, prediction_updates, residual_processes
from drom.scheduler.engine import state as world
from drom.scheduler.errors import SchedulerError
from drom.scheduler.policies import easy, guided, nodesets, profile, scaling, scored, timetable
from drom.scheduler.predictors import knowledge
from drom.workloads.errors import short
from drom.workloads.workload import make_workload
from numba.core.types.function_type import WrapperAddressProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from drom.scheduler.interface import Actions

numba: Any = importlib.import_module("numba")  # untyped

BASELINES = ("sjf", "ljf", "saf", "wfp3", "unicef", "f1", "f2", "f3", "f4")
"""The policies of drom that are EASY backfilling in the order of a score."""
BUILT_IN = (
    *("fcfs", "easy", "conservative", "slurm", "sd", "firstfit", "equipartition", "payoff", "cp", "resources"),
    *BASELINES,
)
_SHARED = (interface, easy, guided, nodesets, profile, scaling, scored, timetable)
_ENGINE = (
    interface,
    knowledge,
    world,
    end_order,
    residual_processes,
    node_shares,
    pool,
    prediction_updates,
    event_loop,
)
_PARTS: dict[Callable[..., int], Any] = {}
_PARAMETERS = ("state", "event", "options", "actions")
_SCORED = ("state", "job", "options")


class Policy(NamedTuple):
    """A policy: its name, its function, its parameters with their values, and its file."""

    name: str
    decide: Callable[..., int]
    options: dict[str, float]
    file: Path
    words: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """Names for values of parameters."""
    pooled: bool = False
    """Whether it allots numbers of processors of the whole machine instead of nodes."""
    built_in: str = ""
    """The module name of a policy that comes with drom; empty for a policy from a file, whatever its name."""
    digest: str = ""
    """A short hash of the text of its file."""

    @property
    def layers(self) -> int:
        """The number of jobs that may share a node: an owner and `guests`, if the policy has such a parameter."""
        return 1 + int(self.options.get("guests", 1))

    @property
    def measures(self) -> bool:
        """Whether the policy uses the measured rates of running jobs."""
        return bool(self.options.get("feedback", 0))

    @property
    def knows_nodes(self) -> bool:
        """Whether the policy plans with individual nodes, so that jobs may be confined to partitions."""
        return bool(self.options.get("reservations", 0))

    @property
    def divides_nodes(self) -> bool:
        """Whether a live cluster gives jobs cores, memory and counted resources of nodes instead of whole nodes."""
        return self.built_in in {"resources", "cp"}

    def parameters(self) -> dict[str, float | str]:
        """Return the parameters with values as users write them."""
        return {name: _worded(self.words.get(name, {}), value) for name, value in self.options.items()}


def load_policy(name: str, choices: Iterable[str] = ()) -> Policy:
    """Return a policy of drom by name, or one from a file, with parameters set by ``NAME=VALUE``.

    Raises SchedulerError for an unknown policy or parameter, and for a file without a policy.
    """
    module = _from_file(Path(name)) if name.endswith(".py") else _built_in(name)
    file = Path(str(module.__file__))
    options, words = dict(getattr(module, "OPTIONS", {})), getattr(module, "WORDS", {})
    decide, checks = getattr(module, "decide", None), [getattr(module, "check", None)]
    if decide is None and _takes(score := getattr(module, "score", None), _SCORED):
        options, words = {**options, **scored.OPTIONS, **options}, {**words, **scored.WORDS}
        decide = scored.by_score(score, list(options).index("backfill"))
        checks.append(scored.check)
    if not _takes(decide, _PARAMETERS):
        msg = (
            f"{file} does not contain a policy: write a function decide({', '.join(_PARAMETERS)}) in it, "
            f"or score({', '.join(_SCORED)})."
        )
        raise SchedulerError(msg)
    for choice in choices:
        _choose(options, words, choice, name)
    fault = next(filter(None, (check(options) for check in checks if check)), "")
    if fault:
        msg = f"policy {name}: {fault}"
        raise SchedulerError(msg)
    pooled, digest = bool(getattr(module, "POOL", False)), hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return Policy(file.stem, decide, options, file, words, pooled, "" if name.endswith(".py") else name, digest)


def _takes(function: object, parameters: Sequence[str]) -> TypeGuard[Callable[..., Any]]:
    return inspect.isfunction(function) and len(inspect.signature(function).parameters) == len(parameters)


def _built_in(name: str) -> ModuleType:
    if name not in BUILT_IN:
        msg = f"{short(name)} is not a policy: choose {', '.join(BUILT_IN)}, or name a file that ends in .py."
        raise SchedulerError(msg)
    return importlib.import_module(f"drom.scheduler.policies.{name}")


def _from_file(file: Path) -> ModuleType:
    name = f"drom_policy_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None or not file.is_file():
        msg = f"There is no policy file {file}: name a file of Python, or one of {', '.join(BUILT_IN)}."
        raise SchedulerError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _former_names(file):
            spec.loader.exec_module(module)
    except Exception as error:
        msg = f"The policy file {file} cannot be loaded: {type(error).__name__}: {error}."
        raise SchedulerError(msg) from error
    return module


@contextlib.contextmanager
def _former_names(file: Path) -> Iterator[None]:
    """Allow a policy file to import `scheduler.interface` and similar modules, their names before `drom` was added."""
    if not re.search(rb"^\s*(?:from|import)\s+scheduler\b", file.read_bytes(), re.MULTILINE):
        yield
        return
    sys.stderr.write(
        f"drom: {file} imports from scheduler, which will be removed: import from drom.scheduler instead.\n"
    )
    former: dict[str, ModuleType] = {"scheduler": drom.scheduler, "scheduler.interface": interface}
    former |= {f"scheduler.{one.__name__.rsplit('.', 1)[-1]}": one for one in (nodesets, profile, timetable)}
    before = {name: sys.modules.get(name) for name in former}
    sys.modules.update(former)
    try:
        yield
    finally:
        for name, known in before.items():
            if known is None:
                del sys.modules[name]
            else:
                sys.modules[name] = known


def _choose(options: dict[str, float], words: Mapping[str, Mapping[str, float]], choice: str, policy: str) -> None:
    name, _, text = choice.partition("=")
    if name not in options:
        known = f"it has {', '.join(options)}" if options else "it has none"
        msg = f"{short(choice)}: the policy {policy} has no parameter {short(name)}: {known}."
        raise SchedulerError(msg)
    named = words.get(name, {})
    try:
        options[name] = named[text] if text in named else float(text)
    except ValueError:
        kind = ", ".join(["a number", *named])
        example = _worded(named, options[name])
        msg = f"{short(choice)}: the parameter {name} of policy {policy} is {kind}: write {name}={example}."
        raise SchedulerError(msg) from None


def _worded(named: Mapping[str, float], value: float) -> float | str:
    return next((word for word, meant in named.items() if meant == value), int(value) if value % 1 == 0 else value)


class Program(NamedTuple):
    """The compiled parts of a simulation: the engine, its policy and predictor, and whether they are machine code."""

    advance: Callable[..., int]
    decide: Any
    predict: Any
    compiled: bool


class _Pointer(WrapperAddressProtocol):
    """A compiled policy in the form that the engine calls."""

    def __init__(self, compiled: Any, signature: Any) -> None:  # noqa: ANN401 - numba is untyped
        (code,) = compiled.overloads.values()
        self._keep = compiled
        self._address = code.library.get_pointer_to_function(code.fndesc.llvm_cfunc_wrapper_name)
        self._signature = signature

    def __wrapper_address__(self) -> int:
        return int(self._address)

    def signature(self) -> Any:  # noqa: ANN401 - numba is untyped
        return self._signature


def compile_program(policy: Policy, predictor: str = knowledge.USER) -> Program:
    """Compile the engine, a policy and a predictor, or load them; return plain Python if numba is disabled.

    Raises SchedulerError when numba cannot compile the policy, with the first thing that numba reports.
    """
    predict = importlib.import_module(f"drom.scheduler.predictors.{predictor}").predict
    if numba.config.DISABLE_JIT:
        return Program(event_loop.advance, policy.decide, predict, compiled=False)
    try:
        decide = _compiled_policy(policy.decide, policy.file)
        return Program(_compiled_engine(), decide, _compiled_predictor(predict), compiled=True)
    except (numba.core.errors.NumbaError, numba.core.errors.UnsupportedBytecodeError) as error:
        msg = f"numba cannot compile the policy {policy.file}, {_reason(str(error), policy.file)}"
        raise SchedulerError(msg) from error


def compile_part(function: Callable[..., int], arguments: Sequence[Any], modules: Sequence[ModuleType]) -> Any:  # noqa: ANN401 - numba is untyped
    """Compile a function for arguments of these types as the engine is, or load it; plain Python if numba is disabled.

    `modules` are those beside the engine's from whose text it is made.
    """
    if numba.config.DISABLE_JIT:
        return function
    if function not in _PARTS:
        signature = numba.types.int64(*(numba.typeof(value) for value in arguments))
        _PARTS[function] = _compile(function.__name__, function, signature, _part_files(modules), counted=False)
    return _PARTS[function]


def is_compiled(function: Callable[..., int], modules: Sequence[ModuleType]) -> bool:
    """Return whether `compile_part` would find the function compiled."""
    folder = cache_folder(function.__name__, _part_files(modules))
    return bool(numba.config.DISABLE_JIT) or (folder is not None and any(folder.rglob("*.nbc")))


def _part_files(modules: Sequence[ModuleType]) -> list[Path]:
    return [*_engine_files(), *(Path(str(module.__file__)) for module in modules)]


def announcement(policy: Policy) -> str:
    """Return a notice for users before a long compilation; empty if there is none.

    A policy from a file takes a second or two, which needs no notice.
    """
    if numba.config.DISABLE_JIT:
        return ""
    parts = {"the simulator": cache_folder("engine", _engine_files())}
    if _is_ours(policy.decide):
        parts[f"the policy {policy.name}"] = cache_folder("policy", _policy_files(policy.decide, policy.file))
    missing = [part for part, folder in parts.items() if folder is None or not any(folder.rglob("*.nbc"))]
    if not missing:
        return ""
    kept = "set NUMBA_CACHE_DIR to a folder to keep it" if None in parts.values() else "the result is cached"
    return f"compiling {' and '.join(missing)}, which may take a minute: {kept}."


def _engine_files() -> list[Path]:
    return [Path(str(module.__file__)) for module in _ENGINE]


def _policy_files(decide: Callable[..., int], file: Path) -> list[Path]:
    return [file, *(Path(str(module.__file__)) for module in (*_SHARED, *_siblings(decide)))]


def _is_ours(decide: Callable[..., int]) -> bool:
    return decide.__module__.startswith("drom.scheduler.")


@functools.cache
def _compiled_engine() -> Any:  # noqa: ANN401 - numba is untyped
    return _compile("engine", event_loop.advance, _signatures().advance, _engine_files(), counted=False)


@functools.cache
def _compiled_policy(decide: Callable[..., int], file: Path) -> Any:  # noqa: ANN401 - numba is untyped
    """Compile a policy; one from a user's file with bounds checks, so that a wrong index raises an error."""
    signature, ours, files = _signatures().decide, _is_ours(decide), _policy_files(decide, file)
    compiled = _compile("policy" if ours else "checked", decide, signature, files, checked=not ours)
    return _Pointer(compiled, signature)


@functools.cache
def _compiled_predictor(predict: Callable[..., int]) -> Any:  # noqa: ANN401 - numba is untyped
    files = [Path(str(module.__file__)) for module in (sys.modules[predict.__module__], knowledge, interface)]
    signature = _signatures().predict
    return _Pointer(_compile("predictor", predict, signature, files), signature)


def _siblings(decide: Callable[..., int]) -> Iterator[ModuleType]:
    """Yield the modules of drom.scheduler from which the module of a policy imports functions or classes."""
    names = {getattr(value, "__module__", "") for value in vars(sys.modules[decide.__module__]).values()}
    return (sys.modules[name] for name in sorted(names) if name.startswith("drom.scheduler.") and name in sys.modules)


def _reason(text: str, file: Path) -> str:
    """Return what numba complains about, with the line of the file if numba names it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = [line for line in lines if not line.startswith(("Failed in", "File ", "During"))]
    reason = (words or lines or ["no reason given"])[0]
    if reason.endswith(":"):  # no function matches the call: the reason comes later
        reason = next((line for line in lines if line.startswith("TypingError:")), reason)
    place = re.search(re.escape(file.name) + r'(?:", line | \()(\d+)', text)
    return f"line {place[1]}: {reason}" if place else reason


def _compile(
    name: str,
    function: Callable[..., int],
    signature: Any,  # noqa: ANN401 - numba is untyped
    files: list[Path],
    *,
    counted: bool = True,
    checked: bool = False,
) -> Any:  # noqa: ANN401 - numba is untyped
    """Compile a function, or load it from the cache for these files.

    `counted`: with reference counting; `checked`: with an error for an index out of bounds.
    """
    folder = cache_folder(name, files)
    options = {"cache": folder is not None, "error_model": "numpy", "_nrt": counted, "boundscheck": checked}
    with caching(folder):
        return numba.njit(signature, **options)(function)


class _Signatures(NamedTuple):
    """The types of functions for numba."""

    decide: Any
    predict: Any
    advance: Any


@functools.cache
def _signatures() -> _Signatures:
    """Return the types of a policy, a predictor and the engine, taken from a world with one job."""
    one = np.ones(1, np.int64)
    work = make_workload({"submit": one, "run_time": one, "requested_time": one, "allocated": one})
    small = world.make_world(work, 1, 1, world.INSTANT)
    actions: Actions = world.make_actions(small)
    state, event, options, wanted, jobs, known, everything = (
        numba.typeof(value)
        for value in (world.view(small), world.NOTHING, np.zeros(1), actions, small.jobs, small.foresight, small)
    )
    integer, pointer = numba.types.int64, numba.types.FunctionType
    decide, predict = integer(state, event, options, wanted), integer(jobs, known, integer)
    advance = integer(pointer(decide), pointer(predict), everything, options, wanted, integer, integer)
    return _Signatures(decide, predict, advance)


def values(options: Mapping[str, float]) -> interface.Floats:
    """Return the values of a policy's parameters in the form that the policy receives."""
    return np.array(list(options.values()), np.float64)
