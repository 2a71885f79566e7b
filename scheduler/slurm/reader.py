# SPDX-License-Identifier: Apache-2.0
"""Run squeue and scontrol, each for a bounded time and with bounded output, and return what they print."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.errors import SlurmError
from drom.agent.text import duration, in_words
from drom.scheduler.slurm import text_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.scheduler.slurm.records import Job, Licence, Node, Partition, Reading, Reservation

PATIENCE_S = 30.0
"""The longest that a command may take: slurmctld is asked for 10 s by default before a command gives up."""
MOST_BYTES = 256 << 20
"""The longest output: about 500,000 jobs."""
_FORMATTING = ("SQUEUE_", "SINFO_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SLURM_JSON", "SLURM_YAML")
"""Beginnings of variables with which users change what the commands print."""
SYMPTOMS = (
    (
        r"Munge encode failed|authentication error|Invalid authentication credential",
        "munge does not answer here: start it with 'systemctl start munge'; its key must be that of all machines.",
    ),
    (
        r"Unable to contact slurm controller|Connection refused",
        "slurmctld does not answer: start it, as with 'systemctl start slurmctld'; 'scontrol ping' shows where.",
    ),
    (
        r"Could not establish a configuration source|Unable to process configuration file|cannot stat file",
        "Slurm's commands find no slurm.conf on this machine: install it, or set SLURM_CONF to its path.",
    ),
    (
        r"Access/permission denied|Invalid user id",
        "Slurm does not let this user look: run this as SlurmUser or root.",
    ),
)
"""Patterns of what Slurm's commands print when they fail, and the sentence for each."""


class _Output(NamedTuple):
    """What a command printed, and how it ended."""

    status: int
    stdout: str
    stderr: str


class Reader:
    """Reads one Slurm: the one of the variables in `environ`, found by its commands.

    Every method raises SlurmError where a command is missing, fails, takes longer than `patience_s` seconds or prints
    more than `most_bytes`.
    """

    def __init__(
        self, environ: Mapping[str, str], *, patience_s: float = PATIENCE_S, most_bytes: int = MOST_BYTES
    ) -> None:
        kept = {name: value for name, value in environ.items() if not name.startswith(_FORMATTING)}
        self._environment = kept | {"TZ": "UTC", "LC_ALL": "C"}
        self._patience_s = patience_s
        self._most_bytes = most_bytes
        self._parser = text_records.JobParser()

    def jobs(self) -> Reading[Job]:
        """Return all jobs that slurmctld has, also those that ended less than MinJobAge ago."""
        separator = f"|{secrets.token_hex(8)};"
        words = ("--noheader", "--noconvert", "--states=all", "-O", text_records.job_format(separator))
        return self._parser.parse(self.command("squeue", *words), separator)

    def nodes(self) -> Reading[Node]:
        """Return all nodes."""
        return text_records.parse_nodes(self.command("scontrol", "show", "node", "-o"))

    def partitions(self) -> Reading[Partition]:
        """Return all partitions."""
        return text_records.parse_partitions(self.command("scontrol", "--all", "show", "partition", "-o"))

    def licences(self) -> Reading[Licence]:
        """Return all licences."""
        return text_records.parse_licences(self.command("scontrol", "show", "licenses", "-o"))

    def reservations(self) -> Reading[Reservation]:
        """Return all reservations."""
        return text_records.parse_reservations(self.command("scontrol", "show", "reservation", "-o"))

    def configuration(self) -> str:
        """Return what ``scontrol show config`` prints."""
        return self.command("scontrol", "show", "config")

    def update(self, *words: str) -> None:
        """Change what `words` name, as ``scontrol update`` does."""
        self.command("scontrol", "update", *words)

    def close(self) -> None:
        """Release what the reader holds, which is nothing here."""

    def command(self, name: str, *words: str) -> str:
        """Run one of Slurm's commands, and return what it prints."""
        path = shutil.which(name, path=self._environment.get("PATH", os.defpath))
        if path is None:
            raise SlurmError(
                f"there is no command {name} here: install Slurm's client commands (Debian: slurm-client)."
            )
        done = self._run([path, *words])
        if done.status:
            raise SlurmError(why(name, done.stderr or done.stdout))
        return done.stdout

    def _run(self, command: Sequence[str]) -> _Output:
        """Run a command, and kill it if it exceeds a bound."""
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            cwd="/",
        ) as process:
            try:
                said = self._read(process)
                status = process.wait(self._patience_s)
            except subprocess.TimeoutExpired as error:
                raise SlurmError(self._too_slow(command)) from error
            finally:
                process.kill()
        return _Output(status, *(part.decode(errors="replace") for part in said))

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[bytearray, bytearray]:
        """Return what a command prints to stdout and stderr, until it closes both."""
        said = {stream: bytearray() for stream in (process.stdout, process.stderr) if stream}
        deadline = time.monotonic() + self._patience_s
        with selectors.DefaultSelector() as selector:
            for stream in said:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise SlurmError(self._too_slow(process.args))  # type: ignore[arg-type] # as they were given
                for key, _ in ready:
                    part = os.read(key.fd, 1 << 16)
                    if not part:
                        selector.unregister(key.fileobj)
                    said[key.fileobj] += part  # type: ignore[index] # one of them
                if sum(map(len, said.values())) > self._most_bytes:
                    name = Path(process.args[0]).name  # type: ignore[arg-type, index]
                    raise SlurmError(f"{name} prints more than {in_words(self._most_bytes)}: ask for less.")
        stdout, stderr = said.values()
        return stdout, stderr

    def _too_slow(self, command: Sequence[str]) -> str:
        name = Path(command[0]).name
        return f"{name} did not answer within {duration(self._patience_s)}: look at the load and the log of slurmctld."


def why(command: str, said: str) -> str:
    """Return the sentence for a command that failed and printed `said`."""
    for pattern, sentence in SYMPTOMS:
        if re.search(pattern, said):
            return sentence
    last = " ".join((said.strip().splitlines() or ["it printed nothing"])[-1].split())
    return f"{command} failed ({last[:200]}): run it by hand to see why."
