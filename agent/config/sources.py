# SPDX-License-Identifier: Apache-2.0
"""The configuration of an agent: flag before environment before file before default, and the origin of each value."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.config.options import OPTIONS, TABLES, Option, Options, Value
from drom.agent.system.files import read_plain
from drom.agent.system.os_errors import reason_of
from drom.agent.system.paths import default_runtime_dir

from dromlib.errors import DromError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SYSTEM_FILE = Path("/etc/drom/drom.toml")
VARIABLE = "DROM_CONFIG"
"""Names another file; ``/dev/null`` is an empty file."""
LONGEST = 14_000
"""Most bits of a number that Python converts to decimal digits."""
LARGEST = 1 << 20
"""Most bytes of a configuration file."""
SCHEMA_VERSION = 1


class ConfigError(DromError):
    """Raised when a configuration cannot be used; the message has one sentence per line, a line for each fault."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value and its origin: a flag, ``environment NAME``, ``FILE:LINE`` or ``default``."""

    option: Option
    value: Value
    origin: str


@dataclass(slots=True)
class FileEntry:
    """A ``key = value`` of a file. `line` counts from 1; `path` has the table before the key."""

    path: str
    value: object
    line: int


@dataclass(slots=True)
class File:
    """The contents of a configuration file: settings by name of the option, and a sentence for each fault."""

    path: Path
    settings: dict[str, Setting] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a configuration beside the environment: flags by name of the option, and the file a flag names."""

    flags: Mapping[str, object] = field(default_factory=dict)
    named: str | None = None

    def file(self, environ: Mapping[str, str]) -> Path | None:
        """Return the file to read, if there is one."""
        return Path(self.named) if self.named else default_file(environ)

    def load(self, environ: Mapping[str, str]) -> dict[str, Setting]:
        """Read the sources and return the setting of every option. Raises `ConfigError`."""
        return load(self.flags, environ, self.file(environ))


def default_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file to read if no flag names one: ``$DROM_CONFIG``, else /etc/drom/drom.toml if that exists."""
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    return SYSTEM_FILE if SYSTEM_FILE.exists() else None


def read_file(path: Path) -> File:
    """Return the contents of a file, which may be /dev/null. Raises `ConfigError` if it cannot be read."""
    return parse_file(path, read_text(path))


def read_text(path: Path) -> str:
    """Return the text of a file, which may be /dev/null. Raises `ConfigError` if it cannot be read."""
    try:
        data = b"" if path == Path(os.devnull) else read_plain(path, LARGEST)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8 text: convert it."
        raise ConfigError(msg) from error
    except OSError as error:
        msg = f"cannot read the configuration {path}: {reason_of(error)}."
        raise ConfigError(msg) from error


def parse_file(path: Path, text: str) -> File:
    """Return the contents of a configuration file with this text; `path` is for the sentences about faults."""
    file = File(path)
    try:
        load_toml(path, text)
    except ConfigError as error:
        file.faults.append(str(error))
        return file
    by_path = {option.path: option for option in OPTIONS}
    for entry in entries(text):
        where = f"{path}:{entry.line}"
        option = by_path.get(entry.path)
        if option is None:
            file.faults.append(f"{where}: {unknown_key(entry.path, list(by_path), '`drom config show`')}")
        elif not option.about.in_file:
            file.faults.append(
                f"{where}: {entry.path} cannot be set in a file: use {option.flag} or {option.variable}."
            )
        elif option.name in file.settings:  # in two tables of an array
            before = file.settings[option.name].origin.rpartition(":")[2]
            file.faults.append(_already_given(where, entry.path, before))
        else:
            try:
                file.settings[option.name] = Setting(option, option.about.kind.from_value(entry.value), where)
            except ValueError:
                shown = f"{entry.path} = {toml(entry.value)}"
                file.faults.append(f"{where}: {shown} is not {option.about.kind.expected}.")
    return file


def load_toml(path: Path, text: str) -> dict[str, Any]:
    """Return the values in a text. Raises `ConfigError` if it is not TOML; `path` is for the sentence."""
    try:
        return _load_toml(path, text)
    except RecursionError as error:
        msg = f"{path}: brackets are nested too deep: write key = value."
        raise ConfigError(msg) from error


def _load_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        told = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
        line = int(told[2]) if told and told[2] else len(_lines(text))
        msg = f"{path}:{line}: this is not TOML ({told[1] if told else error}): write key = value."
        if twice := _duplicate_key(text, line):
            key, first, second = twice
            msg = _already_given(f"{path}:{second}", key, first)
        raise ConfigError(msg) from error
    except ValueError as error:  # a number with more digits than Python parses
        line = next((i for i, one in enumerate(_lines(text), 1) if re.search(r"[0-9_]{4301}", one)), 1)
        msg = f"{path}:{line}: a number has thousands of digits: write a smaller one."
        raise ConfigError(msg) from error
    return values


def _already_given(where: str, key: str, line: int | str) -> str:
    return f"{where}: {key} is set in line {line} already: remove one of the two."


def _duplicate_key(text: str, last: int) -> tuple[str, int, int] | None:
    """Return the first key that is repeated up to line `last`, with both lines; None if there is none."""
    lines: dict[str, int] = {}
    for entry in entries(text):
        if entry.line > last:
            break
        if entry.path in lines:
            return entry.path, lines[entry.path], entry.line
        lines[entry.path] = entry.line
    return None


def unknown_key(path: str, known: list[str], lists: str) -> str:
    """Return the sentence about a key that does not exist; the command `lists` prints all."""
    import difflib

    near = difflib.get_close_matches(path, known, 1, 0.6) or [
        name for name in known if name.rpartition(".")[2] == path.rpartition(".")[2]
    ]
    advice = f"did you mean {near[0]}?" if near else f"{lists} lists all options."
    return f"there is no option {path}: {advice}"


def entries(text: str) -> Iterator[FileEntry]:
    """Yield each key of a valid TOML text with its line.

    A statement is the shortest run of lines that is valid TOML by itself, before a line that may begin another one: so
    only the library needs to know the grammar. Keys that are tables in place of an option are yielded unchanged.
    """
    table: list[str] = []
    start, lines = 0, _lines(text)
    for end, watcher in enumerate([*lines[1:], ""], 1):
        if "=" not in watcher and watcher.lstrip()[:1] not in ("", "#", "["):
            continue
        try:
            value: Any = tomllib.loads("".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue
        if value and lines[start].lstrip().startswith("["):
            table = []
            while value:
                name, value = next(iter(value.items()))
                table.append(name)
                value = value[0] if isinstance(value, list) else value
        else:
            for path, leaf in _leaves(table, value):
                yield FileEntry(path, leaf, start + 1)
        start = end


def _lines(text: str) -> list[str]:
    """Return the lines of a TOML text, each with its end; Python recognises more line ends than TOML."""
    return list(io.StringIO(text))


def _leaves(table: list[str], value: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for key, inner in value.items():
        path = [*table, key]
        if isinstance(inner, dict) and inner and ".".join(path) in TABLES:
            yield from _leaves(path, inner)
        else:
            yield ".".join(path), inner


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> dict[str, Setting]:
    """Return the setting of every option by name.

    `flags` has the values of flags that were given, by name of the option. Raises `ConfigError` with a sentence for
    each fault in any of the sources.
    """
    said = File(Path()) if file is None else read_file(file)
    faults = list(said.faults)
    found = {}
    for option in OPTIONS:
        setting = said.settings.get(option.name, Setting(option, option.default, "default"))
        kind = option.about.kind
        text = environ.get(option.variable, "")
        given = flags.get(option.name)
        try:
            if text:
                shown = f"{option.variable}={text}"
                setting = Setting(option, kind.from_text(text), f"environment {option.variable}")
            if given is not None:
                shown = f"{option.flag} {_plain(given)}"
                value = kind.from_text(given) if isinstance(given, str) else kind.from_value(given)
                setting = Setting(option, value, f"flag {option.flag}")
        except (ValueError, KeyError):
            faults.append(f"{shown} is not {kind.expected}.")
        found[option.name] = setting
    if faults:
        raise ConfigError("\n".join(faults))
    directory = found["runtime_dir"]
    where = Path(str(directory.value)) if directory.value else default_runtime_dir(environ)
    found["runtime_dir"] = replace(directory, value=str(where.absolute()))
    return found


def options_of(settings: Mapping[str, Setting]) -> Options:
    """Return the values of all settings."""
    values: dict[str, Any] = {name: setting.value for name, setting in settings.items()}
    return Options(**values)


def toml(value: object) -> str:
    """Return a value in the syntax of a file."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return hex(value) if isinstance(value, int) and value.bit_length() > LONGEST else str(value)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def to_json(settings: Mapping[str, Setting], file: Path | None) -> dict[str, object]:
    """Return the value of ``drom config show --json``."""
    return {
        "schema_version": SCHEMA_VERSION,
        "file": None if file is None else str(file),
        "options": [{"key": s.option.path, "value": s.value, "origin": s.origin} for s in settings.values()],
    }


def sample() -> str:
    """Return the text of a configuration file with all defaults."""
    parts = ["# Configuration of drom agent: /etc/drom/drom.toml. Every line here is the default."]
    for table in ("", *TABLES):
        keys = [_sample(option) for option in OPTIONS if option.table == table and option.about.in_file]
        parts += [f"[{table}]"] * bool(table and keys) + keys
    return "\n\n".join(parts) + "\n"


def _sample(option: Option) -> str:
    unset = option.default is None
    line = f"{option.key} = {toml(option.about.example if unset else option.default)}"
    return f"# {option.about.help}\n{'# ' * unset}{line}"


def markdown() -> str:
    """Return the table of all options for the documentation, as Markdown."""
    rows = ["| key in the file | flag | environment | default | what it does |", "|---|---|---|---|---|"]
    for option in OPTIONS:
        key = f"`{option.path}`" if option.about.in_file else "-"
        metavar = option.about.kind.metavar
        flag = f"`{option.flag}{' ' * bool(metavar)}{metavar}`"
        default = "unset" if option.default in (None, "") else f"`{toml(option.default)}`"
        rows.append(f"| {key} | {flag} | `{option.variable}` | {default} | {option.about.help} |")
    return "\n".join(rows) + "\n"
