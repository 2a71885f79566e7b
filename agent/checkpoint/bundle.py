# SPDX-License-Identifier: Apache-2.0
"""The configuration with which runc starts or restores a filler. Pure.

A container sees its node's own folders at their usual paths, with the rights of the job's user and no capability. Its
processes, mounts and IPC are its own; its network is the node's. CRIU cannot save a file that was opened outside of the
container, so a shell inside opens the files of standard input and output, as the user. It remains the first process,
which the kernel protects from signals, so that these have their usual effect on the program. It itself prints nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OWN = ("dev", "lost+found", "proc", "run", "sys")
"""Top-level folders that a container does not share with its node."""
_OPEN = 'exec <"$1" >>"$2" 3>>"$3" 2>/dev/null; shift 3; "$@" 2>&3 3>&-; exit $?'
SCRIPT = "/drom-script"
"""Where a container has the script of its job."""
_HIDDEN = ("nosuid", "noexec", "nodev")
_MOUNTS = (
    ("/proc", "proc", _HIDDEN),
    ("/sys", "sysfs", (*_HIDDEN, "ro")),
    ("/dev", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=64k")),
    ("/dev/pts", "devpts", ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620")),
    ("/dev/shm", "tmpfs", (*_HIDDEN, "mode=1777")),  # noqa: S108 - of the container
    ("/dev/mqueue", "mqueue", _HIDDEN),
)


@dataclass(frozen=True, slots=True)
class Program:
    """What a container runs as a user: a command with its environment, folder and files.

    `binds` are the folders of the node that it sees, `groups` further groups of the user, `limits` the soft and hard
    limits of resources by name, and `memory` the most bytes that it may have (0: no limit). A restore takes the command
    and what follows it from the image, except the memory.
    """

    uid: int
    gid: int
    binds: Sequence[str]
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    groups: Sequence[int] = ()
    input: str = "/dev/null"
    output: str = "/dev/null"
    error: str = "/dev/null"
    umask: int = 0o022
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    memory: int = 0


def config(name: str, conf: str, program: Program) -> dict[str, Any]:
    """Return the content of runc's config.json for a container `name`, which CRIU saves as the file `conf` says."""
    files = (program.input, program.output, program.error)
    mounts = [{"destination": at, "type": kind, "source": kind, "options": list(how)} for at, kind, how in _MOUNTS]
    shared = [{"destination": one, "type": "bind", "source": one, "options": ["bind", "rw"]} for one in program.binds]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {
                "uid": program.uid,
                "gid": program.gid,
                "umask": program.umask,
                "additionalGids": list(program.groups),
            },
            "args": ["/bin/sh", "-c", _OPEN, "sh", *files, *program.command],
            "env": [f"{key}={value}" for key, value in program.environment.items()],
            "cwd": program.folder,
            "noNewPrivileges": True,
            "rlimits": [{"type": kind, "soft": soft, "hard": hard} for kind, (soft, hard) in program.limits.items()],
            "capabilities": {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")},
        },
        "root": {"path": "rootfs"},
        "mounts": [*mounts, *shared],
        "annotations": {"org.criu.config": conf},
        "linux": {
            "cgroupsPath": f"/{name}",
            "resources": {"memory": {"limit": program.memory, "swap": program.memory}} if program.memory else {},
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc")],
        },
    }
