# SPDX-License-Identifier: Apache-2.0
"""Fillers on a node, for its agent: how they can be saved, orders to save them, their images, and what became of them.

A filler in a container is kept by a drom-filler (`drom.agent.execution.filler`), which outlives the agent. One that
saves itself (`drom.agent.checkpoint.program`) is a job as any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from drom.agent.checkpoint import freezer, program, tools
from drom.agent.checkpoint.containers import Containers, is_in, name_of
from drom.agent.checkpoint.images import REMOVED, WHOLE, CheckpointError, Quota
from drom.agent.checkpoint.store import TOOLS, ImageStore
from drom.agent.execution import filler, launch
from drom.agent.execution.filler import ALARM, REPORT, RUNNING, SAVE, Order, Report, Site
from drom.agent.execution.protocol import CONTAINER, PROGRAM, Kept, Offer, Offered, Source, from_json
from drom.agent.system import proc, python_command
from drom.agent.system.cpu_type import cpu_type

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.agent.execution.launch import LaunchSite
    from drom.agent.execution.protocol import Discard, FromAgent, Save, Start
    from drom.agent.execution.supervisor import Attempt
    from drom.agent.observe.log import Log
    from drom.agent.system.loop import Loop

TIDY = 300.0
"""Seconds between two searches for images that a killed drom-filler has left."""
MOST_OFFERS = 16
"""Most images that are served at once; others wait for these."""
_MODULE = filler.__name__


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """Where a node keeps the images of its fillers, and how many bytes they may take."""

    path: Path
    quota: Quota


class Fillers:
    """The fillers of a node. Their images are in the folder `images`; None: the node saves no containers.

    `loop` reports when processes started here end. `scheduler` is the address of the scheduler, and `tell` sends it
    messages. `limits_memory`: the memory of jobs is limited.
    """

    def __init__(
        self,
        loop: Loop,
        log: Log,
        place: LaunchSite,
        images: ImageFolder | None,
        *,
        scheduler: str,
        tell: Callable[[FromAgent], None],
        limits_memory: bool,
    ) -> None:
        self._scheduler = scheduler
        self._tell = tell
        self._offers: dict[int, subprocess.Popen[bytes]] = {}
        """The processes that serve images, by job."""
        self._offered_later: dict[int, int] = {}
        """The images that are served once others have been, by job: the numbers of their saves."""
        self._loop = loop
        self._log = log
        self._place = place
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._settling: dict[int, Attempt] = {}
        self._tidy_at, self._tidies = 0.0, False
        self.cpu = cpu_type()
        self._store: ImageStore | None = None
        self._saves_others = tools.saves_all_users()
        about = (place.node, str(place.runtime_dir), dict(place.resources))
        self._site = Site("", 0, 0, "", *about, limits_memory)
        if images and os.geteuid() == 0 and shutil.which("criu") and shutil.which("runc"):
            try:
                self._open(images)
            except CheckpointError as error:
                self._log("images_unusable", reason=str(error))

    def _open(self, images: ImageFolder) -> None:
        store = ImageStore(images.path, images.quota)
        try:
            Containers(made := tools.prepare(store.path / TOOLS))
        except CheckpointError:
            store.close()
            raise
        quota = images.quota
        self._site = replace(
            self._site, store=str(store.path), quota=quota.store, user_quota=quota.user, runc=made.runc
        )
        self._store = store

    @property
    def saves(self) -> tuple[str, ...]:
        """The ways in which this node can save fillers."""
        return (CONTAINER, PROGRAM) if self._store else (PROGRAM,)

    def kept(self) -> tuple[Kept, ...]:
        """Return the images that are whole or in use."""
        entries = self._store.entries() if self._store else []
        return tuple(Kept(one.image.job, one.image.generation) for one in entries)

    def run(self, now: float) -> None:
        """Settle from time to time what killed processes have left in the store."""
        if self._store and now >= self._tidy_at and not self._tidies:
            self._tidy_at = now + TIDY

            def done() -> None:
                self._tidies = False

            if not self._store.is_empty():
                self._settle(0, done)
                self._tidies = True

    def next_due(self) -> float | None:
        """Return when `run` has something to do."""
        return self._tidy_at if self._store and not self._tidies else None

    def close(self, *, remains: bool) -> None:
        """Leave the store to the next agent, and remove it if it is empty and no filler `remains`."""
        for pidfd, child in list(self._children.items()):
            self._forget(pidfd)
            if not remains or child in self._offers.values():
                child.kill()
                child.wait()
        if self._store:
            if not remains:
                self._store.sweep()
            if not remains and self._store.is_empty():
                self._store.remove_all()
            self._store.close()

    # --- starts and ends --------------------------------------------------------------------------------------------

    def why_not(self, start: Start) -> tuple[str, str] | None:
        """Return the fault and the reason if a filler cannot be started here; None if it can, or is none."""
        if start.saving != CONTAINER:
            return None
        node = self._place.node
        if not self._store:
            return (
                "image" if start.image else "job",
                f"{node} cannot save fillers in containers: see drom doctor there.",
            )
        if start.uid and not self._saves_others:
            return "job", f"{node} can save only root's fillers in containers: use --checkpoint program."
        self._withdraw(start.job)
        if start.image and not start.source and not self._store.find(start.job, start.image):
            return "image", f"{node} has no image {start.image} of job {start.job}."
        return None

    def keeper(self, attempt: Attempt) -> Start:
        """Return what drom-step runs for an attempt: the job, or a drom-filler in its reservation, as root."""
        start = attempt.start
        if start.saving != CONTAINER:
            return start
        about = ["--runtime-dir", str(self._place.runtime_dir), "--job", attempt.name, "--class", "rigid", "--await"]
        words = ("keep", str(attempt.folder.path), json.dumps(asdict(self._site)))
        command = [*about, "--malleability", "bind-only", "--", *python_command.module(_MODULE, *words)]
        alone = replace(start, uid=0, gid=0, umask=0o077, cwd="/", env={}, script="", saving="", image=0)
        return replace(
            alone, mode="launch", argv=(str(native.run_path()), *command), input=None, output=None, error=None
        )

    def report(self, attempt: Attempt) -> Report:
        """Return how far a filler has come."""
        return filler.read(attempt.folder.path, REPORT, Report) or Report()

    def runs(self, attempt: Attempt) -> bool:
        """Return whether the program of an attempt runs. Its drom-step must have started a command."""
        return attempt.start.saving != CONTAINER or self.report(attempt).state == RUNNING

    def holds(self, attempt: Attempt, pid: int) -> bool:
        """Return whether a process of an attempt is part of the job, not of what keeps and saves it."""
        if attempt.start.saving != CONTAINER:
            return True
        name = name_of(self._site.tools.folder, attempt.start.job)
        return is_in(pid, name) and os.path.basename(proc.executable(pid)) != "criu"  # noqa: PTH119 - a text

    def thaw(self, attempt: Attempt) -> None:
        """Thaw the processes of an attempt that were killed during a save, so that they can end."""
        freezer.thaw(name_of(self._site.tools.folder, attempt.start.job))

    def settled(self, attempt: Attempt) -> bool:
        """Return whether nothing is left to be done for an attempt without processes; if not, have it done."""
        container = self._store and attempt.start.saving == CONTAINER
        if not container or attempt.settled or self.report(attempt).settled:
            return True
        if attempt not in self._settling.values():
            job = attempt.start.job

            def done() -> None:
                del self._settling[job]
                attempt.settled = True

            self._settle(job, done)
            self._settling[job] = attempt
        return False

    def outcome(self, attempt: Attempt) -> tuple[int, int]:
        """Return the number of the save that has ended an attempt, and the bytes of its image; 0 if none has."""
        start, order = attempt.start, filler.read(attempt.folder.path, SAVE, Order)
        if not order:
            return 0, 0
        if start.saving == PROGRAM:
            saved = attempt.status is not None and program.outcome(attempt.status.status) == program.SAVED
            return (order.generation, 0) if saved else (0, 0)
        entry = self._store.find(start.job, order.generation) if self._store else None
        if entry and entry.state == WHOLE:
            return order.generation, entry.size()
        report = self.report(attempt)
        return (start.image, 0) if report.state != RUNNING and not report.fault else (0, 0)

    def why_lost(self, attempt: Attempt) -> str:
        """Return how an attempt has ended if neither its program nor a user ended it; an empty text otherwise."""
        report = self.report(attempt)
        killed = attempt.status is not None and attempt.status.status == -signal.SIGKILL and not report.settled
        return "what keeps it on the node was killed." if killed else report.lost

    def refusal(self, attempt: Attempt) -> tuple[str, str] | None:
        """Return the fault and the reason for which a filler was not started; None if it was."""
        report = self.report(attempt)
        if report.refused and attempt.status:
            status = replace(attempt.status, refused=report.refused, errno=report.errno)
            return launch.why_refused(status, attempt.start, self._place)
        return (report.fault, report.reason) if report.fault else None

    # --- saves ------------------------------------------------------------------------------------------------------

    def order(self, attempt: Attempt, wanted: Save, now: float) -> None:
        """Write the order to save a filler, unless it was written before, and set `attempt.asked` to the save's number.

        Raises OSError if the order cannot be written.
        """
        known = filler.read(attempt.folder.path, SAVE, Order)
        attempt.asked = wanted.generation
        if known and known.generation >= wanted.generation:
            return
        filler.write(attempt.folder.path, SAVE, Order(wanted.generation, now + wanted.within))
        attempt.announced = False

    def advance(self, attempt: Attempt, now: float) -> str:
        """Announce an order and look for the answer: return why the job goes on, or an empty text for now."""
        order = filler.read(attempt.folder.path, SAVE, Order)
        report = self.report(attempt)
        if attempt.start.saving == CONTAINER and attempt.pid and proc.start_time(attempt.pid) is None:
            self.thaw(attempt)  # drom-step kills what its drom-filler left, also a CRIU that had frozen the job
        if report.answered >= attempt.asked:
            attempt.asked = 0
            return report.reason
        if order and attempt.start.saving == PROGRAM and now >= order.until:
            reason = "its program has not ended in time: it must end with status 85 after SIGUSR1."
            with contextlib.suppress(OSError):
                filler.write(attempt.folder.path, REPORT, replace(report, answered=attempt.asked, reason=reason))
            attempt.asked = 0
            return reason
        if order and not attempt.announced:
            attempt.announced = self._announce(attempt)
        return ""

    def take_up(self, attempt: Attempt) -> None:
        """Find out how far a filler has come, and that its last order is to be answered."""
        if not self.runs(attempt):
            attempt.state = "starting"
        order = filler.read(attempt.folder.path, SAVE, Order)
        if order and order.generation > self.report(attempt).answered:
            attempt.asked, attempt.announced = order.generation, attempt.start.saving == PROGRAM

    def _announce(self, attempt: Attempt) -> bool:
        """Send the signal for an order; return whether the process has received it, or will read the order anyway."""
        container = attempt.start.saving == CONTAINER
        if container and not (attempt.folder.path / REPORT).exists():
            return True
        stat = proc.read_stat(attempt.pid) if attempt.pid else None
        pidfd = proc.open_pidfd(attempt.pid, stat.start_time) if stat and stat.ppid == attempt.keeper else None
        if pidfd is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, ALARM if container else program.SIGNAL)
        os.close(pidfd)
        return True

    # --- images -----------------------------------------------------------------------------------------------------

    def receive(self, message: Discard | Offer) -> None:
        """Carry out an order for an image: remove it, if it is here and not in use, or serve it to another node."""
        self._withdraw(message.job)
        if isinstance(message, Offer):
            self._offer(message.job, message.generation)
        elif self._store:
            with contextlib.suppress(CheckpointError):
                self._store.take(message.job, message.generation, WHOLE, REMOVED).release()
                self._tidy_at = 0.0

    def _offer(self, job: int, generation: int) -> None:
        if not self._store:
            self._tell(Offered(job, generation, None, f"{self._place.node} has no images."))
            return
        if len(self._offers) >= MOST_OFFERS:
            self._offered_later[job] = generation
            return
        words = (str(job), str(generation), json.dumps(asdict(self._site)), self._scheduler)
        answer, output = os.pipe2(os.O_CLOEXEC)
        try:
            child = self._offers[job] = self._spawn(lambda: None, "offer", *words, output=output)
        except OSError as error:
            os.close(answer)
            self._tell(Offered(job, generation, None, f"no process can be started to send it: {error.strerror}."))
            return
        finally:
            os.close(output)

        def answered() -> None:
            self._loop.unwatch(answer)
            text = os.read(answer, select.PIPE_BUF)
            os.close(answer)
            if text or child.poll() != -signal.SIGKILL:  # of a child that was to end
                self._tell(_offered(job, generation, text))

        self._loop.watch(answer, answered)

    def _withdraw(self, job: int) -> None:
        """Stop serving the image of a job."""
        self._offered_later.pop(job, None)
        if child := self._offers.pop(job, None):
            child.kill()
            child.wait()

    # --- children ---------------------------------------------------------------------------------------------------

    def _settle(self, job: int, done: Callable[[], None]) -> None:
        self._spawn(done, "settle", str(job), json.dumps(asdict(self._site)))

    def _spawn(
        self, done: Callable[[], None], *words: str, output: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Run a drom-filler, and call `done` at its end."""
        child = subprocess.Popen(
            python_command.module(_MODULE, *words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={"PATH": launch.USUAL_PATH},
            cwd="/",
        )
        try:
            pidfd = os.pidfd_open(child.pid)
        except OSError:
            child.kill()
            child.wait()
            raise
        self._children[pidfd] = child

        def ended() -> None:
            self._forget(pidfd)
            child.wait()
            self._offers = {job: one for job, one in self._offers.items() if one is not child}
            if self._offered_later and len(self._offers) < MOST_OFFERS:
                job = next(iter(self._offered_later))
                self._offer(job, self._offered_later.pop(job))
            done()

        self._loop.watch(pidfd, ended)
        return child

    def _forget(self, pidfd: int) -> None:
        del self._children[pidfd]
        self._loop.unwatch(pidfd)
        os.close(pidfd)


def _offered(job: int, generation: int, text: bytes) -> Offered:
    """Return the answer to an offer, from what its process has printed."""
    try:
        found = json.loads(text)
        source = from_json(Source, found["source"]) if "source" in found else None
        return Offered(job, generation, source, found.get("reason", ""))
    except (ValueError, TypeError, KeyError):
        return Offered(job, generation, None, "the process that was to send the image has ended.")
