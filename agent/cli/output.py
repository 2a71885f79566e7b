# SPDX-License-Identifier: Apache-2.0
"""The only module that prints: tables for reading, one JSON value for scripts."""

from __future__ import annotations

import json
import shutil
import sys
import time
from csv import writer
from typing import TYPE_CHECKING, Any

from drom.agent import text
from drom.agent.config.sources import toml
from drom.agent.observe import text_view
from drom.agent.system.users import user_name
from drom.agent.text import CORES_DIFFER, KINDS_ALIKE, counted
from drom.agent.topology.machine import warnings_of

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.agent.topology.machine import Topology


NOBODY = "No task runs here: start one with: drom run -- COMMAND"


def emit(value: object) -> None:
    """Print one JSON value."""
    print(json.dumps(value))


def csv(*rows: Iterable[object]) -> None:
    """Print rows as CSV."""
    writer(sys.stdout, lineterminator="\n").writerows(rows)


def table(headings: list[str], rows: list[list[str]]) -> None:
    """Print rows under headings, columns as wide as needed, no trailing blanks."""
    print("\n".join(text.table(headings, rows)))


def say(sentence: str) -> None:
    """Print one line."""
    print(sentence)


def settings(value: dict[str, Any], *, as_json: bool) -> None:
    """Print the options of an agent, their values and origins."""
    if as_json:
        emit(value)
        return
    rows = [
        [row["key"], "-" if row["value"] is None else toml(row["value"]), row["origin"]] for row in value["options"]
    ]
    table(["OPTION", "VALUE", "FROM"], rows)


def reloaded(value: dict[str, Any], *, as_json: bool) -> None:
    """Print the changes of a reloaded configuration."""
    if as_json:
        emit(value)
        return
    lines = [f"{row['key']} = {toml(row['value'])} ({row['origin']})" for row in value["changed"]]
    print("\n".join([*(lines or ["nothing has changed"]), *value["kept"]]))


def findings(value: dict[str, Any], *, as_json: bool) -> None:
    """Print the findings of `drom doctor`."""
    if as_json:
        emit(value)
        return
    table(["", "CHECK", "FOUND"], [[row["state"], row["check"], row["text"]] for row in value["checks"]])


def width() -> int | None:
    """Return the number of columns of the terminal on stdout; None if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def tasks(value: dict[str, Any], *, as_json: bool) -> None:
    """Print the answer to `ps`."""
    if as_json:
        emit(value)
        return
    print(
        "\n".join(text_view.task_table(value["tasks"], user_name, width(), wraps=True) if value["tasks"] else [NOBODY])
    )
    for task in value["tasks"]:
        if task["detail"]:
            what = "waits" if task["state"] == "waiting" else "is short"
            print(f"{task['job']} (pid {task['pid']}) {what}: {task['detail']}")
    for sentence in text_view.node_notes(value):
        print(sentence)


def ordered(value: dict[str, Any], *, as_json: bool) -> None:
    """Print the answer to an order: the changes it would cause, its message, or the tasks."""
    if as_json:
        emit(value)
    elif value.get("dry_run"):
        print("\n".join([*text_view.changes(value["changes"]), "This is a dry run: nothing was changed."]))
    elif value.get("said"):
        print(value["said"])
    else:
        tasks(value, as_json=False)


def explanation(value: dict[str, Any], *, as_json: bool) -> None:
    """Print the answer to `explain`, a sentence to a line."""
    if as_json:
        emit(value)
        return
    for sentence in value["sentences"]:
        print(sentence["text"])


def event(record: dict[str, Any], *, as_json: bool) -> None:
    """Print one event of a history, without buffering."""
    print(json.dumps(record) if as_json else text_view.event_line(record), flush=True)


def pause(seconds: float) -> None:
    """Flush the last picture, for readers of a pipe, and wait until the next one."""
    sys.stdout.flush()
    time.sleep(seconds)


def clear() -> None:
    """Clear the screen for the next picture, if stdout is a terminal."""
    if sys.stdout.isatty():
        print("\x1b[H\x1b[2J", end="")


def topology(machine: Topology, *, as_json: bool) -> None:
    """Print a machine: its totals, a line per group of equal cores in each package, its NUMA nodes, and warnings."""
    if as_json:
        emit(machine.to_json())
        return
    print(
        f"{counted(len(machine.packages), 'package')}, {counted(len(machine.numa), 'NUMA node')}, "
        f"{counted(len(machine.cores), 'core')}, {counted(machine.online.bit_count(), 'CPU')}"
    )
    for name in ("online", "allowed", "offline", "isolated", "nohz_full"):
        if name in {"online", "allowed"} or getattr(machine, name):
            print(f"{name}: {format_cpulist(getattr(machine, name)) or 'none'}")
    print(f"quota: {counted(machine.quota, 'CPU') if machine.quota is not None else 'none'}")
    print(f"memory: {_bytes(machine.memory)}", end="\n\n")
    parts = list(dict.fromkeys(part.kind for part in machine.parts))
    kind = ["KIND"] if machine.kinds else []
    headings = ["PACKAGE", "NUMA", *(name.upper() for name in parts), *kind, "CORES", "THREADS"]
    table([*headings, "CPUS", "FIRST CORE", "ALLOWED"], _alike_cores(machine, parts))
    if len({core.cpus.bit_count() for core in machine.cores}) > 1:
        print(f"\n{CORES_DIFFER} `drom agent --unit thread` hands out CPUs one by one.")
    if machine.kinds:
        print(f"\n{KINDS_ALIKE}")
    if machine.numa:
        print()
        rows = [[str(node.os), _bytes(node.memory), format_cpulist(node.cpus) or "none"] for node in machine.numa]
        table(["NUMA", "MEMORY", "CPUS"], rows)
    for warning in warnings_of(machine):
        print(f"warning: {warning}")


def _alike_cores(machine: Topology, parts: list[str]) -> list[list[str]]:
    """Return a row for each group of cores that agree in package, node, parts, kind and number of threads."""
    alike: dict[tuple[int, int, tuple[int, ...], str, int], list[int]] = {}
    for core in sorted(machine.cores, key=lambda core: (core.package, core.numa)):
        found = {part.kind: part.os for part in machine.parts if part.cpus & core.cpus}
        place = (core.package, core.numa, tuple(found.get(kind, -1) for kind in parts))
        alike.setdefault((*place, core.kind, core.cpus.bit_count()), []).append(core.cpus)
    return [
        [
            *(_index(number) for number in (package, numa, *numbers)),
            *([kind or "-"] if machine.kinds else []),
            str(len(masks)),
            str(threads),
            format_cpulist(sum(masks)),
            format_cpulist(masks[0]),
            format_cpulist(sum(masks) & machine.allowed) or "none",
        ]
        for (package, numa, numbers, kind, threads), masks in alike.items()
    ]


def _index(number: int) -> str:
    return "-" if number < 0 else str(number)


def _bytes(number: int) -> str:
    """Return bytes in the largest binary unit that is not larger than `number`."""
    power = max(number.bit_length() - 1, 0) // 10
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[min(power, 5)]
    return f"{number / 1024 ** min(power, 5):.4g} {unit}" if number else "unknown"
