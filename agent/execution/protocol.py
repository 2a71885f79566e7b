# SPDX-License-Identifier: Apache-2.0
"""The messages between a scheduler and the agents of its nodes: their fields, and the values that fields may have.

A message is one frame with one JSON object, whose ``kind`` names its class here. `encode` writes it, `parse` reads it
strictly: a field that is missing, unknown, of another type or out of range is refused with one sentence, and the
receiver drops the message. Times are seconds since 1970, sizes bytes, cores the units that the agent hands out.

An agent knows an attempt from `Start` until `Forget`, however often the agent itself dies in between:

    Start -> Started -> Ended -> Forget         Start -> Refused -> Forget

* Each `Start`, also of an attempt that is known, is answered with the present state of the attempt.
* After `Welcome` the agent repeats every message whose answer is outstanding: `Ended` and `Refused` until `Forget`.
  Messages without a receiver are lost; `Hello.jobs` lists all attempts. One that is not in it is not on the node.
* An attempt refused before anything of it began (no cores, a full disk) is not stored: it is not in `Hello.jobs`.
* `Ended` comes when no process of the job is left and its cores are free. `Ended.status` is -9 also for a job whose
  keeper on the node was killed or that was there before the node was booted again; `Ended.note` says so.
* `Resize` is answered by `Resized` or `NotResized`; a newer one replaces one that is not answered yet.
* Over TCP both sides show CURVE keys (`drom.agent.control.keys`): the scheduler's public key is stored under the name
  of its host, or is that of a pair which all nodes share. Over ipc the path identifies the scheduler.
* A filler is saved by `Save`, and its attempt then ends with `Ended.saved`; `NotSaved` says that it goes on. Its image
  stays on the node, and is listed in `Hello.images`, until `Discard`. `Start.image` restores it, on another node after
  `Offer` to the node that has it, whose answer `Offered` comes as `Start.source`.
* `Occupy` says on which nodes an adaptive job is to have ranks. A node without any answers `Vacated` once they have
  gone. `Start` of mode hold adds a node to a job that runs.
* `Post` is a message between the agents of a job's nodes: the scheduler relays `body`, unchanged, to the node `to`,
  if the job runs on both, and sets `node` to the name of the sender; otherwise it answers with `Lost`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PROTOCOL = 1
MAX_MESSAGE = 8 << 20
"""Maximum bytes of a message: the arguments and the environment of a program, and room around them."""
LONGEST_PATH = LONGEST_SENTENCE = 4095
MOST_PARTS = 1 << 18
"""Most values of a message, brackets and commas in its texts included: a value takes up to 150 bytes of memory."""
MOST_STRINGS = 1 << 16
"""The most arguments, variables, nodes or jobs of a message."""
MOST_WORDS = 256
"""The most features, and counted resources, of a node."""
MOST_DEVICES = 4096
"""The most of a counted resource that a job has on a node."""
MOST_ON_NODE = 4096
"""The most jobs that an agent reports in a message."""
FAULTS = ("job", "node", "busy", "image", "room")
"""Why a job does not run on a node: because of its request, a defect, only for now, since its image cannot be restored
there, or since the node's image store has no room for it."""
STATES = ("running", "ended", "refused")
MODES = ("run", "launch", "hold")
CLASSES = ("malleable", "moldable", "rigid")
CONTAINER, PROGRAM = "container", "program"
"""How fillers are saved: their processes, in a container, by CRIU; or by a checkpoint of the program's own."""
RECEIVERS = ("all", "tasks", "first")
"""The processes of a job that get a signal: all; the first of each task, or the commands of its script; the first."""
LETTERS = "jnux%"
"""What may follow a % in the path of a job's file: the job, the node, the user, the name of the job, a % itself."""
_NO_ID = (1 << 32) - 1
_MOST_WORK = (1 << 80) - 1
"""More than the programs of a node can report together: each reports a number of 64 bits."""

M = TypeVar("M")


class MalformedError(ValueError):
    """Raised when bytes are no message; the message is a sentence."""


class HelloError(MalformedError):
    """Raised for a hello that this scheduler cannot read; the message is the answer to its `node`."""

    def __init__(self, sentence: str, node: str) -> None:
        super().__init__(sentence)
        self.node = node


# --- what may stand in a field ----------------------------------------------------------------------------------------


def _whole(least: int, most: int = 1 << 53) -> Any:  # noqa: ANN401 - as dataclasses.field
    def check(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            msg = f"a whole number from {least} to {most}"
            raise ValueError(msg)
        return value

    return check


def _real(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(cast("float", value)) or cast("float", value) < 0:
        raise ValueError("a number of seconds")
    return float(cast("float", value))


def _switch(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError("true or false")
    return value


def _text(longest: int, least: int = 0) -> Callable[[object], str]:
    def check(value: object) -> str:
        good = isinstance(value, str) and "\0" not in value and (value.isascii() or _is_unicode(value))
        if not good or not least <= len(cast("str", value)) <= longest:
            msg = f"text of {least} to {longest} characters"
            raise ValueError(msg)
        return cast("str", value)

    return check


def _is_unicode(text: str) -> bool:
    """Return whether a text can result from decoding bytes, with bytes that are not UTF-8 as lone surrogates."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _one_of(words: tuple[str, ...]) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in words:
            raise ValueError(" or ".join(words))
        return str(value)

    return check


def _many(of: Callable[[object], Any], least: int = 0, most: int = MOST_STRINGS) -> Callable[[object], tuple[Any, ...]]:
    def check(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise ValueError("a list" if not least else "a list that is not empty")
        if len(value) > most:
            msg = f"a list of at most {most}"
            raise ValueError(msg)
        return tuple(of(one) for one in value)

    return check


def _book(of: Callable[[object], Any], most: int = MOST_STRINGS) -> Callable[[object], dict[str, Any]]:
    name = _text(LONGEST_PATH, 1)

    def check(value: object) -> dict[str, Any]:
        if not isinstance(value, dict) or any("=" in key for key in value):
            raise ValueError("an object with names without =")
        if len(value) > most:
            msg = f"an object with at most {most} names"
            raise ValueError(msg)
        return {name(key): of(one) for key, one in value.items()}

    return check


def _or_none(of: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else of(value)


def _value(value: object) -> Any:  # noqa: ANN401 - any JSON value
    return value


def _is(check: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """Return the metadata of a field."""
    return {"check": check}


_ID = _whole(1)
_COUNT = _whole(0, 1 << 20)
_CORES = _whole(1, 1 << 20)
_SIZE = _whole(0, 1 << 60)
_NAME = _text(255, 1)
_SENTENCE = _text(LONGEST_SENTENCE)
_PATH = _text(LONGEST_PATH)
_STRING = _text(1 << 21)


# --- agent to scheduler -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """An attempt on the node: `state` is one of `STATES`, `cores` the number it is held at."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    state: str = field(metadata=_is(_one_of(STATES)))
    cores: int = field(metadata=_is(_COUNT))


@dataclass(frozen=True, slots=True)
class Kept:
    """An image of a filler in the node's store: the job, and the number of the save."""

    job: int = field(metadata=_is(_ID))
    generation: int = field(metadata=_is(_ID))


@dataclass(frozen=True, slots=True)
class Hello:
    """The node is present, with `cores` units of up to `cpus_per_core` CPUs each; `memory` 0: unknown.

    `limits_memory`: jobs get no more memory here than `Start.memory`.
    `saves` are the ways in which it can save fillers. Nodes of the same `cpu` can restore each other's `images`.
    It belongs to the home partition `home`, if the cluster has any.
    """

    protocol: int = field(metadata=_is(_whole(0)))
    version: str = field(metadata=_is(_NAME))
    node: str = field(metadata=_is(_NAME))
    host: str = field(metadata=_is(_NAME))
    boot: str = field(metadata=_is(_NAME))
    cores: int = field(metadata=_is(_CORES))
    cpus_per_core: int = field(metadata=_is(_CORES))
    memory: int = field(metadata=_is(_SIZE))
    resources: dict[str, int] = field(metadata=_is(_book(_whole(0), MOST_WORDS)))
    features: tuple[str, ...] = field(metadata=_is(_many(_NAME, most=MOST_WORDS)))
    emulated: bool = field(metadata=_is(_switch))
    time: float = field(metadata=_is(_real))
    jobs: tuple[Known, ...] = field(metadata=_is(_many(lambda value: _fields(Known, value), most=MOST_ON_NODE)))
    limits_memory: bool = field(metadata=_is(_switch), default=False)
    saves: tuple[str, ...] = field(metadata=_is(_many(_one_of((CONTAINER, PROGRAM)), most=2)), default=())
    cpu: str = field(metadata=_is(_text(255)), default="")
    images: tuple[Kept, ...] = field(
        metadata=_is(_many(lambda value: _fields(Kept, value), most=MOST_ON_NODE)), default=()
    )
    home: str = field(metadata=_is(_text(255)), default="")


@dataclass(frozen=True, slots=True)
class Pace:
    """A job did `work`, in its own unit, during `seconds` with exactly `cores` cores of this node."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    cores: int = field(metadata=_is(_CORES))
    seconds: float = field(metadata=_is(_real))
    work: int = field(metadata=_is(_whole(1, _MOST_WORK)))


@dataclass(frozen=True, slots=True)
class Alive:
    """The agent is alive at `time`; `paces` are the measurements of jobs since its last `Alive`."""

    node: str = field(metadata=_is(_NAME))
    time: float = field(metadata=_is(_real))
    paces: tuple[Pace, ...] = field(
        metadata=_is(_many(lambda value: _fields(Pace, value), most=MOST_ON_NODE)), default=()
    )


@dataclass(frozen=True, slots=True)
class Started:
    """The job runs: `pid` is its first process (0 in mode hold)."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    pid: int = field(metadata=_is(_whole(0)))
    time: float = field(metadata=_is(_real))


@dataclass(frozen=True, slots=True)
class Refused:
    """The job does not run here, for a reason that is a `fault` of the job or of the node, or that passes."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    fault: str = field(metadata=_is(_one_of(FAULTS)))
    reason: str = field(metadata=_is(_SENTENCE))


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over: `status` is its exit code, or -N when signal N ended it. `max_rss` is of its largest process.

    `note` says why the node has lost it or, with `over_memory`, that it needed more memory than it may have.
    `saved` is the number of the save that ended it, which wrote `written` bytes; 0 if it has ended otherwise.
    `began` is when its program was started, 0 if that is not known.
    """

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    status: int = field(metadata=_is(_whole(-64, 255)))
    time: float = field(metadata=_is(_real))
    cpu_seconds: float = field(metadata=_is(_real))
    max_rss: int = field(metadata=_is(_SIZE))
    note: str = field(metadata=_is(_SENTENCE), default="")
    over_memory: bool = field(metadata=_is(_switch), default=False)
    saved: int = field(metadata=_is(_whole(0)), default=0)
    written: int = field(metadata=_is(_SIZE), default=0)
    began: float = field(metadata=_is(_real), default=0.0)


@dataclass(frozen=True, slots=True)
class NotSaved:
    """The filler could not be saved, and goes on."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    reason: str = field(metadata=_is(_SENTENCE))


@dataclass(frozen=True, slots=True)
class Source:
    """Where to fetch an image, once: the ZeroMQ `port` of `host`, its public CURVE `key`, and the client's `secret`."""

    host: str = field(metadata=_is(_NAME))
    port: int = field(metadata=_is(_whole(1, 65535)))
    key: str = field(metadata=_is(_NAME))
    secret: str = field(metadata=_is(_NAME))


@dataclass(frozen=True, slots=True)
class Offered:
    """The image of a job is to be had at `source`; None: for a `reason` it is not."""

    job: int = field(metadata=_is(_ID))
    generation: int = field(metadata=_is(_ID))
    source: Source | None = field(metadata=_is(_or_none(lambda value: _fields(Source, value))))
    reason: str = field(metadata=_is(_SENTENCE), default="")


@dataclass(frozen=True, slots=True)
class Resized:
    """Every task of the job on this node holds its part of exactly `cores` cores."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    cores: int = field(metadata=_is(_COUNT))


@dataclass(frozen=True, slots=True)
class NotResized:
    """The job could not be resized, or not in time: it is held at the `cores` that it holds now."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    cores: int = field(metadata=_is(_COUNT))
    reason: str = field(metadata=_is(_SENTENCE))


@dataclass(frozen=True, slots=True)
class Vacated:
    """No rank of an adaptive job is on the node after an `Occupy`.

    With `is_empty` this was one without the node, and no process of the job is left there either.
    """

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    is_empty: bool = field(metadata=_is(_switch))


@dataclass(frozen=True, slots=True)
class Wants:
    """The programs of an adaptive job report that it needs `least` cores, and can use `most` (0: all)."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    least: int = field(metadata=_is(_CORES))
    most: int = field(metadata=_is(_COUNT))


# --- scheduler to agent -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node has joined the cluster `name`; it sends `Alive` every `heartbeat` seconds.

    Of several schedulers only the one with the greatest `epoch` may give orders.
    """

    name: str = field(metadata=_is(_NAME))
    heartbeat: float = field(metadata=_is(_real))
    epoch: int = field(metadata=_is(_whole(0)), default=0)


@dataclass(frozen=True, slots=True)
class No:
    """The node may not join: the agent logs the reason once, and sends `Hello` again every few seconds."""

    reason: str = field(metadata=_is(_SENTENCE))


@dataclass(frozen=True, slots=True)
class Who:
    """The scheduler does not know this agent, which has to send `Hello`."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start an attempt and hold it at `cores`; its teams of threads may grow to `most` cores together.

    If it `rests` its `tasks` may be more than its `cores`, which may be none here: those beyond rest.

    `mode` run: `argv`, or the text of a `script` with `argv` as its arguments, is one task, with `run_options` for
    drom-run. launch: `argv` starts the tasks by itself (mpirun). hold: the tasks are started from another node; the job
    is here until a `Signal` ends it, with that as its status. `tasks` are expected on this node, `tasks_on` on each of
    `nodes` (equally many if it is empty), and `total_tasks` on all. `name` and `user` are the job's and the user's;
    `memory` is that of the whole job here, and `devices` are the identities, from 0, of its counted resources.
    `output`, `error` and `input` are paths from `cwd`, where %j is the job, %n the node, %u the user and %x the name:
    None means /dev/null, but an `error` of None goes to the same file as the output. The first attempt overwrites an
    existing output file, a later one appends to it. A filler has a way of `saving`, and goes on from the save with the
    number `image` (0: it begins), which is in the node's store or to be fetched from a `source`. With a `terminal`, the
    text in the file that `drom.agent.execution.terminal` reads, the program is connected to a terminal.
    """

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    name: str = field(metadata=_is(_NAME))
    cores: int = field(metadata=_is(_COUNT))
    most: int = field(metadata=_is(_CORES))
    uid: int = field(metadata=_is(_whole(0, _NO_ID - 1)))
    gid: int = field(metadata=_is(_whole(0, _NO_ID - 1)))
    user: str = field(metadata=_is(_NAME))
    argv: tuple[str, ...] = field(metadata=_is(_many(_STRING)))
    env: dict[str, str] = field(metadata=_is(_book(_STRING)))
    cwd: str = field(metadata=_is(_text(LONGEST_PATH, 1)))
    mode: str = field(metadata=_is(_one_of(MODES)), default="run")
    job_class: str = field(metadata=_is(_one_of(CLASSES)), default="malleable")
    output: str | None = field(metadata=_is(_or_none(_PATH)), default=None)
    error: str | None = field(metadata=_is(_or_none(_PATH)), default=None)
    input: str | None = field(metadata=_is(_or_none(_PATH)), default=None)
    umask: int = field(metadata=_is(_whole(0, 0o777)), default=0o022)
    memory: int = field(metadata=_is(_SIZE), default=0)
    tasks: int = field(metadata=_is(_CORES), default=1)
    total_tasks: int = field(metadata=_is(_CORES), default=1)
    nodes: tuple[str, ...] = field(metadata=_is(_many(_NAME)), default=())
    tasks_on: tuple[int, ...] = field(metadata=_is(_many(_CORES)), default=())
    devices: dict[str, tuple[int, ...]] = field(
        metadata=_is(_book(_many(_COUNT, most=MOST_DEVICES), MOST_WORDS)), default_factory=dict
    )
    run_options: tuple[str, ...] = field(metadata=_is(_many(_STRING)), default=())
    script: str = field(metadata=_is(_text(1 << 20)), default="")
    saving: str = field(metadata=_is(_one_of(("", CONTAINER, PROGRAM))), default="")
    image: int = field(metadata=_is(_whole(0)), default=0)
    source: Source | None = field(metadata=_is(_or_none(lambda value: _fields(Source, value))), default=None)
    terminal: str = field(metadata=_is(_SENTENCE), default="", repr=False)
    rests: bool = field(metadata=_is(_switch), default=False)


@dataclass(frozen=True, slots=True)
class Resize:
    """Hold the job at `cores` cores, applied within `within` seconds; 0 are possible for one that `rests`."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    cores: int = field(metadata=_is(_COUNT))
    within: float = field(metadata=_is(_real))


@dataclass(frozen=True, slots=True)
class Occupy:
    """An adaptive job is to have so many `ranks` on each of `nodes`, which begin with those of its `Start`.

    The program releases its ranks on nodes without any and spawns those of nodes where it has none.
    """

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    nodes: tuple[str, ...] = field(metadata=_is(_many(_NAME)))
    ranks: tuple[int, ...] = field(metadata=_is(_many(_COUNT)))


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to those processes of the job here that `to`, one of `RECEIVERS`, names.

    All that are left `then_kill` seconds later get SIGKILL. A signal that is to be sent `once` is sent once in an
    attempt, however often the message comes.
    """

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    signal: int = field(metadata=_is(_whole(1, 64)))
    then_kill: float | None = field(metadata=_is(_or_none(_real)), default=None)
    to: str = field(metadata=_is(_one_of(RECEIVERS)), default="all")
    once: bool = field(metadata=_is(_switch), default=False)


@dataclass(frozen=True, slots=True)
class Save:
    """Save a filler, as number `generation` of its saves, within so many seconds, and end it."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    generation: int = field(metadata=_is(_ID))
    within: float = field(metadata=_is(_real))


@dataclass(frozen=True, slots=True)
class Offer:
    """Serve the image of a job to another node, and keep it. The answer is `Offered`."""

    job: int = field(metadata=_is(_ID))
    generation: int = field(metadata=_is(_ID))


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove the image of a job, if it is here."""

    job: int = field(metadata=_is(_ID))
    generation: int = field(metadata=_is(_ID))


@dataclass(frozen=True, slots=True)
class Forget:
    """The scheduler has recorded the end, or the refusal, of an attempt: the node can drop it."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))


# --- both ways --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Post:
    """A message from the agent of one node of a job to that of another; see above."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    node: str = field(metadata=_is(_NAME))
    to: str = field(metadata=_is(_NAME))
    body: dict[str, Any] = field(metadata=_is(_book(_value)))


@dataclass(frozen=True, slots=True)
class Lost:
    """A `Post` was addressed to a node `to` on which the job does not run, or no longer runs."""

    job: int = field(metadata=_is(_ID))
    attempt: int = field(metadata=_is(_ID))
    to: str = field(metadata=_is(_NAME))
    body: dict[str, Any] = field(metadata=_is(_book(_value)))


FromAgent = (
    Hello | Alive | Started | Refused | Ended | Resized | NotResized | NotSaved | Offered | Vacated | Wants | Post
)
ToAgent = Welcome | No | Who | Start | Resize | Occupy | Signal | Save | Offer | Discard | Forget | Post | Lost


def _by_kind(kinds: Iterable[type]) -> dict[str, type]:
    return {_kind(one): one for one in kinds}


def _kind(message: type) -> str:
    """Return the class's name in lower case, with _ between words."""
    return "".join("_" + c.lower() if c.isupper() else c for c in message.__name__)[1:]


FROM_AGENT = _by_kind(
    (Hello, Alive, Started, Refused, Ended, Resized, NotResized, NotSaved, Offered, Vacated, Wants, Post)
)
TO_AGENT = _by_kind((Welcome, No, Who, Start, Resize, Occupy, Signal, Save, Offer, Discard, Forget, Post, Lost))


# --- as bytes ---------------------------------------------------------------------------------------------------------


def encode(message: FromAgent | ToAgent) -> bytes:
    """Return a message as a frame."""
    return json.dumps({"kind": _kind(type(message)), **as_json(message)}, default=as_json).encode()


def in_bounds(message: FromAgent) -> FromAgent:
    """Return a message with its sentence cut to the length that its receiver accepts."""
    sentences = {one.name: getattr(message, one.name) for one in fields(message) if one.metadata["check"] is _SENTENCE}
    cut = {name: text[:LONGEST_SENTENCE] for name, text in sentences.items() if len(text) > LONGEST_SENTENCE}
    return replace(message, **cut) if cut else message


def as_json(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a message
    """Return the fields of a message by name."""
    return {one.name: getattr(value, one.name) for one in fields(value)}


def from_agent(data: bytes) -> FromAgent:
    """Return the message of an agent. Raises `MalformedError`, for a hello `HelloError`."""
    kind, value = _open(data, FROM_AGENT)
    try:
        return cast("FromAgent", _fields(kind, value))
    except MalformedError as error:
        if kind is Hello:
            raise _hello_error(value, error) from error
        raise


def _hello_error(hello: Mapping[str, object], error: MalformedError) -> HelloError:
    """Return the error for a malformed hello; one of another protocol version may have any fields."""
    version, node = hello.get("protocol"), hello.get("node")
    differs = type(version) is int and version != PROTOCOL and 0 <= version < 1 << 53
    sentence = other_version(cast("int", version)) if differs else str(error)
    return HelloError(sentence, node[:255] if isinstance(node, str) else "unknown")


def other_version(version: int) -> str:
    """Return the answer of a scheduler to an agent of another protocol version."""
    return f"this scheduler uses protocol {PROTOCOL}, not {version}: install the same version."


def to_agent(data: bytes) -> ToAgent:
    """Return the message of a scheduler to an agent. Raises `MalformedError`."""
    return cast("ToAgent", _fields(*_open(data, TO_AGENT)))


def _open(data: bytes, kinds: Mapping[str, type]) -> tuple[type, dict[str, object]]:
    """Return the class of a message, and its fields, which have not been checked. Raises `MalformedError`."""
    if sum(map(data.count, (b"[", b"{", b","))) > MOST_PARTS:
        msg = f"a message has at most {MOST_PARTS} brackets and commas: put such data into a file."
        raise MalformedError(msg)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise MalformedError("a message is one JSON object.")
    kind = value.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        msg = f"{str(kind)[:40]!r} is not a kind of message: there are {', '.join(kinds)}."
        raise MalformedError(msg)
    return kinds[kind], value


def from_json(kind: type[M], value: object) -> M:
    """Return the message of class `kind` with these fields. Raises `MalformedError`."""
    return _fields(kind, value)


def _fields(kind: type[M], value: object) -> M:
    """Return the instance of a dataclass with these fields, each passed through its check."""
    about = _kind(kind)
    if not isinstance(value, dict):
        msg = f"{about} is an object."
        raise MalformedError(msg)
    left, found = dict(value), {}
    for one in fields(cast("Any", kind)):
        if one.name not in left:
            continue
        try:
            found[one.name] = one.metadata["check"](left.pop(one.name))
        except MalformedError:
            raise
        except ValueError as error:
            msg = f"{one.name} of {about} is {error}."
            raise MalformedError(msg) from error
    if left:
        msg = f"{about} has no field {str(next(iter(left)))[:40]!r}: use the drom of one version on all nodes."
        raise MalformedError(msg)
    try:
        return kind(**found)
    except TypeError as error:
        missing = [one.name for one in fields(cast("Any", kind)) if one.name not in found]
        msg = f"{about} lacks {', '.join(missing[:3])}: use the drom of one version on all nodes."
        raise MalformedError(msg) from error
