# SPDX-License-Identifier: Apache-2.0
"""A real agent for demonstrations, benchmarks and tests: started, awaited, and stopped in any case."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any, ClassVar

from drom.agent.ipc import cpu_locks
from drom.agent.system import python_command
from drom.agent.system.unix_signals import DIE_WITH_PARENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

LOOK = 0.001
"""Seconds between two checks of a log: a file does not signal that it has grown."""
END_SECONDS = 10.0
"""Seconds that a process may take to end after SIGTERM before it is killed."""
STEERING = ("DROM_", "OMP_", "GOMP_", "KMP_", "OMPI_", "PMI", "MPI", "MV2_", "PALS_", "SLURM_")
"""Prefixes of the variables with settings of drom, OpenMP runtimes and launchers."""
_READY = re.compile(rb'\bevent=ready |"event": "ready"')
_COMPILING = re.compile(rb"\bevent=compiling ")
_COMPILED = re.compile(rb"\bevent=compile(d|_failed)\b")
_METRICS = re.compile(rb"\bevent=metrics .*\bport=(\d+)")


class AgentProcess:
    """A running ``drom agent`` or ``drom scheduler``. Its output is appended to `log_file`.

    `command` starts it, see `command_of`, with just this `environment`, in the working directory `folder` (None: that
    of this process). `apart`: in a session of its own, so that Ctrl-C does not reach it. `pass_fds` are descriptors
    that it inherits. Raises OSError if the command or the log cannot be opened.
    """

    popen: ClassVar[type[subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(
        self,
        command: Sequence[str],
        log_file: Path,
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        apart: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.log_file = log_file
        with log_file.open("ab") as log:
            self.log_from = log.tell()
            """Offset in the log at which the output of this process begins."""
            self.process = self.popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
                start_new_session=apart,
                pass_fds=pass_fds,
            )

    @property
    def pid(self) -> int:
        """The pid of the process."""
        return self.process.pid

    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None

    def said(self) -> bytes:
        """Return the output so far."""
        with self.log_file.open("rb") as log:
            log.seek(self.log_from)
            return log.read()

    def last_words(self) -> str:
        """Return the last line of the output, without the prefix of error messages; "nothing" if there is no line."""
        lines = self.said().decode(errors="replace").splitlines()
        return lines[-1].removeprefix("drom: ") if lines else "nothing"

    def compiles(self) -> bool:
        """Return whether the agent is compiling the distribution kernel, which uses a core."""
        said = self.said()
        return bool(_COMPILING.search(said)) and not _COMPILED.search(said)

    def metrics_port(self) -> int:
        """Return the TCP port of the agent's metrics. Raises LookupError if it does not serve any."""
        return int(_METRICS.findall(self.said())[0])

    def await_ready(
        self, seconds: float, meanwhile: Callable[[float], None] = lambda _: None, *, compiled: bool = False
    ) -> bool:
        """Wait until programs can register; return False if the process has ended, or `seconds` have passed.

        `compiled`: wait also until nothing is compiled any more. `meanwhile` is called again and again with the seconds
        so far.
        """
        begin = time.monotonic()
        while not _READY.search(self.said()) or (compiled and self.compiles()):
            so_far = time.monotonic() - begin
            if self.ended() or so_far > seconds:
                return False
            meanwhile(so_far)
            time.sleep(LOOK)
        return True

    def stop(self, seconds: float) -> int | None:
        """Stop the process with SIGTERM; return its exit status, None if it still runs after `seconds`."""
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self, seconds: float = END_SECONDS) -> None:
        """End the process in any case: see `end`."""
        end(self.process, seconds)


def command_of(*words: str) -> list[str]:
    """Return a command line for ``drom`` with these words; its process ends with the thread that starts it."""
    return [*DIE_WITH_PARENT, *python_command.drom(*words)]


APART = (cpu_locks.VARIABLE, "DROM_IGNORE_SLURM")
"""Variables that keep an agent apart from what else runs on the machine."""


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that would control the agent, the launcher or the programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
    apart = {name: value for name, value in os.environ.items() if name in APART}
    return kept | apart | {"DROM_CONFIG": os.devnull}


def end(process: subprocess.Popen[Any], seconds: float = END_SECONDS) -> None:
    """End a process with SIGTERM, after `seconds` with SIGKILL, and close its pipes."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()
