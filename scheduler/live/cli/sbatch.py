# SPDX-License-Identifier: Apache-2.0
"""Options of Slurm's sbatch as those of `drom submit`. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "#SBATCH"
SAME = {
    "--array": "-a",
    "--chdir": "-D",
    "--constraint": "-C",
    "--cpus-per-task": "-c",
    "--dependency": "-d",
    "--error": "-e",
    "--exclude": "-x",
    "--export": "",
    "--input": "-i",
    "--job-name": "-J",
    "--mem": "",
    "--nodelist": "-w",
    "--nodes": "-N",
    "--ntasks": "-n",
    "--output": "-o",
    "--partition": "-p",
    "--priority": "",
    "--signal": "",
    "--time": "-t",
}
"""Options with a value that mean the same here, with their short forms."""
RENAMED = {"--ntasks-per-node": "--tasks-per-node", "--workdir": "--chdir"}
FLAGS = {"--hold": "-H", "--no-requeue": "", "--parsable": "", "--wait": "-W"}
"""Options without a value that mean the same here."""
USUAL = ("--requeue",)
"""Options without a value that say what drom does anyway."""
FILES = ("--output", "--error", "--input")
"""Options whose value is the name of a file, in which letters after a % mean something."""
LETTERS = {"%N": "%n", "%J": "%j"}
"""The letters that have other names here."""
PER_NODE = ("--gres", "--gpus-per-node")
"""Counted resources of each node."""
_OTHERS = """
--contiguous --exclusive -X --get-user-env --ignore-pbs --no-kill -k --overcommit -O --oversubscribe -s --quiet -Q
--reboot --spread-job --test-only --use-min-nodes --verbose -v
"""
OTHER_FLAGS = frozenset(_OTHERS.split())
"""Options of sbatch that take no value in a word of their own, and have no counterpart."""
_LONG = {short: name for name, short in {**SAME, **FLAGS}.items() if short}


def translated(lines: Iterable[tuple[int, list[str]]]) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """Return lines of options of sbatch, by number, as options of `drom submit`, and the names of those left out."""
    found: list[tuple[int, list[str]]] = []
    without: list[str] = []
    for number, words in lines:
        here: list[str] = []
        for name, value in _options(words):
            option = _translated(name, value)
            here += option or []
            without += [name] if option is None else []
        found.append((number, here))
    return found, without


def _translated(name: str, value: str) -> list[str] | None:
    """Return an option with its value; None if it has no counterpart."""
    if name in USUAL:
        return []
    if name in FLAGS:
        return [name]
    if name in PER_NODE:
        amounts = [_amount(part, name) for part in value.split(",")]
        return [f"--resources={','.join(amounts)}"] if all(amounts) else None
    if name in FILES:
        value = re.sub("%.", lambda found: LETTERS.get(found[0], found[0]), value)
    if name in SAME or name in RENAMED:
        return [f"{RENAMED.get(name, name)}={value}"]
    return None


def _amount(text: str, option: str) -> str:
    """Return ``gpu=2`` for ``gpu:2``, ``gpu:a100:2`` or, of --gpus-per-node, ``2``; empty if it is none of these."""
    name = "gpu:" if option == "--gpus-per-node" and not text.startswith("gpu:") else ""
    match = re.fullmatch(r"([A-Za-z][\w.-]*)(?::[A-Za-z][\w.-]*)?(?::(\d{1,6}))?", name + text, re.ASCII)
    return f"{match[1]}={match[2] or 1}" if match else ""


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each option by its long name, if it has one here, with its value."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, given, value = word.partition("=")
        else:
            name, value = word[:2], word[2:].removeprefix("=")
            given, name = value, _LONG.get(name, name)
        takes = name not in FLAGS and name not in USUAL and name not in OTHER_FLAGS
        if takes and not given and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield name, value
