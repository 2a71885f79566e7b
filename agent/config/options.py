# SPDX-License-Identifier: Apache-2.0
"""The single definition of every option of an agent: its type, default, range and meaning.

`Options` is the table. Flags, ``DROM_*`` variables, keys of the configuration file, their checks and their
documentation are all generated from it. A key with an underscore after a table's name, such as ``exclude_users``, is
``users`` in the table ``[exclude]`` of a file. Packages such as pydantic-settings and dynaconf neither report the line
of a file that a value is from nor generate all of these from one definition.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from drom.agent.model.layouts import ANY, Layout, parse_layout
from drom.agent.system.paths import default_images, default_spool
from drom.agent.text import FEATURE, NODE, RESOURCE, WordError, parse_size

from dromlib.cpulist import CpuListError, parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable

Value = str | int | float | bool | tuple[str, ...] | None
"""The spool of the system's agent: files in /run are lost after a loss of power."""
TABLES = ("exclude", "users", "remote")
"""The tables that a configuration file may have."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that an option accepts.

    `base` is the type of a value, `expected` describes valid values and `accepts` checks them. A value of another type
    than `base` is never accepted, except that an integer may stand for a float, and numbers for words.
    """

    base: type
    metavar: str
    expected: str
    accepts: Callable[[Any], object] = lambda _: True

    def from_text(self, text: str) -> Value:
        """Return the value written as `text` in the environment. Raises ValueError."""
        if self.base is bool:
            return self.from_value({"1": True, "true": True, "0": False, "false": False}[text.lower()])
        if self.base is tuple:
            return self.from_value([word.strip() for word in text.split(",") if word.strip()])
        return self.from_value(self.base(text))

    def from_value(self, value: object) -> Value:
        """Return the value of a flag or of a key in a file. Raises ValueError."""
        if self.base is tuple and isinstance(value, list) and all(type(word) in (str, int) for word in value):
            value = tuple(str(word) for word in value)
        elif self.base is float and type(value) is int:
            value = float(value) if abs(value) < sys.maxsize else math.inf
        if type(value) is not self.base or not self.accepts(value):
            raise ValueError
        return cast("Value", value)


@dataclass(frozen=True, slots=True)
class About:
    """The description of an option apart from its type: see `Options`. `example` replaces a default that is unset."""

    kind: Kind
    help: str
    example: Value = None
    in_file: bool = True


def _number(least: float, most: float, metavar: str, expected: str) -> Kind:
    return Kind(float, metavar, expected, lambda v: math.isfinite(v) and least <= v <= most)


def is_address(text: str) -> bool:
    """Return whether a text is ADDRESS:PORT, with a port up to 65535; the address may be empty."""
    host, _, port = text.rpartition(":")
    return not re.search(r"[\s\0]", host) and port.isascii() and port.isdigit() and int(port) <= 65535


def _is_cpulist(text: str) -> bool:
    try:
        parse_cpulist(text)
    except CpuListError:
        return False
    return True


def _is_layout(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(layout_of(text))
    return False


MOST_SCHEDULERS = 8


def endpoints(text: str) -> tuple[str, ...]:
    """Return the endpoints in a list with commas; the path of one may have commas, too."""
    return tuple(re.split(r",(?=tcp://|ipc://)", text))


def _are_endpoints(text: str) -> bool:
    found = endpoints(text)
    return len(found) <= MOST_SCHEDULERS and len(set(found)) == len(found) and all(map(_is_endpoint, found))


def _is_endpoint(text: str) -> bool:
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    tcp = text.startswith("tcp://") and bool(host) and port.isascii() and port.isdigit() and 0 < int(port) <= 65535
    return tcp or (text.startswith("ipc:///") and "\0" not in text)


def _are_resources(words: tuple[str, ...]) -> bool:
    return all(re.fullmatch(f"{RESOURCE}=[0-9]{{1,9}}", word) for word in words)


def _are_features(words: tuple[str, ...]) -> bool:
    return all(re.fullmatch(FEATURE, word) for word in words)


def _is_events_size(text: str) -> bool:
    with contextlib.suppress(WordError):
        return text == "off" or parse_size(text) >= 1 << 16
    return False


def _is_size(text: str) -> bool:
    with contextlib.suppress(WordError):
        return parse_size(text) > 0
    return False


_SIZE = Kind(str, "SIZE", "a size such as 64G", _is_size)
_NAMES = Kind(tuple, "LIST", 'a list of names such as ["a", "b"]', all)
_WORDS = Kind(str, "WORDS", 'a synthetic topology: write for example "pack:2 core:4 pu:2"', bool)
_SHARE = _number(0, 1, "0..1", "a number from 0 to 1")
_HOUR = _number(0, 3600, "SECONDS", "a number of seconds from 0 to 3600")
_CAP = Kind(int, "N", f"a whole number from 0 to {1 << 20}", lambda n: 0 <= n <= 1 << 20)
_SWITCH = Kind(bool, "", "true or false")
_PATH = Kind(str, "PATH", "an absolute path", lambda text: text.startswith("/") and "\0" not in text)


def _option(default: Any, kind: Kind, text: str, **more: Any) -> Any:  # noqa: ANN401 - as dataclasses.field
    return field(default=default, metadata={"about": About(kind, text, **more)})


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an agent. None: unset. Durations are seconds."""

    runtime_dir: str = _option(
        "",
        Kind(str, "DIR", "a directory", lambda text: bool(text) and "\0" not in text),
        "The directory of the agent's files; programs look for it there, so no configuration file can set it.",
        in_file=False,
    )
    topology: str | None = _option(None, _WORDS, "Lay a synthetic topology over real CPUs.", example="pack:2 core:1")
    emulate: str | None = _option(
        None, _WORDS, "Manage synthetic CPUs: publish grants, but set no affinity.", example="pack:2 core:8 pu:2"
    )
    metrics: str | None = _option(
        None,
        Kind(str, "ADDRESS:PORT", "ADDRESS:PORT: write for example 127.0.0.1:9464", is_address),
        "Address for Prometheus metrics and a page; port 0: a free port, named in the log.",
        example="127.0.0.1:9464",
    )
    grace: float = _option(1.0, _HOUR, "Time within which a program must apply a grant itself.")
    sharing_factor: float = _option(
        0.5,
        _number(math.nextafter(0, 1), 1, "0..1", "above 0 and at most 1: 0.5 lets an arrival take half"),
        "The most of a running job's cores that one arrival may take, as a fraction.",
    )
    max_cpus_per_user: int = _option(0, _CAP, "The most CPUs of all jobs of one user together; 0: no cap.")
    max_min: int = _option(0, _CAP, "The most CPUs that a job may require with --min; 0: no cap.")
    max_rigid: int = _option(0, _CAP, "The most CPUs of a job that cannot shrink while it runs; 0: no cap.")
    spare_for_newcomers: int = _option(
        1,
        _CAP,
        "CPUs that the third and later jobs of a user (not root) leave for users without jobs; 0: none.",
    )
    residence: float = _option(
        0.0,
        _number(0, 86400, "SECONDS", "a number of seconds from 0 to 86400"),
        "Time after a resize in which a job does not grow again, except by an order.",
    )
    margin: float = _option(
        0.0,
        _SHARE,
        "A growth by a smaller fraction of a job's cores waits, up to the residence, for more free cores.",
    )
    memory: str = _option(
        "auto",
        Kind(str, "SIZE", "auto, off or a size such as 64G", re.compile(r"auto|off|[1-9][0-9]{0,14}[KMGT]?").fullmatch),
        "Memory that jobs may declare together (--mem): auto is the machine's, off does not count it.",
    )
    memory_limits: str = _option(
        "auto",
        Kind(str, "WHETHER", "auto or off", ("auto", "off").__contains__),
        "Limit the memory of a scheduler's jobs to what they ask for (--mem) where control groups can; off: never.",
    )
    avoid_load: float = _option(
        0.0,
        _SHARE,
        "Avoid cores that unmanaged programs keep busier than the least loaded core by this fraction; 0: off.",
    )
    avoid_after: float = _option(
        10.0,
        _HOUR,
        "Time for which a core must be so busy before it is avoided, or idle before it is used again.",
    )
    capacity: int = _option(
        1024,
        Kind(int, "N", f"a whole number from 1 to {1 << 16}", lambda n: 1 <= n <= 1 << 16),
        "The most tasks that the registry can hold.",
    )
    freeze_file: str | None = _option(
        None,
        _PATH,
        "The kill switch: while this file exists nothing changes; default: `freeze` in the runtime directory.",
        example="/run/drom/freeze",
    )
    unit: str = _option(
        "core",
        Kind(str, "UNIT", "core or thread", ("core", "thread").__contains__),
        "The unit of grants: whole cores, or single hardware threads.",
    )
    enforce: str = _option(
        "affinity",
        Kind(str, "MEANS", "affinity or cpuset", ("affinity", "cpuset").__contains__),
        "How programs are bound: affinity, which they can undo, or also a control group per task (cgroup v2).",
    )
    distribution: str = _option(
        "default",
        Kind(
            str, "LAYOUT", "default, compact, spread or per-socket=N, each but the first with or without !", _is_layout
        ),
        "Layout of jobs that request none.",
    )
    reserved: str = _option(
        "",
        Kind(str, "CPULIST", "a CPU list such as 0-1,8", _is_cpulist),
        "CPUs whose cores are left to the system and never managed.",
    )
    exclude_users: tuple[str, ...] = _option(
        (), _NAMES, "Users, by name or number, whose programs the agent does not manage."
    )
    exclude_programs: tuple[str, ...] = _option(
        (),
        _NAMES,
        "Programs that the agent does not manage: names or paths, with * and ? as in the shell.",
    )
    users_max_tasks: int = _option(
        256, _CAP, "The most registered tasks of one user, except root and the agent's own user; 0: no cap."
    )
    users_masters: str | None = _option(
        None,
        Kind(str, "GROUP", "the name or number of a group", bool),
        "Group whose members may give any order, like root and the agent's own user.",
        example="drom",
    )
    remote_listen: str | None = _option(
        None,
        Kind(str, "ADDRESS:PORT", "ADDRESS:PORT: write for example 0.0.0.0:9465", is_address),
        "Address to listen on for orders from other nodes, by owners of trusted keys (drom keys).",
        example="0.0.0.0:9465",
    )
    remote_keys: str | None = _option(
        None, _PATH, "The folder with the keys; default: that of `drom keys`.", example="/etc/drom/keys"
    )
    scheduler: str | None = _option(
        None,
        Kind(
            str,
            "ADDRESS,...",
            "tcp://HOST:PORT or ipc:///PATH, or up to 8 with commas: write for example ipc:///var/lib/drom/agents",
            _are_endpoints,
        ),
        "Address of the scheduler whose jobs this agent starts; those of all that may take over from it.",
        example="tcp://127.0.0.1:9466",
    )
    node: str | None = _option(
        None,
        Kind(str, "NAME", "at most 64 letters, digits, . _ and -, a letter or digit first", re.compile(NODE).fullmatch),
        "The scheduler's name for this node; default: the name of the host.",
        example="n1",
    )
    home_partition: str | None = _option(
        None,
        Kind(
            str, "NAME", "at most 32 letters, digits, . _ and -, a letter or digit first", re.compile(FEATURE).fullmatch
        ),
        "The home partition of this node, in a cluster that has several; default: the schedulers choose it.",
        example="p1",
    )
    resources: tuple[str, ...] = _option(
        (),
        Kind(tuple, "LIST", 'a list of NAME=NUMBER such as ["gpu=2"]: letters, digits, . _ and -', _are_resources),
        "Counted resources that jobs may request from the scheduler.",
    )
    features: tuple[str, ...] = _option(
        (),
        Kind(tuple, "LIST", 'a list of names such as ["bigmem"]: letters, digits, . _ and -', _are_features),
        "Features of this node that jobs may require.",
    )
    spool: str | None = _option(
        None,
        _PATH,
        "The folder of the agent's data on the scheduler's jobs; default: /var/lib/drom/steward for the agent "
        "in /run/drom, otherwise `steward` in the runtime directory.",
        example="/var/lib/drom/spool",
    )
    images: str | None = _option(
        None,
        _PATH,
        "The folder of saved fillers, for an agent of root on a node with CRIU and runc; default: `images` beside "
        "the default spool.",
        example="/scratch/drom/images",
    )
    image_quota: str = _option("64G", _SIZE, "The most bytes of all saved fillers in that folder.")
    image_user_quota: str = _option("16G", _SIZE, "The most bytes of the saved fillers of one user in that folder.")
    ignore_slurm: bool = _option(
        False, _SWITCH, "Hand out the CPUs of jobs of Slurm that run no program under drom as well."
    )
    slurm_limits: bool = _option(
        False, _SWITCH, "Lengthen the time limits of Slurm's jobs by what they lose to other jobs here; takes root."
    )
    slurm_comments: bool = _option(
        False, _SWITCH, "Write what Slurm's jobs use of this node's cores into their admin comments; takes root."
    )
    observe: bool = _option(False, _SWITCH, "Change no mask: only show what the agent would do.")
    log_format: str = _option(
        "logfmt",
        Kind(str, "FORMAT", "logfmt or json", ("logfmt", "json").__contains__),
        "The format of events on stderr.",
    )
    events_file: str | None = _option(
        None,
        _PATH,
        "The file of events for `drom events`; default: `events` in the runtime directory.",
        example="/var/log/drom/events",
    )
    events_size: str = _option(
        "4M",
        Kind(str, "SIZE", "off or a size of at least 64K such as 4M", _is_events_size),
        "The size limit of the stored events; off: no events are stored.",
    )

    @property
    def events_path(self) -> Path:
        """The path of the file of events."""
        return Path(self.events_file or f"{self.runtime_dir}/events")

    @property
    def spool_path(self) -> Path:
        """The path at which the agent stores its data on the scheduler's jobs."""
        return Path(self.spool) if self.spool else default_spool(Path(self.runtime_dir))

    @property
    def images_path(self) -> Path:
        """The path of the folder of saved fillers."""
        return Path(self.images) if self.images else default_images(Path(self.runtime_dir))


def resources_of(words: tuple[str, ...]) -> dict[str, int]:
    """Return the numbers in the option `resources`, by name."""
    return {name: int(count) for name, _, count in (word.rpartition("=") for word in words)}


def layout_of(text: str) -> Layout:
    """Return the layout in the option `distribution`; "default" is none. Raises ValueError for other texts."""
    return ANY if text == "default" else parse_layout(text)


def memory_of(text: str, machine: int) -> int:
    """Return the bytes that the option `memory` means on a machine of `machine` bytes; 0: not counted."""
    if text in ("auto", "off"):
        return machine if text == "auto" else 0
    digits = text.rstrip("KMGT")
    return int(digits) << 10 * ("KMGT".index(text[-1]) + 1 if digits != text else 0)


@dataclass(frozen=True, slots=True)
class Option:
    """One option by all its names. `name` is the field of `Options`; `table` is empty at the top of a file."""

    name: str
    default: Value
    about: About

    @property
    def table(self) -> str:
        """The table of a configuration file that contains the key."""
        return next((table for table in TABLES if self.name.startswith(table + "_")), "")

    @property
    def key(self) -> str:
        """The key in that table."""
        return self.name.removeprefix(self.table + "_")

    @property
    def path(self) -> str:
        """The key with its table, as ``exclude.users``."""
        return f"{self.table}.{self.key}" if self.table else self.key

    @property
    def flag(self) -> str:
        """The flag of ``drom agent``."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "DROM_" + self.name.upper()


OPTIONS: tuple[Option, ...] = tuple(
    Option(item.name, cast("Value", item.default), item.metadata["about"]) for item in fields(Options)
)
"""Every option in the order of the documentation."""
