# SPDX-License-Identifier: Apache-2.0
"""Starts the drom-steps of a node, watches them, takes them over from a dead agent, and signals their processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from drom.agent.execution import launch, spool
from drom.agent.system import proc

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from drom.agent.execution import protocol
    from drom.agent.execution.launch import LaunchSite
    from drom.agent.execution.protocol import Signal, Start
    from drom.agent.execution.spool import Folder, Status
    from drom.agent.system.loop import Loop
    from drom.agent.system.proc import Stat

PATIENCE = 10.0
"""Seconds until processes that do not end although they were killed are left to the administrator."""
MOMENT_MS = 100


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt of a job on this node, held at `cores`.

    `state` is starting, running, ending (drom-step has died, processes may be left), ended or refused. `keeper` and
    `pid` are the pids of drom-step and of the program (0: not known yet). `pidfd` is that of the keeper and `told` the
    pipe from it (-1: closed; there is no pipe from a keeper that an earlier agent started). `status` is what the keeper
    left when it died (None: nothing). An order for another number of cores is `due` at that second of CLOCK_MONOTONIC.
    Processes left at `kill_at` are killed, repeatedly; `killed` is the time of the first SIGKILL, and `survives` says
    that it has not ended them in time. `doomed` are the killed processes and their start times: one
    that is ending has no environment any more by which it could be found again. `unsent` signals wait for a process to
    receive them. `group` is the control group that limits its memory (None: there is none), and `over_memory` says
    that it needed more. Of a filler, `asked` is the number of a save that is not answered yet, and `announced` says
    that the order was passed on; `settled` says that nothing is left to be done after its end. `wants` are the fewest
    and most cores that its programs last reported, if its tasks may rest.
    """

    start: Start
    folder: Folder
    cores: int
    state: str = "starting"
    keeper: int = 0
    pid: int = 0
    pidfd: int = -1
    told: int = -1
    status: Status | None = None
    note: str = ""
    due: float | None = None
    kill_at: float | None = None
    killed: float | None = None
    survives: bool = False
    doomed: dict[int, int] = field(default_factory=dict)
    unsent: list[Signal] = field(default_factory=list)
    group: Path | None = None
    over_memory: bool = False
    asked: int = 0
    announced: bool = False
    settled: bool = False
    saved: tuple[int, int] = (0, 0)
    """The number of the save that has ended it, and the bytes of that image."""
    wants: tuple[int, int] = (0, 0)
    occupied: tuple[str, ...] = ()
    """The nodes of an adaptive job, if they were changed since its start, in the order in which it got them."""
    vacates: bool = False
    """Whether the job is to have no rank on this node, although it is one of these."""
    vacated: protocol.Vacated | None = None
    """What was last reported of that."""

    @property
    def key(self) -> tuple[int, int]:
        """The numbers of job and attempt."""
        return self.start.job, self.start.attempt

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the job, in the order in which it got them."""
        return self.occupied or self.start.nodes

    @property
    def name(self) -> str:
        """The job's name on the node."""
        return launch.job_name(self.start.job)

    @property
    def lives(self) -> bool:
        """Whether a process of the attempt may be left."""
        return self.state in ("starting", "running", "ending")


class Host(Protocol):
    """Receives the events of attempts."""

    def program_started(self, attempt: Attempt) -> None:
        """Record that the program of an attempt runs."""

    def step_exited(self, attempt: Attempt) -> None:
        """Record that the drom-step of an attempt has died; `attempt.status` is what it left."""


class StepSupervisor:
    """Starts and watches a drom-step for each attempt, at `place`, in the boot `boot`."""

    def __init__(self, loop: Loop, place: LaunchSite, boot: str, host: Host) -> None:
        self._loop = loop
        self._place = place
        self._boot = boot
        self._host = host

    def begin(self, attempt: Attempt, known: Start | None = None, keeper: Start | None = None) -> None:
        """Write an attempt, or `known` in its place, to the spool, and start it, or `keeper`, which starts it.

        Raises OSError, and then leaves nothing of it in the spool.
        """
        attempt.folder.begin(known or attempt.start, self._boot)
        lock = -1
        try:
            lock = self._lock(attempt)
            launch.write_script(attempt.start, self._place)
            if attempt.group and attempt.start.memory:  # commands of a job are in the job's group
                attempt.folder.confine(attempt.group, attempt.start.memory)
            attempt.keeper, attempt.told = launch.spawn(keeper or attempt.start, self._place, lock, attempt.group)
        except OSError:
            self.clear(attempt)
            raise
        finally:
            if lock >= 0:
                os.close(lock)
        self._loop.watch(attempt.told, lambda: self._hear(attempt))
        with contextlib.suppress(OSError):  # no descriptor is left: `look` finds it
            self._watch(attempt)

    def _lock(self, attempt: Attempt) -> int:
        lock = attempt.folder.lock()
        if lock is None:
            raise BlockingIOError
        return lock

    def look(self, attempt: Attempt) -> str:
        """Return the state of an attempt without a watched drom-step; if it lives, watch it where possible."""
        state = attempt.folder.state(self._boot)
        pids = attempt.folder.pids()
        if state == spool.RUNNING and pids:
            attempt.keeper, attempt.pid, attempt.state = pids[0], (pids[1:] or [0])[0], "running"
            try:
                self._watch(attempt)
            except ProcessLookupError:  # it has died since, and the folder has its status
                state = attempt.folder.state(self._boot)
                if state == spool.RUNNING:  # its child has not begun, and hangs until it is ended
                    return spool.BEGINNING
            except OSError:
                return spool.BEGINNING
        if state in (spool.OVER, spool.LOST) and attempt.keeper:
            _collect(attempt.keeper)
        return state

    def _watch(self, attempt: Attempt) -> None:
        attempt.pidfd = os.pidfd_open(attempt.keeper)
        self._loop.watch(attempt.pidfd, lambda: self._collect_exit(attempt))

    def _hear(self, attempt: Attempt) -> None:
        """Read what drom-step sends: the pid of the program, and its status if it could not write that to the spool."""
        if attempt.told < 0:
            return
        with contextlib.suppress(BlockingIOError):
            text = os.read(attempt.told, select.PIPE_BUF)
            if not text:
                self._close(attempt, "told")
            first, _, rest = text.partition(b"\n")
            if not attempt.pid and first.isdigit():
                attempt.pid, text = int(first), rest
                self._host.program_started(attempt)
            attempt.status = spool.status_in(text) or attempt.status

    def _collect_exit(self, attempt: Attempt) -> None:
        self._hear(attempt)
        self._close(attempt, "told")
        self._close(attempt, "pidfd")
        _collect(attempt.keeper)
        attempt.status = attempt.folder.status() or attempt.status
        self._host.step_exited(attempt)

    def _close(self, attempt: Attempt, what: str) -> None:
        fd: int = getattr(attempt, what)
        if fd >= 0:
            self._loop.unwatch(fd)
            os.close(fd)
            setattr(attempt, what, -1)

    def clear(self, attempt: Attempt) -> None:
        """Remove the script and the spool folder of an attempt."""
        launch.remove_script(attempt.start, self._place)
        attempt.folder.remove()

    def forget(self, attempt: Attempt) -> None:
        """Stop watching an attempt."""
        self._close(attempt, "told")
        self._close(attempt, "pidfd")

    def processes_of(self, attempts: Iterable[Attempt], stats: dict[int, Stat]) -> set[int]:
        """Return the pids of a scan that descend from the drom-steps of attempts, without the drom-steps."""
        return _below({attempt.keeper for attempt in attempts if attempt.pidfd >= 0} & stats.keys(), stats)

    def orphans_of(self, job: int, uid: int | None, stats: dict[int, Stat]) -> set[int]:
        """Return the pids of a scan that name a job in their environment, after the job's drom-step was killed.

        `uid` is the job's user, None if unknown.
        """
        marks = {
            f"DROM_JOB_ID={job}".encode(),
            f"DROM_NODE={self._place.node}".encode(),
            b"DROM_RUNTIME_DIR=" + os.fsencode(self._place.runtime_dir),
        }
        theirs = {pid for pid in stats if uid in (None, _uid(pid)) and pid != os.getpid()}
        return {pid for pid in theirs if marks <= set(proc.environment(pid))}

    def kill_attempt(self, folder: Folder, job: int) -> None:
        """End the processes of a job's folder that cannot be read, and remove the folder. Raises `SpoolError`.

        A drom-step ends by itself once nothing is left below it.
        """
        until = time.monotonic() + PATIENCE
        while True:
            stats = proc.scan()
            keepers = {pid for pid in folder.pids()[:1] if proc.command(pid) == "drom-step"}
            left = _below(keepers, stats) | self.orphans_of(job, None, stats)
            if not left and not folder.is_locked():
                folder.remove()
                return
            if time.monotonic() > until:
                msg = f"something of job {job} does not end, and {folder.path} does not say what it is: end it first."
                raise spool.SpoolError(msg)
            send_signal(signal.SIGKILL, left, stats)
            await_end(left | keepers)


def _below(keepers: set[int], stats: dict[int, Stat]) -> set[int]:
    """Return the pids of a scan that descend from `keepers`, without those."""
    if not keepers:
        return set()
    return {pid for pid, owner in proc.nearest_roots(stats, keepers).items() if owner} - keepers


def send_signal(number: int, pids: Iterable[int], stats: dict[int, Stat]) -> None:
    """Send a signal to those of `pids` that are still the processes of the scan `stats`.

    Parents come first, so that no shell that is to be killed reports that a child was.
    """
    for start_time, pid in sorted((stats[pid].start_time, pid) for pid in pids if pid in stats):
        pidfd = proc.open_pidfd(pid, start_time)
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, number)
            os.close(pidfd)


def await_end(pids: Iterable[int]) -> None:
    """Wait until one of these processes has ended, or for a moment."""
    poller = select.poll()
    with contextlib.ExitStack() as stack:
        for pid in pids:
            with contextlib.suppress(OSError):  # it has ended
                pidfd = os.pidfd_open(pid)
                stack.callback(os.close, pidfd)
                poller.register(pidfd, select.POLLIN)
        poller.poll(MOMENT_MS)


def _collect(keeper: int) -> None:
    """Reap a drom-step that has ended, unless an earlier agent started it; never wait for one that has not."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(keeper, os.WNOHANG)


def _uid(pid: int) -> int | None:
    found = proc.users(pid)
    return found and found[0]
