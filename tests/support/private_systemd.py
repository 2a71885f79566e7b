"""A systemd of one's own: process 1 of new namespaces, with units of the test's choice and nothing of the machine's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.agents import environment, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEMD = Path("/lib/systemd/systemd")
TARGETS = ("test", "sysinit", "basic", "shutdown", "local-fs", "nss-user-lookup", "multi-user")
BOOT = """
echo 0 >"$1/cgroup.procs"
exec unshare --pid --fork --kill-child --mount --mount-proc --cgroup --uts sh -c '
    read -r _ && mount --make-rprivate / && mount -t tmpfs tmpfs /run &&
    { umount -R /sys/fs/cgroup 2>&1 || true; } && mount -t cgroup2 cgroup2 /sys/fs/cgroup &&
    exec env -i PATH="$PATH" container=test SYSTEMD_UNIT_PATH="$0" \\
        "$1" --system --unit=test.target --log-target=null --show-status=no
' "$2" "$3"
"""


def why_not() -> str:
    """Return what this machine lacks for a systemd of one's own; empty when nothing."""
    if os.geteuid() != 0:
        return "needs root for a systemd of its own"
    if not SYSTEMD.exists() or not shutil.which("nsenter"):
        return "systemd or nsenter is missing"
    if _cgroup2() is None or not os.access(_cgroup2() or "", os.W_OK):
        return "no control groups of version 2 that may be written"
    tried = subprocess.run(
        [
            "unshare",
            "--pid",
            "--fork",
            "--mount",
            "--mount-proc",
            "--cgroup",
            "--uts",
            "mount",
            "-t",
            "tmpfs",
            "x",
            "/run",
        ],
        capture_output=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"namespaces cannot be made: {tried.stderr.decode().strip()}"


def _cgroup2() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        head, _, tail = line.partition(" - ")
        if tail.startswith("cgroup2 "):
            return Path(head.split()[4])
    return None


class Systemd:
    """A running one. `root` is its root directory, as this process reaches it."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self.root = Path(f"/proc/{pid}/root")

    def inside(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command beside its services."""
        return [str(word) for word in ("nsenter", "-t", str(self.pid), "--pid", "--mount", "--cgroup", *command)]

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run systemctl."""
        command = self.inside("systemctl", *words)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment())

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.ctl("show", "-P", name, unit).stdout.strip()

    def await_shown(self, unit: str, name: str, value: str) -> None:
        """Wait until a property of a unit has a value."""
        wait_until(lambda: self.show(unit, name) == value, lambda: self.show(unit, name))

    def pid_of(self, unit: str) -> int:
        """Return the pid of a unit's main process as this process sees it."""
        inner = self.show(unit, "MainPID")
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError):
                    status = (folder / "status").read_text(encoding="utf-8")
                    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
                    same = (folder / "ns/pid").readlink() == Path(f"/proc/{self.pid}/ns/pid").readlink()
                    if same and numbers[-1] == inner:
                        return int(folder.name)
        raise AssertionError(f"{unit} has no process")


@contextlib.contextmanager
def systemd(folder: Path, units: Path) -> Iterator[Systemd]:
    """Run one for a block, with the units in a folder; nothing is left of it."""
    for target in TARGETS:
        (units / f"{target}.target").write_text(f"[Unit]\nDescription={target}\nDefaultDependencies=no\n")
    mounted = _cgroup2()
    assert mounted
    group = mounted / f"drom-test-{os.getpid()}"
    group.mkdir()
    log = folder / "systemd.log"
    with log.open("wb") as out:
        words = ["sh", "-c", BOOT, "boot", str(group), str(units), str(SYSTEMD)]
        process = subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.PIPE, start_new_session=True)
    try:
        wait_until(lambda: _children(process), lambda: (process.poll(), log.read_text()))
        # Out of the group that is systemd's root: one with processes in it hands on no controllers.
        (mounted / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.close()
        pid = wait_until(lambda: _first_below(process), lambda: (process.poll(), log.read_text()))
        running = Systemd(pid, log)
        wait_until(lambda: "running" in running.ctl("is-system-running").stdout, log.read_text)
        yield running
    except BaseException:
        print(log.read_text())
        raise
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: _removed(group), lambda: sorted(group.rglob("*")))


def _first_below(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of systemd once `unshare` has become its parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return next((child.pid for child in _children(process) if child.name() == "systemd"), 0)
    return 0


def _children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    assert process.poll() is None
    return psutil.Process(process.pid).children()


def _removed(group: Path) -> bool:
    """Remove a control group with all below it; say whether that was possible: its processes may be about to end."""
    try:
        for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            path.rmdir()
        group.rmdir()
    except OSError:
        return False
    return True
