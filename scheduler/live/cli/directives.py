# SPDX-License-Identifier: Apache-2.0
"""The options in the ``#DROM`` lines of a script, which are read as sbatch reads ``#SBATCH`` lines. Pure."""

from __future__ import annotations

import re
import shlex

from drom.scheduler.errors import SchedulerError

MARK = "#DROM"
_PART = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^'"\\\s])"""
"""A character of a word, or several in quotes."""
_COMMENT = re.compile(rf"(#.*)|({_PART}+)")
"""A comment, or else a word, in which a # is an ordinary character."""


def directives(script: str, name: str) -> list[tuple[int, list[str]]]:
    """Return the options in the comments before the first command of a script, each line with its number.

    Raises SchedulerError with the number of a line that cannot be read; `name` is the script's name.
    """
    found: list[tuple[int, list[str]]] = []
    for number, line in enumerate(script.splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            break
        if text.startswith(MARK + "-"):
            msg = f"{name}, line {number}: a blank is missing after {MARK}: write {MARK} {text.removeprefix(MARK)}"
            raise SchedulerError(msg)
        if text == MARK or text.startswith((MARK + " ", MARK + "\t")):
            try:
                words = shlex.split(_COMMENT.sub(lambda found: found[2] or "", text.removeprefix(MARK)))
            except ValueError as error:
                msg = f"{name}, line {number}: a quote is not closed: close it."
                raise SchedulerError(msg) from error
            for word in {"--help", "--"}.intersection(words):
                msg = f"{name}, line {number}: {word} is only for the command line: remove it."
                raise SchedulerError(msg)
            if words:
                found.append((number, words))
    return found
