from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dromlib import layout, native
from dromlib.testing import start_time
from tests.support.registration import RegistrationServer, Request, serve_registrations

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_SECONDS = 60
THREADS = dict.fromkeys(("NUMBA_NUM_THREADS", "GOMAXPROCS", "RAYON_NUM_THREADS"), "8")
"""What a program is told of its threads that can be granted at most 8 CPUs."""
OURS = ("DROM_TASK", "DROM_RUNTIME_DIR", "DROM_CPUS", "DROM_MAX_CPUS", *THREADS, "XDG_RUNTIME_DIR")
SHOW = f"""
import os
for name in {OURS[:-1]}:
    print(name, os.environ.get(name))
print("pid", os.getpid(), "fds", sorted(os.listdir("/proc/self/fd"))[:-1])
print("cpus", sorted(os.sched_getaffinity(0)))
"""


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the environment without what drom, launchers and users of OpenMP set in it."""
    launchers = ("OMPI_", "PMI", "MPI_", "MV2_", "SLURM_", "PALS_")
    kept = {name: value for name, value in os.environ.items() if name not in OURS and not name.startswith(launchers)}
    return {**kept, **extra}


def start_run(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start drom-run with pipes for its streams."""
    pipe = subprocess.PIPE
    command = [native.run_path(), *arguments]
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=clean_environment(**environment)
    )


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run drom-run to its end."""
    process = start_run(*arguments, **environment)
    out, err = process.communicate(timeout=WAIT_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def read_line(process: subprocess.Popen[str]) -> str:
    """Await the next line on stderr."""
    assert process.stderr
    ready, _, _ = select.select([process.stderr], [], [], WAIT_SECONDS)
    assert ready, "no line on stderr"
    return process.stderr.readline()


def wait_for(condition: Callable[[], object]) -> None:
    """Await a state that comes without a sign."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the awaited state did not come"
        time.sleep(0.001)


def shown(output: str) -> dict[str, str]:
    """Return what SHOW printed, by name."""
    return dict(line.split(" ", 1) for line in output.splitlines())


def wait_then_grant(request: Request) -> None:
    """Answer a launch twice."""
    request.reply("waiting", text="Wait.")
    request.grant(1)


def test_without_agent_the_command_runs_unmanaged(tmp_path: Path) -> None:
    """No agent: one line on stderr that tells how to start one, and the command runs."""
    done = run("--runtime-dir", tmp_path, "--", "echo", "hello")

    assert (done.stdout, done.returncode) == ("hello\n", 0)
    assert done.stderr == (
        f"drom: no agent answers in {tmp_path}: running unmanaged "
        f"(start one with: drom agent --runtime-dir {tmp_path})\n"
    )


def test_require_refuses_to_run_without_agent(tmp_path: Path) -> None:
    """--require without an agent: one sentence, exit 1, and the command never runs."""
    done = run("--require", "touch", tmp_path / "ran", DROM_RUNTIME_DIR=str(tmp_path))

    assert done.returncode == 1
    assert done.stderr == f"drom: no agent answers in {tmp_path}: start one with: drom agent --runtime-dir {tmp_path}\n"
    assert not (tmp_path / "ran").exists()


def test_a_socket_nobody_listens_at_is_no_agent(tmp_path: Path) -> None:
    """The registration socket that a killed agent left behind counts as no agent."""
    RegistrationServer(tmp_path, Request.hang_up).close()

    assert run("--runtime-dir", tmp_path, "true").stderr.startswith("drom: no agent answers")


def test_a_path_too_long_for_a_socket_is_no_agent(tmp_path: Path) -> None:
    """The path of a registration socket that does not fit in a socket address is named, and how long it may be."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    why = f"drom: the path {folder} is longer than the 99 bytes that the sockets of an agent allow"
    done = run("--runtime-dir", folder, "true")
    assert (done.returncode, done.stderr.startswith(f"{why}: running unmanaged (")) == (0, True)

    for option in ("--require", "--await"):
        done = run("--runtime-dir", folder, option, "true")
        assert (done.returncode, done.stderr.startswith(f"{why}: start one with a shorter --runtime-dir")) == (1, True)


def test_a_short_name_of_a_long_path_is_kept(tmp_path: Path) -> None:
    """What a socket's address has room for is used as it is, absolute, by the command too."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with tempfile.TemporaryDirectory() as short:
        link = Path(short, "l")
        link.symlink_to(folder)
        with serve_registrations(link, lambda request: request.grant(1)):
            told = [
                subprocess.run(
                    [native.run_path(), "--runtime-dir", directory, "sh", "-c", "echo $DROM_RUNTIME_DIR"],
                    cwd=short,
                    env=clean_environment(),
                    capture_output=True,
                    text=True,
                    check=True,
                )
                for directory in (link, "l")
            ]

    assert [(done.stdout, done.stderr) for done in told] == [(f"{link}\n", "")] * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cpus", "x", "true"], "--cpus takes a number of CPUs from 1 to 32768, not 'x'."),
        (["--cpus", "0", "true"], "--cpus takes a number of CPUs from 1 to 32768, not '0'."),
        (["--cpus", "-1", "true"], "--cpus takes a number of CPUs from 1 to 32768, not '-1'."),
        (["--min", "99999999999", "true"], "--min takes a number of CPUs from 1 to 32768, not '99999999999'."),
        (["--min", "4", "--cpus", "2", "true"], "--min 4 is more than --cpus 2: lower the one or raise the other."),
        (["--class", "soft", "true"], "--class takes malleable, moldable or rigid, not 'soft'."),
        *(
            (
                ["--distribution", text, "true"],
                f"--distribution takes compact, spread or per-socket=N, each with or without !, not '{text}'.",
            )
            for text in (
                "",
                "!",
                "close",
                "compact!!",
                "per-socket",
                "per-socket=",
                "per-socket=0",
                "per-socket=-1",
                "per-socket=2x!",
                "per-socket=32769",
                "per-socket=" + "9" * 30,
                "spread=2",
                "default",
            )
        ),
        (
            ["--distribution", "compact", "--distribution", "close", "true"],
            "--distribution takes compact, spread or per-socket=N, each with or without !, not 'close'.",
        ),
        *(
            (["--mem", text, "true"], f"--mem takes a size such as 800M or 4G, not '{text}'.")
            for text in ("", "0", "G", "4g", "4GB", "-1", "1.5G", "16777217T", "9" * 16)
        ),
        (["--job", "n" * 64, "true"], "--job takes a name of 1 to 63 bytes: give a shorter one."),
        (["--session", "n" * 64, "true"], "--session takes a name of 1 to 63 bytes: give a shorter one."),
        (["--job", "", "true"], "--job takes a name of 1 to 63 bytes, not an empty one."),
        (["--runtime-dir", "", "true"], "--runtime-dir takes the directory of a running agent, not an empty name."),
        (["--cpus", "2"], "no command is given: write drom-run -- COMMAND."),
        ([], "no command is given: write drom-run -- COMMAND."),
        (["--cups", "2", "true"], "--cups is no option of drom-run: see drom-run --help."),
        (["--cpus"], "--cpus needs a value: see drom-run --help."),
    ],
)
def test_a_bad_value_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    """A bad value is exit 2 and one sentence that says what to do."""
    done = run(*arguments, DROM_RUNTIME_DIR=str(tmp_path))

    assert (done.stdout, done.stderr, done.returncode) == ("", f"drom: {sentence}\n", 2)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ([], (0, 0, 0, 0)),
        (["--distribution", "compact"], (1, 0, 0, 0)),
        (["--distribution", "compact!"], (1, 0, 1, 0)),
        (["--distribution", "spread!"], (2, 0, 1, 0)),
        (["--distribution", "per-socket=12"], (3, 12, 0, 0)),
        (["--distribution", "per-socket=32768!"], (3, 32768, 1, 0)),
        (["--distribution", "per-socket=2!", "--distribution", "spread"], (2, 0, 0, 0)),
        (["--mem", "123"], (0, 0, 0, 123)),
        (["--mem", "800M"], (0, 0, 0, 800 << 20)),
        (["--mem", "16777215T"], (0, 0, 0, 16777215 << 40)),
    ],
)
def test_layout_and_memory_are_asked_for(tmp_path: Path, arguments: list[str], fields: tuple[int, ...]) -> None:
    """--distribution and --mem reach the agent as numbers; the last of several counts."""
    with serve_registrations(tmp_path, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)) as server:
        run(*arguments, "true", DROM_RUNTIME_DIR=str(tmp_path))
    request = server.requests[0]

    assert tuple(request.field(name) for name in ("distribution", "per_socket", "flags", "memory")) == fields


def test_help_and_version_go_to_stdout() -> None:
    """--help and --version print to stdout and end well."""
    assert run("--help").stdout.startswith("Usage: drom-run [OPTIONS] [--] COMMAND")
    assert run("--version").stdout == "drom-run 0.1.0\n"


def test_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    """The command's exit code comes back unchanged."""
    assert run("--runtime-dir", tmp_path, "sh", "-c", "exit 42").returncode == 42


def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    """The command is the same process: a signal sent to drom-run ends the command by that signal."""
    with serve_registrations(tmp_path, lambda request: request.grant(1)):
        process = start_run("--runtime-dir", tmp_path, "sh", "-c", "echo ready; exec sleep 600")
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_SECONDS)

    assert process.returncode == -signal.SIGTERM


def test_a_command_that_is_not_found_is_127(tmp_path: Path) -> None:
    """A command that does not exist is exit 127 and a sentence, as with env and taskset."""
    with serve_registrations(tmp_path, lambda request: request.grant(1)):
        done = run("--runtime-dir", tmp_path, "no-such-command")

    assert (done.returncode, done.stderr) == (
        127,
        "drom: cannot run 'no-such-command': No such file or directory in the folders of PATH.\n",
    )


def test_a_script_without_its_interpreter_is_127_and_named(tmp_path: Path) -> None:
    """The file is there, and the sentence says that it is not what is missing."""
    script = tmp_path / "script"
    script.write_text("#!/nowhere/python\n", encoding="ascii")
    script.chmod(0o755)
    with serve_registrations(tmp_path, lambda request: request.grant(1)):
        done = run("--runtime-dir", tmp_path, script)

    why = "No such file or directory: the interpreter in its first line, or its loader, is missing"
    assert (done.returncode, done.stderr) == (127, f"drom: cannot run '{script}': {why}.\n")


def test_a_command_that_is_not_executable_is_126(tmp_path: Path) -> None:
    """A file that cannot be executed is exit 126 and a sentence."""
    with serve_registrations(tmp_path, lambda request: request.grant(1)):
        done = run("--runtime-dir", tmp_path, tmp_path)

    assert (done.returncode, done.stderr) == (126, f"drom: cannot run '{tmp_path}': Permission denied.\n")


def test_a_granted_command_finds_its_grant_in_the_environment(tmp_path: Path) -> None:
    """The command sees task, directory, CPUs and threads, and inherits no descriptor."""
    with serve_registrations(tmp_path, lambda request: request.grant(0b1_0000_1111 | 1 << 100, max_cpus=8)):
        done = run("--runtime-dir", tmp_path, sys.executable, "-c", SHOW)

    words = shown(done.stdout)
    pid, start = words["DROM_TASK"].split(":")
    assert done.stderr == ""
    assert words["pid"] == f"{pid} fds ['0', '1', '2']"
    assert int(start) > 0
    assert words["DROM_RUNTIME_DIR"] == str(tmp_path)
    assert words["DROM_CPUS"] == "0-3,8,100"
    assert words["DROM_MAX_CPUS"] == "8"
    assert {name: words[name] for name in THREADS} == THREADS
    assert words["cpus"] == str(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize(("job", "words"), [("a b", ["--job", "a b", "--"]), ("a\nb", ["outer"])])
def test_a_granted_command_finds_how_it_was_started(tmp_path: Path, job: str, words: list[str]) -> None:
    """DROM_RUN has the launcher and its options, a word a line. If one has a line break there is no such variable."""
    show = "import os; print(os.environ.get('DROM_RUN', 'outer'))"
    with serve_registrations(tmp_path, lambda request: request.grant(1)):
        options = ("--job", job, "--", sys.executable, "-c", show)
        done = run(*options, DROM_RUNTIME_DIR=str(tmp_path), DROM_RUN="another")

    launcher = [str(native.run_path().resolve())] if words != ["outer"] else []
    assert done.stdout.splitlines() == [*launcher, *words]


@pytest.mark.parametrize("already", [{}, {"DROM_TASK": "1:2"}])
def test_its_task_is_the_first_thing_in_its_environment(tmp_path: Path, already: dict[str, str]) -> None:
    """Agents read no more than the beginning of it; the rest stays in its order."""
    with serve_registrations(tmp_path, lambda request: request.grant(1)):
        done = run("--runtime-dir", tmp_path, "env", FIRST="1", SECOND="2", **already)

    names = [line.partition("=")[0] for line in done.stdout.splitlines()]
    assert names[0] == "DROM_TASK"
    assert names.count("DROM_TASK") == 1
    assert names.index("FIRST") < names.index("SECOND")


def test_a_grant_of_real_cpus_binds_the_command(tmp_path: Path) -> None:
    """On a real machine the command starts on the granted CPUs alone."""
    cpu = max(os.sched_getaffinity(0))
    with serve_registrations(tmp_path, lambda request: request.grant(1 << cpu, flags=0)):
        done = run("--runtime-dir", tmp_path, sys.executable, "-c", SHOW)

    assert shown(done.stdout)["cpus"] == f"[{cpu}]"


def test_a_grant_that_cannot_be_bound_is_told(tmp_path: Path) -> None:
    """CPUs that do not exist are named in one line, and the command runs."""
    with serve_registrations(tmp_path, lambda request: request.grant(1 << 127, flags=0)):
        done = run("--runtime-dir", tmp_path, "echo", "ran")

    assert done.stdout == "ran\n"
    assert done.stderr == "drom: cannot bind to CPUs 127 (Invalid argument): the agent will try.\n"


@pytest.mark.parametrize("name", THREADS)
@pytest.mark.parametrize("value", ["3", ""])
def test_threads_set_by_the_user_stay(tmp_path: Path, name: str, value: str) -> None:
    """What is set, even to nothing, is not touched, and the others are exported."""
    with serve_registrations(tmp_path, lambda request: request.grant(0b11, max_cpus=8)):
        done = run("--runtime-dir", tmp_path, sys.executable, "-c", SHOW, **{name: value})

    words = shown(done.stdout)
    assert {other: words[other] for other in THREADS} == {**THREADS, name: value}
    assert words["DROM_MAX_CPUS"] == "8"


@pytest.mark.parametrize("inner", [4, 16])
def test_threads_set_by_an_outer_launch_are_not_the_users(tmp_path: Path, inner: int) -> None:
    """A launch below a launch counts its own CPUs; what the user has set in between stays."""
    threads = ("sh", "-c", "echo $GOMAXPROCS $NUMBA_NUM_THREADS")
    again = f"{native.run_path()} --runtime-dir {tmp_path} sh -c 'echo $GOMAXPROCS $NUMBA_NUM_THREADS'"
    answers = [lambda request: request.grant(1, max_cpus=8), *3 * [lambda request: request.grant(1, max_cpus=inner)]]
    with serve_registrations(tmp_path, *answers):
        done = run("--runtime-dir", tmp_path, "sh", "-c", f"{again}; {again}; GOMAXPROCS=3 {again}")
        mine = run("--runtime-dir", tmp_path, *threads, GOMAXPROCS=str(inner + 1), DROM_SET_GOMAXPROCS="2")

    assert (done.stdout, done.stderr) == (f"{inner} {inner}\n" * 2 + f"3 {inner}\n", "")
    assert mine.stdout == f"{inner + 1} {inner}\n"


def test_a_relative_directory_is_exported_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command may change its directory and still finds the agent."""
    monkeypatch.chdir(tmp_path)
    with serve_registrations(tmp_path, lambda request: request.grant(1)):
        done = run("--runtime-dir", ".", "sh", "-c", "echo $DROM_RUNTIME_DIR")

    assert done.stdout == f"{tmp_path}\n"


def test_the_request_says_what_was_asked(tmp_path: Path) -> None:
    """Every option reaches the agent, which names a job without a name."""
    with serve_registrations(tmp_path, lambda request: request.grant(1)) as server:
        run("--runtime-dir", tmp_path, "--cpus", "8", "--min", "2", "--class", "rigid", "--session", "s1", "/bin/true")
        run("--runtime-dir", tmp_path, "--job", "mine", "true", DROM_TASK="12:345")
        first, second = server.requests

    assert [first.field(name) for name in ("kind", "max_cpus", "min_cpus", "job_class")] == [1, 8, 2, 2]
    assert (first.text("job"), first.text("program"), first.text("session")) == ("", "/bin/true", "s1")
    assert [second.field(name) for name in ("max_cpus", "min_cpus", "job_class", "local_size")] == [0, 0, 0, 0]
    assert (second.text("job"), second.text("session")) == ("mine", "")
    assert (second.field("task_pid"), second.field("task_start")) == (12, 345)


@pytest.mark.parametrize(
    ("variables", "session", "rank", "size"),
    [
        (
            {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-7@1"},
            "prterun-7@1",
            1,
            4,
        ),
        ({"MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3"}, f"parent-{os.getpid()}", 2, 3),
        ({"MV2_COMM_WORLD_LOCAL_RANK": "0", "MV2_COMM_WORLD_LOCAL_SIZE": "2", "MPIRUN_ID": "9"}, "9", 0, 2),
        ({"PALS_LOCAL_RANKID": "5", "PALS_LOCAL_SIZE": "6", "PALS_APID": "a" * 70 + "end"}, "a" * 60 + "end", 5, 6),
        (
            {
                "SLURM_JOB_ID": "12",
                "SLURM_STEP_ID": "0",
                "SLURM_LOCALID": "1",
                "SLURM_NODEID": "3",
                "SLURM_STEP_TASKS_PER_NODE": "4(x3),2",
            },
            "slurm-12.0",
            1,
            2,
        ),
        ({"SLURM_JOB_ID": "12", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "4"}, "", 0, 0),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "", 0, 0),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "x", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "", 0, 0),
    ],
    ids=["open-mpi", "mpich", "mvapich2", "pals", "srun", "batch-script", "rank-beyond-size", "no-number"],
)
def test_ranks_are_told_by_the_launcher(
    tmp_path: Path, variables: dict[str, str], session: str, rank: int, size: int
) -> None:
    """Local rank, size and session come from the launcher's variables."""
    with serve_registrations(tmp_path, lambda request: request.grant(1)) as server:
        run("--runtime-dir", tmp_path, "true", **variables)
        request = server.requests[0]

    assert (request.text("session"), request.field("local_rank"), request.field("local_size")) == (session, rank, size)


def test_a_refused_command_does_not_run(tmp_path: Path) -> None:
    """A refusal is exit 1 with the agent's sentence, with and without --require."""
    with serve_registrations(tmp_path, lambda request: request.reply("refused", text="The node is closed.")):
        done = run("--runtime-dir", tmp_path, "touch", tmp_path / "ran")

    assert (done.returncode, done.stderr) == (1, "drom: refused: The node is closed.\n")
    assert not (tmp_path / "ran").exists()


def test_a_waiting_command_runs_when_granted(tmp_path: Path) -> None:
    """A waiting task says why on one line and starts at the next reply."""
    with serve_registrations(tmp_path, lambda request: request.reply("waiting", text="All CPUs are taken.")) as server:
        process = start_run("--runtime-dir", tmp_path, "echo", "ran")
        assert read_line(process) == "drom: waiting: All CPUs are taken.\n"
        server.requests[0].grant(1)
        out, err = process.communicate(timeout=WAIT_SECONDS)

    assert (out, err, process.returncode) == ("ran\n", "", 0)


def test_a_lost_agent_is_asked_again(tmp_path: Path) -> None:
    """When the agent dies while a task waits, the same process registers with the next agent."""
    with serve_registrations(tmp_path, lambda request: request.reply("waiting", text="All CPUs are taken.")) as server:
        process = start_run("--runtime-dir", tmp_path, "echo", "ran")
        read_line(process)
        pid = server.requests[0].pid
    (tmp_path / "door").unlink()
    with serve_registrations(tmp_path, lambda request: request.grant(1)) as server:
        out, err = process.communicate(timeout=WAIT_SECONDS)

    assert (out, err, process.returncode) == ("ran\n", "", 0)
    assert [request.pid for request in server.requests] == [pid]


def test_an_agent_that_hangs_up_at_once_is_asked_again(tmp_path: Path) -> None:
    """A connection lost before the first reply is no refusal."""
    with serve_registrations(tmp_path, Request.hang_up, Request.hang_up, lambda request: request.grant(1)) as server:
        assert run("--runtime-dir", tmp_path, "echo", "ran").stdout == "ran\n"
        assert len(server.requests) == 3


@pytest.mark.system
def test_an_agent_lost_for_good_is_no_agent(tmp_path: Path) -> None:
    """After half a minute without an agent a task that waited runs unmanaged, and with --require fails."""
    processes = []
    with serve_registrations(tmp_path, lambda request: request.reply("waiting", text="Wait.")):
        for extra in ([], ["--require"]):
            processes.append(start_run("--runtime-dir", tmp_path, *extra, "echo", "ran"))
            read_line(processes[-1])
    results = [process.communicate(timeout=WAIT_SECONDS) for process in processes]

    assert [out for out, _ in results] == ["ran\n", ""]
    assert all(err.startswith("drom: no agent answers") for _, err in results)
    assert [process.returncode for process in processes] == [0, 1]


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_stay_closed(tmp_path: Path, closed: str) -> None:
    """The registration socket never takes the place of a closed stream, and the command inherits none."""
    probe = tmp_path / "probe"
    probe.write_text(
        "#!/bin/sh\nfor fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && seen=${seen}1 || seen=${seen}0; done\n"
        f"echo $seen > {tmp_path}/seen\n",
        encoding="utf-8",
    )
    command = f"{native.run_path()} --runtime-dir {tmp_path} sh -c '. {probe}' {closed}"
    with serve_registrations(tmp_path, wait_then_grant):
        done = subprocess.run(["sh", "-c", command], env=clean_environment(), capture_output=True, check=False)

    expected = "".join("0" if sign in closed.split() else "1" for sign in ("<&-", ">&-", "2>&-"))
    assert done.returncode == 0
    assert (tmp_path / "seen").read_text(encoding="utf-8") == f"{expected}\n"


def test_the_command_keeps_standard_input(tmp_path: Path) -> None:
    """What is typed goes to the command."""
    with serve_registrations(tmp_path, lambda request: request.grant(1)):
        process = start_run("--runtime-dir", tmp_path, "cat")
        assert process.communicate("typed\n", timeout=WAIT_SECONDS)[0] == "typed\n"


def test_the_task_is_the_commands_own_process(tmp_path: Path) -> None:
    """The pid and start time the agent learned are those of the command."""
    with serve_registrations(tmp_path, lambda request: request.grant(1)) as server:
        process = start_run("--runtime-dir", tmp_path, "cat")
        wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8") == "cat\n")
        assert process.pid == server.requests[0].pid
        assert start_time(process.pid) > 0
        process.communicate(timeout=WAIT_SECONDS)


def test_no_terminal_wait_is_needed_to_be_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends a task that waits."""
    with serve_registrations(tmp_path, lambda request: request.reply("waiting", text="Wait.")):
        process = start_run("--runtime-dir", tmp_path, "true")
        read_line(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_SECONDS)

    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize(
    ("words", "told"), [((), True), (("--malleability", "bind-only"), False), (("--class", "rigid"), False)]
)
def test_only_what_follows_grants_is_told_how_many_threads_to_make(
    tmp_path: Path, words: tuple[str, ...], told: bool
) -> None:
    """A program whose threads stay as they are finds nothing of them, also below a launch of one that follows."""
    again = f"{native.run_path()} --runtime-dir {tmp_path} {' '.join(words)} -- env"
    with serve_registrations(
        tmp_path, *2 * [lambda request: request.grant(1, max_cpus=8, flags=layout.HEADER_EMULATED)]
    ):
        done = run("--runtime-dir", tmp_path, "--", "sh", "-c", f"exec {again}")

    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {name: found.get(name) for name in THREADS} == {name: THREADS[name] if told else None for name in THREADS}
    assert not [name for name in found if "OMP_NUM_THREADS" in name or name.startswith("NUMBA_THREADING")]
    exported = [*THREADS, "OMPI_MCA_mpi_yield_when_idle"]
    assert found.get(exported[-1]) == ("1" if told else None)
    assert {name for name in found if name.startswith("DROM_SET_")} == {f"DROM_SET_{name}" for name in exported if told}


def test_a_program_into_which_nothing_is_loaded_is_told_its_number_of_threads(tmp_path: Path) -> None:
    """A static program with OpenMP has no other way to make threads for CPUs that come later."""
    program = tmp_path / "p"
    text = '#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv("OMP_NUM_THREADS")); return 0; }'
    subprocess.run(["gcc", "-static", "-xc", "-", "-o", program], input=text, text=True, check=True)
    with serve_registrations(
        tmp_path, *2 * [lambda request: request.grant(1, max_cpus=8, flags=layout.HEADER_EMULATED)]
    ):
        done = run("--runtime-dir", tmp_path, "--", program)
        limited = run("--runtime-dir", tmp_path, "--", program, OMP_THREAD_LIMIT="5")

    assert (done.stdout, limited.stdout) == ("8\n", "5\n")


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("OMP_NUM_THREADS",) for value in ("", " ", "abc", "-1", "0", "2,,", "9" * 12)]
    + [("OMP_PLACES", "9" * 12), ("OMP_PROC_BIND", "9" * 12), ("KMP_AFFINITY", "9" * 11 + "G")]
    + [(name, size) for name in ("OMP_STACKSIZE", "GOMP_STACKSIZE", "KMP_STACKSIZE") for size in ("9" * 11, "9999 G")]
    + [("KMP_STACKSIZE", size) for size in ("999999G", "900t", "1p")]
    + [("KMP_CPUINFO_FILE", "/nonexistent")]
    + [("GOMP_CPU_AFFINITY", value) for value in ("1,,2", "0-1:1 x", "0-1:3:3", "1k", "9" * 11, "0,", "0-")],
)
def test_settings_at_which_llvms_runtime_aborts_keep_gnus(tmp_path: Path, name: str, value: str) -> None:
    """A gcc program ends as it does without drom, whatever its user has set."""
    source, program = tmp_path / "p.c", tmp_path / "p"
    source.write_text("int main(void)\n{\n#pragma omp parallel\n    ;\n    return 0;\n}\n")
    subprocess.run(["gcc", "-fopenmp", source, "-o", program], check=True)
    plain = subprocess.run([program], env=clean_environment(**{name: value}), capture_output=True, check=False)
    with serve_registrations(tmp_path, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
        done = run("--runtime-dir", tmp_path, "--", program, **{name: value})

    assert done.returncode == plain.returncode


@pytest.mark.parametrize("value", ["2", "2,3", " 2 , 3 "])
def test_numbers_of_threads_in_order_are_no_hindrance(tmp_path: Path, value: str) -> None:
    """No sentence says that LLVM's runtime is not used."""
    program = tmp_path / "p"
    subprocess.run(
        ["gcc", "-fopenmp", "-xc", "-", "-o", program], input="int main(void) { return 0; }", text=True, check=True
    )
    with serve_registrations(tmp_path, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
        assert "OMP_NUM_THREADS" not in run("--runtime-dir", tmp_path, "--", program, OMP_NUM_THREADS=value).stderr


@pytest.mark.parametrize("value", ["", "0", " 0 ", "0 1", "0,1", "0-1", "0-1:1 0 , 1", "0\t1"])
def test_lists_of_cpus_are_no_hindrance(tmp_path: Path, value: str) -> None:
    """LLVM's runtime is used with every GOMP_CPU_AFFINITY that GNU's documents."""
    program = tmp_path / "p"
    subprocess.run(
        ["gcc", "-fopenmp", "-xc", "-", "-o", program], input="int main(void) { return 0; }", text=True, check=True
    )
    with serve_registrations(tmp_path, lambda request: request.grant(1, flags=layout.HEADER_EMULATED)):
        assert "GOMP_CPU" not in run("--runtime-dir", tmp_path, "--", program, GOMP_CPU_AFFINITY=value).stderr


def test_a_registration_for_the_parent_prints_its_variables(tmp_path: Path) -> None:
    """It exports what is new or changed, and unsets what a launch above has set and this one does not."""
    above = {"DROM_SET_OMP_NUM_THREADS": "7", "OMP_NUM_THREADS": "7", "LD_PRELOAD": "libm.so.6"}
    with serve_registrations(tmp_path, lambda request: request.grant(0b11, flags=layout.HEADER_EMULATED)) as server:
        done = run("--runtime-dir", tmp_path, "--for-parent", "--min", "1", "--cpus", "2", **above)

    (asked,) = server.requests
    lines = done.stdout.splitlines()
    flags = layout.REQUEST_PARENT | layout.REQUEST_FENCED
    assert (done.returncode, done.stderr) == (0, "")
    assert (asked.field("flags"), asked.field("min_cpus"), asked.field("max_cpus")) == (flags, 1, 2)
    assert [line for line in lines if line.startswith(f"export DROM_TASK={asked.pid}:")]
    assert {"unset OMP_NUM_THREADS", "unset DROM_SET_OMP_NUM_THREADS", "export DROM_CPUS=0-1"} <= {*lines}
    assert f"export LD_PRELOAD={native.preload_path()}:libm.so.6" in lines
    assert not [line for line in lines if line.split()[0] not in {"export", "unset"}]


def test_a_registration_for_the_parent_that_fails_prints_no_variables(tmp_path: Path) -> None:
    """The sentence is on standard error."""
    done = run("--runtime-dir", tmp_path, "--for-parent")

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"drom: no agent answers in {tmp_path}: running unmanaged (")


def test_a_registration_for_the_parent_takes_no_command() -> None:
    """The parent runs already."""
    done = run("--for-parent", "--", "true")

    assert (done.returncode, done.stderr) == (2, "drom: --for-parent takes no command: write drom-run --for-parent.\n")


@pytest.mark.parametrize(("words", "code", "told"), [((), 7, "running unmanaged: "), (("--require",), 1, "")])
def test_a_deadline_ends_the_wait_for_a_grant(tmp_path: Path, words: tuple[str, ...], code: int, told: str) -> None:
    """The command then runs unmanaged, or not at all."""
    command = ("--deadline", "1", *words, "--", "sh", "-c", "exit 7")
    with serve_registrations(tmp_path, lambda request: request.reply("waiting", text="for ever.")):
        done = run("--runtime-dir", tmp_path, *command)

    late = f"drom: {told}the agent in {tmp_path} has granted no CPUs before the deadline."
    assert (done.returncode, done.stderr) == (code, f"drom: waiting: for ever.\n{late}\n")


@pytest.mark.parametrize("bad", ["0", "-1", "x", "86401", ""])
def test_a_deadline_is_a_number_of_seconds(bad: str) -> None:
    """Nothing runs with another one."""
    done = run("--deadline", bad, "--", "true")

    assert (done.returncode, done.stderr) == (2, f"drom: --deadline takes seconds from 1 to 86400, not '{bad}'.\n")
