"""Real agents and real programs for tests: started, awaited, shown on failure, and never left behind."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import psutil
import typer
from drom.agent.cli import commands
from drom.agent.config import sources as config
from drom.agent.config.sources import Sources
from drom.agent.control import client
from drom.agent.daemon import daemon, reload, settings, startup  # noqa: F401 - imported for forks, which run agents
from drom.agent.execution.spool import Folder
from drom.agent.ipc import cpu_locks
from drom.agent.system.python_command import SERVE
from drom.agent.testbed.agent_process import AgentProcess, clean_environment

from dromlib import native
from tests.support import checker
from tests.support.commands import run_forked
from tests.support.forks import Fork
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drom.agent.config.options import Options

T = TypeVar("T")

START_SECONDS = 120
"""A machine without numba's cache compiles the kernel first."""
SECONDS = 60
"""Any other deadline: far beyond what the slowest machine needs when it has other things to do."""
SERVES_METRICS = ("--metrics", "127.0.0.1:0")
"""Options of an agent whose metrics are read: at a port that the kernel chooses, as many agents may run."""
SOURCE = ROOT / "tests" / "system" / "program.c"


def wait_until(predicate: Callable[[], T | None], describe: Callable[[], object], seconds: float = SECONDS) -> T:
    """Look until `predicate` returns something true, and return that; show what `describe` says when time is up."""
    deadline = time.monotonic() + seconds
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s; last seen: {describe()}")
        time.sleep(0.005)
    return value


def environment(**extra: str) -> dict[str, str]:
    """Return the environment without settings of drom, OpenMP and launchers, and without this machine's configuration.

    With KMP_INIT_AT_FORK, which joblib sets where it is imported, a fork of LLVM's runtime hangs, without drom too.
    """
    return clean_environment() | extra


def build_program(folder: Path) -> Path:
    """Compile the program under test against the installed library."""
    include, library = native.include_dir(), native.library_path().parent
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{include}", f"-L{library}", f"-Wl,-rpath,{library}"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-ldrom", "-o", str(folder / "program")], check=True)
    return folder / "program"


def start_time(pid: int) -> int:
    """Return the start time of a process, clock ticks since boot; psutil has seconds alone."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])


def lives(pid: int) -> bool:
    """Say whether a process exists and is no zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def anonymous_memory(pid: int) -> int:
    """Return the resident bytes that a process has of its own."""
    memory = psutil.Process(pid).memory_info()
    return memory.rss - memory.shared


def affinity(pid: int) -> str:
    """Return the CPUs that all threads of a process may run on, as a kernel list of at most neighbouring CPUs."""
    cpus: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            cpus |= os.sched_getaffinity(int(thread.name))
    return ",".join(map(str, sorted(cpus)))


@dataclass
class Program:
    """A started command with its streams in files."""

    process: subprocess.Popen[bytes]
    out_file: Path
    err_file: Path

    @property
    def pid(self) -> int:
        """The pid of the command, which drom-run keeps."""
        return self.process.pid

    @property
    def out(self) -> str:
        """What it has said on stdout."""
        return self.out_file.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        """What it has said on stderr."""
        return self.err_file.read_text(encoding="utf-8")

    def show(self) -> str:
        """Return everything it has said."""
        return f"pid {self.pid} exit {self.process.poll()}\nstdout:\n{self.out}\nstderr:\n{self.err}"

    def await_out(self, pattern: str, seconds: float = SECONDS) -> re.Match[str]:
        """Wait until stdout matches."""
        return wait_until(
            lambda: re.search(pattern, self.out, re.MULTILINE), lambda: f"no {pattern!r} from {self.show()}", seconds
        )

    def await_err(self, pattern: str) -> re.Match[str]:
        """Wait until stderr matches."""
        return wait_until(
            lambda: re.search(pattern, self.err, re.MULTILINE), lambda: f"no {pattern!r} from {self.show()}"
        )

    def applied(self) -> list[str]:
        """Return the CPU lists the program has applied, in order."""
        return re.findall(r"^applied .* cpus (.*)$", self.out, re.MULTILINE)

    def tell(self, letters: str) -> None:
        """Write to its stdin."""
        assert self.process.stdin
        self.process.stdin.write(letters.encode())
        self.process.stdin.flush()

    def tell_heard(self, letter: str) -> None:
        """Write a letter to the stdin of the program under test, and wait until it has done what that says."""
        before = self.out.count(f"heard {letter}\n")
        self.tell(letter)
        wait_until(lambda: self.out.count(f"heard {letter}\n") > before, self.show)

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs: {self.show()}\n{what_threads_do(self.process.pid)}") from None

    def quit(self) -> int:
        """Close its stdin, at which the program under test ends."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.wait()

    def kill(self) -> None:
        """Kill it with its children and collect it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


def what_threads_do(pid: int) -> str:
    """Return a line for each thread of a process and its descendants: its state, system call and place in the code."""
    lines = []
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            for thread in Path(f"/proc/{each.pid}/task").iterdir():
                with contextlib.suppress(OSError):  # it has ended
                    state = (thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
                    call = (thread / "syscall").read_text(encoding="utf-8").split()
                    lines.append(f"{each.name()} {thread.name}: {state} {' '.join(call)} {_place(each.pid, call[-1])}")
    return "\n".join(lines)


def _place(pid: int, counter: str) -> str:
    """Return the file, and the offset in it, of which a program counter executes code; empty if it has none."""
    if counter.startswith("0x"):
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            span, _, offset, *rest = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= int(counter, 16) < last:
                return f"{rest[-1]}+{int(counter, 16) - first + int(offset, 16):#x}"
    return ""


@dataclass
class Programs:
    """What a test has started; all of it is killed at the end."""

    folder: Path
    started: list[Program] = field(default_factory=list)

    def start(self, *command: str | Path, **extra: str) -> Program:
        """Start a command in a session of its own, with a pipe for stdin and files for its output."""
        out, err = (self.folder / f"{len(self.started)}.{name}" for name in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env=environment(**extra),
            )
        program = Program(process, out, err)
        self.started.append(program)
        return program

    def kill(self) -> None:
        """Kill everything that was started."""
        for program in self.started:
            program.kill()


@contextlib.contextmanager
def programs(folder: Path) -> Iterator[Programs]:
    """Start programs in a block; all of them are gone after it, and shown when it failed."""
    folder.mkdir(exist_ok=True)
    all_of_them = Programs(folder)
    try:
        yield all_of_them
    except BaseException:
        for program in all_of_them.started:
            print(program.process.args, program.show())
        raise
    finally:
        all_of_them.kill()


class Process(Protocol):
    """What a test needs of a started process; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """The pid."""

    @property
    def returncode(self) -> int | Any:
        """The exit code, or None while it runs."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Agent:
    """A running agent in its runtime directory."""

    def __init__(self, runtime_dir: Path, log_file: Path, process: Process, log_from: int | None = None) -> None:
        self.dir = runtime_dir
        self.log_file = log_file
        self.process = process
        self._log_from = log_file.stat().st_size if log_from is None else log_from

    @property
    def pid(self) -> int:
        """The pid of the agent."""
        return self.process.pid

    @property
    def log(self) -> str:
        """What it has logged."""
        with self.log_file.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode()

    def await_log(self, pattern: str, seconds: float = SECONDS) -> re.Match[str]:
        """Wait for a line of the log that matches."""

        def seen() -> re.Match[str] | None:
            if self.process.poll() is not None and not re.search(pattern, self.log):
                raise AssertionError(f"the agent ended with {self.process.returncode}; its log:\n{self.log}")
            return re.search(pattern, self.log)

        return wait_until(seen, lambda: f"no {pattern!r} in the log:\n{self.log}", seconds)

    def metrics(self) -> str:
        """Return one scrape of an agent started with `SERVES_METRICS`."""
        port = self.await_log(r"event=metrics .*port=(\d+)")[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
            text: str = answer.read().decode()
            return text

    def order(self, name: str, **fields: Any) -> Any:
        """Give an order over the control socket. Raises `ControlError`."""
        return client.order(self.dir, name, **fields)

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Return the rows of `drom ps` by job, or by job.task for jobs of several."""
        rows = self.order("ps")["tasks"]
        several = {row["job"] for row in rows if row["task"] > 0}
        return {f"{row['job']}.{row['task']}" if row["job"] in several else row["job"]: row for row in rows}

    def await_tasks(self, **wanted: str) -> dict[str, dict[str, Any]]:
        """Wait until exactly these jobs run on these CPUs, settled: what each was granted, has applied and holds."""
        rows: dict[str, dict[str, Any]] = {}

        def there() -> bool:
            nonlocal rows
            rows = self.tasks()
            keys = ("granted", "applied", "held", "target")
            return rows.keys() == wanted.keys() and all(
                rows[job][k] == cpus for job, cpus in wanted.items() for k in keys
            )

        wait_until(there, lambda: f"{rows}\n{self.log}")
        return rows

    def run(self, *words: str | Path) -> list[str]:
        """Return the command line of the launcher with these options and command."""
        return [str(word) for word in (native.run_path(), "--runtime-dir", self.dir, *words)]

    def cli(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a `drom` command against this agent."""
        return drom(*words, "--runtime-dir", self.dir)

    def assert_clean(self) -> None:
        """Check the registry at once, and wait until /proc agrees with it."""
        assert_clean(self.dir)

    def kill(self) -> None:
        """Kill it as a crash would; nothing is put in order."""
        self.process.kill()
        self.process.wait()
        assert "Traceback" not in self.log, self.log

    def stop(self) -> None:
        """Stop it with SIGTERM and check that it leaves nothing and gives masks back."""
        reading = checker.read(self.dir)
        assert self.process.poll() is None, f"the agent ended with {self.process.returncode}; its log:\n{self.log}"
        self.process.terminate()
        try:
            status = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the agent does not stop; its log:\n{self.log}") from None
        assert "Traceback" not in self.log, self.log
        assert status == 0, self.log
        left = {path.name for path in self.dir.iterdir()}
        assert "lock" in left <= {"lock", "events", "events.1"}, left
        if reading and not reading.emulated:
            for slot in reading.slots:
                _assert_restored(slot)

    def discard(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def kill_jobs(self) -> None:
        """Kill a scheduler's jobs on its node, which outlive it."""
        for folder in map(Folder, self.dir.glob("steward/*.*")):
            for step in folder.pids()[:1] if folder.is_locked() else []:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(step)
                    for each in (*process.children(recursive=True), process):
                        each.kill()


def _assert_restored(slot: checker.Slot) -> None:
    pid, start = slot.who
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if slot.restore and start_time(pid) == start and lives(pid):
            # A program that was about to apply a grant does so, and gives that back itself.
            before = checker.list_of(slot.restore)
            wait_until(lambda: affinity(pid) in (before, ""), lambda: f"{slot} was not restored: {affinity(pid)}")


def assert_clean(runtime_dir: Path) -> None:
    """Check the registry at once, and wait until /proc agrees with it."""
    found: list[str] = []

    def clean() -> bool:
        nonlocal found
        found = checker.check(runtime_dir, proc=False)
        assert not found, "\n".join(found)
        found = checker.check(runtime_dir)
        return not found

    wait_until(clean, lambda: "\n".join(found))


def drom(*words: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a `drom` command to its end."""
    return run_forked(*map(str, words), env=environment(NUMBA_DISABLE_JIT="1", **extra))


def _parse_options(words: list[str], environ: dict[str, str]) -> tuple[Options, Sources]:
    """Return what `drom agent` with these words and this environment passes to the process that it becomes."""
    context = _agent_command().make_context("agent", words)
    sources = commands._sources(context.params)
    return config.options_of(sources.load(environ)), sources


@functools.cache
def _agent_command() -> Any:
    """Return the command `drom agent`, which is slow to make."""
    return typer.main.get_group(commands.agent_app).commands["agent"]


class ForkedAgent(AgentProcess):
    """An agent in a fork of this process."""

    popen = Fork


def launch_agent(
    runtime_dir: Path,
    *options: str | Path,
    compiled: bool = False,
    ready: bool = True,
    limit: int | None = None,
    claims_dir: Path | None = None,
    log_file: Path | None = None,
    within: Sequence[str] = (),
    served: Options | None = None,
    forked: bool = True,
) -> Agent:
    """Start an agent and return it, once it is ready unless told otherwise.

    It claims CPUs apart from all others unless they are given the same `claims_dir`. The kernel runs as plain Python,
    which gives the same answers and starts without numba, unless `compiled`. `limit` is the number of descriptors it
    may open. It runs `within` a command that is given its own. Where all options are `served` at once, the command line
    that would check them is left out. An agent that is to become ready as it is gets what the command line makes of
    `options` in this process, which saves starting Python twice; any other is started by `drom agent`. Unless it is to
    be `compiled`, or not `forked`, it is a fork of this process, whose command line is cut to the length of ours.
    """
    log_file = log_file or runtime_dir.with_name(runtime_dir.name + ".log")
    claims_dir = claims_dir or runtime_dir.with_name(runtime_dir.name + ".claims")
    claims_dir.mkdir(exist_ok=True)
    variables = {cpu_locks.VARIABLE: str(claims_dir)} | ({} if compiled else {"NUMBA_DISABLE_JIT": "1"})
    environ = environment(**variables)
    words = ["--runtime-dir", *map(str, (runtime_dir, *options))]
    command = [sys.executable, "-m", "drom", "agent", *words]
    described = []
    as_it_is = ready and not within and not limit
    if served or as_it_is:
        parsed = (served, Sources()) if served else _parse_options(words, environ)
        described = [startup.describe(*parsed)]
        command[3:] = [SERVE, str(described[0]), "--runtime-dir", str(runtime_dir)]
    if limit:
        command = ["prlimit", f"--nofile={limit}:{limit}", *command]
    if forked and as_it_is and not served and not compiled:
        started: AgentProcess = ForkedAgent(command[2:], log_file, environ, pass_fds=described)
    else:
        started = AgentProcess([*within, *command], log_file, environ, pass_fds=described)
    for descriptor in described:
        os.close(descriptor)
    agent = Agent(runtime_dir, log_file, started.process, started.log_from)
    with contextlib.ExitStack() as stack:
        stack.callback(agent.discard)
        if ready and not started.await_ready(START_SECONDS):
            raise AssertionError(
                f"the agent is not ready; it ended with {started.process.poll()}; its log:\n{agent.log}"
            )
        stack.pop_all()
    return agent


@contextlib.contextmanager
def start_agent(
    folder: Path,
    *options: str | Path,
    name: str = "run",
    compiled: bool = False,
    stop: bool = True,
    limit: int | None = None,
    within: Sequence[str] = (),
    forked: bool = True,
) -> Iterator[Agent]:
    """Run an agent for a block. After it the agent is stopped, and must have left the machine as it was."""
    agent = launch_agent(folder / name, *options, compiled=compiled, limit=limit, within=within, forked=forked)
    try:
        yield agent
        if stop:
            agent.stop()
    except BaseException:
        print(agent.log)
        raise
    finally:
        agent.discard()
