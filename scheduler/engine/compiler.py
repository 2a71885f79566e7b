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
import linecache
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import drom.scheduler
import numpy as np
from drom.agent.system.numba_cache import cache_folder, caching
from drom.scheduler import interface
from drom.scheduler.engine import (
    compile_errors,
    end_order,
    event_loop,
    node_failures,
    node_power,
    node_shares,
    pool,
    prediction_updates,
    queue_order,
    residual_processes,
    whole_nodes,
)
from drom.scheduler.engine import state as world
from drom.scheduler.errors import SchedulerError
from drom.scheduler.policies import change_cost, easy, guided, nodesets, profile, scaling, scored, timetable
from drom.scheduler.predictors import knowledge
from drom.workloads.errors import short
from drom.workloads.workload import make_workload
from numba.core.types.function_type import WrapperAddressProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from drom.scheduler.interface import Actions

numba: Any = importlib.import_module("numba")  # untyped
importlib.import_module("numba.experimental.function_type")  # without which it would not take a policy as an argument

BASELINES = ("sjf", "ljf", "saf", "wfp3", "unicef", "f1", "f2", "f3", "f4")
"""The policies of drom that are EASY backfilling in the order of a score."""
BUILT_IN = (
    *("fcfs", "easy", "conservative", "slurm", "sd", "firstfit", "equipartition", "payoff", "cp", "resources"),
    *BASELINES,
)
_SHARED = (interface, change_cost, easy, guided, nodesets, profile, scaling, scored, timetable)
_ENGINE = (
    interface,
    knowledge,
    world,
    end_order,
    queue_order,
    residual_processes,
    node_power,
    change_cost,
    whole_nodes,
    node_shares,
    node_failures,
    pool,
    prediction_updates,
    event_loop,
)
_PARTS: dict[Callable[..., int], Any] = {}
_PARAMETERS = ("state", "event", "options", "actions")
_SCORED = ("state", "job", "options")
_FUNCTIONS = f"a function decide({', '.join(_PARAMETERS)}), or score({', '.join(_SCORED)})"


class Policy(NamedTuple):
    """A policy: its name, its function, its parameters with their values, and its file."""

    name: str
    decide: Callable[..., int]
    options: dict[str, float]
    file: Path | None
    """None for a function that was defined elsewhere, as in a notebook."""
    words: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """Names for values of parameters."""
    pooled: bool = False
    """Whether it allots numbers of processors of the whole machine instead of nodes."""
    built_in: str = ""
    """The module name of a policy that comes with drom; empty for a policy from a file, whatever its name."""
    digest: str = ""
    """A short hash of the text of its file; without one, of the function and of everything that it refers to."""
    score: scored.Score | None = None
    """The score by which it orders the queue, if it does."""
    fixed: bool = False
    """Whether the score of a job does not change while it waits."""

    @property
    def source(self) -> Path:
        """The file of its function, or of its score."""
        return Path((self.score or self.decide).__code__.co_filename)

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

    @property
    def shares_nodes(self) -> bool:
        """Whether a live cluster gives jobs parts of nodes as a rule: nodes may then have any numbers of cores."""
        return self.divides_nodes or self.pooled

    def parameters(self) -> dict[str, float | str]:
        """Return the parameters with values as users write them."""
        return {name: _worded(self.words.get(name, {}), value) for name, value in self.options.items()}


def load_policy(source: object, choices: Iterable[str] = ()) -> Policy:
    """Return a policy with parameters set by ``NAME=VALUE``.

    `source` is the name of a policy of drom, that of a file that ends in .py, a function `decide`, or a class whose
    attributes are what a file defines. Raises SchedulerError for anything else, and for an unknown parameter.
    """
    if not isinstance(source, str):
        return _in_memory(source, choices)
    module = _from_file(Path(source)) if source.endswith(".py") else _built_in(source)
    file = Path(str(module.__file__))
    found = _definition(module, file.stem)
    if found is None:
        msg = f"{file} does not contain a policy: write in it {_FUNCTIONS}."
        raise SchedulerError(msg)
    built_in, digest = "" if source.endswith(".py") else source, _digest(file.read_bytes())
    return found.policy(source, choices)._replace(file=file, built_in=built_in, digest=digest)


def _in_memory(source: object, choices: Iterable[str]) -> Policy:
    """Return a policy that is a function, or a class with one."""
    name = getattr(source, "__name__", "")
    found = _definition(source, name) if name else None
    if found is None:
        msg = (
            f"{short(repr(source))} is not a policy: give a name, a file that ends in .py, {_FUNCTIONS}, or a class "
            "with such a function."
        )
        raise SchedulerError(msg)
    try:
        content = numba.cloudpickle.dumps(found.decide)
    except Exception as error:
        msg = f"The policy {name} refers to what numba cannot compile: {error}."
        raise SchedulerError(msg) from error
    return found.policy(name, choices)._replace(digest=_digest(content))


class _Definition(NamedTuple):
    """What a module, a class or a function says of a policy."""

    name: str
    decide: Callable[..., int]
    options: dict[str, float]
    words: Mapping[str, Mapping[str, float]]
    checks: list[Callable[[Mapping[str, float]], str]]
    pooled: bool
    score: scored.Score | None
    fixed: bool

    def policy(self, named: str, choices: Iterable[str]) -> Policy:
        """Return the policy with chosen parameters. Raises SchedulerError, which calls it as it was `named`."""
        options = dict(self.options)
        for choice in choices:
            _choose(options, self.words, choice, named)
        if fault := next(filter(None, (check(options) for check in self.checks)), ""):
            msg = f"policy {named}: {fault}"
            raise SchedulerError(msg)
        return Policy(
            self.name, self.decide, options, None, self.words, self.pooled, score=self.score, fixed=self.fixed
        )


def _definition(source: object, name: str) -> _Definition | None:
    """Return the definition of a policy by `decide` or by `score`; None if there is neither."""
    options, words = dict(getattr(source, "OPTIONS", {})), getattr(source, "WORDS", {})
    decide, score, check = (getattr(source, what, source) for what in ("decide", "score", "check"))
    checks: list[Any] = [check] if check is not source else []
    ordering, fixed = None, False
    if not _takes(decide, _PARAMETERS):
        if not _takes(score, _SCORED):
            return None
        ordering, fixed = score, bool(getattr(source, "FIXED", False))
        options, words = {**options, **scored.OPTIONS, **options}, {**words, **scored.WORDS}
        decide = scored.by_score(score, _place_of_backfill(options))
        checks.append(scored.check)
    return _Definition(name, decide, options, words, checks, bool(getattr(source, "POOL", False)), ordering, fixed)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


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
    scores: Callable[[interface.State, interface.Floats, interface.Floats], int] | None = None
    """Computes the scores that put the queue in order from a read-only state, if `decide` relies on that."""


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


def compile_program(policy: Policy, predictor: str = knowledge.USER, *, ordered: bool = False) -> Program:
    """Compile the engine, a policy and a predictor, or load them; return plain Python if numba is disabled.

    `ordered`: the caller puts the queue in the order of `Program.scores`, if the policy has a fixed score. Raises
    SchedulerError when numba cannot compile the policy, with the first thing that numba reports.
    """
    predict = importlib.import_module(f"drom.scheduler.predictors.{predictor}").predict
    decide, file = _called(policy, ordered=ordered)
    scores = scored.all_scores(policy.score) if ordered and policy.score and policy.fixed else None
    if numba.config.DISABLE_JIT:
        return Program(event_loop.advance, decide, predict, compiled=False, scores=scores)
    try:
        compiled = _compiled_policy(decide, file, policy.digest)
        scores = scores and _compiled_scores(scores, policy.file, policy.digest)
        return Program(_compiled_engine(), compiled, _compiled_predictor(predict), compiled=True, scores=scores)
    except Exception as error:  # numba has errors of its own, and raises others
        fault = _fault_of_score(policy.score) if policy.score else ""
        lines = linecache.getlines(str(policy.source))
        reason = compile_errors.reason(fault or str(error), policy.source.name, "".join(lines))
        msg = f"numba cannot compile the policy {policy.file or policy.name}, {reason}"
        raise SchedulerError(msg) from error


def _fault_of_score(score: scored.Score) -> str:
    """Return what numba reports of a score by itself, without the lines of drom that call it; empty if nothing."""
    state, _, options, _ = _reading(_signatures().decide).args
    given = (state, numba.types.int64, options)
    try:
        for signature in (given, numba.types.float64(*given)):  # what it does, then what it returns
            numba.njit(signature)(score)
    except Exception as error:  # noqa: BLE001 - whatever numba raises
        return str(error)
    return ""


def _called(policy: Policy, *, ordered: bool) -> tuple[Callable[..., int], Path | None]:
    """Return the function of a policy that is called, and its file."""
    if ordered and policy.fixed:
        return scored.in_queue_order(_place_of_backfill(policy.options)), Path(scored.__file__)
    return policy.decide, policy.file


def _place_of_backfill(options: Mapping[str, float]) -> int:
    """Return the place of a parameter from the end, which is the same for all policies that do not define it."""
    return list(options).index("backfill") - len(options)


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
    return [*_engine_files(), *_files(modules)]


def announcement(policy: Policy, *, ordered: bool = False) -> str:
    """Return a notice for users before a long compilation by `compile_program`; empty if there is none.

    A policy from a file takes a second or two, which needs no notice.
    """
    if numba.config.DISABLE_JIT:
        return ""
    parts = {"the simulator": cache_folder("engine", _engine_files())}
    decide, file = _called(policy, ordered=ordered)
    if _is_ours(decide):
        parts[f"the policy {policy.name}"] = cache_folder("policy", _policy_files(decide, file))
    elif policy.score:
        parts["the backfilling of scores"] = cache_folder("start", _files(_SHARED))
    missing = [part for part, folder in parts.items() if folder is None or not any(folder.rglob("*.nbc"))]
    if not missing:
        return ""
    kept = "set NUMBA_CACHE_DIR to a folder to keep it" if None in parts.values() else "the result is cached"
    return f"compiling {' and '.join(missing)}, which may take a minute: {kept}."


def _engine_files() -> list[Path]:
    return _files(_ENGINE)


def _policy_files(decide: Callable[..., int], file: Path | None) -> list[Path]:
    return [] if file is None else [file, *_files((*_SHARED, *_siblings(decide)))]


def _files(modules: Iterable[ModuleType]) -> list[Path]:
    return [Path(str(module.__file__)) for module in modules]


def _is_ours(decide: Callable[..., int]) -> bool:
    return (decide.__module__ or "").startswith("drom.scheduler.")


@functools.cache
def _compiled_engine() -> Any:  # noqa: ANN401 - numba is untyped
    return _compile("engine", event_loop.advance, _signatures().advance, _engine_files(), counted=False)


@functools.lru_cache(64)
def _compiled_policy(decide: Callable[..., int], file: Path | None, _digest: str) -> Any:  # noqa: ANN401 - numba is untyped
    """Compile a policy; one of a user with bounds checks and a read-only state, so that mistakes raise errors.

    A function without a file is compiled again if anything that it refers to has changed, for which `_digest` stands.
    """
    signature, ours = _signatures().decide, _is_ours(decide)
    files = _policy_files(decide, file)
    # Numba passes read-only arrays as it passes others, so the engine may call the function as if it took those.
    own = signature if ours else _reading(signature)
    return _Pointer(_compile("policy" if ours else "checked", decide, own, files, checked=not ours), signature)


def compile_start() -> None:
    """Compile what all policies of users with a score share, or load it."""
    state, _, options, actions = _reading(_signatures().decide).args
    _compiled_start(state, options, numba.types.float64, actions)


@functools.cache
def _compiled_start(*types: Any) -> Any:  # noqa: ANN401 - numba is untyped
    return _compile("start", scored.start_jobs, numba.types.int64(*types), _files(_SHARED))


def _start_jobs(state: Any, scores: Any, most: Any, actions: Any) -> Callable[..., int]:  # noqa: ANN401 - numba is untyped
    """Return what numba compiles where a policy calls `scored.start_jobs`: in one of a user a call of compiled code.

    Such a call takes 0.2 us longer than the function itself, which is compiled into the policies of drom.
    """
    if state == _signatures().decide.args[0]:
        return scored.start_jobs
    compiled = _compiled_start(state, scores, most, actions)

    def call(state: Any, scores: Any, most: Any, actions: Any) -> int:  # noqa: ANN401 - numba is untyped
        return int(compiled(state, scores, most, actions))

    return call


# Inlined, so that there is no call more than needed; not strict, as numba would take annotations for a difference.
numba.extending.overload(scored.start_jobs, strict=False, inline="always")(_start_jobs)


@functools.lru_cache(64)
def _compiled_scores(scores: Callable[..., int], file: Path | None, _digest: str) -> Any:  # noqa: ANN401 - numba is untyped
    """Compile a function that computes all scores, as `_compiled_policy` does."""
    own, files = _reading(_signatures().scores), _policy_files(scores, file)
    return _compile("scores", scores, own, files, checked=not _is_ours(scores))


def _reading(signature: Any) -> Any:  # noqa: ANN401 - numba is untyped
    """Return a signature with a read-only state, its first argument."""
    state, *others = signature.args
    return signature.return_type(_read_only(state), *others)


def _read_only(kind: Any) -> Any:  # noqa: ANN401 - numba is untyped
    """Return a type of numba with all its arrays read-only."""
    if isinstance(kind, numba.types.Array):
        return kind.copy(readonly=True)
    if not isinstance(kind, numba.types.BaseNamedTuple):
        return kind
    fields = [_read_only(one) for one in kind.types]
    if len(set(fields)) == 1:
        return numba.types.NamedUniTuple(fields[0], len(fields), kind.instance_class)
    return numba.types.NamedTuple(fields, kind.instance_class)


@functools.cache
def _compiled_predictor(predict: Callable[..., int]) -> Any:  # noqa: ANN401 - numba is untyped
    files = _files((sys.modules[predict.__module__], knowledge, interface))
    signature = _signatures().predict
    return _Pointer(_compile("predictor", predict, signature, files), signature)


def _siblings(decide: Callable[..., int]) -> Iterator[ModuleType]:
    """Yield the modules of drom.scheduler from which the module of a policy imports functions or classes."""
    names = {getattr(value, "__module__", "") for value in vars(sys.modules[decide.__module__]).values()}
    return (sys.modules[name] for name in sorted(names) if name.startswith("drom.scheduler.") and name in sys.modules)


def _compile(
    name: str,
    function: Callable[..., int],
    signature: Any,  # noqa: ANN401 - numba is untyped
    files: list[Path],
    *,
    counted: bool = True,
    checked: bool = False,
) -> Any:  # noqa: ANN401 - numba is untyped
    """Compile a function, or load it from the cache for these files; without files there is no cache.

    `counted`: with reference counting; `checked`: with an error for an index out of bounds.
    """
    folder = cache_folder(name, files) if files else None
    options = {"cache": folder is not None, "error_model": "numpy", "_nrt": counted, "boundscheck": checked}
    with caching(folder):
        return numba.njit(signature, **options)(function)


class _Signatures(NamedTuple):
    """The types of functions for numba."""

    decide: Any
    predict: Any
    advance: Any
    scores: Any


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
    return _Signatures(decide, predict, advance, integer(state, options, options))


def values(options: Mapping[str, float]) -> interface.Floats:
    """Return the values of a policy's parameters in the form that the policy receives."""
    return np.array(list(options.values()), np.float64)
