# SPDX-License-Identifier: Apache-2.0
"""The program drom-filler: it keeps a filler in a container, saves it when it is ordered to, and ends as it does.

drom-step runs it as root in place of the job's program, in the reservation of the job, and it survives its agent as
drom-step does. The two communicate by files in the folder of the attempt:

    save      the last `Save` (`Order`), announced by SIGUSR1 if there is a report; otherwise drom-filler reads it later
    report    how far the job has come, and why the last order was not carried out (`Report`)

A restored job keeps its image locked. While the agent is not there, or once this process was killed, the image, its
state and its lock say what became of the job (`drom.agent.checkpoint.store`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import pwd
import resource
import select
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from drom.agent.checkpoint import bundle, containers
from drom.agent.checkpoint.bundle import Program
from drom.agent.checkpoint.containers import Containers
from drom.agent.checkpoint.images import (
    CONTAINER,
    FULL,
    WHOLE,
    CheckpointError,
    CrashedError,
    Image,
    NoRoomError,
    Quota,
)
from drom.agent.checkpoint.processes import descendants
from drom.agent.checkpoint.saver import RESTORE_SECONDS, Saver, restored_pid
from drom.agent.checkpoint.store import TOOLS, ImageStore
from drom.agent.checkpoint.tools import Limit, Tools
from drom.agent.enforcement import affinity
from drom.agent.execution import launch
from drom.agent.execution.launch import LaunchSite
from drom.agent.execution.protocol import as_json
from drom.agent.execution.spool import Folder
from drom.agent.system import proc
from drom.agent.system.files import read_plain
from drom.agent.system.paths import RUN
from drom.agent.system.process_title import set_title

from dromlib.cpulist import mask_of
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.agent.checkpoint.store import Entry
    from drom.agent.execution.protocol import Source, Start

T = TypeVar("T")

SAVE, REPORT = "save", "report"
STARTING, RUNNING = "starting", "running"
ALARM = signal.SIGUSR1
"""The signal that announces an order."""
LONGEST = 1 << 16
"""Most bytes of an order or a report."""
PATIENCE = 60.0
"""Seconds to wait for a CRIU that carries on although what started it was killed."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG: a process ends with the one that started it."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: the processes of a container become children of this one."""
_LIMITS = (
    *("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "MSGQUEUE", "NICE", "NOFILE"),
    *("NPROC", "RSS", "RTPRIO", "RTTIME", "SIGPENDING", "STACK"),
)


@dataclass(frozen=True, slots=True)
class Order:
    """A save with the number `generation`, to be done by the second `until` of CLOCK_MONOTONIC."""

    generation: int
    until: float


@dataclass(frozen=True, slots=True)
class Report:
    """How far a filler has come: `state` is starting or running, and `settled` says that nothing is left to be done.

    The last order that was not carried out has the number `answered`, for a `reason`. A job that does not start has a
    `fault` (one of `protocol.FAULTS`) with a `reason`, or a step that was `refused` with an `errno`, as of `Status`.
    One whose process was killed because it needed more memory than it may have is `over_memory`, and `lost` says how
    it has ended if neither its program nor a user ended it.
    """

    state: str = STARTING
    settled: bool = False
    answered: int = 0
    reason: str = ""
    fault: str = ""
    refused: str = ""
    errno: int = 0
    over_memory: bool = False
    lost: str = ""


def read(folder: Path, name: str, kind: type[T]) -> T | None:
    """Return the order or report in the folder of an attempt; None if there is none."""
    try:
        return kind(**json.loads(read_plain(folder / name, LONGEST)))
    except (OSError, ValueError, TypeError):
        return None


def write(folder: Path, name: str, value: Order | Report) -> None:
    """Write an order or report into the folder of an attempt. Raises OSError."""
    new = folder / f"{name}.new"
    new.write_text(json.dumps(asdict(value)), encoding="utf-8")
    new.rename(folder / name)


@dataclass(frozen=True, slots=True)
class Site:
    """Where fillers run: the image store with its quotas, the path of runc, and the node as `LaunchSite` has it."""

    store: str
    quota: int
    user_quota: int
    runc: str
    node: str
    runtime_dir: str
    resources: dict[str, int]
    limits_memory: bool

    @property
    def place(self) -> LaunchSite:
        """The place of the node's jobs."""
        return LaunchSite(self.node, Path(self.runtime_dir), self.resources)

    @property
    def tools(self) -> Tools:
        """The scripts that the agent has written."""
        return Tools(Path(self.store) / TOOLS, self.runc)

    def open(self) -> ImageStore:
        """Return the store, which an agent owns."""
        return ImageStore(Path(self.store), Quota(self.quota, self.user_quota), owns=False)


class _NotStartedError(CheckpointError):
    """A step of the start that the user's choice, or the node, does not allow, and its errno."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what)
        self.report = Report(refused=what, errno=number, settled=True)


class Filler:
    """An attempt of a filler: what is to be started is in `folder`; `alarm` is readable when an order has come."""

    def __init__(self, folder: Path, start: Start, site: Site, alarm: int) -> None:
        self._folder = folder
        self._start = start
        self._place = site.place
        self._alarm = alarm
        self._store = site.open()
        self._memory = start.memory if site.limits_memory else 0
        self._containers = Containers(site.tools, start.script)
        self._saver = Saver(self._store, site.tools, {CONTAINER: self._containers})
        self._image: Entry | None = None
        """The image that the job was restored from, which is locked."""
        self._report = Report()

    def run(self) -> int:
        """Start or restore the job, and keep it until it ends; return its exit code, or -N if signal N ended it."""
        self._tell(self._report)
        pid = self._begin()
        status = 0 if pid is None else self._keep(pid)
        over_memory = self._report.over_memory or self._containers.exceeded_memory(self._start.job)
        self._containers.remove(self._start.job)
        if self._image:
            self._image.release()
        self._saver.settle(self._start.job)
        self._tell(replace(self._report, settled=True, over_memory=over_memory))
        return status

    def _begin(self) -> int | None:
        """Start or restore the job; return the number of its first process, None if it does not run."""
        start = self._start
        try:
            if not start.image:
                return self._containers.start(start.job, self._program())
            if not self._order():
                if start.source and not self._store.find(start.job, start.image):
                    self._fetch(start.source, self._limit())
                self._image = self._saver.resume(start.job, start.image, self._limit())
                return self._with_limit(restored_pid(self._image))
        except _NotStartedError as error:
            self._tell(error.report)
        except CrashedError as error:
            self._tell(Report(lost=str(error)))
        except CheckpointError as error:
            if not (start.image and self._order()):  # which has ended the restore otherwise
                why = "image" if start.image else "node"
                self._tell(Report(fault="room" if isinstance(error, NoRoomError) else why, reason=str(error)))
        except OSError as error:
            where = f"{self._place.node} cannot start a container in {self._store.path}"
            fault = "room" if error.errno in FULL else launch.fault_of_node(error.errno or 0)
            self._tell(Report(fault=fault, reason=f"{where}: {error.strerror}."))
        return None

    def _limit(self) -> Limit:
        return Limit(time.monotonic() + RESTORE_SECONDS, self._alarm)

    def _with_limit(self, pid: int) -> int:
        """Limit the memory of a restored job with a first process `pid`, and return that. A job with more is killed."""
        try:
            if self._memory:
                self._containers.limit_memory(self._start.job, self._memory)
        except OSError:
            self._report = replace(self._report, over_memory=True)
            os.kill(pid, signal.SIGKILL)
        return pid

    def _fetch(self, source: Source, limit: Limit) -> None:
        from drom.agent.checkpoint import network  # takes a while

        wanted = (self._start.job, self._start.image, self._start.uid)
        network.fetch(self._store, wanted, network.Place(**as_json(source)), limit)

    def _keep(self, pid: int) -> int:
        mask = mask_of(os.sched_getaffinity(0))
        affinity.bind(lambda: descendants(pid), mask)
        self._tell(replace(self._report, state=RUNNING))
        pidfd = os.pidfd_open(pid)
        poller = select.poll()
        for fd in (pidfd, self._alarm):
            poller.register(fd, select.POLLIN)
        while True:
            order = self._order()
            if order and order.generation > self._report.answered and not self._save(pid, order):
                continue
            if pidfd in dict(poller.poll()):
                os.close(pidfd)
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(BlockingIOError):
                os.read(self._alarm, select.PIPE_BUF)

    def _save(self, pid: int, order: Order) -> bool:
        """Save the job; return False if it goes on."""
        start, stat = self._start, proc.read_stat(pid)
        binds = self._image.image.binds if self._image else containers.node_folders()
        about = (start.job, order.generation, CONTAINER, start.uid, start.gid)
        try:
            image = Image(*about, pid, stat.start_time if stat else 0, proc.boot_id().hex(), binds=binds)
            self._saver.save(image, Limit(order.until))
        except CheckpointError as error:
            lost = str(error) if isinstance(error, CrashedError) else ""
            self._tell(replace(self._report, answered=order.generation, reason=error.why, lost=lost))
            return False
        if self._image:
            self._image.remove()
        return True

    def _order(self) -> Order | None:
        return read(self._folder, SAVE, Order)

    def _tell(self, report: Report) -> None:
        self._report = report
        with contextlib.suppress(OSError):  # the disk is full; the store says what became of the job
            write(self._folder, REPORT, report)

    def _program(self) -> Program:
        """Return the program of the job, which its user may run here. Raises `_NotStartedError`."""
        start, place = self._start, self._place
        try:
            name, group = (user := pwd.getpwuid(start.uid)).pw_name, user.pw_gid
        except KeyError as error:
            raise _NotStartedError("user", errno.ENOENT) from error
        groups = os.getgrouplist(name, group)
        if start.uid and start.gid not in groups:
            raise _NotStartedError("group", errno.EPERM)
        paths = [launch.expand(path or "", start, place.node) for path in (start.input, start.output, start.error)]
        files = [os.path.join(start.cwd, path) if path else os.devnull for path in paths]  # noqa: PTH118 - texts
        files[2] = files[2] if paths[2] else files[1]
        script = [*launch.interpreter(start.script), bundle.SCRIPT] if start.script else []
        program = Program(
            start.uid,
            start.gid,
            containers.node_folders(),
            [*script, *start.argv],
            launch.environment(start, place) | {"DROM_RUNTIME_DIR": str(RUN)},  # nothing is there in a container
            start.cwd,
            groups,
            input=files[0],
            output=files[1],
            error=files[2],
            umask=start.umask,
            limits=_limits(),
            memory=self._memory,
        )
        _try_as_user(program, appends=start.attempt > 1, finds=not start.script)
        return program


def _limits() -> dict[str, tuple[int, int]]:
    """Return the limits of this process, which are those of other jobs, for runc."""
    found = {f"RLIMIT_{name}": resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS}
    return {name: (soft % (1 << 64), hard % (1 << 64)) for name, (soft, hard) in found.items()}  # -1: no limit


def _try_as_user(program: Program, *, appends: bool, finds: bool) -> None:
    """Enter the folder, create the files and find the program as the user, in a child. Raises `_NotStartedError`.

    The container would only report an exit code for what is missing. A file that is not appended to is emptied.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, " ".join(map(str, _first_fault(program, appends=appends, finds=finds))).encode())
        os._exit(0)
    os.close(writes)
    with open(reads, encoding="ascii") as answer:
        what, number = answer.read().split() or ("process", str(errno.EAGAIN))
    os.waitpid(child, 0)
    if what != "nothing":
        raise _NotStartedError(what, int(number))


def _first_fault(program: Program, *, appends: bool, finds: bool) -> tuple[str, int]:
    """Become the user, and return the first step that fails with its errno; "nothing" if all succeed."""
    what = "groups"
    try:
        os.setgroups(program.groups)
        os.setgid(program.gid)
        os.setuid(program.uid)
        os.umask(program.umask)
        what = "cwd"
        os.chdir(program.folder)
        what = "input"
        _touch(program.input, os.O_RDONLY)
        how = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if appends else os.O_TRUNC)
        what = "output"
        _touch(program.output, how)
        what = "error"
        _touch(program.error, how)
        what = "program"
        if finds and not shutil.which(program.command[0], path=program.environment.get("PATH")):
            there = os.path.exists(program.command[0])  # noqa: PTH110 - a text
            return what, errno.EACCES if there and "/" in program.command[0] else errno.ENOENT
    except OSError as error:
        return what, error.errno or errno.EIO
    return "nothing", 0


def _touch(path: str, how: int) -> None:
    try:
        os.close(os.open(path, how | os.O_NONBLOCK | os.O_NOCTTY, 0o666))
    except OSError as error:
        if error.errno != errno.ENXIO:  # a pipe that nobody reads yet
            raise


def _end_as(status: int) -> None:
    """End this process with an exit code, or by signal -`status`."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _catch_signals() -> int:
    """Ignore the signals of the job, but not in what is started; return a descriptor that shows an `ALARM`."""
    reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(writes, b"!")

    fixed = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    for number in signal.valid_signals() - fixed:
        signal.signal(number, ring if number == ALARM else lambda *_: None)
    return reads


def keep(words: Sequence[str]) -> None:
    """Keep the filler of the attempt in a folder, at a site (`Site` as JSON)."""
    alarm = _catch_signals()
    folder, site = Path(words[0]), Site(**json.loads(words[1]))
    set_title("drom-filler", folder.name)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    start = Folder(folder).start()
    _end_as(Filler(folder, start, site, alarm).run() if start else 1)


def settle(words: Sequence[str]) -> None:
    """Remove the container of a job and all images but its last, and settle the images of jobs that have died.

    `words` are the number of the job (0: none) and the site in JSON. Exits with 1 if an image of the job stays in use.
    """
    site = Site(**json.loads(words[1]))
    set_title("drom-filler", "settle", words[0])
    store = site.open()
    saver = Saver(store, site.tools, {CONTAINER: (made := Containers(site.tools))})
    if job := int(words[0]):
        until = time.monotonic() + PATIENCE
        while store.in_use(job) and time.monotonic() < until:
            time.sleep(0.05)
        if store.in_use(job):
            sys.exit(1)
        made.remove(job)
        saver.settle(job)
    saver.tidy()


def offer(words: Sequence[str]) -> None:
    """Serve the image of a job, with the number of the save, at a site, to a node in the network of a scheduler.

    Print the place as JSON, or a reason. This process ends with its agent.
    """
    from drom.agent.checkpoint import network

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    job, generation = int(words[0]), int(words[1])
    set_title("drom-filler", "offer", f"{job}.{generation}")
    store = Site(**json.loads(words[2])).open()
    try:
        store.take(job, generation, WHOLE, WHOLE).release()
        server = network.Server(network.address_towards(words[3]))
        os.write(sys.stdout.fileno(), json.dumps({"source": asdict(server.place)}).encode())
        server.serve(store, job, generation)
        server.close()
    except (OSError, DromError) as error:
        os.write(sys.stdout.fileno(), json.dumps({"reason": str(error)}).encode())


if __name__ == "__main__":
    {"keep": keep, "settle": settle, "offer": offer}[sys.argv[1]](sys.argv[2:])
