# SPDX-License-Identifier: Apache-2.0
"""A job as it is submitted: what to run, on how much of the cluster, for how long, and after what. No I/O.

Names and meanings of options are those of sbatch where it has them. Amounts of memory and of counted resources are per
node.
"""

from __future__ import annotations

import json
import math
import re
import signal
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.control.messages import Service
from drom.agent.execution.protocol import CLASSES, CONTAINER, LETTERS, PROGRAM
from drom.agent.text import (
    FEATURE,
    LONGEST,
    RESOURCE,
    WordError,
    clean_name,
    counted,
    duration,
    parse_duration,
    parse_size,
)
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.node_lists import MOST_NODES

if TYPE_CHECKING:
    from collections.abc import Mapping

SAVING = (CONTAINER, PROGRAM)
KINDS = ("after", "afterany", "afterok", "afternotok")
"""The events of another job for which a job may wait: it has started, ended, succeeded, failed."""
MOST = 1 << 20
"""The largest count that is accepted."""
MOST_JOBS = 1 << 53
"""An upper bound of job numbers."""
LARGEST = 512 << 10
"""Bytes of a job as it is sent, with command, script and environment."""
LONGEST_REQUEST = LARGEST + 4096
SERVICE = Service("scheduler", "drom scheduler --state", "--scheduler", "--users", LONGEST_REQUEST)
"""The scheduler, for its clients."""
LISTS = ("command", "constraint", "nodelist", "exclude")
"""The fields of a specification that are lists of texts."""
WHO = ("HOME", "LOGNAME", "SHELL", "USER")
"""Variables that every job has."""
MOST_AT_ONCE = 1000
"""Jobs of one request: no other message is read while they are stored."""
MOST_DEPENDENCIES = 1000
"""Dependencies of one job: each job of a request and each start of a scheduler checks all of them."""
MOST_WORDS = 16384
"""Words of a command."""
MOST_VARIABLES = 4096
"""Variables of a job's environment."""
MOST_KINDS = 50
"""Different jobs of one request: each is read and checked separately."""
MOST_WANTS = 64
"""Features, and counted resources, that one job may ask for."""
LONGEST_NAME = 1024
"""Characters of a job's name; listings show fewer."""
MOST_PAY = 10**13
"""The largest pay-off and penalty of a job, as in simulations: sums stay within 64 bits."""
KEPT = 512
"""Characters of a command, and of each path, that are kept of a job that is over."""
CUT = "..."
"""The mark in place of the part that was cut."""
LONGEST_PATH = 4095
"""Characters of a path: the kernel's PATH_MAX without the zero at its end."""


class Dependency(NamedTuple):
    """One job that another waits for; with the index of an `element` the one in the array `job`, until it is found.

    With an `array` one failed job of that array suffices, once all have ended, as for ``afternotok`` in Slurm.
    """

    kind: str
    job: int
    element: int | None = None
    array: int | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """What a user asks for. `time` is in seconds (0: the scheduler's default), `memory` in bytes (0: unsaid).

    Either `command` is run, or `script`, a text whose first line names its interpreter, with `command` as arguments.
    `tasks` processes are started on each node by mpirun, where that is more than one or there are several nodes, and
    the job is no script and has no terminal. `threads` are the cores that a task asks for. A policy of processors gives
    it from `least` to `most` cores on any nodes. One of whole nodes may have it leave some, down to `min_nodes` (0: it
    keeps all). In a job that was accepted, `nodes` and `tasks` are 0 if its `ranks` tasks may be on any nodes. `array`
    are the indices of an array of jobs, as `parse_array` takes them; empty: it is a single job. `signal` is sent before
    the limit, as `notice_of` takes it; empty: none is. `contract` is what its end pays, as `contract_of` takes it;
    empty: it has none.
    """

    command: tuple[str, ...] = ()
    script: str = ""
    name: str = ""
    nodes: int = 0
    min_nodes: int = 0
    tasks: int = 0
    ranks: int = 0
    least: int = 0
    most: int = 0
    threads: int = 0
    time: int = 0
    job_class: str = "malleable"
    priority: int = 0
    after: tuple[Dependency, ...] = ()
    constraint: tuple[str, ...] = ()
    memory: int = 0
    resources: dict[str, int] = field(default_factory=dict)
    output: str = "drom-%j.out"
    error: str = ""
    input: str = ""
    folder: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    umask: int = 0o022
    requeue: bool = True
    hold: bool = False
    array: str = ""
    nodelist: tuple[str, ...] = ()
    """The only nodes on which it may run; empty: any."""
    exclude: tuple[str, ...] = ()
    """Nodes on which it may not run."""
    partition: str = ""
    saving: str = ""
    """How it is saved if it is a filler, one of `SAVING`; empty: it is a regular job."""
    terminal: str = field(default="", repr=False)
    """Where the user's terminal is, to which the program is connected, with the secret that opens it; empty: none."""
    signal: str = ""
    contract: str = ""

    @property
    def leaves_nodes(self) -> bool:
        """Whether it may leave whole nodes: its ranks there then rest."""
        return 0 < self.min_nodes < self.nodes

    @property
    def by_mpirun(self) -> bool:
        """Whether the tasks are started by mpirun."""
        many = self.nodes > 1 or self.tasks > 1 or (not self.nodes and self.ranks > 1)
        return many and not (self.script or self.terminal)

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON values, which are its own."""
        after = [one[: max(end for end, value in enumerate(one, 1) if value is not None)] for one in self.after]
        return {name: getattr(self, name) for name in _NAMES} | {"after": after}


def size_of(spec: Spec) -> int:
    """Return the bytes that are kept of a specification."""
    return len(json.dumps(spec.to_json()))


def without_environment(spec: Spec) -> Spec:
    """Return the part of a specification that is kept once its job is over.

    It has no environment; a script is reduced to a mark that it was one, and long commands and paths are cut.
    """
    command = _first(spec.command)
    name = spec.name[:KEPT] or ("" if command[:1] == spec.command[:1] else name_of(spec)[:KEPT])
    return replace(
        spec,
        name=name,
        script=spec.script and "#!",
        command=command,
        nodelist=_first(spec.nodelist),
        exclude=_first(spec.exclude),
        environment={},
        terminal="",
        output=_cut(spec.output),
        error=_cut(spec.error),
        input=_cut(spec.input),
        folder=_cut(spec.folder),
    )


def _first(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first words, with a mark in place of those beyond `KEPT` characters."""
    size = 0
    for place, word in enumerate(words):
        size += len(word) + 1
        if size > KEPT:
            return (*words[:place], CUT)
    return words


def _cut(text: str) -> str:
    return text if len(text) <= KEPT else text[: KEPT - len(CUT)] + CUT


def visible(spec: Spec, *, whole: bool) -> dict[str, Any]:
    """Return the fields of a specification that may be shown: a script and its arguments only if `whole`.

    The environment and the terminal are never shown.
    """
    hidden = {"environment", "terminal"} | (set() if whole or not spec.script else {"script", "command"})
    return {name: value for name, value in spec.to_json().items() if name not in hidden}


def sized(spec: Spec, cores: int) -> Spec:
    """Return a specification with the number of nodes and of tasks on each node filled in; nodes have `cores` cores.

    Raises SchedulerError if the numbers contradict each other, or if the tasks of a node do not fit on its cores.
    """
    threads = max(1, spec.threads)
    nodes, tasks, ranks = spec.nodes, spec.tasks, spec.ranks
    if not nodes:
        per_node = tasks or max(1, cores // threads)
        nodes = math.ceil(ranks / per_node) if ranks else 1
    tasks = tasks or (math.ceil(ranks / nodes) if ranks else 1)
    if ranks and not nodes * tasks - tasks < ranks <= nodes * tasks:
        msg = (
            f"{counted(ranks, 'task')} are not {counted(nodes, 'node')} with {tasks} each: give two of --ntasks, "
            "--nodes and --tasks-per-node."
        )
        raise SchedulerError(msg)
    if tasks * threads > cores:
        wants = f"{counted(tasks, 'task')} of {counted(threads, 'core')} {'does' if tasks == 1 else 'do'} not fit"
        fewer = "--cpus-per-task" if threads > cores else "--tasks-per-node" if spec.tasks else ""
        hint = f"for fewer with {fewer}" if fewer else "for more nodes with --nodes"
        msg = f"{wants} on a node, which has {counted(cores, 'core')}: ask {hint}."
        raise SchedulerError(msg)
    return replace(spec, nodes=nodes, tasks=tasks, ranks=ranks or nodes * tasks)


def from_json(values: Any) -> Spec:  # noqa: ANN401 - a JSON value
    """Return the specification in a JSON object. Raises SchedulerError with what is wrong in it."""
    if not isinstance(values, dict) or not values.keys() <= {item.name for item in fields(Spec)}:
        raise SchedulerError("a job is one JSON object with the fields of a submission: use this version's drom.")
    try:
        values = values | {
            **{name: tuple(_texts(values.get(name, []))) for name in LISTS},
            "after": tuple(dict.fromkeys(_dependency(*pair) for pair in values.get("after", []))),
        }
        spec = Spec(**values)
        for item in fields(Spec):
            if item.name not in (*LISTS, "after"):
                _check_type(spec, item.name)
    except (TypeError, ValueError) as error:
        raise SchedulerError("a field of the job has a wrong type: use this version's drom.") from error
    check(spec)
    return spec


CHANGEABLE = {
    "time": "--time",
    "nodes": "--nodes",
    "min_nodes": "--min-nodes",
    "ranks": "--ntasks",
    "least": "--min",
    "most": "--max",
    "tasks": "--tasks-per-node",
    "threads": "--cpus-per-task",
    "memory": "--mem",
    "constraint": "--constraint",
    "priority": "--priority",
    "name": "--job-name",
    "after": "--dependency",
    "nodelist": "--nodelist",
    "exclude": "--exclude",
    "partition": "--partition",
}
"""The fields that can be changed after the submission, with their options."""


def changed(spec: Spec, changes: Mapping[str, Any]) -> Spec:
    """Return a specification with other values of fields in `CHANGEABLE`. Raises SchedulerError as `from_json`.

    A job with another number of nodes or of tasks on each has as many tasks as these make. One with another number of
    tasks has as many nodes, and tasks on each, as at a submission that gives no more than `changes`; and a job with
    another range of cores has no other number of tasks.
    """
    if not changes or not changes.keys() <= CHANGEABLE.keys():
        raise SchedulerError("a change names some fields of a submission: use this version's drom.")
    given = {"nodes", "tasks", "ranks", "least", "most"} & changes.keys()
    anew = ("nodes", "tasks", "least", "most") if "ranks" in given else ("ranks",) if given else ()
    size = dict.fromkeys(anew, 0)
    return from_json(spec.to_json() | size | dict(changes))


def check(spec: Spec) -> None:
    """Raise SchedulerError with the first error that does not depend on the cluster."""
    if not (spec.script or (spec.command and spec.command[0])):
        raise SchedulerError("a job needs a command: write drom submit -- COMMAND, or name a script.")
    if spec.script:
        _check_script(spec.script)
    for option, text in (("--output", spec.output), ("--error", spec.error), ("--input", spec.input)):
        if not spec.array and re.search("%a", text.replace("%%", "")):
            msg = f"{option} has %a, the index of an array, and the job is none: add --array, or write %j."
            raise SchedulerError(msg)
    for name, option, least, most in _RANGES:
        value = getattr(spec, name)
        if not least <= value <= most:
            msg = f"{option} is a whole number from {least} to {most}, not {value}."
            raise SchedulerError(msg)
    _check_lengths(spec)
    _check_words(spec)
    _check_wants(spec)
    _check_filler(spec)
    size = size_of(spec)
    if size > LARGEST:
        has = f"command, script and environment are {size / 1024:.1f} KiB, and a job may have {LARGEST >> 10} KiB"
        msg = f"{has}: leave variables out with --export, or put text into a file."
        raise SchedulerError(msg)
    texts = [*spec.command, spec.output, spec.error, spec.input, spec.folder, *spec.environment]
    if any("\0" in text for text in (*texts, *spec.environment.values())):
        raise SchedulerError("no text of a job may hold a zero byte.")
    if not spec.folder.startswith("/"):
        raise SchedulerError("the folder of a job must be an absolute path: see --chdir.")


def _check_lengths(spec: Spec) -> None:
    """Raise SchedulerError for the first field that is longer than its limit."""
    if len(spec.after) > MOST_DEPENDENCIES:
        msg = (
            f"the job waits for {len(spec.after)} jobs, and one may wait for {MOST_DEPENDENCIES}: let "
            "intermediate jobs wait for some of them each, and wait for these jobs."
        )
        raise SchedulerError(msg)
    for option, given, most in (
        ("--constraint", spec.constraint, MOST_WANTS),
        ("--resources", spec.resources, MOST_WANTS),
        ("--nodelist", spec.nodelist, MOST_NODES),
        ("--exclude", spec.exclude, MOST_NODES),
    ):
        if len(given) > most:
            msg = f"{option} names {len(given)}, and a job may name {most}: leave some out."
            raise SchedulerError(msg)
    if len(spec.command) > MOST_WORDS:
        msg = f"the command has {len(spec.command)} words, and may have {MOST_WORDS}: put them into a file."
        raise SchedulerError(msg)
    if len(spec.environment) > MOST_VARIABLES:
        has = f"the environment has {len(spec.environment)} variables, and a job may have {MOST_VARIABLES}"
        raise SchedulerError(f"{has}: leave some out with --export.")
    paths = [("--output", spec.output), ("--error", spec.error), ("--input", spec.input), ("--chdir", spec.folder)]
    for option, text, most in [
        ("--job-name", spec.name, LONGEST_NAME),
        ("--partition", spec.partition, LONGEST_NAME),
        *((*one, LONGEST_PATH) for one in paths),
    ]:
        if len(text) > most:
            msg = f"{option} has {len(text)} characters, and may have {most}: choose a shorter one."
            raise SchedulerError(msg)


def _check_wants(spec: Spec) -> None:
    """Raise SchedulerError for features and counted resources that no node can have."""
    if not all(re.fullmatch(FEATURE, feature) for feature in spec.constraint):
        raise SchedulerError("--constraint takes features of at most 32 letters each, such as bigmem,fast.")
    if not all(re.fullmatch(RESOURCE, name) for name in spec.resources):
        raise SchedulerError("--resources takes resources of at most 32 letters each, such as gpu=2.")
    if any(not 0 < amount <= MOST for amount in spec.resources.values()):
        raise SchedulerError("a resource needs a positive whole number, such as --resources gpu=2.")


def _check_filler(spec: Spec) -> None:
    """Raise SchedulerError for a filler that could not be saved, or not go on elsewhere."""
    if not spec.saving:
        return
    if spec.saving not in SAVING:
        msg = f"--checkpoint {spec.saving[:40]!r} is not a way to save a filler: choose {' or '.join(SAVING)}."
        raise SchedulerError(msg)
    if max(spec.nodes, spec.tasks, spec.ranks) > 1:
        raise SchedulerError("a filler is one task on one node: leave out --nodes, --ntasks and --tasks-per-node.")
    if spec.resources:
        raise SchedulerError("a filler gives its node up at any time, and has no --resources: submit a regular job.")
    if spec.terminal:
        raise SchedulerError("a filler may be anywhere, and has no terminal: leave out --pty, or --filler.")
    if not spec.requeue:
        raise SchedulerError("a filler starts again and again: leave out --no-requeue, or --filler.")


def _check_words(spec: Spec) -> None:
    """Raise SchedulerError for the first text that its command-line option would have rejected."""
    paths = [("--output", spec.output), ("--error", spec.error), ("--input", spec.input)]
    given = [(name, path) for name, path in paths if path or name == "--output"]
    words = [("--array", spec.array, parse_array)] if spec.array else []
    words += [("--signal", spec.signal, parse_notice)] if spec.signal else []
    words += [("--contract", spec.contract, parse_contract)] if spec.contract else []
    words += [("--class", spec.job_class, parse_class), *((*one, parse_pattern) for one in given)]
    for option, text, parse in words:
        try:
            parse(text)
        except WordError as error:  # noqa: PERF203 - the first is told
            msg = f"{option}: {error}"
            raise SchedulerError(msg) from error


def _check_script(text: str) -> None:
    if not text.startswith("#!"):
        raise SchedulerError("the first line of a script must name its interpreter: write for example #!/bin/sh.")
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        raise SchedulerError("the script has no command, only comments: add commands below them.")


_RANGES = (
    ("nodes", "--nodes", 0, MOST),
    ("min_nodes", "--min-nodes", 0, MOST),
    ("tasks", "--tasks-per-node", 0, MOST),
    ("ranks", "--ntasks", 0, MOST),
    ("least", "--min", 0, MOST),
    ("most", "--max", 0, MOST),
    ("threads", "--cpus-per-task", 0, MOST),
    ("time", "--time", 0, LONGEST),
    ("priority", "--priority", -MOST, MOST),
    ("memory", "--mem", 0, 1 << 60),
    ("umask", "the umask", 0, 0o777),
)
_NAMES = tuple(item.name for item in fields(Spec))
_INNER = {"resources": int, "environment": str}
_TYPES: dict[str, type] = {item.name: type(item.default) for item in fields(Spec) if item.name not in _INNER}


def _check_type(spec: Spec, name: str) -> None:
    value = getattr(spec, name)
    inner = _INNER.get(name)
    if inner is not None:
        good = isinstance(value, dict) and all(type(k) is str and type(v) is inner for k, v in value.items())
    else:
        good = type(value) is _TYPES[name]
    if not good:
        raise TypeError(name)


def _texts(values: Any) -> list[str]:  # noqa: ANN401 - a JSON value
    if not isinstance(values, list | tuple) or any(type(text) is not str for text in values):
        raise TypeError
    return list(values)


# --- as users write them --------------------------------------------------------------------------------------------


def parse_time(text: str) -> int:
    """Return the seconds in a limit as sbatch takes it: minutes, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M:S``; or ``90s``.

    Raises `WordError`.
    """
    found = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", text, re.ASCII)
    if not found:
        if text[-1:] in ("s", "m", "h", "d"):
            return parse_duration(text)
        msg = f"{text[:40]!r} is not a time: write minutes, H:M:S, D-H:M:S, or a number with s, m, h or d."
        raise WordError(msg)
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None or len(parts) == 3:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, *parts, 0][:3]
    total = 86400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= LONGEST:
        msg = f"a time limit is from 1 s to {duration(LONGEST)}, not {text}."
        raise WordError(msg)
    return total


def parse_memory(text: str) -> int:
    """Return the bytes in a size as sbatch takes it: ``4G``, ``4gb``, and MiB without a unit. Raises `WordError`."""
    found = re.fullmatch("([0-9]+)(?:([kmgt])(?:i?b)?)?", text, re.ASCII | re.IGNORECASE)
    try:
        return parse_size(f"{found[1]}{found[2] or 'M'}".upper() if found else text)
    except WordError:
        msg = f"{text[:40]!r} is not a size: write for example 800M or 4G."
        raise WordError(msg) from None


def parse_class(text: str) -> str:
    """Return the name of a class of jobs. Raises `WordError`."""
    if text not in CLASSES:
        msg = f"{text[:40]!r} is not a class: choose {', '.join(CLASSES)}."
        raise WordError(msg)
    return text


def parse_pattern(text: str) -> str:
    """Return the path of a file of a job, in which each % means something. Raises `WordError`."""
    if not text:
        raise WordError("the name of a file is empty: for no file write /dev/null.")
    for letter in re.findall(r"%(.?)", text, re.DOTALL):
        if not letter or letter not in f"{LETTERS}Aa":
            has = "%j (job), %A and %a (array and index), %n (node), %u (user), %x (name) and %%"
            msg = f"'%{letter}' has no meaning: use {has}."
            raise WordError(msg)
    return text


class Array(NamedTuple):
    """The indices of an array of jobs in rising order, how many of its jobs may run at once (0: all), and its step."""

    indices: tuple[int, ...]
    most: int
    step: int


@lru_cache(256)
def array_of(text: str) -> Array:
    """Return the indices in ``0-99``, ``1,5,20-30:5`` or ``0-99%10``, each once. Raises `WordError`."""
    part = r"\d{1,7}(?:-\d{1,7}(?::[1-9]\d{0,6})?)?"
    found = re.fullmatch(rf"({part}(?:,{part})*)(?:%([1-9]\d{{0,6}}))?", text, re.ASCII)
    if not found or len(text) > LONGEST_NAME:
        how = "write indices of at most 7 digits such as 0-99, 1,5,20-30:5, or 0-99%10 to run ten at once"
        msg = f"{text[:40]!r} is not an array: {how}."
        raise WordError(msg)
    indices, steps = set[int](), []
    for piece in found[1].split(","):
        first, _, rest = piece.partition("-")
        last, _, step = rest.partition(":")
        steps.append(int(step or 1))
        each = range(int(first), int(last or first) + 1, steps[-1])
        if not each:
            msg = f"{piece} has no index: write the smaller one first."
            raise WordError(msg)
        if len(each) > MOST_AT_ONCE or len(indices) + len(each) > 2 * MOST_AT_ONCE:
            raise WordError(_TOO_LONG)
        indices.update(each)
    if len(indices) > MOST_AT_ONCE:
        raise WordError(_TOO_LONG)
    return Array(tuple(sorted(indices)), int(found[2] or 0), steps[0])


_TOO_LONG = f"an array has at most {MOST_AT_ONCE:,} jobs: submit several, such as 0-999 and 1000-1999."


def parse_array(text: str) -> str:
    """Return the text of an array's indices. Raises `WordError`."""
    array_of(text)
    return text


def in_array(pattern: str, array: int, index: int) -> str:
    """Return the path of a file with %A (the number of an array's first job) and %a (an index) replaced."""
    meant = {"%A": str(array), "%a": str(index)}
    return re.sub("%.", lambda found: meant.get(found[0], found[0]), pattern)


def parse_dependencies(text: str) -> tuple[Dependency, ...]:
    """Return the dependencies in ``afterok:12,after:13_2``, each once; also ``afterok:12:13``. Raises `WordError`."""
    found: list[Dependency] = []
    for part in text.split(","):
        kind, *jobs = part.split(":")
        named = [re.fullmatch(r"([1-9]\d{0,14})(?:_(\d{1,7}))?", one, re.ASCII) for one in jobs]
        if kind not in KINDS or not named or None in named:
            msg = f"{part[:40]!r} is not a dependency: write {'|'.join(KINDS)}:JOB, such as afterok:12 or afterok:12_3."
            raise WordError(msg)
        found += [Dependency(kind, int(one[1]), int(one[2]) if one[2] else None) for one in named if one]
    return tuple(dict.fromkeys(found))


def parse_signal(text: str) -> int:
    """Return the number of a signal such as ``USR1``, ``SIGUSR1`` or ``10``. Raises `WordError`."""
    name = text.upper().removeprefix("SIG")
    known = {one.name.removeprefix("SIG"): int(one) for one in signal.Signals}
    number = int(name) if re.fullmatch("[0-9]{1,2}", name) else known.get(name, 0)
    if not 0 < number <= signal.NSIG - 1:
        msg = f"{text[:40]!r} is not a signal: write for example USR1."
        raise WordError(msg)
    return number


class Notice(NamedTuple):
    """A signal that does not end a job, which gets it so many seconds `before` its limit.

    Its tasks get it, or the commands of a script but not its shell; with `first` the job's first process alone.
    """

    signal: int
    before: int = 60
    first: bool = False


def parse_signal_now(text: str) -> Notice:
    """Return the signal in ``USR1`` or ``B:USR1``, which is sent at once. Raises `WordError`."""
    return Notice(parse_signal(text.removeprefix("B:")), first=text.startswith("B:"))


@lru_cache(256)
def notice_of(text: str) -> Notice:
    """Return the signal in ``USR1``, ``B:USR1`` or ``USR1@120``. Raises `WordError`."""
    found = re.fullmatch(r"(B:)?([A-Za-z0-9]{1,12})(?:@(\d{1,5}))?", text, re.ASCII)
    if not found:
        msg = f"{text[:40]!r} is not a signal before a limit: write [B:]SIGNAL[@SECONDS], such as USR1 or B:USR1@120."
        raise WordError(msg)
    notice = Notice(parse_signal(found[2]), first=bool(found[1]))
    return notice._replace(before=int(found[3])) if found[3] else notice


def parse_notice(text: str) -> str:
    """Return the text of a signal before a limit. Raises `WordError`."""
    notice_of(text)
    return text


class Contract(NamedTuple):
    """What the end of a job pays: all until the soft deadline, linearly less until the hard one, the penalty after it.

    Deadlines are in seconds after the submission, or of a clock.
    """

    soft: int
    hard: int
    payoff: int
    penalty: int

    def since(self, submitted: float) -> Contract:
        """Return the contract with deadlines of the clock by which the job was submitted."""
        return self._replace(soft=int(submitted) + self.soft, hard=int(submitted) + self.hard)


@lru_cache(maxsize=1024)
def contract_of(text: str) -> Contract:
    """Return the contract in ``SOFT,HARD,PAYOFF`` or ``SOFT,HARD,PAYOFF,PENALTY``. Raises `WordError`."""
    found = re.fullmatch(r"([^,]+),([^,]+),(\d{1,14})(?:,(\d{1,14}))?", text, re.ASCII)
    if not found:
        msg = f"{text[:40]!r} is no contract: write SOFT,HARD,PAYOFF,PENALTY, such as 1h,2h,100,50."
        raise WordError(msg)
    contract = Contract(parse_time(found[1]), parse_time(found[2]), int(found[3]), int(found[4] or 0))
    if contract.soft > contract.hard:
        msg = f"{text[:40]!r} has its deadlines in the wrong order: write the soft one first, such as 1h,2h,100,50."
        raise WordError(msg)
    if max(contract.payoff, contract.penalty) > MOST_PAY:
        msg = f"a job pays at most {MOST_PAY}: {text[:40]!r} is more. Choose a larger unit."
        raise WordError(msg)
    return contract


def parse_contract(text: str) -> str:
    """Return the text of a contract. Raises `WordError`."""
    contract_of(text)
    return text


def parse_amounts(text: str) -> dict[str, int]:
    """Return the amounts by name in ``gpu=2,license=1``. Raises `WordError`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(f"({RESOURCE})[=:]([1-9][0-9]{{0,5}})", part)
        if not match or match[1] in found:
            msg = f"{part[:40]!r} is not an amount of a resource: write NAME=NUMBER, each name once, such as gpu=2."
            raise WordError(msg)
        found[match[1]] = int(match[2])
    return found


def parse_features(text: str) -> tuple[str, ...]:
    """Return the features in ``bigmem,fast``; sbatch's ``&`` is accepted as well. Raises `WordError`."""
    parts = re.split("[,&]", text)
    if not all(re.fullmatch(FEATURE, part) for part in parts):
        msg = f"{text[:40]!r} is not a list of features: write their names with commas, such as bigmem,fast."
        raise WordError(msg)
    return tuple(sorted(set(parts)))


def exported(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that ``ALL``, ``NONE``, ``PATH,A=1`` or ``ALL,A=1`` choose of an environment.

    That is as sbatch does; the variables in `WHO` are always included. Raises `WordError`.
    """
    words = text.split(",")
    found = {name: value for name, value in environment.items() if name in WHO or "ALL" in words}
    for word in words:
        name, given, value = word.partition("=")
        if name and given:
            found[name] = value
        elif name in environment:
            found[name] = environment[name]
        elif name not in ("ALL", "NONE"):
            msg = f"{word[:40]!r} is not a variable here: write ALL, NONE, NAME or NAME=VALUE."
            raise WordError(msg)
    return found


def name_of(spec: Spec) -> str:
    """Return a job's name: the given one, or else that of its program."""
    return _clean(spec.name or (spec.command[0].rsplit("/", 1)[-1] if spec.command else "script"))


@lru_cache(1024)
def _clean(name: str) -> str:
    return clean_name(name) or "job"


def _dependency(kind: str, job: int, element: int | None = None, array: int | None = None) -> Dependency:
    if kind not in KINDS or type(job) is not int or not 0 < job < MOST_JOBS:
        raise ValueError
    if not {type(element), type(array)} <= {int, type(None)}:
        raise ValueError
    return Dependency(kind, job, element, array)
