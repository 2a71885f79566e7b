# SPDX-License-Identifier: Apache-2.0
"""Machines made of namespaces at one switch: each has its own name, address, processes and network card.

A machine is its process number 1: when that ends, the kernel ends all others and removes the network card. It ends
with this process, however that ends. Nothing has a name outside, so that networks do not conflict.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

TOOLS = {
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
"""The programs that create machines, and the packages of Debian that contain them."""
PATIENCE = 60.0
"""Seconds that a step may take on a busy machine."""
NETWORK = "10.99.0"
_SPACES = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ALONE = ("setpriv", "--pdeathsig", "KILL", "unshare", *_SPACES)
"""The command line that runs a command as process 1 of a new machine, which ends with this process."""
BOOT = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ip link set lo up
echo up
sleep inf & wait
"""
"""The script of process 1; as it waits, it reaps orphaned processes."""


class MachineError(DromError):
    """Raised when machines cannot be created here; the message is a sentence for users."""


def why_not() -> str:
    """Return a sentence with the reason why this process cannot create machines; empty if it can."""
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if sys.platform != "linux":
        return "a cluster of namespaces needs Linux."
    if os.geteuid() != 0:
        return "a cluster of namespaces takes root's rights: run it as root, as with sudo."
    if missing:
        return f"a cluster of namespaces needs {', '.join(missing)}: apt-get install them."
    tried = _run([*ALONE, "true"])
    if tried.returncode:
        return f"this machine does not let root make namespaces ({tried.stderr.strip()}): try another one, or a VM."
    return ""


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        msg = f"'{' '.join(words)}' does not end: is this machine very busy?"
        raise MachineError(msg) from error


class Machine:
    """A machine at `address` with the file `hosts` as /etc/hosts. Raises `MachineError` if it cannot be created."""

    def __init__(self, name: str, address: str, hosts: Path) -> None:
        self.name, self.address = name, address
        self._keeper = subprocess.Popen(
            [*ALONE, "sh", "-c", BOOT, "sh", name, str(hosts)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        said = self._keeper.stdout.readline() if self._keeper.stdout else ""
        found = _children(self._keeper.pid)
        self.first = found[0] if found and said == "up\n" else 0
        """The pid of its process 1, in this process's namespace."""
        if not self.first:
            self.close()
            msg = f"no machine can be made of namespaces here: {said.strip() or 'unshare failed'}."
            raise MachineError(msg)

    def within(self, *words: str, spaces: Sequence[str] = ("--net", "--uts", "--mount", "--pid")) -> list[str]:
        """Return a command line that runs `words` on the machine, in these of its namespaces."""
        return ["nsenter", "--target", str(self.first), *spaces, "--", *words]

    def do(self, *words: str) -> str:
        """Run a command on the machine and return its output. Raises `MachineError` if it fails."""
        return self._done(words, self.within(*words))

    def do_from_here(self, *words: str) -> str:
        """Run a command in the network namespace of the machine alone, so that it sees this process's pids.

        Returns its output. Raises `MachineError` if it fails.
        """
        return self._done(words, self.within(*words, spaces=("--net",)))

    def _done(self, words: Sequence[str], command: Sequence[str]) -> str:
        done = _run(command)
        if done.returncode:
            msg = f"'{' '.join(words)}' failed on {self.name}: {done.stderr.strip()}."
            raise MachineError(msg)
        return done.stdout

    def close(self) -> None:
        """End the machine and all its processes."""
        with suppress(ProcessLookupError):
            os.kill(self.first or self._keeper.pid, signal.SIGKILL)
        self._keeper.wait()
        if self._keeper.stdout:
            self._keeper.stdout.close()


class Network:
    """Machines by name at a switch, the first of which is the switch itself."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.machines: dict[str, Machine] = {}
        self._hosts = folder / "hosts"
        self._addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 1)}
        rows = [f"{address} {name}" for name, address in self._addresses.items()]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *rows, ""]), encoding="utf-8")
        self._first = names[0]

    def __enter__(self) -> Self:
        try:
            for name in self._addresses:
                self.power_on(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def power_on(self, name: str) -> Machine:
        """Create a machine of the network and connect it to the switch. Raises `MachineError` if that fails."""
        machine = Machine(name, self._addresses[name], self._hosts)
        self.machines[name] = machine
        address = f"{machine.address}/24"
        if name == self._first:
            machine.do("ip", "link", "add", "switch", "type", "bridge")
            machine.do("ip", "address", "add", address, "dev", "switch")
            machine.do("ip", "link", "set", "switch", "up")
            return machine
        ends = ("type", "veth", "peer", "name", "eth0", "netns", str(machine.first))
        self.machines[self._first].do_from_here("ip", "link", "add", name, *ends)
        self.connect(name)
        machine.do("ip", "address", "add", address, "dev", "eth0")
        machine.do("ip", "link", "set", "eth0", "up")
        return machine

    def power_off(self, name: str) -> None:
        """Kill a machine like a power cut: its processes cannot react."""
        self.machines.pop(name).close()
        with suppress(MachineError):  # the kernel may have been faster
            self.machines[self._first].do("ip", "link", "delete", name)

    def connect(self, name: str) -> None:
        """Connect a machine to the switch."""
        self.machines[self._first].do("ip", "link", "set", name, "master", "switch", "up")

    def disconnect(self, name: str) -> None:
        """Disconnect a machine from the switch."""
        self.machines[self._first].do("ip", "link", "set", name, "down")

    def close(self) -> None:
        """End all machines."""
        for name in list(self.machines):
            self.machines.pop(name).close()


class Process:
    """A command that runs on a machine; its output is appended to the file `log`."""

    def __init__(self, machine: Machine, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as file:
            self._outer = subprocess.Popen(
                machine.within(*words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The pid of the command, in this process's namespace."""
        deadline = time.monotonic() + PATIENCE
        while not (found := _children(self._outer.pid)):
            if self._outer.poll() is not None or time.monotonic() > deadline:
                raise ProcessLookupError(self._outer.pid)
            time.sleep(0.001)
        return found[0]

    def poll(self) -> int | None:
        """Return its exit code, minus the number of the signal that ended it, or None while it runs."""
        return self._outer.poll()

    def end(self, number: int, seconds: float = PATIENCE) -> int:
        """Send the command a signal, wait until it has ended and return its exit code.

        Raises `subprocess.TimeoutExpired` after `seconds`.
        """
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        return self._outer.wait(seconds)


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []
