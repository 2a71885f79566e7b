# SPDX-License-Identifier: Apache-2.0
"""The file of `drom scheduler`: TOML with its options by name, which those of the command line override."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
import typer.core
from drom.agent.cli.usage import usage_sentence
from drom.agent.config.sources import ConfigError, entries, load_toml, read_text, toml, unknown_key
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli.partition_tables import partitions_of

if TYPE_CHECKING:
    from drom.scheduler.live.cluster.partitions import Partition

SYSTEM_FILE = Path("/etc/drom/scheduler.toml")
"""The file that is read if `--config` names no other and it exists."""
ARGUMENTS = "drom.arguments"
"""The key of the command's arguments in its context."""
PARTITIONS = "drom.partitions"
"""The key of the partitions in the context of the command."""
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


def key_of(command: Any) -> dict[str, str]:  # noqa: ANN401 - click's command
    """Return the keys of a command's options in a file, by the names of their parameters."""
    return {one.name: one.opts[0].lstrip("-").replace("-", "_") for one in command.params}


class WithFile(typer.core.TyperCommand):
    """A command that also reads its options from the file given by `--config`, or from `SYSTEM_FILE` if that exists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's context
        """Read the options. Raises SchedulerError with a sentence for each fault of the file."""
        given = list(args)
        rest = super().parse_args(ctx, list(given))
        ctx.meta[ARGUMENTS], ctx.meta[PARTITIONS] = given, ()
        named = ctx.params["config"]
        if not named and not SYSTEM_FILE.exists():
            return rest
        words, partitions = self._read_file(Path(named or SYSTEM_FILE), ctx)
        ctx.params.clear()
        ctx.meta[PARTITIONS] = partitions
        return super().parse_args(ctx, [*words, *given])

    def _read_file(self, path: Path, ctx: Any) -> tuple[list[str], tuple[Partition, ...]]:  # noqa: ANN401 - click's
        """Return the options in a file as words of a command line, and its partitions."""
        try:
            text = read_text(path)
            values = load_toml(path, text)
        except ConfigError as error:
            raise SchedulerError(str(error)) from error
        lines = {entry.path: f"{path}:{entry.line}" for entry in entries(text)}
        words: list[str] = []
        partitions, faults = partitions_of(values.pop("partition", {}), lambda key: lines.get(key, str(path)))
        for key, value in values.items():
            try:
                found = self._words_of(key, value)
                self._check_alone(found, ctx)
            except (ValueError, UsageError) as error:  # noqa: PERF203 - each fault is told
                sentence = str(error) if isinstance(error, ValueError) else f"{usage_sentence(error)}."
                faults.append(f"{lines.get(key, path)}: {key}: {sentence}")
            else:
                words += found
        if faults:
            raise SchedulerError("\n".join(faults))
        return words, partitions

    def _words_of(self, key: str, value: object) -> list[str]:
        """Return an option as words of a command line. Raises ValueError with a sentence if it is none."""
        keys = key_of(self)
        options = {keys[one.name]: one for one in self.params if one.name and one.name != "config"}
        option: Any = options.get(key)
        if option is None:
            raise ValueError(unknown_key(key, list(options), "`drom scheduler --help`"))
        flag, shown = option.opts[0], toml(value)[:40]
        if option.is_flag:
            if type(value) is not bool:
                msg = f"{shown} is not true or false."
                raise ValueError(msg)
            return [flag] * value
        found = value if option.multiple and isinstance(value, list) else [value]
        if option.multiple != isinstance(value, list) or any(type(one) not in (str, int, float) for one in found):
            msg = f"{shown} is not {'a list of texts' if option.multiple else 'a text or a number'}."
            raise ValueError(msg)
        return [f"{flag}={one}" for one in found]

    def _check_alone(self, words: list[str], ctx: Any) -> None:  # noqa: ANN401 - click's context
        """Raise a usage error for words that are wrong whatever the others are."""
        alone = type(ctx)(self, parent=ctx.parent, info_name=ctx.info_name, **self.context_settings)
        with alone.scope(cleanup=False):
            super().parse_args(alone, list(words))
