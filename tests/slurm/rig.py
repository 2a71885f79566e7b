# SPDX-License-Identifier: Apache-2.0
"""A real Slurm with one node of this machine's first two CPUs, which it divides by cores, and an agent on the node.

Everything runs on machines of namespaces: munged, slurmctld on a head, slurmd and the agent on the node. Slurm's
cpusets are real. Set up from Debian's packages, and removed without trace.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drom.agent.control import client
from drom.agent.ipc import cpu_locks
from drom.agent.system import python_command
from drom.agent.testbed.agent_process import clean_environment
from drom.scheduler.testbed.namespaces import Network, Process, why_not
from drom.scheduler.testbed.slurm import munged, remove_groups

from dromlib import native
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

T = TypeVar("T")

HEAD = "head"
TOOLS = ("munged", "slurmctld", "slurmd", "srun")
CGROUPS = Path("/sys/fs/cgroup")
ANOTHER = Path(os.environ["DROM_SLURM_ROOT"]).absolute() if os.environ.get("DROM_SLURM_ROOT") else None
"""The root folder of another Slurm, whose programs run in it instead of this machine's. See scripts/slurm_new.sh."""
SHARED = ("/proc", "/sys", "/dev", "/run", "/etc/passwd", "/etc/group", "/etc/hosts")
"""What programs in such a root share with those outside."""
NUMBERS = itertools.count(1)
"""Of nodes of this process. Slurm names its control groups after nodes, and all on this machine are in one place."""
SECONDS = 60.0
CONFIGURATION = """\
ClusterName=drom
SlurmctldHost={head}({address})
SlurmctldPort=26817
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/state/slurmctld.pid
SlurmdPidFile={folder}/spool/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd
ProctrackType={proctrack}
TaskPlugin={task_plugins}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_min_interval=0
MailProg=/bin/true
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=3
PlugStackConfig={folder}/plugstack.conf
NodeName={node} NodeHostname={node} NodeAddr={node_address} Port=26818 CPUs=2 Sockets=1 CoresPerSocket=2 RealMemory=100
PartitionName=divided Nodes={node} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=shared Nodes={node} MaxTime=INFINITE State=UP OverSubscribe=FORCE:2
PartitionName=malleable Nodes={node} MaxTime=INFINITE State=UP OverSubscribe=YES:2
"""
CONSTRAINTS = "CgroupPlugin=cgroup/v1\nConstrainCores=yes\nConstrainRAMSpace=no\n"


def reason_to_skip() -> str:
    """Return why there can be no Slurm here, as a sentence; empty if there can."""
    if why := why_not():
        return why
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge."
    if ANOTHER and not ANOTHER.is_dir():
        return f"needs another Slurm in {ANOTHER}: run 'make test-slurm-new' as root, where packages can be fetched."
    if not os.access(CGROUPS / "cpuset", os.W_OK):
        return "needs the cpuset controller of cgroup version 1."
    return "" if {0, 1} <= os.sched_getaffinity(0) else "needs CPUs 0 and 1."


class Slurm:
    """The cluster, up while this is entered. `folder` is readable by all users.

    `plugstack` is the text of plugstack.conf, in which {folder} stands for the folder, and `settings` are more lines of
    slurm.conf. Without `groups` Slurm makes no control groups, and confines tasks by their affinity alone.
    """

    def __init__(self, folder: Path, *, plugstack: str = "", settings: str = "", groups: bool = True) -> None:
        self.folder = folder
        self.node = f"n{os.getpid()}-{next(NUMBERS)}"
        self._plugstack, self._settings, self._groups = plugstack, settings, groups
        self._group = f"slurm_{self.node}"  # Slurm's control group in each hierarchy of version 1
        self._stack = contextlib.ExitStack()
        self._network = Network(folder, (HEAD, self.node))
        self._environment = clean_environment() | {"SLURM_CONF": str(folder / "slurm.conf")}
        self.agent: Process

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        remove_groups(self.node)

    def _start(self) -> None:
        for name in ("munge", "state", "spool", "log", "agent", "claims", "work"):
            (self.folder / name).mkdir()
        for name in ("state", "log"):
            shutil.chown(self.folder / name, "slurm")
        self._write_configuration()
        self._stack.enter_context(munged(self.folder / "munge"))
        self._stack.enter_context(self._network)
        node = self._network[self.node]
        node.do("mount", "-t", "tmpfs", "tmpfs", "/run")
        if ANOTHER:
            self._mount_shared(ANOTHER)
        self._run(HEAD, "slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        self._run(self.node, "slurmd", "-D", "-N", self.node, "-f", str(self.folder / "slurm.conf"))
        self.start_agent()
        self.await_true(lambda: set(self.ask_slurm("sinfo", "-h", "-o", "%t").split()) == {"idle"}, "an idle node")

    def _mount_shared(self, root: Path) -> None:
        """Mount below the root of another Slurm, on each machine, what its programs share with those outside."""
        for name in (HEAD, self.node):
            machine = self._network[name]
            machine.do("mount", "-t", "tmpfs", "tmpfs", f"{root}/tmp")
            for path in (self.folder, ROOT):
                machine.do("mkdir", "-p", f"{root}{path}")
            for path in (*map(Path, SHARED), self.folder, ROOT):
                machine.do("mount", "--rbind", str(path), f"{root}{path}")
        (self.folder / "bin").mkdir()
        for name in ("scontrol", "squeue"):  # for the agent
            command = self.folder / "bin" / name
            words = " ".join(within_root(name))
            command.write_text(f'#!/bin/sh\nPATH=/usr/sbin:/usr/bin\nexec {words} "$@"\n', encoding="utf-8")
            command.chmod(0o755)

    def _write_configuration(self) -> None:
        about = {"head": HEAD, "node": self.node, "address": "10.99.0.1", "node_address": "10.99.0.2"}
        about["proctrack"] = "proctrack/cgroup" if self._groups else "proctrack/linuxproc"
        about["task_plugins"] = "task/affinity,task/cgroup" if self._groups else "task/affinity"
        text = CONFIGURATION.format(folder=self.folder, **about)
        (self.folder / "slurm.conf").write_text(text + self._settings, encoding="utf-8")
        (self.folder / "plugstack.conf").write_text(self._plugstack.format(folder=self.folder), encoding="utf-8")
        (self.folder / "cgroup.conf").write_text(CONSTRAINTS, encoding="utf-8")

    def start_agent(self) -> None:
        """Start the agent of the node, and wait until it is ready."""
        ready = self.log("agent").count(" event=ready ")
        options = ("--runtime-dir", str(self.folder / "agent" / "run"), "--grace", "0.5", "--slurm-limits")
        words = python_command.drom("agent", *options)
        claims = {cpu_locks.VARIABLE: str(self.folder / "claims"), "NUMBA_DISABLE_JIT": "1", "DROM_IGNORE_SLURM": "0"}
        claims["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        self.agent = self._run(self.node, *words, name="agent", inside=False, **claims)
        self.await_true(lambda: self.log("agent").count(" event=ready ") > ready, "the agent")

    def _run(self, machine: str, *words: str, name: str = "", inside: bool = True, **more: str) -> Process:
        log = self.folder / "log" / f"{name or words[0]}.out"
        words = within_root(*words) if inside else words
        process = Process(self._network[machine], words, log, self._environment | more)
        self._stack.callback(_end, process)
        return process

    def log(self, name: str) -> str:
        """Return what a program has written to its output."""
        log = self.folder / "log" / f"{name}.out"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    # --- users ---

    def ask_slurm(self, *words: str) -> str:
        """Run a command of Slurm on the head and return its output; again while slurmctld does not answer."""
        command = self.on_head(*words)

        def done() -> subprocess.CompletedProcess[str] | None:
            ran = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/"
            )
            return None if ran.returncode else ran

        return self.await_true(done, " ".join(words)).stdout

    def on_head(self, *words: str) -> list[str]:
        """Return the command line that runs a command on the head."""
        return self._network[HEAD].within(*within_root(*words))

    def start(
        self, name: str, partition: str = "divided", cpus: int = 1, *, plain: bool = False, minutes: int = 60
    ) -> None:
        """Start a job of this name that sleeps below `srun drom run`, or below srun alone, in the background."""
        options = ["-p", partition, "-J", name, "-n1", f"-c{cpus}", f"-t{minutes}", "-D", str(self.folder / "work")]
        run = (*self.drom_run[:-1], "--job", name, "--")
        self._run(HEAD, "srun", *options, *(() if plain else run), "sleep", "1000", name=f"srun-{name}")

    def start_outside(self, name: str) -> Process:
        """Start `drom run --job NAME` on the node, outside every job of Slurm, and return its process."""
        run = [str(native.run_path()), "--runtime-dir", str(self.folder / "agent" / "run"), "--job", name, "--"]
        return self._run(self.node, *run, "sleep", "1000", name=f"outside-{name}")

    def launch(self, name: str, *words: str, user: str = "") -> Process:
        """Start srun with these words for a job of this name, in the background; see `log` for its output."""
        return self._run(HEAD, *_as_user(user), "srun", "-J", name, *self._usual, *words, name=f"srun-{name}")

    def srun(self, *words: str, user: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """Run srun with these words to its end, with more variables of the environment."""
        command = self.on_head(*_as_user(user), "srun", *self._usual, *words)
        environment = self._environment | more
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/"
        )

    @property
    def drom_run(self) -> tuple[str, ...]:
        """The words that run a program below the agent of the node."""
        return (str(native.run_path()), "--runtime-dir", str(self.folder / "agent" / "run"), "--")

    @property
    def _usual(self) -> tuple[str, ...]:
        return ("--chdir", str(self.folder / "work"))

    def submit(self, script: str, *options: str, cpus: int = 2) -> str:
        """Submit a batch script, in which `drom-run` is this one and finds the agent; return the job's number."""
        path = self.folder / "work" / f"script{len(list((self.folder / 'work').iterdir()))}"
        lines = (
            "#!/bin/sh",
            f"PATH={native.run_path().parent}:$PATH",
            f"export DROM_RUNTIME_DIR={self.folder}/agent/run",
        )
        path.write_text("\n".join([*lines, script, ""]), encoding="utf-8")
        usual = ("--parsable", "-n1", f"-c{cpus}", "-D", str(self.folder / "work"))
        return self.ask_slurm("sbatch", *usual, *options, str(path)).strip()

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until Slurm and the agent have none."""
        self.ask_slurm("scancel", "--user", "root")
        self.await_no_jobs()

    def await_no_jobs(self) -> None:
        """Wait until Slurm and the agent have no job."""
        self.await_true(lambda: not self._jobs(), "the end of all jobs")

    def cancel(self, *names: str) -> None:
        """Cancel jobs, and wait until Slurm and the agent have them no more."""
        for name in names:
            self.ask_slurm("scancel", "--name", name)
        self.await_true(lambda: not self._jobs() & {*names}, f"the end of {names}")

    def _jobs(self) -> set[str]:
        """Return the names of the jobs that Slurm or the agent has."""
        return {*self.ask_slurm("squeue", "-h", "-o", "%j").split(), *self.tasks()}

    def await_end(self, process: Process) -> int:
        """Wait until a process has ended, and return its exit code."""
        self.await_true(lambda: process.poll() is not None, "the end of a process")
        return process.end(signal.SIGKILL)

    def number_of(self, name: str) -> str:
        """Return the number of the job of this name, once Slurm has it."""
        return self.await_true(lambda: self.ask_slurm("squeue", "-h", "-n", name, "-o", "%i").strip(), f"job {name}")

    def rows(self) -> list[dict[str, Any]]:
        """Return what the agent reports of each task."""
        rows: list[dict[str, Any]] = self._order("ps")["tasks"]
        return rows

    def ranks(self) -> dict[str, list[str]]:
        """Return the CPUs that each task of each job has been granted, applied and holds; none while these differ."""
        found: dict[str, list[str]] = {}
        for row in self.rows():
            same = len({row["granted"], row["applied"], row["held"]}) == 1
            found.setdefault(row["job"], []).append(row["granted"] if same else "")
        return found

    def tasks(self) -> dict[str, str]:
        """Return the same of jobs of one task."""
        return {job: tasks[0] for job, tasks in self.ranks().items()}

    def left_alone(self) -> str:
        """Return the CPUs that the agent leaves to jobs of Slurm that run no program under drom."""
        return str(self._order("ps")["foreign"])

    def resize(self, job: str, cpus: int | None) -> None:
        """Order a job onto so many CPUs, or let the agent decide again."""
        self._order("resize", job=job, cpus=cpus)

    def _order(self, name: str, **fields: Any) -> Any:
        return client.order(self._within(self.folder / "agent" / "run"), name, **fields)

    def _within(self, path: Path) -> Path:
        """Return a path of the node as it is seen from here."""
        return Path(f"/proc/{self._network[self.node].first}/root{path}")

    def cpus_of_slurm(self) -> dict[str, str]:
        """Return the cpuset that Slurm has given each job on the node, by the job's name."""
        rows = [line.split() for line in self.ask_slurm("squeue", "-h", "-t", "R", "-o", "%i %j").splitlines()]
        return {name: self.cpus_of(number) for number, name in rows}

    def limits(self) -> dict[str, str]:
        """Return the time limit of each job that runs, by the job's name."""
        return dict(line.split() for line in self.ask_slurm("squeue", "-h", "-t", "R", "-o", "%j %l").splitlines())

    def cpus_of(self, number: str) -> str:
        """Return the cpuset that Slurm has given a job of this number on the node."""
        return (CGROUPS / "cpuset" / self._group / f"uid_0/job_{number}/cpuset.cpus").read_text().strip()

    def processes_of(self, job: str) -> list[str]:
        """Return the processes in the control groups of the agent's job slurm-NUMBER, as they are numbered here."""
        group = CGROUPS / "cpuset" / self._group / "uid_0" / f"job_{job.partition('-')[2]}"
        found = []
        for folder, _, _ in os.walk(group):  # Slurm may remove any of them meanwhile
            with contextlib.suppress(OSError):
                found += (Path(folder) / "cgroup.procs").read_text().split()
        return found

    def start_requeued(self, job: str) -> None:
        """Start a requeued job soon, which Slurm would start two minutes later.

        In the second in which its first try ended slurmd would refuse it: its credential counts as revoked.
        """
        self.await_true(
            lambda: self.ask_slurm("squeue", "-h", "-j", job, "-o", "%T").strip() == "PENDING", "the requeue"
        )
        self.ask_slurm("scontrol", "update", f"jobid={job}", "starttime=now+2")

    def stop_agent(self) -> None:
        """Stop the agent."""
        self.agent.end(signal.SIGTERM)

    def restart_agent(self) -> None:
        """Kill the agent and start another one, which takes over the tasks."""
        _end(self.agent)
        self.start_agent()

    def await_true(self, look: Callable[[], T | None], what: str) -> T:
        """Look until something is true, and return it."""
        deadline = time.monotonic() + SECONDS
        while not (found := look()):
            logs = "\n".join(self.log(name)[-1500:] for name in ("agent", "slurmd", "slurmctld"))
            assert time.monotonic() < deadline, f"{what}: not within {SECONDS:g} s\n{logs}"
            time.sleep(0.01)
        return found


def within_root(*words: str) -> tuple[str, ...]:
    """Return the words that run a program in the root of the Slurm under test."""
    return ("chroot", str(ANOTHER), *words) if ANOTHER else words


def header_folder() -> Path:
    """Return the folder of the headers of the Slurm under test, for the compiler."""
    return ANOTHER.parent / "include" if ANOTHER else Path("/usr/include")


def _as_user(name: str) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={name}", f"--regid={name}", "--clear-groups") if name else ()


def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.end(signal.SIGKILL)
