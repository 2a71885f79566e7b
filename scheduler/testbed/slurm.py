# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on machines of namespaces: munged, slurmctld on `HEAD`, a slurmd and an agent on each node.

Set up from Debian's packages, and removed completely. The cores of nodes are emulated, so that many fit on a machine of
few: Slurm counts cores that do not exist, and so do the agents. Each node has an own /run, and its agent there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drom.agent.control import client
from drom.agent.ipc import cpu_locks
from drom.agent.system import python_command
from drom.agent.testbed.agent_process import clean_environment
from drom.scheduler.testbed.namespaces import PATIENCE, MachineError, Network, Process, why_not

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

T = TypeVar("T")

HEAD = "head"
TOOLS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
"""The programs of a Slurm, and the packages of Debian that contain them."""
HEADER = Path("/usr/include/slurm/spank.h")
RUN = Path("/run/drom")
LOOK = 0.02
"""Seconds between two looks at a condition."""
_CGROUPS = Path("/sys/fs/cgroup")
_CONTRIB = Path(__file__).resolve().parents[2] / "contrib/slurm"
_CONFIGURATION = """\
ClusterName=drom
SlurmctldHost={head}({address})
SlurmctldPort=26817
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/state/slurmctld.pid
SlurmdPidFile={folder}/spool/%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd-%n
TmpFS={folder}/tmp/%n
ProctrackType={proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,default_queue_depth=1000
MailProg=/bin/true
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=3
PlugStackConfig={folder}/plugstack.conf
"""
_NODE = "NodeName={name} NodeAddr={address} Port=26818 CPUs={cores} Sockets=1 CoresPerSocket={cores} RealMemory=1000\n"


def why_no_slurm() -> str:
    """Return a sentence with the reason why there can be no Slurm here; empty if there can."""
    if reason := why_not():
        return reason
    if not (_CONTRIB / "build.sh").exists():
        return "a cluster with Slurm needs the sources of drom, which are not installed: run make demo-slurm in them."
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if not HEADER.exists():
        missing.append("libslurm-dev")
    return f"a cluster with Slurm needs {', '.join(missing)}: apt-get install them." if missing else ""


class SlurmCluster:
    """A Slurm with nodes that have `cores` emulated cores each, up while this is entered.

    The names of the nodes begin with `prefix`, which no other cluster of this machine may have at the same time: Slurm
    names its control groups after nodes. `settings` are more lines of slurm.conf, where {nodes} stands for all nodes,
    `plugstack` those of plugstack.conf, and `agent_options` those of each agent. `folder` must be readable by all
    users; its contents stay. Raises `MachineError` with a sentence about what does not work.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 4,
        cores: int = 4,
        settings: str = "",
        plugstack: str = "",
        prefix: str = "n",
        agent_options: Sequence[str] = (),
    ) -> None:
        self.folder, self.cores = folder, cores
        self.names = [f"{prefix}{number}" for number in range(1, nodes + 1)]
        self.agents: dict[str, Process] = {}
        self.daemons: dict[str, Process] = {}
        """slurmctld by `HEAD`, and slurmd by the name of its node."""
        self.work = folder / "work"
        self._settings, self._plugstack, self._agent_options = settings, plugstack, agent_options
        self._stack = ExitStack()
        self._network = Network(folder, [HEAD, *self.names])
        self._environment = clean_environment() | {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all machines and their processes, and remove Slurm's control groups."""
        self._stack.close()
        for process in (*self.daemons.values(), *self.agents.values()):
            with suppress(subprocess.TimeoutExpired):
                process.end(signal.SIGKILL)
        for name in self.names:
            remove_groups(name)

    def _start(self) -> None:
        for name in ("munge", "state", "spool", "log", "work", "tmp"):
            (self.folder / name).mkdir()
        for name in ("state", "log"):
            shutil.chown(self.folder / name, "slurm")
        self.work.chmod(0o1777)
        self._stack.enter_context(munged(self.folder / "munge"))
        self._stack.enter_context(self._network)
        self._write_configuration()
        for name in self.names:
            self._network[name].do("mount", "-t", "tmpfs", "tmpfs", "/run")
            for place in ("spool", "tmp"):  # each node has its own
                (self.folder / place / name).mkdir()
            (self.folder / "tmp" / name).chmod(0o1777)
        self.start_slurmctld()
        for name in self.names:
            self.start_slurmd(name)
            self.start_agent(name)
        self.await_true(
            lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split().count("idle") >= len(self.names), "idle nodes"
        )

    def _write_configuration(self) -> None:
        proctrack = "proctrack/cgroup" if (_CGROUPS / "freezer").is_dir() else "proctrack/linuxproc"
        address = self._network[HEAD].address
        text = _CONFIGURATION.format(folder=self.folder, head=HEAD, address=address, proctrack=proctrack)
        for name in self.names:
            text += _NODE.format(name=name, address=self._network[name].address, cores=self.cores)
        text += self._settings.replace("{nodes}", ",".join(self.names))
        (self.folder / "slurm.conf").write_text(text, encoding="utf-8")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
        (self.folder / "plugstack.conf").write_text(self._plugstack, encoding="utf-8")

    # --- daemons ---

    def start_slurmctld(self) -> None:
        """Start slurmctld."""
        self.daemons[HEAD] = self.run_on(HEAD, "slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))

    def start_slurmd(self, name: str) -> None:
        """Start the slurmd of a node."""
        words = ("slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf"))
        self.daemons[name] = self.run_on(name, *words, log=f"slurmd-{name}.out")

    def start_agent(self, name: str, *more: str) -> None:
        """Start the agent of a node with `more` options, and wait until it is ready."""
        claims = self.folder / "claims" / name
        claims.mkdir(parents=True, exist_ok=True)
        log = f"agent-{name}.out"
        ready = self.output_of(log).count(" event=ready ")
        emulated = ("--emulate", f"pack:1 core:{self.cores} pu:1")
        words = python_command.drom("agent", *emulated, *self._agent_options, *more)
        variables = {cpu_locks.VARIABLE: str(claims), "NUMBA_DISABLE_JIT": "1", "DROM_RUNTIME_DIR": str(RUN)}
        self.agents[name] = self.run_on(name, *words, log=log, **variables)
        self.await_true(lambda: self.output_of(log).count(" event=ready ") > ready, f"the agent of {name}")

    def run_on(self, machine: str, *words: str, log: str = "", **variables: str) -> Process:
        """Start a command on a machine, with its output in the file `log` of the folder of logs."""
        path = self.folder / "log" / (log or f"{words[0]}.out")
        return Process(self._network[machine], words, path, self._environment | variables)

    def output_of(self, name: str) -> str:
        """Return what was written to a file in the folder of logs; empty if there is none yet."""
        path = self.folder / "log" / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @contextmanager
    def decided(self, partition: str, *options: str, user: str = "", compiled: bool = False) -> Iterator[Process]:
        """Run `drom slurm` for a partition in the block, with its policy `compiled` or interpreted.

        It runs as root or as `user`, who may then read all files.

        Raises `MachineError` if it does not start.
        """
        words = python_command.drom("slurm", "--partition", partition, "--state", str(self.folder / "gate"), *options)
        if user:
            readable = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
            words = [*_as_user(user), *readable, *words]
        ready = self.output_of("daemon").count(" event=ready ")
        daemon = self.run_on(HEAD, *words, log="daemon", NUMBA_DISABLE_JIT=str(int(not compiled)))
        try:
            self.await_true(
                lambda: self.output_of("daemon").count(" event=ready ") > ready or daemon.poll() is not None,
                "drom slurm to be ready",
            )
            if daemon.poll() is not None:
                msg = f"drom slurm did not start: {self.output_of('daemon').strip().splitlines()[-1]}"
                raise MachineError(msg)
            yield daemon
        finally:
            daemon.end(signal.SIGTERM)

    # --- users ---

    def on_head(self, *words: str) -> list[str]:
        """Return the command line that runs a command on the head."""
        return self._network[HEAD].within(*words)

    def ask(self, *words: str) -> str:
        """Run a command on the head and return its output; again while slurmctld does not answer."""
        command = self.on_head(*words)

        def done() -> subprocess.CompletedProcess[str] | None:
            ran = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/"
            )
            if ran.returncode and "Unable to contact slurm controller" not in ran.stderr:
                reason = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
                msg = f"'{' '.join(words)}' failed: {reason}."
                raise MachineError(msg)
            return None if ran.returncode else ran

        return self.await_true(done, " ".join(words)).stdout

    def ask_as(self, user: str, *words: str) -> str:
        """Run a command on the head as a user, and return what it prints to stdout and stderr."""
        command = self.on_head(*_as_user(user), *words)
        ran = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/"
        )
        return ran.stdout + ran.stderr

    def submit(self, script: str, *options: str) -> int:
        """Submit a batch script and return the job's number. The output goes to JOB.out in the folder `work`."""
        path = self.folder / "work" / f"script-{time.monotonic_ns()}"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        return int(self.ask("sbatch", "--parsable", "-D", str(self.work), "-o", "%j.out", *options, str(path)))

    def tasks(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of `drom ps` on a node. Raises `ControlError`."""
        rows: list[dict[str, Any]] = client.order(self.from_outside(name, RUN), "ps")["tasks"]
        return rows

    def from_outside(self, name: str, path: Path) -> Path:
        """Return a path on a machine as it is seen from this process."""
        return Path(f"/proc/{self._network[name].first}/root{path}")

    def await_true(self, look: Callable[[], T | None], what: str) -> T:
        """Look until something is true, and return it. Raises `MachineError` if it takes too long."""
        return _await(look, f"{what}; {self.folder / 'log'} has the logs")


def write_job_submit(folder: Path, *, gated: str = "") -> None:
    """Write the checkout's job_submit.lua to a folder, for the partition, if any, with jobs that wait at the gate."""
    text = (_CONTRIB / "job_submit.lua").read_text(encoding="utf-8")
    if gated:
        text = text.replace("local gated = {}", f"local gated = {{ {gated} = true }}", 1)
    (folder / "job_submit.lua").write_text(text, encoding="utf-8")


def build_plugin(folder: Path) -> Path:
    """Compile the SPANK plugin of the checkout in a folder and return it. Raises `MachineError`."""
    return _build("build.sh", folder / "spank_drom.so", "the SPANK plugin")


def build_helper(folder: Path) -> Path:
    """Compile the helper of `drom slurm` in a folder and return it. Raises `MachineError`."""
    return _build("build_helper.sh", folder / "drom-slurm-helper", "the helper of drom slurm")


def _build(script: str, file: Path, what: str) -> Path:
    done = subprocess.run([_CONTRIB / script, file], check=False, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        msg = f"{what} cannot be built: {reason}."
        raise MachineError(msg)
    return file


def plugin_line(plugin: Path, deadline: int) -> str:
    """Return the line of plugstack.conf for the plugin; its tasks wait `deadline` seconds at most."""
    return f"required {plugin} drom_run={native.run_path()} runtime_dir={RUN} deadline={deadline}\n"


@contextmanager
def munged(folder: Path) -> Iterator[None]:
    """Run munged in the block, with a new key; its socket is `socket` in the folder. Raises `MachineError`."""
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
    words = ["munged", "--foreground", "--force", f"--socket={folder / 'socket'}", *files]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        _await((folder / "socket").exists, "munged")
        yield
    finally:
        process.terminate()
        process.wait()


def remove_groups(node: str) -> None:
    """Remove the control groups of a node of Slurm once they are empty. Raises `MachineError`."""
    for top in _CGROUPS.glob(f"*/slurm_{node}"):
        for group, _, _ in os.walk(top, topdown=False):
            _await(partial(_is_removed, Path(group)), f"{group} to be empty")


def _await(look: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            msg = f"gave up waiting for {what}."
            raise MachineError(msg)
        time.sleep(LOOK)
    return found


def _as_user(name: str) -> tuple[str, ...]:
    """Return the words that run a command as a user."""
    return ("setpriv", f"--reuid={name}", f"--regid={name}", "--clear-groups")


def _is_removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()
