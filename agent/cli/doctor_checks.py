# SPDX-License-Identifier: Apache-2.0
"""The checks of a machine for `drom doctor`: each takes the roots or texts it reads and returns a `Finding`.

Roots may be those of a recorded machine, which psutil does not read.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq
from drom.agent.checkpoint import tools
from drom.agent.checkpoint.images import CheckpointError
from drom.agent.enforcement import cpusets
from drom.agent.errors import ControlError
from drom.agent.ipc import runtime_dir
from drom.agent.ipc.cpu_locks import lock_holders, runtime_dir_of
from drom.agent.ipc.runtime_dir import RuntimeDirError
from drom.agent.system import proc as processes
from drom.agent.system.ancestors import fault_above
from drom.agent.system.cgroups import unescape
from drom.agent.text import cpu_names

from dromlib.cpulist import mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

CAPABILITIES = {19: "CAP_SYS_PTRACE", 23: "CAP_SYS_NICE"}
"""Bits of capabilities(7) that permit an agent to inspect, and bind, programs of other users."""
ACTORS = {
    "numad": "it moves programs between NUMA nodes: stop it on this node",
    "tuned": "its profiles may set affinity: check that the active one does not",
    "slurmd": "it binds job steps: give it other CPUs, or start programs with --cpu-bind=none",
    "irqbalance": "it moves interrupts, not programs: no action is needed, or exclude managed CPUs from it",
}
"""Other programs that act on CPUs, by the name of the process, with advice."""
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "pit")
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
"""Number of the system call by machine."""
_FUTEX_WAIT_BITSET = 9
_IN_MEMORY = ("tmpfs", "ramfs")
UNIT = "drom-agent.service"
PER_TASK = 2
"""Descriptors that an agent holds per task: pidfds of its first process and its responder."""
FOR_ITSELF = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `state` is ok, warn or fail; `text` is a sentence, with advice unless it is ok."""

    name: str
    state: str
    text: str


def capabilities(proc: Path, uid: int) -> Finding:
    """Check whether this process may inspect and bind programs of other users."""
    held = processes.effective_capabilities(str(proc))
    missing = [name for bit, name in CAPABILITIES.items() if not held >> bit & 1]
    if not missing:
        return Finding("capabilities", "ok", "An agent started here may bind programs of every user.")
    what = "give the agent " + " and ".join(missing) if uid == 0 else "run it as root to bind programs of all users"
    return Finding("capabilities", "warn", f"An agent started here may bind only programs of its own user: {what}.")


def descriptors(hard: int, capacity: int) -> Finding:
    """Check whether the hard limit of descriptors is enough for `capacity` tasks."""
    room = max(0, hard - FOR_ITSELF) // PER_TASK
    if room >= capacity:
        return Finding("descriptors", "ok", f"At most {hard} descriptors are enough for {capacity} tasks.")
    text = f"At most {hard} descriptors are enough for {room} of {capacity} tasks: raise `ulimit -Hn` (LimitNOFILE=)."
    return Finding("descriptors", "warn", text)


def delegation(root: Path, *, needed: bool) -> Finding:
    """Check whether each task can have a control group with a cpuset; `needed`: the options require it."""
    try:
        _, base = cpusets.find(root)
    except ControlError as error:
        if needed:
            return Finding("cgroups", "fail", f"Tasks cannot have cpusets: {error}")
        return Finding("cgroups", "ok", "Affinity binds programs; control groups could not (--enforce cpuset).")
    return Finding("cgroups", "ok", f"Tasks can have control groups in {base} (--enforce cpuset).")


def reachable(name: str, find: Callable[[], Path], *, runs: bool) -> Finding:
    """Check whether every user can load a file or, if `runs`, run it."""
    try:
        file = find().resolve()
        bad = next((folder for folder in file.parents if not folder.stat().st_mode & 0o001), None)
        mode = file.stat().st_mode
    except OSError as error:
        return Finding(name, "fail", f"{error}")
    if os.statvfs(file).f_flag & os.ST_NOEXEC:
        what = "run" if runs else "loaded"
        text = f"{file} cannot be {what}: it is on a file system mounted noexec: install drom elsewhere."
        return Finding(name, "fail", text)
    if bad:
        return Finding(
            name, "warn", f"Other users cannot reach {file} through {bad}: install drom elsewhere, as in /opt/drom."
        )
    if not mode & 0o004 or (runs and not mode & 0o001):
        return Finding(name, "warn", f"Other users cannot use {file}: chmod o+r{'x' * runs} it.")
    return Finding(name, "ok", f"Every user can use {file}.")


def claimed(file: Path, mask: int, own: int | None) -> Finding:
    """Check which other agents manage CPUs of `mask`; `own` is the pid of the agent that may manage them."""
    others = {pid: taken for pid, taken in lock_holders(file, mask).items() if pid != own}
    if not others:
        return Finding("other agents", "ok", "No other agent manages these CPUs.")
    words = [
        f"{cpu_names(taken)} (pid {pid or '?'}{f' in {where}' if (where := runtime_dir_of(pid)) else ''})"
        for pid, taken in others.items()
    ]
    return Finding("other agents", "warn", f"Other agents manage {', '.join(words)}: stop them, or use --reserved.")


def competing_programs(proc: Path, shm: Path, etc: Path) -> list[Finding]:
    """Check for other programs and settings that act on CPUs."""
    names = {_text(folder / "comm").strip() for folder in proc.iterdir() if folder.name.isdecimal()}
    found = [
        Finding("actors", "ok" if name == "irqbalance" else "warn", f"{name} runs: {what}.")
        for name, what in ACTORS.items()
        if name in names
    ]
    if any(shm.glob("DLB_*")):
        found.append(Finding("actors", "warn", f"Programs here use DLB ({shm}/DLB_*): do not run them under drom too."))
    setting = re.search(r"^\s*CPUAffinity\s*=\s*(\S.*)$", _text(etc / "systemd/system.conf"), re.MULTILINE)
    if setting:
        found.append(Finding("actors", "warn", f"systemd sets CPUAffinity={setting[1]}: set it for drom too."))
    return found or [Finding("actors", "ok", "No other program that is known to move programs runs on this node.")]


def kernel_features() -> list[Finding]:
    """Check the kernel features that the agent needs."""
    found = []
    try:
        os.close(os.pidfd_open(os.getpid()))
        found.append(Finding("pidfd", "ok", "Ends of processes are seen through pidfds."))
    except OSError as error:
        found.append(Finding("pidfd", "fail", f"pidfd_open fails ({error.strerror}): use Linux 5.3 or newer."))
    try:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        return [*found, Finding("sockets", "fail", f"AF_UNIX sockets fail ({error.strerror}): allow them here.")]
    with left, right:
        try:
            os.close(left.getsockopt(socket.SOL_SOCKET, processes.SO_PEERPIDFD))
            found.append(Finding("sockets", "ok", "The kernel names the peer of a socket by pidfd."))
        except OSError as error:
            known = error.errno != errno.ENOPROTOOPT
            text = f"The peer of a socket cannot be named by pidfd ({error.strerror})"
            text += ": a reused pid could be mistaken; Linux 6.5 or newer can."
            found.append(Finding("sockets", "ok" if known else "warn", text))
    return found


def futex(number: int | None = _FUTEX.get(platform.machine())) -> Finding:
    """Check whether a program may sleep on memory that it may only read; `number` is that of the system call."""
    if number is None:
        text = f"Whether programs can sleep until a grant is published cannot be tested on {platform.machine()}."
        return Finding("futex", "warn", text)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.memfd_create("drom-doctor", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        page = ctypes.c_void_p(libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0))
    finally:
        os.close(fd)
    # The word is 0 and the call waits for it to leave 1: a kernel that can wait there returns at once.
    libc.syscall(number, page, _FUTEX_WAIT_BITSET, 1, None, None, ctypes.c_uint(0xFFFFFFFF))
    error = ctypes.get_errno()
    libc.munmap(page, mmap.PAGESIZE)
    if error == errno.EAGAIN:
        return Finding("futex", "ok", "Programs can sleep until a grant is published.")
    text = f"Programs cannot sleep on read-only memory ({os.strerror(error)}): let them poll for grants."
    return Finding("futex", "warn", text)


def storage(path: Path, proc: Path) -> Finding:
    """Check whether the runtime directory is in memory."""
    kinds = {}
    for line in _text(proc / "self/mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split()
        if len(fields) > 4 and tail:
            kinds[unescape(fields[4])] = tail.split()[0]
    kind = next((kinds[str(folder)] for folder in (path, *path.parents) if str(folder) in kinds), "")
    if kind in _IN_MEMORY:
        return Finding("storage", "ok", f"{path} is in memory ({kind}).")
    text = f"{path} is on {kind or 'an unknown file system'}, not in memory: reports of programs are written to disk; "
    return Finding("storage", "warn", f"{text}choose a --runtime-dir on a tmpfs, such as below /dev/shm.")


def inotify(proc: Path) -> Finding:
    """Check the limit that may keep an agent from watching its mailboxes."""
    text = _text(proc / "sys/fs/inotify/max_user_instances").strip()
    if not text.isdecimal():
        return Finding("inotify", "warn", "The limit of inotify is unknown: acknowledgements may be seen late.")
    if int(text) < 16:
        return Finding("inotify", "warn", f"fs.inotify.max_user_instances is {text}: raise it to 128.")
    return Finding("inotify", "ok", f"A user may have {text} inotify instances.")


def runtime_directory(path: Path, uid: int, needed: int) -> Finding:
    """Check whether an agent of user `uid` can use a runtime directory; `needed` is the required space in bytes."""
    at = _nearest(path)
    try:
        if at == path:
            runtime_dir.check(path)
    except RuntimeDirError as error:
        text = str(error)
        return Finding("directory", "fail", f"{text[0].upper()}{text[1:]}")
    except OSError:  # the next check names it
        pass
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        return Finding("directory", "fail", f"{at} cannot be written: choose a --runtime-dir that can.")
    if fault := fault_above(path, uid):
        text = f"{fault[0].upper()}{fault[1:]}, and so may replace {path}: choose another --runtime-dir."
        return Finding("directory", "fail", text)
    space = os.statvfs(at)
    if space.f_bavail * space.f_frsize < needed:
        return Finding(
            "directory", "fail", f"{at} has room for less than {needed} bytes: free some, or lower --capacity."
        )
    return Finding("directory", "ok", f"{path} can be used.")


def events_file(path: Path, uid: int) -> Finding:
    """Check whether an agent of user `uid` can store events in a file."""
    if not path.parent.is_dir():
        return Finding("events", "fail", f"There is no folder {path.parent}: make it, or choose another --events-file.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return Finding("events", "fail", f"{path.parent} cannot be written: choose another --events-file.")
    if path.exists() and not (path.is_file() and path.stat().st_uid == uid):
        return Finding("events", "fail", f"{path} is not a file of the agent's user: choose another --events-file.")
    return Finding("events", "ok", f"Events can be kept in {path}.")


def spool(path: Path, uid: int) -> Finding:
    """Check whether an agent of user `uid` can use a folder as its spool, or create it."""
    at = _nearest(path)
    if at == path and path.stat().st_uid != uid:
        return Finding("spool", "fail", f"{path} belongs to another user: choose another --spool.")
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        return Finding("spool", "fail", f"{at} cannot be written: choose a --spool that can.")
    if fault := fault_above(path, uid):
        text = f"{fault[0].upper()}{fault[1:]}, and so may replace {path}: choose another --spool."
        return Finding("spool", "fail", text)
    return Finding("spool", "ok", f"The data on jobs can be kept in {path}.")


def fillers(proc: Path, uid: int) -> Finding:
    """Check in which ways an agent of user `uid` can save fillers."""
    alone = "Fillers are saved only by their programs' own checkpoints"
    if uid != 0:
        return Finding("fillers", "ok", f"{alone}: to save them in containers takes root.")
    try:
        criu = tools.find_criu()
    except CheckpointError as error:
        return Finding("fillers", "ok", f"{alone}: {error}")
    if not shutil.which("runc"):
        return Finding("fillers", "ok", f"{alone}: install runc to save them in containers.")
    if subprocess.run((criu, "check"), capture_output=True, timeout=60, check=False).returncode:
        return Finding("fillers", "warn", f"{alone}: '{criu} check' says what this kernel lacks.")
    if not tools.saves_all_users(str(proc)):
        text = "Only root's fillers are saved in containers: CRIU needs CAP_SYS_RESOURCE for those of other users."
        return Finding("fillers", "warn", text)
    return Finding("fillers", "ok", "Fillers are saved in containers, or by their programs' own checkpoints.")


def bind_tcp(host: str, port: int) -> None:
    """Bind a TCP address for a moment. Raises OSError."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)


def bind_zmq(address: str) -> None:
    """Bind a TCP address for a moment with ZeroMQ, which also knows names of interfaces. Raises OSError."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        sock.setsockopt(zmq.IPV6, 1)
        try:
            sock.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, zmq.strerror(error.errno or 0)) from error


def address(name: str, where: str, bind: Callable[[], None], *, taken: bool) -> Finding:
    """Check whether an agent can listen at an address; `taken`: an agent runs here that may do so already."""
    try:
        bind()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return Finding(
                name, "fail", f"The agent cannot listen at {where} ({error.strerror}): choose another --{name}."
            )
        if not taken:
            return Finding(name, "fail", f"Another program listens at {where}: choose another --{name}.")
    return Finding(name, "ok", f"The agent can listen at {where}.")


def unguarded(found: Finding, host: str) -> Finding:
    """Return `found`, or a warning if metrics can then be read from other machines without authentication."""
    if found.state != "ok" or host == "localhost" or host.startswith("127.") or host == "::1":
        return found
    what = f"Anyone who reaches {host} can read the names of jobs and users"
    text = f"{what}: use 127.0.0.1, or restrict access to Prometheus with a firewall."
    return Finding(found.name, "warn", text)


def service(root: Path, drom: str, *, starts_jobs: bool = False) -> Finding:
    """Check whether systemd starts `drom`, by a unit that restarts the agent without losing its programs.

    If the agent `starts_jobs` as their users, the unit must permit that.
    """
    if not (root / "run/systemd/system").is_dir():
        return Finding(
            "service", "ok", "systemd does not run here: let this node's init system start the agent at boot."
        )
    folders = [root / "etc/systemd/system", root / "usr/local/lib/systemd/system", root / "usr/lib/systemd/system"]
    unit = next((folder / UNIT for folder in folders if (folder / UNIT).exists()), None)
    if unit is None:
        return Finding("service", "warn", f"There is no {UNIT}, so no agent starts at boot: install it.")
    settings = dict(re.findall(r"^(\w+)=(.*)$", _text(unit), re.MULTILINE))
    starts = settings.get("ExecStart", "").split(" ")[0]
    if os.path.realpath(starts) != os.path.realpath(drom):
        return Finding("service", "warn", f"{unit} starts {starts}, and this is {drom}: correct its ExecStart.")
    wanted = {
        "Type": "notify",
        "RestartKillSignal": "SIGUSR1",
        "KillMode": "process",
        "RuntimeDirectoryPreserve": "yes",
    }
    missing = [f"{name}={value}" for name, value in wanted.items() if settings.get(name) != value]
    if missing:
        text = f"{unit} lacks {', '.join(missing)}: install the one of this version, or programs are lost at a restart."
        return Finding("service", "warn", text)
    files = [unit, *(file for folder in folders for file in sorted(folder.glob(f"{UNIT}.d/*.conf")))]
    if starts_jobs and not _may_become_users("".join(map(_text, files))):
        advice = f"install drom-agent-jobs.conf as {folders[0] / UNIT}.d/jobs.conf."
        return Finding("service", "fail", f"{unit} keeps the agent from starting jobs as their users: {advice}")
    return Finding("service", "ok", f"{unit} starts this drom.")


def _may_become_users(unit: str) -> bool:
    """Return whether a unit, followed by its drop-ins, leaves the capability to become another user."""
    sets = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    return not sets or any(one.startswith("~") or "CAP_SETUID" in one.split() for one in sets)


def clock(sys: Path) -> Finding:
    """Check the clock source of the kernel."""
    name = _text(sys / "devices/system/clocksource/clocksource0/current_clocksource").strip()
    if name in SLOW_CLOCKS:
        return Finding("clock", "warn", f"The clock {name} is slow to read: set the kernel's clocksource to tsc.")
    return Finding("clock", "ok", f"The time comes from {name or 'a clock the kernel does not name'}.")


def unmanaged(load: Mapping[int, float]) -> Finding:
    """Check which CPUs programs outside every task keep busy, from the share of each CPU that they used."""
    least = min(load.values(), default=0.0)
    busy = mask_of(cpu for cpu, share in load.items() if share - least >= 0.5)
    if least >= 0.5:
        advice = "reserve some CPUs for them, or start them with drom run"
        return Finding("load", "warn", f"Unmanaged programs keep all CPUs busy: {advice}.")
    if not busy:
        return Finding("load", "ok", "No unmanaged program keeps a CPU busy.")
    advice = "set avoid_load, reserve them, or start these programs with drom run"
    return Finding("load", "warn", f"Unmanaged programs keep {cpu_names(busy)} busy: {advice}.")


def frozen_or_not(value: dict[str, object] | None, where: Path) -> Finding:
    """Check the state of an agent, from its answer to `ps` (None: no agent answers)."""
    if value is None:
        return Finding(
            "agent", "warn", f"No agent answers in {where}: start one with drom agent, or drom agent --observe."
        )
    if value.get("frozen_since"):
        text = f"The agent in {where} is frozen since {value['frozen_since']}: remove the freeze file to continue."
        return Finding("agent", "warn", text)
    if value.get("observe"):
        return Finding(
            "agent", "warn", f"The agent in {where} only observes: start it without --observe to change masks."
        )
    return Finding("agent", "ok", f"An agent manages this node in {where}.")


def _nearest(path: Path) -> Path:
    """Return a path if it exists, otherwise the nearest folder above it that does."""
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))  # noqa: PTH110 - closed ones too


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
