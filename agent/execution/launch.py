# SPDX-License-Identifier: Apache-2.0
"""Turns a scheduler's `Start` into a drom-step that runs it, and the status of drom-step into a report."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.agent.checkpoint.program import RESTART
from drom.agent.execution import devices
from drom.agent.execution.mpi_hosts import host_file, mpi_hosts
from drom.agent.execution.protocol import LETTERS, PROGRAM
from drom.agent.ipc.runtime_dir import make_open
from drom.agent.system import python_command

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from drom.agent.execution.protocol import Start
    from drom.agent.execution.spool import Status

ALREADY = ("DROM_TASK", "DROM_CPUS", "DROM_MAX_CPUS")
"""Variables that a program inside a task has in its environment, and that one outside must not have."""
RANKS = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "MV2_COMM_WORLD_", "MPI_LOCAL", "PALS_LOCAL", "PALS_RANKID")
"""Prefixes of the variables by which a program recognises that it is a rank of a launch."""
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and that programs must not inherit as ignored."""
USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
"""The PATH in which programs are searched if a submission has none."""
OPEN_MPI = {
    "OMPI_MCA_plm": "rsh",
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "OMPI_MCA_orte_leave_session_attached": "1",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "PRTE_MCA_prte_leave_session_attached": "1",
}
"""Makes mpirun of Open MPI, before 5 and since, start every daemon on the nodes of a job itself, without a tree, also
on the job's own node if that has another name than its host."""
UNBOUND = {"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"}
"""Turns off binding by mpirun: ranks run on the cores of their job, which mpirun does not know."""
HOSTFILES = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")
"""Variables that name to mpirun the file with the nodes of a script, and the number of ranks of each."""
STAND_INS = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
"""Variables that name to mpirun of Open MPI the command to use instead of ssh: `drom-step remote`."""
HYDRA = {"HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXTRA_ARGS": "remote", "HYDRA_ENV": "none"}
"""Makes mpirun of MPICH start its proxies by the same command, which HYDRA_LAUNCHER_EXEC names without its argument.

Ranks have the environment of their node's proxy, not that of mpirun, whose DROM_ variables are of another node."""
ADAPTIVE_HOSTFILE = "DROM_MPI_HOSTFILE"
"""The variable that names to an adaptive program the file with the nodes on which it is to have ranks."""
HYDRA_HOSTFILE = "HYDRA_HOST_FILE"
"""The variable that names to mpirun of MPICH the file with the nodes of a script, in a form of its own."""
TERMINAL = "drom.agent.execution.terminal"
"""The module that runs a program on a terminal."""
CHOSEN = ("cwd", "input", "output", "error")
"""Paths chosen by the user: if they fail, the node is not at fault."""
NODE_FAULTS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EIO)
"""Errors with which a node fails to look up a user although the job is correct."""
FULL = (errno.ENOMEM, errno.ENFILE)
"""Errors with which a node fails to run drom's own programs, and that no path of a job can cause."""
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
"""Errors for lack of a resource that may become free again without intervention."""
_ACL_VERSION = 2
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
"""Constants of an access control list as an extended attribute (linux/posix_acl_xattr.h)."""
LONGEST_SHOWN = 200
"""Maximum number of characters of a path in a message."""


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """Where jobs are started: the name of the node, its agent's runtime directory, and its counted resources."""

    node: str
    runtime_dir: Path
    resources: Mapping[str, int] = field(default_factory=dict)


def job_name(job: int) -> str:
    """Return the name on a node of the scheduler's job of this number."""
    return f"drom-{job}"


def expand(pattern: str, start: Start, node: str) -> str:
    """Return `pattern` with %j (job), %n (node), %u (user), %x (name of the job) and %% replaced; others stay."""
    meant = (str(start.job), node, start.user.replace("/", "_"), start.name.replace("/", "_"), "%")
    words = dict(zip(LETTERS, meant, strict=True))
    done, rest = "", pattern
    while rest:
        before, mark, rest = rest.partition("%")
        done += before + (words.get(rest[:1], mark + rest[:1]) if mark else "")
        rest = rest[1:] if mark else ""
    return done


def environment(start: Start, place: LaunchSite) -> dict[str, str]:
    """Return the environment of a job: that of its submission, the DROM_ variables, and a PATH that has drom-run."""
    gone = {*ALREADY, *(devices.OF_GPUS if place.resources.get(devices.GPU) else ())}
    kept = {k: v for k, v in start.env.items() if k not in gone and not k.startswith(RANKS)}
    nodes = start.nodes or (place.node,)
    launcher = UNBOUND | OPEN_MPI | dict.fromkeys(STAND_INS, f"{_step()} remote")
    launcher |= HYDRA | {"HYDRA_LAUNCHER_EXEC": _step()}
    if (start.script or start.terminal) and len(nodes) > 1:
        launcher |= dict.fromkeys(HOSTFILES, str(hosts_path(start, place)))
        launcher[HYDRA_HOSTFILE] = str(hydra_hosts_path(start, place))
    about = {
        "PATH": f"{kept.get('PATH', USUAL_PATH)}:{_run().parent}",
        "DROM_JOB_ID": str(start.job),
        "DROM_JOB_ATTEMPT": str(start.attempt),
        "DROM_JOB_NAME": start.name,
        "DROM_NODE": place.node,
        "DROM_NODELIST": ",".join(nodes),
        "DROM_HOSTS": ",".join(f"{host}:{ranks}" for host, ranks in _hosts(start, nodes)),
        "DROM_NTASKS": str(start.total_tasks),
        "DROM_RUNTIME_DIR": str(place.runtime_dir),
        **({ADAPTIVE_HOSTFILE: str(ranks_path(start, place))} if start.rests else {}),
        **({RESTART: "1"} if start.saving == PROGRAM and start.image else {}),
        **devices.variables(start, place.resources, amd=devices.AMD_DRIVER.exists()),
    }
    return about | launcher | kept | about  # agents look for these at the beginning


def _hosts(start: Start, nodes: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Return the names of a job's nodes for mpirun, with the number of its tasks on each."""
    equal = max(1, start.total_tasks // max(1, len(nodes)))
    return zip(mpi_hosts(nodes), start.tasks_on or [equal] * len(nodes), strict=False)


def command(start: Start, place: LaunchSite) -> list[str]:
    """Return the command to execute: drom-run with the program as a task, a launcher as it is, or `drom-step hold`."""
    if start.mode == "hold":
        return [_step(), "hold"]
    if start.mode == "launch":
        return list(start.argv)
    about = [
        "--runtime-dir",
        str(place.runtime_dir),
        "--job",
        job_name(start.job),
        "--class",
        start.job_class,
        "--await",
    ]
    program = [*interpreter(start.script), str(script_path(start, place))] if start.script else []
    run = [str(_run()), *start.run_options, *about, "--", *program, *start.argv]
    return python_command.module(TERMINAL, str(terminal_path(start, place)), *run) if start.terminal else run


def interpreter(script: str) -> list[str]:
    """Return the interpreter in the first line of a script, as the kernel reads it; /bin/sh if there is none."""
    first = script.partition("\n")[0]
    words = first[2:].strip().split(maxsplit=1) if first.startswith("#!") else []
    return words or ["/bin/sh"]


def script_path(start: Start, place: LaunchSite) -> Path:
    """Return the path of a job's script while the node knows the job: outside the spool, which is private."""
    return place.runtime_dir / "scripts" / f"{start.job}.{start.attempt}"


def hosts_path(start: Start, place: LaunchSite) -> Path:
    """Return the path of the hosts file that mpirun reads in a job that is a script, while the node knows the job."""
    return script_path(start, place).with_suffix(f".{start.attempt}.hosts")


def hydra_hosts_path(start: Start, place: LaunchSite) -> Path:
    """Return the path of the same file for mpirun of MPICH."""
    return script_path(start, place).with_suffix(f".{start.attempt}.hydra")


def ranks_path(start: Start, place: LaunchSite) -> Path:
    """Return the path of the file with the nodes on which an adaptive job is to have ranks, once that has changed."""
    return script_path(start, place).with_suffix(f".{start.attempt}.ranks")


def terminal_path(start: Start, place: LaunchSite) -> Path:
    """Return the path of the file that says where the terminal of a job's user is, while the node knows the job."""
    return script_path(start, place).with_suffix(f".{start.attempt}.terminal")


def _files(start: Start, place: LaunchSite) -> dict[Path, tuple[str, int]]:
    """Return the text and the mode of each file of a job that is a script or has a terminal."""
    if not (start.script or start.terminal):
        return {}
    hosts = list(_hosts(start, start.nodes))
    files = {
        hosts_path(start, place): ("".join(f"{host} slots={ranks}\n" for host, ranks in hosts), 0o400),
        hydra_hosts_path(start, place): ("".join(f"{host}:{ranks}\n" for host, ranks in hosts), 0o400),
    }
    if start.script:
        files[script_path(start, place)] = start.script, 0o500
    if start.terminal:
        files[terminal_path(start, place)] = start.terminal, 0o400
    return files


def write_script(start: Start, place: LaunchSite) -> None:
    """Write the script of a job, the hosts file of its launches, and where its terminal is. Raises OSError.

    Only the user of the job can read them. The files of a root agent stay root's: users could change the mode of their
    own files, and fill the file system.
    """
    for path, (text, mode) in _files(start, place).items():
        make_open(path.parent)
        _write(path, text, mode, start)


def write_ranks(start: Start, place: LaunchSite, nodes: Sequence[str], ranks: Sequence[int]) -> None:
    """Replace the file with the nodes on which an adaptive job is to have ranks. Raises OSError."""
    path = ranks_path(start, place)
    make_open(path.parent)
    fresh = path.with_suffix(".new")
    _write(fresh, host_file(nodes, ranks), 0o400, start)
    fresh.rename(path)


def _write(path: Path, text: str, mode: int, start: Start) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        if os.geteuid() == 0 and start.uid != 0:
            _let_read(fd, mode & 0o500, start)


def _let_read(fd: int, mode: int, start: Start) -> None:
    """Give the user of a job the owner's rights of `mode` on a file of root; the job's group if there are no ACLs."""
    rights = mode >> 6
    entries = ((_OWNER, rights, _NO_ID), (_USER, rights, start.uid), (_GROUP, 0, _NO_ID), (_MASK, rights, _NO_ID))
    acl = struct.pack("<I", _ACL_VERSION) + b"".join(
        struct.pack("<HHI", *one) for one in (*entries, (_OTHER, 0, _NO_ID))
    )
    try:
        os.setxattr(fd, "system.posix_acl_access", acl)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        os.fchown(fd, -1, start.gid)
        os.fchmod(fd, mode | rights << 3)


def remove_script(start: Start, place: LaunchSite) -> None:
    """Remove the files of a job that is a script, has a terminal or is adaptive; steps have none."""
    for path in (*_files(start, place), *([ranks_path(start, place)] if start.rests else ())):
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()  # unless there are others


def instructions(start: Start, place: LaunchSite, group: Path | None) -> bytes:
    """Return the instructions that drom-step reads (`struct instructions` in step.h)."""
    argv, held = command(start, place), start.mode == "hold"
    paths = [expand(path or "", start, place.node) for path in (start.input, start.output, start.error)]
    words = [
        *(str(n) for n in (start.uid, start.gid, start.umask)),
        "1" if start.attempt > 1 else "0",
        "/" if held else start.cwd,
        *([""] * 3 if held else paths),
        str(group / "cgroup.procs") if group else "",
        str(len(argv)),
        *argv,
        *(f"{name}={value}" for name, value in environment(start, place).items()),
    ]
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def spawn(start: Start, place: LaunchSite, lock: int, group: Path | None) -> tuple[int, int]:
    """Start drom-step; return its pid, and a descriptor that becomes readable once the program runs.

    It delivers the program's pid, or the end of the file if the program will never run. `lock` is the descriptor of the
    folder that locks it. The program runs in the control group `group`. Raises OSError.
    """
    told, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    descriptors = [tell]
    try:
        descriptors.append(what := os.memfd_create("instructions", os.MFD_CLOEXEC))
        with os.fdopen(what, "wb", closefd=False) as file:
            file.write(instructions(start, place, group))
        numbers = (what, lock, tell)
        pid = os.posix_spawn(
            _step(),
            ["drom-step", f"{start.job}.{start.attempt}", *map(str, numbers)],
            {"PATH": "/usr/bin:/bin"},  # never a variable of the user: drom-step may run as root
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
                *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in numbers),  # onto itself: stays open
            ],
            setsigdef=IGNORED,
        )
    except BaseException:
        os.close(told)
        raise
    finally:
        for fd in descriptors:
            os.close(fd)
    return pid, told


def why_refused(status: Status, start: Start, place: LaunchSite) -> tuple[str, str]:
    """Return the fault (one of `protocol.FAULTS`) for which a program did not start, and the reason as a sentence."""
    what, reason = status.refused, os.strerror(status.errno)
    streams = {"input": start.input, "output": start.output, "error": start.error}
    program, cwd = _shown((start.argv or ("",))[0]), _shown(start.cwd)
    sentences = {
        "cwd": f"cannot change to {cwd}: {reason}: submit from one that {start.user} may enter on {place.node}.",
        "user": f"no user has number {start.uid} on {place.node}: use a user that all nodes know.",
        "group": f"user {start.user} is not in group {start.gid} on {place.node}.",
        "program": f"cannot run '{program}': {reason}: check its path and mode on {place.node}.",
    }
    if what in streams:
        path = expand(streams[what] or "/dev/null", start, place.node)
        sentence = f"cannot open {_shown(path)} for the {what} of the job: {reason}: check --{what}."
    else:
        sentence = sentences.get(what, f"{place.node} cannot start a process ({what}: {reason}).")
    return _fault(what, status.errno, start), sentence


def _fault(what: str, number: int, start: Start) -> str:
    """Return the fault of a failed step of drom-step; failures of anything that a user chose are the job's."""
    if what in CHOSEN:
        return "job"
    if what == "program":  # mpirun is found by the user's PATH
        return "busy" if number in FULL and start.mode != "launch" else "job"
    return "job" if what in ("user", "group") and number not in NODE_FAULTS else fault_of_node(number)


def fault_of_node(number: int) -> str:
    """Return "busy" if a node that fails with this errno may recover by itself, otherwise "node"."""
    return "busy" if number in PASSING else "node"


def why_not_here(start: Start, uid: int) -> tuple[str, str] | None:
    """Return the fault and the reason if an agent of user `uid` can never start this job; None if it can."""
    if uid not in (0, start.uid):
        return "job", f"this agent runs as user {uid} and may not start programs as {start.uid}: run it as root."
    if not (start.argv or start.script) and start.mode != "hold":
        return "job", "the job has no command."
    if start.tasks > start.cores and not start.rests:
        return "job", f"a task needs a core of its own: {start.tasks} tasks cannot be on {start.cores} cores."
    return None


def _shown(path: str) -> str:
    """Return a path for a message: at most its first `LONGEST_SHOWN` characters."""
    return path if len(path) <= LONGEST_SHOWN else f"{path[:LONGEST_SHOWN]}..."


@functools.cache
def _step() -> str:
    return str(native.step_path())


@functools.cache
def _run() -> Path:
    return native.run_path()
