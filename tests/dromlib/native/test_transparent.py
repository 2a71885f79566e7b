# SPDX-License-Identifier: Apache-2.0
"""What a program finds of itself under ``drom run``, beside what it finds without."""

from __future__ import annotations

import ctypes
import functools
import os
import pty
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import SECONDS, Agent, environment, start_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

DROM = Path(sys.executable).with_name("drom")
OWN_OF_A_PROCESS = (
    "Pid Tgid Ngid NStgid NSpid NSpgid NSsid PPid SigQ voluntary_ctxt_switches nonvoluntary_ctxt_switches"
)
MEMORY = ("Vm", "Rss", "Hugetlb", "THP")
FILES = ("limits", "cmdline", "personality", "coredump_filter", "timerslack_ns", "oom_score_adj", "cgroup", "uid_map")
ATTRIBUTES = """
import ctypes, json, os, sys
find = lambda name: [name, os.path.exists("/proc/self/fd/" + name) and os.readlink("/proc/self/fd/" + name)]
print(json.dumps({
    "descriptors": [sorted(os.listdir("/proc/self/fd"))[:-1], find("0"), find("77")],
    "io": ctypes.CDLL(None).syscall({"x86_64": 252, "aarch64": 31}[os.uname().machine], 1, 0),
    "nice": os.nice(0), "policy": os.sched_getscheduler(0), "folder": os.getcwd(),
    "groups": os.getgroups(), "ids": [os.getresuid(), os.getresgid()],
    "session": os.getsid(0) == os.getsid(os.getppid()), "group": os.getpgrp() == os.getpid(),
}))
"""
DOCUMENTED = re.compile(
    r"(DROM_\w+|NUMBA_NUM_THREADS|GOMAXPROCS|RAYON_NUM_THREADS|OMPI_MCA_mpi_yield_when_idle|"
    r"LD_PRELOAD|PYTHONPATH|ASAN_OPTIONS)="
)


def odd_process() -> None:
    """Make everything of a process unlike what it usually is, as far as a program inherits it."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.umask(0o027)
    os.nice(3)
    libc.syscall({"x86_64": 251, "aarch64": 30}[os.uname().machine], 1, 0, 2 << 13 | 6)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))
    resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, 16 << 20))
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    libc.prctl(29, 123456, 0, 0, 0)  # PR_SET_TIMERSLACK
    libc.personality(0x0040000)  # ADDR_NO_RANDOMIZE
    for name, value in (("oom_score_adj", "300"), ("coredump_filter", "0x31")):
        Path("/proc/self", name).write_text(value, encoding="ascii")
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(ignored, signal.SIG_IGN)
    blocked = {signal.SIGUSR1, signal.SIGCHLD, signal.SIGRTMIN + 3}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    os.kill(os.getpid(), signal.SIGUSR1)


def ignoring(*numbers: signal.Signals) -> Callable[[], None]:
    """Return what makes a process ignore just these signals."""

    def act() -> None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN if number in numbers else signal.SIG_DFL)

    return act


def output(command: Sequence[str | Path], env: Mapping[str, str], prepare: Callable[[], None], folder: Path) -> str:
    """Return what a command prints that is started in a folder, open as file 77 too, by a process so prepared."""

    def in_child() -> None:
        os.dup2(os.open(folder, os.O_RDONLY), 77)
        prepare()

    done = subprocess.run(
        [str(word) for word in command],
        env=dict(env),
        cwd=folder,
        preexec_fn=in_child,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


def looked(
    launcher: Sequence[str | Path], env: Mapping[str, str], prepare: Callable[[], None], folder: Path
) -> dict[str, list[str]]:
    """Return the kernel's account of a program, and the program's own, by the name of what is told."""
    look = functools.partial(output, env=env, prepare=prepare, folder=folder)
    status = dict(line.split(":", 1) for line in look([*launcher, "cat", "/proc/self/status"]).splitlines())
    told = {name: look([*launcher, "cat", f"/proc/self/{name}"]).split("\0") for name in FILES}
    told["environ"] = sorted(look([*launcher, "cat", "/proc/self/environ"]).split("\0"))
    told["own"] = [look([*launcher, "/usr/bin/env", "-u", "PYTHONPATH", sys.executable, "-Sc", ATTRIBUTES])]
    told["status"] = [
        f"{name}:{value}"
        for name, value in status.items()
        if name not in OWN_OF_A_PROCESS.split() and not name.startswith(MEMORY)
    ]
    return told


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent for all tests of this module."""
    with start_agent(tmp_path_factory.mktemp("node")) as started:
        yield started


def some_environment(directory: Path, **more: str) -> dict[str, str]:
    """Return an environment with odd entries."""
    return {"PATH": os.environ["PATH"], "ODD": "a=b", "EMPTY": "", "DROM_RUNTIME_DIR": str(directory), **more}


IGNORED = [(), (signal.SIGPIPE, signal.SIGXFSZ), (signal.SIGCHLD,)]


@pytest.mark.parametrize("locale", [{}, {"LANG": "C"}, {"LC_CTYPE": "C.UTF-8"}, {"LC_CTYPE": "C"}, {"LC_ALL": "POSIX"}])
def test_a_program_finds_itself_as_without_drom(tmp_path: Path, locale: dict[str, str]) -> None:
    """Signals, environment, descriptors, limits, umask, niceness, folder, masks and arguments are the caller's."""
    env = some_environment(tmp_path / "none", **locale)

    plain = looked([], env, odd_process, tmp_path)

    assert looked([DROM, "run", "--"], env, odd_process, tmp_path) == plain


@pytest.mark.parametrize("prepare", [odd_process, *(ignoring(*numbers) for numbers in IGNORED)])
def test_an_agent_changes_cpus_and_documented_variables_alone(
    agent: Agent, tmp_path: Path, prepare: Callable[[], None]
) -> None:
    """A managed program's signals, those that wait for it too, descriptors, limits and all else are the caller's."""
    env = some_environment(agent.dir)
    plain = looked([], env, prepare, tmp_path)
    managed = looked([DROM, "run", "--"], env, prepare, tmp_path)
    for told in (plain, managed):
        told["status"] = [line for line in told["status"] if not line.startswith("Cpus_allowed")]
    added = set(managed.pop("environ")) - set(plain["environ"])

    assert set(plain.pop("environ")) >= {"ODD=a=b", "EMPTY="}
    assert managed == plain
    assert [entry for entry in added if not DOCUMENTED.match(entry)] == []


@pytest.mark.parametrize(
    "launcher", [[DROM, "run"], [DROM.with_name("drom-run")], [sys.executable, "-m", "drom", "run"]]
)
@pytest.mark.parametrize("ignored", [False, True])
def test_a_pipe_that_nobody_reads_ends_a_program(tmp_path: Path, launcher: list[str], ignored: bool) -> None:
    """SIGPIPE ends a program under ``drom run`` as it does without, and only where the caller does not ignore it.

    Python, which nothing but ``python -m drom run`` starts, cannot know whether the caller did.
    """
    env = environment(DROM_RUNTIME_DIR=str(tmp_path / "none"))
    with subprocess.Popen(
        [*launcher, "--", "yes"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=ignoring(*([signal.SIGPIPE] if ignored else [])),  # noqa: PLW1509
    ) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"y\n"
        writer.stdout.close()

        assert writer.wait(SECONDS) == (1 if ignored and "-m" not in launcher else -signal.SIGPIPE)


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Return a folder of commands: scripts with and without a first line, a folder, a file that is not executable."""
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "no-line").write_text('echo "$0 $*"\n', encoding="ascii")
    (folder / "line").write_text('#!/bin/sh\necho "$0 $*"\nexit 5\n', encoding="ascii")
    (folder / "no-interpreter").write_text("#!/nowhere/sh\n", encoding="ascii")
    (folder / "empty").touch()
    (folder / "plain").write_text("exit 0\n", encoding="ascii")
    (folder / "folder").mkdir()
    for name in ("no-line", "line", "no-interpreter", "empty"):
        (folder / name).chmod(0o755)
    (folder / "loop").symlink_to("loop")
    return folder


COMMANDS = [
    *(["no-line", "a", ""], ["line", "--", "-x"], ["./commands/line"], ["./commands/no-line"], ["commands/line"]),
    *(["no-interpreter"], ["empty"], ["plain"], ["folder"], ["loop"], ["none"], [""], ["./none"], ["commands"]),
    *(["plain/x"], ["./commands/plain/x"], ["x" * 300], ["x" * 5000], ["sh", "-c", 'echo "$0"; exit 255']),
    *(["sh", "-c", "kill -TERM $$"], ["sh", "-c", "kill -SEGV $$"]),
]  # fmt: skip


@pytest.mark.parametrize("path", ["{commands}:{path}", "/none::{commands}:{path}", "{commands}/plain:{path}", "", None])
def test_a_command_is_found_and_ends_as_without_drom(commands: Path, path: str | None) -> None:
    """PATH, scripts without a first line, and the status are those of ``env``, which is like ``nice`` and ``nohup``."""
    env = {"DROM_RUNTIME_DIR": str(commands / "none")}
    if path is not None:
        env["PATH"] = path.format(commands=commands, path=os.environ["PATH"])

    def run(*words: str | Path) -> tuple[int, bytes]:
        done = subprocess.run(words, env=env, cwd=commands.parent, capture_output=True, timeout=SECONDS, check=False)
        return done.returncode, done.stdout

    for command in COMMANDS:
        assert run(DROM, "run", "--", *command) == run("/usr/bin/env", "--", *command), command


def test_a_program_keeps_its_terminal(tmp_path: Path) -> None:
    """A program in a terminal controls it: it is in the foreground, and reads what is typed."""
    code = "import os; t = os.open('/dev/tty', 2); print(os.tcgetpgrp(t) == os.getpgrp(), os.getsid(0) == os.getpid())"
    found = []
    for launcher in ([], [str(DROM), "run", "--"]):
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["DROM_RUNTIME_DIR"] = str(tmp_path / "none")
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            words = [*launcher, sys.executable, "-c", code]
            os.execv(words[0], words)
        said = b""
        try:
            while more := os.read(terminal, 4096):
                said += more
        except OSError:  # the terminal of a program that has ended
            pass
        os.close(terminal)
        os.waitpid(pid, 0)
        found.append(said)

    assert found == [b"True True\r\n"] * 2
