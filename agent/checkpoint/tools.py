# SPDX-License-Identifier: Apache-2.0
"""CRIU and runc: where they are, and how they are run for one image.

Both ways use the script `criu`, which limits the size of files, and have CRIU call the script `commit`. When an
image is complete and the processes still stand, it adds what they have open and the sizes of the image's files, writes
the image through to the disk and makes it whole; if that fails, the processes go on, otherwise CRIU ends them. When all
processes are restored and before they go on, it makes the image restored, unless they have something else open.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.checkpoint.images import CheckpointError
from drom.agent.system import proc

if TYPE_CHECKING:
    from collections.abc import Sequence

OLDEST = (4, 1)
"""The oldest CRIU that works with present kernels (6.13 or newer)."""
_CAP_SYS_RESOURCE = 24
GHOST_LIMIT = 64 << 20
"""Most bytes of a deleted file that a process has open: an image contains such files."""
ABANDONED = "abandoned"
"""A file in the folder of an image whose save is to fail."""
SYNCS = 8
"""Files of a new image that are written through to the disk at once, so that waits for its flushes overlap."""
SIZES = "sizes"
"""A file in the folder of an image with the names and sizes of those that CRIU has written."""
BLOCK = 512
"""Bytes of a block of `ulimit -f`."""

_CRIU = """\
#!/bin/sh
trap '' XFSZ
[ -z "$DROM_IMAGE_BLOCKS" ] || ulimit -f "$DROM_IMAGE_BLOCKS"
# The lock is open as standard input. What CRIU restores must not inherit it, but runc or this script holds it.
# Packets are not blocked: no job with a TCP connection is saved, and a killed CRIU would leave its rules on the node.
# CRIU 4.1 crashes if this option is in its file, and would call a script that is there twice.
set -- "$@" --network-lock=skip --action-script={commit}
[ "$1" = swrk ] && exec {criu} "$@" </dev/null # runc moves this very process into the container's control group
{criu} "$@" </dev/null
exit $?
"""
_COMMIT = """\
#!/bin/sh
# What the processes, $all, have open, and how: `lrwx------ /home/ann/file`. What is deleted has no path.
opened() {
    pids=$CRTOOLS_INIT_PID all=
    while [ -n "$pids" ]; do
        all="$all $pids"
        for pid in $pids; do
            find "/proc/$pid/fd" "/proc/$pid/cwd" "/proc/$pid/exe" "/proc/$pid/map_files" \
                -lname '/*' ! -lname '* (deleted)' -printf '%M %l\\0'
        done
        pids=$(for pid in $pids; do printf '%s\\n' "/proc/$pid/task/"*/children; done | xargs cat) || return 1
    done
}
export LC_ALL=C
case $CRTOOLS_SCRIPT_ACTION in
post-dump | post-restore | pre-resume) cd -P "$CRTOOLS_IMAGE_DIR" && image=$PWD || exit 1 ;;
*) exit 0 ;;
esac
case $CRTOOLS_SCRIPT_ACTION:$image in
post-dump:*.new)
    opened >found && sort -zuo opened found && rm found || exit 1
    # What a process had open is missing there if it was killed meanwhile, or goes on since CRIU was.
    stopped=$(printf '/proc/%s/status\\0' $all | xargs -0 grep -ls '^State:.[Tt]' | wc -l)
    [ "$stopped" -ge "$(find . -name 'mm-*.img' | wc -l)" ] || exit 1
    find . -name '*.img' -printf '%f %s\\n' >sizes || exit 1
    size=$(du -sb .) && [ "${size%%[!0-9]*}" -le $((DROM_IMAGE_BLOCKS * 512)) ] || exit 1
    [ ! -e abandoned ] || exit 1
    set -- ./* .
    printf '%s\\0' "$@" | xargs -0 -P SYNCS -n $(($# / SYNCS + 1)) sync || exit 1
    mv -T "$image" "${image%.new}" && sync "${image%/*}"
    ;;
post-restore:*.restoring)
    # CRIU has opened files as root, and followed links that their user may have made since the save. It has its log,
    # and folders that all may read, open in each process as well.
    printf '%s\\0' 'l--------- /' "l-wx------ $image/restore.log" 'lr-x------ /proc' | sort -zu - opened >expected &&
        opened >found && sort -zuo found found && comm -z -13 expected found >elsewhere &&
        [ ! -s elsewhere ] && rm expected found elsewhere || exit 1
    ;;
pre-resume:*.restoring)
    echo "$CRTOOLS_INIT_PID" >pid && mv -T "$image" "${image%.restoring}.restored"
    ;;
esac
"""
_CONF = """\
ghost-limit {ghost}
cpu-cap ins
"""


@dataclass(frozen=True, slots=True)
class Tools:
    """The scripts that run CRIU and runc, and runc's state, in a folder of the image store."""

    folder: Path
    runc: str

    @property
    def criu(self) -> str:
        """The path of the script that runs CRIU."""
        return str(self.folder / "criu")

    @property
    def commit(self) -> str:
        """The path of the script that CRIU calls when it has saved or restored all processes."""
        return str(self.folder / "commit")

    @property
    def conf(self) -> str:
        """The path of the configuration of CRIU under runc."""
        return str(self.folder / "criu.conf")

    def run(self, command: Sequence[str]) -> int:
        """Run CRIU or runc, and return the exit status. Raises `CheckpointError` if it cannot be started."""
        return self.start(command).wait()

    def start(self, command: Sequence[str], lock: int | None = None, reserved: int = 0) -> subprocess.Popen[bytes]:
        """Start CRIU or runc. While it runs it holds `lock`.

        An image of more than `reserved` bytes fails (0: no limit). Raises `CheckpointError` if it cannot be started.
        """
        environment = {
            "PATH": f"{self.folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DROM_IMAGE_BLOCKS": str(reserved // BLOCK) if reserved else "",
        }
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if lock is None else lock,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            msg = f"{command[0]} cannot be started: {error.strerror}."
            raise CheckpointError(msg) from error


@dataclass(frozen=True, slots=True)
class Limit:
    """When to give up: at `until` (CLOCK_MONOTONIC), or once the descriptor `stop` (-1: none) is readable."""

    until: float
    stop: int = -1

    def is_over(self) -> bool:
        """Return whether it is time to give up."""
        poller = select.poll()
        if self.stop >= 0:
            poller.register(self.stop, select.POLLIN)
        return time.monotonic() >= self.until or bool(poller.poll(0))

    def await_end(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the end of a child; return False if it has not come."""
        pidfd = os.pidfd_open(process.pid)
        try:
            poller = select.poll()
            for fd in (pidfd, self.stop):
                if fd >= 0:
                    poller.register(fd, select.POLLIN)
            ready = poller.poll(max(0.0, self.until - time.monotonic()) * 1000)
        finally:
            os.close(pidfd)
        return pidfd in dict(ready)


def within(seconds: float) -> Limit:
    """Return the limit that many seconds from now."""
    return Limit(time.monotonic() + seconds)


def prepare(folder: Path, criu: str = "criu", runc: str = "runc") -> Tools:
    """Write the scripts below `folder` and return them. Raises `CheckpointError` if CRIU is missing or too old."""
    path = find_criu(criu)
    tools = Tools(folder.absolute(), _program(runc))
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _write(tools.criu, _CRIU.format(criu=shlex.quote(path), commit=shlex.quote(tools.commit)), 0o700)
        _write(tools.commit, _COMMIT.replace("SYNCS", str(SYNCS)), 0o700)
        _write(tools.conf, _CONF.format(ghost=GHOST_LIMIT), 0o600)
    except OSError as error:
        msg = f"cannot write below {folder}: {error.strerror}."
        raise CheckpointError(msg) from error
    return tools


def find_criu(name: str = "criu") -> str:
    """Return the path of CRIU. Raises `CheckpointError` if it is missing or too old."""
    path = _program(name)
    if not path:
        msg = "CRIU is not installed: install CRIU 4.1 or newer, or save jobs by their own checkpoints."
        raise CheckpointError(msg)
    found = subprocess.run((path, "--version"), capture_output=True, text=True, timeout=10, check=False).stdout
    version = parse_version(found)
    if version < OLDEST:
        msg = f"{path} is CRIU {'.'.join(map(str, version))}: install CRIU 4.1 or newer."
        raise CheckpointError(msg)
    return path


def saves_all_users(of: str = "/proc") -> bool:
    """Return whether this process has CAP_SYS_RESOURCE, without which CRIU saves root's own jobs alone."""
    return bool(proc.effective_capabilities(of) >> _CAP_SYS_RESOURCE & 1)


def _program(name: str) -> str:
    """Return the absolute path of a program; empty if it is not installed."""
    path = shutil.which(name)
    return str(Path(path).absolute()) if path else ""


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers in the output of ``criu --version``; (0,) if there are none."""
    for line in text.splitlines():
        name, _, version = line.partition(": ")
        if name == "Version":
            numbers = [part for part in version.strip().split(".") if part.isdecimal()]
            return tuple(map(int, numbers[:3])) or (0,)
    return (0,)


def _write(path: str, text: str, mode: int) -> None:
    """Replace a file at once: the CRIU of an earlier agent may be reading it."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    os.replace(new, path)  # noqa: PTH105 - a text
