# SPDX-License-Identifier: Apache-2.0
"""Starts, saves and restores fillers in containers of runc, which have process numbers of their own."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.checkpoint import bundle, faults, freezer
from drom.agent.checkpoint.bundle import Program
from drom.agent.checkpoint.freezer import GROUPS
from drom.agent.checkpoint.images import CheckpointError, CrashedError
from drom.agent.checkpoint.processes import PATIENCE_MS, kill
from drom.agent.checkpoint.store import is_full
from drom.agent.enforcement import memory_limits
from drom.agent.system import proc
from drom.agent.system.mounts import below, detach_below, remove_folder

if TYPE_CHECKING:
    from drom.agent.checkpoint.images import Image
    from drom.agent.checkpoint.tools import Tools

_APART = ("unshare", "--mount", "--propagation", "slave")
"""Runs runc in mounts of its own: while it restores a container, it binds folders of the node into the bundle. If it is
killed, they are gone, and nobody who removes the bundle removes the node's files."""


class Containers:
    """The containers of a node. Their states and bundles are below the folder of `tools`.

    Each bundle has `script` as the file `bundle.SCRIPT`. Raises `CheckpointError` if runc is not installed.
    """

    def __init__(self, tools: Tools, script: str = "") -> None:
        if not tools.runc:
            msg = "runc is not installed: install it, or save jobs without a container."
            raise CheckpointError(msg)
        self._tools = tools
        self._script = script

    def start(self, job: int, program: Program) -> int:
        """Start a program in a new container, and return its process number on the node.

        Raises `CheckpointError`, `CrashedError` if runc was killed, or what was to become the container, and OSError,
        for example if the disk of the store is full.
        """
        self.remove(job)
        folder = self._write_bundle(job, program)
        pid_file, log = folder / "pid", folder / "log"
        command = ("run", "--detach", "--bundle", str(folder), "--pid-file", str(pid_file), self.name(job))
        status = self._call("--log", str(log), *command)
        said = log.read_text(errors="replace") if status and log.exists() else ""
        if status < 0 or faults.was_killed(said):
            self.remove(job)
            raise CrashedError("runc was killed while it started the job.")
        if status:
            reason = faults.of_runc(said)
            full = is_full(folder)  # runc could not write, perhaps not even to its log
            self.remove(job)
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            msg = f"job {job} cannot be started in a container: {reason}"
            raise CheckpointError(msg)
        return int(pid_file.read_text(encoding="ascii"))

    def dump(self, image: Image, folder: Path) -> list[str]:
        """Freeze a container, and return the command that saves it."""
        freezer.freeze(self.name(image.job))
        options = ("--image-path", str(folder), "--work-path", str(folder), "--file-locks")
        return [*self._runc, "--log", str(folder / "runc.log"), "checkpoint", *options, self.name(image.job)]

    def thaw(self, image: Image) -> None:
        """Thaw a container that was not saved."""
        freezer.thaw(self.name(image.job))

    def restore(self, image: Image, folder: Path) -> list[str]:
        """Return the command that restores a container. Raises `CheckpointError` if this node lacks its folders."""
        for path in image.binds:
            if not Path(path).is_dir():
                msg = f"job {image.job} needs the folder {path}, which this node does not have: restore it on another."
                raise CheckpointError(msg)
        self.remove(image.job)
        made = self._write_bundle(image.job, Program(image.uid, image.gid, image.binds))
        options = ("--image-path", str(folder), "--work-path", str(folder), "--file-locks")
        where = ("--detach", "--bundle", str(made), self.name(image.job))
        return [*self._runc, "--log", str(folder / "runc.log"), "restore", *options, *where]

    def clean(self, image: Image, folder: Path, since: int) -> None:  # noqa: ARG002 - as of the other way
        """Kill what CRIU left of a container, and detach what it had mounted in the folder of the image."""
        self.remove(image.job)
        detach_below(folder)

    @property
    def _runc(self) -> tuple[str, ...]:
        return (*_APART, self._tools.runc, "--root", str(self._state))

    @property
    def _state(self) -> Path:
        return self._tools.folder / "runc"

    def _call(self, *words: str) -> int:
        return self._tools.run((*self._runc, *words))

    def _write_bundle(self, job: int, program: Program) -> Path:
        folder = self._bundle(job)
        root = folder / "rootfs"
        root.mkdir(parents=True, exist_ok=True)
        if below(folder):
            msg = f"job {job} cannot be in a container: something is mounted below {folder}: unmount that."
            raise CheckpointError(msg)
        root.chmod(0o755)
        for path in Path("/").iterdir():
            if path.is_symlink() and not (root / path.name).is_symlink():
                (root / path.name).symlink_to(path.readlink())
        if self._script:
            script = root / bundle.SCRIPT.lstrip("/")
            script.write_text(self._script, encoding="utf-8", errors="surrogateescape")
            script.chmod(0o555)
        content = bundle.config(self.name(job), self._tools.conf, program)
        (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
        return folder

    def name(self, job: int) -> str:
        """Return the name of a job's container and control group, which no other store on this machine uses."""
        return name_of(self._tools.folder, job)

    def _bundle(self, job: int) -> Path:
        return self._tools.folder / "bundles" / str(job)

    def limit_memory(self, job: int, memory: int) -> None:
        """Limit the memory of a restored container, now without CRIU. Raises OSError if it has more."""
        memory_limits.make(self._memory_group(job), memory)

    def exceeded_memory(self, job: int) -> bool:
        """Return whether the kernel killed a process of a container because it needed more than its memory."""
        return memory_limits.exceeded(self._memory_group(job))

    def _memory_group(self, job: int) -> Path:
        v1 = GROUPS / memory_limits.CONTROLLER
        return (v1 if v1.is_dir() else GROUPS) / self.name(job)

    def remove(self, job: int) -> None:
        """Kill a container, if it exists, and remove what runc keeps of it. Call this once its job is saved or over."""
        name = self.name(job)
        made, state = self._bundle(job), self._state / name
        _kill_group(name)  # runc does not know a container if it was killed while it restored that
        for path in (made, state):  # where runc binds the node's folders while it restores, and may have been killed
            detach_below(path)
        if below(made) or below(state):
            return  # runc would empty what is mounted there
        if state.exists():
            self._call("delete", "--force", name)
        for path in (made / "rootfs", made, state):
            remove_folder(path)


def node_folders() -> tuple[str, ...]:
    """Return the folders of this node that a container sees: those at the top, without the system's own."""
    folders = (path for path in Path("/").iterdir() if path.is_dir() and not path.is_symlink())
    return tuple(sorted(str(path) for path in folders if path.name not in bundle.OWN))


def name_of(folder: Path, job: int) -> str:
    """Return the name of a job's container and control group, for the folder of the tools."""
    return f"drom-{zlib.crc32(os.fsencode(folder)):08x}-{job}"


def is_in(pid: int, name: str) -> bool:
    """Return whether a process is in the control group of the container `name`."""
    return f"/{name}\n".encode() in (proc.read(f"/proc/{pid}/cgroup") or b"")


def _kill_group(name: str) -> None:
    """Kill and reap the processes of a container's control group, and remove it, which may take a moment longer."""
    freezer.thaw(name)
    until = time.monotonic() + PATIENCE_MS / 1e3
    while not _end_group(name) and time.monotonic() < until:
        time.sleep(0.01)  # control groups of the first version tell nobody that they are empty


def _end_group(name: str) -> bool:
    """Kill and reap the processes that a control group has now, and return whether it could be removed."""
    stats = {pid: stat for pid in proc.numbers("/proc") if is_in(pid, name) and (stat := proc.read_stat(pid))}
    # The first process comes first: all others end with it.
    for start_time, pid in sorted((stat.start_time, pid) for pid, stat in stats.items()):
        pidfd = proc.open_pidfd(pid, start_time)
        if pidfd is not None:
            kill(pid, pidfd)
            os.close(pidfd)
    groups = [path for parent in (GROUPS, *GROUPS.iterdir()) if (path := parent / name).is_dir()]
    for path in groups:
        with contextlib.suppress(OSError):
            path.rmdir()
    return not any(path.exists() for path in groups)
