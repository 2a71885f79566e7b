# SPDX-License-Identifier: Apache-2.0
"""The command line of `drom submit`: its options override those in the script.

The script's options are in its ``#DROM`` lines, which are read as sbatch reads ``#SBATCH`` lines. A script without any
has these translated (`sbatch`).
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, cast

import typer
import typer.core
from drom.agent.cli.usage import usage_sentence
from drom.agent.system.os_errors import reason_of
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli import sbatch
from drom.scheduler.live.cluster.spec import LARGEST

MARK = "#DROM"
_PART = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^'"\\\s])"""
"""A character of a word, or several in quotes."""
_COMMENT = re.compile(rf"(#.*)|({_PART}+)")
"""A comment, or else a word, in which a # is an ordinary character."""


def directives(script: str, name: str, mark: str = MARK) -> list[tuple[int, list[str]]]:
    """Return the options in the comments before the first command of a script, each line with its number.

    Lines of options begin with `mark`. Raises SchedulerError with the number of a line that cannot be read; `name` is
    the script's name.
    """
    found: list[tuple[int, list[str]]] = []
    for number, line in enumerate(script.splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            break
        if text.startswith(mark + "-"):
            msg = f"{name}, line {number}: a blank is missing after {mark}: write {mark} {text.removeprefix(mark)}"
            raise SchedulerError(msg)
        if text == mark or text.startswith((mark + " ", mark + "\t")):
            try:
                words = shlex.split(_COMMENT.sub(lambda found: found[2] or "", text.removeprefix(mark)))
            except ValueError as error:
                msg = f"{name}, line {number}: a quote is not closed: close it."
                raise SchedulerError(msg) from error
            for word in {"--help", "--"}.intersection(words):
                msg = f"{name}, line {number}: {word} is only for the command line: remove it."
                raise SchedulerError(msg)
            if words:
                found.append((number, words))
    return found


INPUT = "-"
"""The name of a script on standard input."""
SCRIPT = "drom.script"
"""The key of the script's text in the context of `drom submit`."""
_BEGIN = "jobs start when there is room: submit one later with at or cron, or release it (--hold)"
_GRES = "nodes name their resources, and jobs request them with --resources gpu=1"
_OF_SBATCH = {
    "--begin": _BEGIN,
    "-b": _BEGIN,
    "--exclusive": "for exclusive nodes use --class rigid",
    "--gpus": _GRES,
    "--gres": _GRES,
    "--wrap": "write the command after --, as drom submit -- sh -c 'COMMAND'",
}
"""What to use instead of options of sbatch that drom lacks."""


class Submission(typer.core.TyperCommand):
    """A command that reads the options in the #DROM lines of a script, which those of the command line override."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's context
        """Read the options. Raises SchedulerError for a missing script, or for a line of it that cannot be read."""
        given = list(args)
        rest = self._read_options(ctx, given)
        words = list(ctx.params.get("command") or [])  # typer returns a tuple or a list
        options = given[: len(given) - len(words)]
        if "--" in options:
            return rest
        if words in ([], [INPUT]):
            if not words and (ctx.resilient_parsing or sys.stdin.isatty()):
                return rest
            words, text = [INPUT], _read_input()
            ctx.meta[SCRIPT] = text
            ctx.params.clear()
            return self._read_options(ctx, [*self._asked_by(text, "standard input", ctx), *options, "--", *words])
        if not Path(words[0]).is_file():
            if shutil.which(words[0]):
                return rest
            msg = f"there is no script {words[0]}: to run a command write drom submit -- {words[0]}"
            raise SchedulerError(msg)
        text = ctx.meta[SCRIPT] = _read(words[0])
        ctx.params.clear()
        return self._read_options(ctx, [*self._asked_by(text, words[0], ctx), *options, "--", *words])

    def _asked_by(self, text: str, path: str, ctx: Any) -> list[str]:  # noqa: ANN401 - click's context
        """Return the options in a script. Raises SchedulerError with the line of a wrong one."""
        lines = directives(text, path)
        theirs = any(line.startswith(sbatch.MARK) for line in text.splitlines())
        if lines and theirs:
            typer.echo(f"drom: the {sbatch.MARK} lines of {path} are ignored, as it has {MARK} lines.", err=True)
        elif theirs:
            lines, without = sbatch.translated(directives(text, path, sbatch.MARK))
            if without:
                names = ", ".join(dict.fromkeys(without))
                typer.echo(
                    f"drom: {path}: these options of sbatch are left out: {names}: see drom submit --help", err=True
                )
        for number, words in lines:
            try:
                left = self._alone(words, ctx)
            except _UsageError as error:
                msg = f"{path}, line {number}: {usage_sentence(error)}."
                raise SchedulerError(msg) from error
            if left:
                msg = f"{path}, line {number}: {left[0][:40]!r} is not an option: write for example {MARK} --nodes 2."
                raise SchedulerError(msg)
        return [word for _, words in lines for word in words]

    def _read_options(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's context
        """Read options; the error for an option that only sbatch has names the replacement."""
        try:
            return super().parse_args(ctx, list(args))
        except _UsageError as error:
            name = getattr(error, "option_name", "")
            if name not in _OF_SBATCH:
                raise
            error.message, error.possibilities = f"No such option: {name}: {_OF_SBATCH[name]}", None  # type: ignore[attr-defined]
            raise

    def _alone(self, words: list[str], ctx: Any) -> list[str]:  # noqa: ANN401 - click's context
        """Read the options of one line, which names no script; return the words that are not options."""
        line = type(ctx)(self, parent=ctx.parent, info_name=ctx.info_name, **self.context_settings)
        with line.scope(cleanup=False):
            self._read_options(line, words)
        return list(line.params["command"] or [])


_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The exception that typer raises for any wrong command line; its name differs between versions of typer."""


def _read_input() -> str:
    """Return the script on standard input. Raises SchedulerError if it is none."""
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        msg = f"the script on standard input is longer than {LARGEST >> 10} KiB: put data into a file."
        raise SchedulerError(msg)
    text = _decoded(data, "standard input", "PROGRAM")
    if not text.strip():
        raise SchedulerError("a job needs a command: write drom submit -- COMMAND, or name a script.")
    return text


def _read(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        msg = f"the script {path} cannot be read: {reason_of(error)}."
        raise SchedulerError(msg) from error
    text = _decoded(data, path, path)
    if not text.strip():
        msg = f"the script {path} is empty: write #!/bin/sh and below it the commands."
        raise SchedulerError(msg)
    return text


def _decoded(data: bytes, name: str, program: str) -> str:
    """Return the text of a script, with the line ends of Unix. Raises SchedulerError if it is not UTF-8."""
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        if data.startswith(b"#!"):
            msg = f"{name} is not UTF-8 text: convert it, such as with iconv -f latin1 -t utf-8."
        else:
            msg = f"{name} is not a script: to run a program write drom submit -- {program}"
        raise SchedulerError(msg) from error
