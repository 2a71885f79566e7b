# SPDX-License-Identifier: Apache-2.0
"""A scheduler and an agent per node on machines of namespaces, with CURVE keys between them; all removed at the end.

The scheduler has its own machine, `HEAD`. Its users connect through its folder, from outside.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.control import client, keys
from drom.agent.ipc import cpu_locks
from drom.agent.system import python_command
from drom.agent.testbed.agent_process import clean_environment
from drom.scheduler.live.cluster.spec import SERVICE, Spec
from drom.scheduler.testbed.namespaces import PATIENCE, MachineError, Network, Process

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Self

HEAD = "head"
PORT = 9466
LOOK = 0.02
"""Seconds between two checks of a condition that is polled."""


class Cluster:
    """Nodes with the names n1, n2, ... and `cores` emulated cores each; `options` are those of the scheduler.

    `folder` is created, and its contents stay. Raises `MachineError` with a sentence about what does not work here.
    """

    def __init__(self, folder: Path, *options: str, nodes: int = 4, cores: int = 4) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.state, self.cores = folder, folder / "queue", cores
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.options = options
        self.network = Network(folder, [HEAD, *self.names])
        self.agents: dict[str, Process] = {}
        self.scheduler: Process | None = None
        self.work = folder / "work"

    def __enter__(self) -> Self:
        self.work.mkdir()
        (self.folder / "tmp").mkdir()
        (self.folder / "tmp").chmod(0o1777)
        self._make_keys()
        self.network.__enter__()
        try:
            self.start_scheduler()
            for name in self.names:
                self.start_agent(name)
            self.await_nodes(up=self.names)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all machines and their processes."""
        self.network.close()
        for process in filter(None, (self.scheduler, *self.agents.values())):
            with suppress(subprocess.TimeoutExpired):
                process.end(signal.SIGKILL)

    def stop(self) -> list[str]:
        """Stop agents and scheduler as an administrator would; return sentences on what they leave behind."""
        complaints = []
        for name, process in {**self.agents, HEAD: self.scheduler}.items():
            status = process.end(signal.SIGTERM) if process else 0
            if status:
                complaints.append(f"what ran on {name} ended with status {status}: {self.last_words(name)}")
        for name in self.names:
            rows = self.network[name].do("ps", "-e", "-o", "pid=,comm=").splitlines()
            strays = [row.strip() for row in rows if row.split()[1] not in ("sh", "sleep", "ps")]
            if strays:
                complaints.append(f"processes are left on {name}: {', '.join(strays)}.")
            if found := list((self.folder / name / "run/steward").glob("*")):
                complaints.append(f"attempts of jobs are left on {name}: {', '.join(path.name for path in found)}.")
        return complaints

    # --- scheduler and agents ---

    def _make_keys(self) -> None:
        """Create keys for each machine: the scheduler trusts those of the agents by name, and they trust its key."""
        head = keys.make(self.keys_of(HEAD))
        for name in self.names:
            own = keys.make(self.keys_of(name))
            keys.trust(head, own.folder / keys.PUBLIC, name)
            keys.trust(own, head.folder / keys.PUBLIC, HEAD)

    def keys_of(self, name: str) -> Path:
        """Return the folder of a machine's keys."""
        return self.folder / "keys" / name

    def log_of(self, name: str) -> Path:
        """Return the log file of the scheduler or agent of a machine."""
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        """Return the log of the scheduler or agent of a machine."""
        log = self.log_of(name)
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def last_words(self, name: str) -> str:
        """Return the last line in the log of the scheduler or agent of a machine."""
        lines = self.said(name).splitlines()
        return lines[-1].removeprefix("drom: ") if lines else "it said nothing."

    def start_scheduler(self, *more: str) -> None:
        """Start the scheduler, and wait until it is ready."""
        words = ["scheduler", "--state", str(self.state), "--keys", str(self.keys_of(HEAD))]
        words += ["--agents", f"{self.network[HEAD].address}:{PORT}", *self.options, *more]
        self.scheduler = self._start(HEAD, words)

    @property
    def address(self) -> str:
        """The address of the scheduler for agents."""
        return f"tcp://{HEAD}:{PORT}"

    def start_agent(self, name: str, *more: str, within: Iterable[str] = (), **variables: str) -> None:
        """Start the agent of a node `within` another command, and wait until it is ready.

        It emulates its cores, unless `more` options give its hardware.
        """
        home = self.folder / name
        (home / "claims").mkdir(parents=True, exist_ok=True)
        words = ["agent", "--runtime-dir", str(home / "run"), "--scheduler", self.address, "--node", name]
        words += ["--remote-keys", str(self.keys_of(name))]
        words += more or ("--emulate", f"pack:1 core:{self.cores} pu:1")
        variables = {cpu_locks.VARIABLE: str(home / "claims"), **variables}
        self.agents[name] = self._start(name, words, within, variables)

    def _start(
        self, name: str, words: list[str], within: Iterable[str] = (), variables: Mapping[str, str] | None = None
    ) -> Process:
        ready = self.said(name).count(" event=ready ")
        process = self.run_on(name, words, self.log_of(name), within, variables)
        self.wait_until(
            lambda: self.said(name).count(" event=ready ") > ready or process.poll() is not None,
            f"what runs on {name} to be ready",
        )
        if process.poll() is not None:
            msg = f"'drom {words[0]}' did not start on {name}: {self.last_words(name)}"
            raise MachineError(msg)
        return process

    def run_on(
        self,
        name: str,
        words: Iterable[str],
        log: Path,
        within: Iterable[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a `drom` command on a machine, `within` another command."""
        # The policy as plain Python gives the same answers, and starts immediately on a machine that never compiled it.
        environment = clean_environment() | {"NUMBA_DISABLE_JIT": "1"} | dict(variables or {})
        return Process(self.network[name], [*within, *python_command.drom(*words)], log, environment)

    def await_nodes(self, *, up: Iterable[str]) -> None:
        """Wait until exactly these nodes accept jobs."""
        wanted = sorted(up)
        self.wait_until(
            lambda: sorted(node["name"] for node in self.ask("nodes")["nodes"] if node["state"] == "up") == wanted,
            f"the nodes {', '.join(wanted)} to be up",
        )

    # --- users ---

    def ask(self, order: str, **fields: Any) -> Any:  # noqa: ANN401 - JSON values
        """Give the scheduler an order and return its answer. Raises `ControlError`."""
        return client.order(self.state, order, server=SERVICE, **fields)

    def spec(self, *command: str, **fields: Any) -> Spec:  # noqa: ANN401 - of any field
        """Return a job that runs in the folder `work`, with only the environment that it needs."""
        environment = clean_environment() | {"TMPDIR": str(self.folder / "tmp")}
        return replace(Spec(command=command, folder=str(self.work), environment=environment), **fields)

    def submit(self, *command: str, **fields: Any) -> int:  # noqa: ANN401 - of any field
        """Submit a job, and return its number. Raises `ControlError`."""
        value = self.ask("submit", jobs=[self.spec(*command, **fields).to_json()])
        return int(value["jobs"][0])

    def tasks(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of `drom ps` on a node. Raises `ControlError`."""
        rows: list[dict[str, Any]] = client.order(self.folder / name / "run", "ps")["tasks"]
        return rows

    def wait_until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait until a condition holds. Raises `MachineError` if it does not in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                msg = f"gave up waiting for {what}; the scheduler's last words: {self.last_words(HEAD)}"
                raise MachineError(msg)
            time.sleep(LOOK)


def why_no_mpi() -> str:
    """Return a sentence with the reason why MPI jobs cannot be shown here; empty if they can."""
    tools = ("mpicc", "mpirun")
    return (
        "" if all(map(shutil.which, tools)) else "MPI jobs need Open MPI: apt-get install openmpi-bin libopenmpi-dev."
    )


def build_ring(folder: Path) -> Path:
    """Compile `ring.c` in a folder and return the program. Raises `MachineError`."""
    return _build(folder, Path(__file__).with_name("ring.c"))


def build_adaptive(folder: Path, name: str) -> Path:
    """Compile an adaptive program in a folder and return it: `migration`, `shared_work` or `steps`, see there.

    Raises `MachineError`.
    """
    return _build(folder, Path(__file__).with_name(f"{name}.c"), native.include_dir() / "drom_mpi.c")


def _build(folder: Path, source: Path, *others: Path) -> Path:
    """Compile a program of MPI from its source and others. Raises `MachineError`."""
    program, include, library = folder / source.stem, native.include_dir(), native.library_path().parent
    flags = ["-O2", f"-I{include}", f"-L{library}", f"-Wl,-rpath,{library}"]
    sources = [str(source), *map(str, others)]
    command = [shutil.which("mpicc") or "mpicc", *flags, *sources, "-ldrom", "-lm", "-o", str(program)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        msg = f"mpicc cannot build {source.name}: {reason}."
        raise MachineError(msg)
    return program
