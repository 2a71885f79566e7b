# SPDX-License-Identifier: Apache-2.0
"""Where a storm takes place: a small file system, an agent, programs of all kinds, and a wall clock of our own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from drom.agent.config.options import Options
from drom.agent.control.client import Connection
from drom.agent.errors import ControlError

from dromlib import native
from tests.support import checker
from tests.support.agents import Agent, build_program, environment, launch_agent, lives
from tests.support.paths import ROOT

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping

SPACE = 256 * 1024
"""Bytes of the file system: room for the registry and some fifty mailboxes."""
SLOTS = 48
ANSWER_S = 0.05
"""Seconds that an answer is waited for."""
CRASHES = {-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)}
"""How no program may end; of SIGBUS only one whose mailbox was cut."""
NATIVE = ROOT / "tests" / "native"
SYSTEM = ROOT / "tests" / "system"
POLLING = "import dromlib, itertools, time\nfor _ in dromlib.malleable(itertools.count()): time.sleep(0.005)"
MARK = "DROM_CHAOS"


@dataclass(frozen=True, slots=True)
class Node:
    """A kind of node: the agent's options, how many programs are to be there, and which kinds of them."""

    name: str
    options: Mapping[str, str]
    programs: int
    kinds: tuple[str, ...]

    @property
    def emulated(self) -> bool:
        """Whether no mask is ever set."""
        return "emulate" in self.options


LIGHT = ("attends", "attends with children", "silent", "outside", "sleeps")
REAL = Node(
    "two real cores",
    {"topology": "pack:2 core:1"},
    7,
    (*LIGHT, "attends with threads", "churns threads", "churns children", "shell", "daemon", "openmp", "python"),
)
EMULATED = Node("sixteen emulated cores", {"emulate": "pack:2 core:8"}, 20, LIGHT)


@dataclass
class Launched:
    """A program that was launched; `excused` once its masks or its mailbox were tampered with."""

    process: subprocess.Popen[bytes]
    kind: str
    excused: bool = False

    @property
    def pid(self) -> int:
        """The pid of its first process."""
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send a signal to all processes of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def end(self) -> None:
        """Close its stdin."""
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def members(self) -> list[int]:
        """Return its first process and its children."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children())]
        return [self.pid]


@dataclass
class Stage:
    """One node in a storm. `folder` is its runtime directory's parent, a file system of its own where `small`."""

    folder: Path
    node: Node
    commands: dict[str, list[str]]
    small: bool
    programs: list[Launched] = field(default_factory=list)
    compiled: bool = False
    agent: Agent | None = None
    faults_of_programs: list[str] = field(default_factory=list)

    @property
    def dir(self) -> Path:
        """The runtime directory."""
        return self.folder / "space" / "run"

    # --- the agent

    def start_agent(self, *, ready: bool) -> None:
        """Start the next agent; wait until it is ready if asked to."""
        options = Options(  # the events of thousands of faults would fill the file system for good
            runtime_dir=str(self.dir),
            capacity=SLOTS,
            grace=0.3,
            events_size="64K",
            **self.node.options,  # type: ignore[arg-type]
        )
        self.agent = launch_agent(
            self.dir,
            served=options,
            ready=ready,
            compiled=self.compiled,
            claims_dir=self.folder / "claims",
            log_file=self.folder / "log",
        )

    def agent_lives(self) -> bool:
        """Say whether the agent runs."""
        return self.agent is not None and self.agent.process.poll() is None

    def kill_agent(self) -> None:
        """Kill the agent and start another one, which may itself be killed before it is ready."""
        assert self.agent
        self.agent.kill()
        self.start_agent(ready=False)

    def order(self, name: str, **fields: Any) -> None:
        """Send an order, and wait a little for the answer: an agent heeds nobody who has hung up."""
        with contextlib.suppress(ControlError), contextlib.closing(Connection(self.dir, seconds=ANSWER_S)) as agent:
            agent.order(name, **fields)

    def start_hostile_user(self, seed: int, seconds: float) -> subprocess.Popen[bytes]:
        """Start another user's process that attacks the agent for so many seconds and writes what succeeds."""
        command = [sys.executable, "-m", "tests.chaos.hostile", str(self.dir), str(seed), str(seconds)]
        command += ["door", "control", "signals"]
        with (self.folder / "out").open("ab") as out:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment())

    def end_hostile_user(self, process: subprocess.Popen[bytes]) -> None:
        """End the process, and note it if it has failed by itself."""
        process.kill()
        if process.wait() not in (0, -signal.SIGKILL):
            self.faults_of_programs.append(f"a hostile user's process ended with {process.returncode}")

    # --- programs

    def launch(self, chance: random.Random) -> None:
        """Launch a program of any kind with any options."""
        kind = chance.choice(self.node.kinds)
        options = ["--class", chance.choice(["malleable"] * 4 + ["moldable", "rigid"])]
        if chance.random() < 0.5:
            options += ["--cpus", str(chance.randint(1, 3))]
        if chance.random() < 0.2:
            options += ["--malleability", "bind-only"]
        words = [native.run_path(), "--runtime-dir", self.dir, *options, "--", *self.commands[kind]]
        with (self.folder / "out").open("ab") as out:
            process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=environment(OMP_WAIT_POLICY="passive", **{MARK: str(self.folder)}),
            )
        self.programs.append(Launched(process, kind))

    def collect(self) -> None:
        """Take note of the programs that have ended."""
        for program in [program for program in self.programs if program.process.poll() is not None]:
            program.end()
            self.programs.remove(program)
            status = program.process.returncode
            if status in CRASHES and not (program.excused and status == -signal.SIGBUS):
                self.faults_of_programs.append(f"a program ({program.kind}) died of {signal.Signals(-status).name}")

    def end_strays(self, *, everybody: bool = False) -> None:
        """Kill what programs that have ended have left behind, and those that no agent manages; or everybody."""
        self.collect()
        reading = checker.read(self.dir)
        managed = {slot.who[0] for slot in reading.slots} if reading and not everybody else set()
        for program in self.programs:
            if program.pid not in managed:
                program.signal(signal.SIGKILL)
        wanted = set() if everybody else {p.pid for p in self.programs if p.process.poll() is None} & managed
        for pid in _marked(str(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) not in wanted:
                    os.kill(pid, signal.SIGKILL)
        self.collect()

    def victim(self, chance: random.Random) -> Launched | None:
        """Return a program that runs: the newest one in a third of all cases."""
        self.collect()
        if not self.programs:
            return None
        return self.programs[-1] if chance.random() < 0.33 else chance.choice(self.programs)


def _marked(mark: str) -> list[int]:
    """Return the processes, not of ours, whose environment carries the mark of a stage."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are what is wanted
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if entry in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and lives(int(name)):
                    found.append(int(name))
    return found


# --- what a storm needs


class Clock:
    """A wall clock for whatever is started in the block that it is used for."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "clock"
        self.file.write_bytes(bytes(8))
        self._library = folder / "clock.so"
        flags = ["-O1", "-D_GNU_SOURCE", "-fPIC", "-shared"]
        subprocess.run(["gcc", *flags, NATIVE / "clock.c", "-o", self._library, "-ldl"], check=True)

    def move(self, seconds: int) -> None:
        """Set it so many seconds off, all at once."""
        with self.file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", seconds))

    @contextlib.contextmanager
    def in_force(self) -> Iterator[Clock]:
        """Have everything that is started from now on go by it."""
        before = os.environ.get("LD_PRELOAD")
        os.environ |= {"LD_PRELOAD": str(self._library), "DROM_TEST_CLOCK": str(self.file)}
        try:
            yield self
        finally:
            del os.environ["LD_PRELOAD"], os.environ["DROM_TEST_CLOCK"]
            if before is not None:
                os.environ["LD_PRELOAD"] = before


def commands(folder: Path) -> dict[str, list[str]]:
    """Compile what has to be; return a command line for each kind of program."""
    program, churn, openmp = str(build_program(folder)), str(folder / "churn"), str(folder / "openmp")
    subprocess.run(["gcc", "-O1", "-pthread", NATIVE / "churn.c", "-o", churn], check=True)
    subprocess.run(["gcc", "-O1", "-fopenmp", SYSTEM / "openmp.c", "-o", openmp], check=True)
    return {
        "attends": [program],
        "attends with threads": [program, "--threads", "8"],
        "attends with children": [program, "--children", "2"],
        "silent": [program, "--silent"],
        "outside": [program, "--outside"],
        "sleeps": ["sleep", "1000"],
        "churns threads": [churn],
        "churns children": [churn, "forks"],
        "shell": ["sh", "-c", "while :; do sleep 0.05; done"],
        "daemon": ["sh", "-c", "(sleep 1000 &); sleep 1000"],
        "openmp": [openmp, "loop"],
        "python": [sys.executable, "-c", POLLING],
    }


@contextlib.contextmanager
def space(folder: Path) -> Iterator[bool]:
    """Make the folder `space`, a small file system of its own where we may; say whether it is one."""
    place = folder / "space"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SPACE},mode=755", "drom-chaos", str(place)]
    small = bool(shutil.which("mount")) and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield small
    finally:
        if small:
            subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def stage(folder: Path, node: Node, *, compiled: bool = False) -> Iterator[Stage]:
    """Set up a node with its first agent, whose kernel is `compiled` or not; everything is gone after the block."""
    folder.mkdir(parents=True)
    (folder / "claims").mkdir()
    with space(folder) as small:
        made = Stage(folder, node, commands(folder), small, compiled=compiled)
        try:
            made.start_agent(ready=True)
            yield made
        finally:
            _clear(made)


def _clear(made: Stage) -> None:
    for program in made.programs:
        program.signal(signal.SIGKILL)
    made.end_strays(everybody=True)
    deadline = time.monotonic() + 60
    while made.programs and time.monotonic() < deadline:
        made.collect()
        time.sleep(0.01)
    if made.agent:
        made.agent.discard()
