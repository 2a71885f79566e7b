# SPDX-License-Identifier: Apache-2.0
"""Jobs of a scheduler on a node: real agents, drom-steps, launchers and programs; the scheduler is a stand-in."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.execution.protocol import (
    Ended,
    Forget,
    Hello,
    NotResized,
    Post,
    Refused,
    Resize,
    Resized,
    Signal,
    Started,
)

from dromlib import native
from dromlib.cpulist import parse_cpulist
from tests.support.agents import SECONDS, Agent, Programs, build_program, lives, programs, start_agent, wait_until
from tests.support.fake_scheduler import FakeScheduler, start, start_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

EIGHT = ("--emulate", "pack:2 core:4 pu:1")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[FakeScheduler]:
    """Return a scheduler that knows nothing yet."""
    with start_scheduler(tmp_path) as standing:
        yield standing


@pytest.fixture
def agent(tmp_path: Path, scheduler: FakeScheduler) -> Iterator[Agent]:
    """Return the agent of node n1, with eight emulated cores, which the scheduler has welcomed."""
    with start_agent(tmp_path, "--scheduler", scheduler.address, "--node", "n1", *EIGHT) as running:
        scheduler.hear(Hello, node="n1", cores=8, emulated=True)
        yield running


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Programs]:
    """Whatever is started through this, beside the scheduler's jobs, is gone after the test."""
    with programs(tmp_path / "programs") as started:
        yield started


def forget(scheduler: FakeScheduler, agent: Agent, *jobs: int) -> None:
    """Have attempts forgotten, and wait until nothing is left of them."""
    for job in jobs:
        scheduler.say("n1", Forget(job, 1))
    spool = agent.dir / "steward"
    wait_until(lambda: not list(spool.iterdir()), lambda: list(spool.iterdir()))


def await_pid(file: Path) -> int:
    """Return the pid that a program writes to a file."""
    return int(wait_until(lambda: file.read_text() if file.exists() else "", lambda: f"no pid in {file}"))


def end(scheduler: FakeScheduler, agent: Agent, *jobs: int) -> None:
    """Kill jobs and have them forgotten."""
    for job in jobs:
        scheduler.say("n1", Signal(job, 1, signal.SIGKILL))
        ended = scheduler.hear(Ended, job=job)
        assert ended.status in {-9, 128 + 9}, ended  # a shell may see its child killed, and end, before it is killed
    forget(scheduler, agent, *jobs)


def test_a_job_runs_from_start_to_end(tmp_path: Path, scheduler: FakeScheduler, agent: Agent) -> None:
    """A job runs in the folder of its submission on its cores; its output and status are kept until forgotten."""
    script = (
        'echo "$DROM_JOB_ID $DROM_JOB_NAME $DROM_NODE $DROM_NODELIST $DROM_NTASKS $DROM_CPUS $DROM_MAX_CPUS $MINE"; '
    )
    script += "pwd; cat; echo bad >&2; exit 3"
    (tmp_path / "in").write_text("asked\n", encoding="utf-8")
    about: dict[str, Any] = {"cores": 2, "most": 4, "cwd": str(tmp_path), "nodes": ["n1", "n2"], "total_tasks": 2}
    streams: dict[str, Any] = {"output": "%j-%n-%u-%x-%%-%q", "error": str(tmp_path / "err"), "input": "in"}
    wanted = start(7, "sh", "-c", script, **about, **streams)
    scheduler.say("n1", wanted)

    started = scheduler.hear(Started, job=7, attempt=1)
    ended = scheduler.hear(Ended, job=7, attempt=1)

    assert ended.status == 3
    assert started.time - 5 < ended.began <= ended.time
    assert (ended.time >= started.time - 1, ended.cpu_seconds < 60, ended.max_rss > 1 << 16) == (True, True, True)
    out = (tmp_path / "7-n1-tester-test-%-%q").read_text(encoding="utf-8")
    assert out == f"7 test n1 n1,n2 2 6-7 4 \n{tmp_path}\nasked\n"
    assert (tmp_path / "err").read_text(encoding="utf-8") == "bad\n"
    assert agent.tasks() == {}
    scheduler.say("n1", wanted)
    assert scheduler.hear(Ended, job=7) == ended
    forget(scheduler, agent, 7)


def test_a_job_has_the_gpus_that_it_was_given(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """Its programs find them, and another job that was given one of them waits, also for the next agent."""
    words = ("--scheduler", scheduler.address, "--node", "n1", "--resources", "gpu=2", *EIGHT)
    with start_agent(tmp_path, *words, stop=False) as agent:
        scheduler.hear(Hello, node="n1", resources={"gpu": 2})
        script = f"echo $DROM_DEVICES_GPU > {tmp_path}/gpus; exec sleep inf"
        scheduler.say("n1", start(1, "sh", "-c", script, devices={"gpu": [1]}))
        scheduler.hear(Started, job=1)
        wait_until(lambda: (tmp_path / "gpus").exists() and (tmp_path / "gpus").read_text(), lambda: "no GPUs")
        assert (tmp_path / "gpus").read_text() == "1\n"
        agent.kill()
    with start_agent(tmp_path, *words) as agent:
        scheduler.hear(Hello, node="n1")
        scheduler.say("n1", start(2, "true", devices={"gpu": [0, 1]}))
        assert scheduler.hear(Refused, job=2, fault="busy").reason == "job 1 has gpu 1 of the node."
        end(scheduler, agent, 1)
        scheduler.say("n1", start(3, "true", devices={"gpu": [0, 1]}))
        assert scheduler.hear(Ended, job=3).status == 0
        forget(scheduler, agent, 3)


def test_a_job_is_held_at_what_was_ordered(scheduler: FakeScheduler, agent: Agent) -> None:
    """A job has exactly the ordered cores, whatever else arrives; others share the rest by the node's own policy."""
    scheduler.say("n1", start(1, "sleep", "inf", cores=3, most=8))
    scheduler.hear(Started, job=1)
    agent.await_tasks(**{"drom-1": "5-7"})
    scheduler.say("n1", Resize(1, 1, 6, 60.0))
    scheduler.hear(Resized, job=1, cores=6)
    agent.await_tasks(**{"drom-1": "0-2,5-7"})
    scheduler.say("n1", start(2, "sleep", "inf", cores=3, most=3))
    refused = scheduler.hear(Refused, job=2, fault="busy")
    assert refused.reason.startswith("job drom-2 cannot have 3 CPUs: at most 2 CPUs are available")
    scheduler.say("n1", Resize(1, 1, 9, 60.0))
    assert scheduler.hear(NotResized, job=1).cores == 6
    end(scheduler, agent, 1)


@pytest.mark.parametrize(
    ("wanted", "fault", "reason"),
    [
        ({"argv": ["nosuch"], "mode": "launch"}, "job", "cannot run 'nosuch': No such file or directory: "),
        ({"cwd": "/nosuch"}, "job", "cannot change to /nosuch: No such file or directory: submit from one that tester"),
        ({"output": "/nosuch/%j"}, "job", "cannot open /nosuch/1 for the output of the job: No such file or directory"),
        ({"error": "/nosuch/%j"}, "job", "cannot open /nosuch/1 for the error of the job: No such file or directory"),
        ({"input": "/nosuch"}, "job", "cannot open /nosuch for the input of the job: No such file or directory: "),
        ({"output": "/dev/full/x"}, "job", "cannot open /dev/full/x for the output of the job: Not a directory: "),
        ({"cwd": "/" + "x" * 4094}, "job", f"cannot change to /{'x' * 199}...: File name too long: submit from"),
        ({"argv": []}, "job", "the job has no command."),
        ({"tasks": 2}, "job", "a task needs a core of its own: 2 tasks cannot be on 1 cores."),
        ({"cores": 9, "most": 9}, "node", "1 task on 9 cores cannot be on this node of 8: "),
        ({"argv": ["x" * 200_000], "mode": "launch"}, "job", "cannot run 'xxx"),
    ],
)
def test_what_cannot_start_is_refused(
    scheduler: FakeScheduler, agent: Agent, wanted: dict[str, Any], fault: str, reason: str
) -> None:
    """One sentence says whose fault it is, and no core is kept."""
    scheduler.say("n1", start(1, **({"argv": ["true"]} | wanted)))

    refused = scheduler.hear(Refused, job=1, attempt=1)

    assert (refused.fault, refused.reason[: len(reason)]) == (fault, reason)
    scheduler.say("n1", start(2, "sleep", "inf", cores=8, most=8))
    scheduler.hear(Started, job=2)
    scheduler.say("n1", Forget(1, 1))
    end(scheduler, agent, 2)


def test_a_signal_reaches_all_of_a_job(tmp_path: Path, scheduler: FakeScheduler, agent: Agent) -> None:
    """Also what has left its session; what ignores the signal is killed when its time is over."""
    script = "trap 'echo got it' TERM; setsid sh -c 'trap : TERM; echo $$ > pid; while :; do sleep 1; done' & "
    script += "while :; do sleep 1; done"
    scheduler.say("n1", start(1, "sh", "-c", script, cwd=str(tmp_path), output="out"))
    scheduler.hear(Started, job=1)
    child = await_pid(tmp_path / "pid")
    scheduler.say("n1", Signal(1, 1, signal.SIGTERM))
    wait_until((tmp_path / "out").read_text, lambda: "nothing said")
    assert lives(child)

    scheduler.say("n1", Signal(1, 1, signal.SIGTERM, 0.1))

    assert scheduler.hear(Ended, job=1).status == -9
    assert not lives(child)
    forget(scheduler, agent, 1)


def test_signals_that_follow_put_off_no_end(tmp_path: Path, scheduler: FakeScheduler, agent: Agent) -> None:
    """What was to be killed at some time is killed then, however often it is told to end meanwhile."""
    scheduler.say(
        "n1", start(1, "sh", "-c", "trap '' TERM; echo $$ > pid; while :; do sleep 1; done", cwd=str(tmp_path))
    )
    scheduler.hear(Started, job=1)
    await_pid(tmp_path / "pid")
    scheduler.say("n1", Signal(1, 1, signal.SIGTERM, 0.5))
    scheduler.say("n1", Signal(1, 1, signal.SIGTERM, 1000.0))
    scheduler.say("n1", Signal(1, 1, signal.SIGTERM))

    assert scheduler.hear(Ended, job=1).status == -9
    forget(scheduler, agent, 1)


def test_a_job_that_begins_is_killed(scheduler: FakeScheduler, agent: Agent) -> None:
    """An order to end it may come before its program runs."""
    scheduler.say("n1", start(1, "sh", "-c", "trap '' TERM; while :; do sleep 1; done"))
    scheduler.say("n1", Signal(1, 1, signal.SIGTERM, 0.0))
    scheduler.say("n1", start(2, "sleep", "inf"))
    scheduler.say("n1", Signal(2, 1, signal.SIGKILL))

    scheduler.hear(Ended, job=1)
    scheduler.hear(Ended, job=2)
    forget(scheduler, agent, 1, 2)


def test_a_job_that_begins_is_asked_to_end(scheduler: FakeScheduler, agent: Agent) -> None:
    """The signal waits until there is somebody to get it, as nothing else would end the job."""
    scheduler.say("n1", start(1, "sleep", "inf"))
    scheduler.say("n1", Signal(1, 1, signal.SIGTERM))

    assert scheduler.hear(Ended, job=1, seconds=20).status == -signal.SIGTERM
    forget(scheduler, agent, 1)


def test_nothing_is_left_when_a_job_ends(tmp_path: Path, scheduler: FakeScheduler, agent: Agent) -> None:
    """Children that outlive the program are ended with it, daemons too."""
    script = "(setsid sleep inf & echo $! > pid) ; exit 0"
    scheduler.say("n1", start(1, "sh", "-c", script, cwd=str(tmp_path)))

    assert scheduler.hear(Ended, job=1).status == 0

    assert not lives(int((tmp_path / "pid").read_text()))
    assert agent.tasks() == {}
    forget(scheduler, agent, 1)


def test_others_share_what_is_left(scheduler: FakeScheduler, agent: Agent, others: Programs) -> None:
    """A node's own programs give way to a scheduler's job, get back what it leaves, and cannot take its name."""
    others.start(*agent.run("--job", "mine", "--", "sleep", "inf"))
    agent.await_tasks(mine="0-7")
    scheduler.say("n1", start(1, "sleep", "inf", cores=6, most=8))
    scheduler.hear(Started, job=1)
    agent.await_tasks(**{"mine": "0-1", "drom-1": "2-7"})
    other = others.start(*agent.run("--job", "drom-2", "--", "sleep", "inf"))
    agent.await_tasks(**{"mine": "0", "drom-1": "2-7", "drom-2.2": "1"})
    refused = agent.cli("resize", "drom-1", "2")
    assert (refused.returncode, refused.stderr) == (
        1,
        "drom: job drom-1 belongs to a scheduler: only that may resize or release it.\n",
    )
    other.kill()
    scheduler.say("n1", Resize(1, 1, 2, 60.0))
    scheduler.hear(Resized, job=1, cores=2)
    agent.await_tasks(**{"mine": "0-3,6-7", "drom-1": "4-5"})
    end(scheduler, agent, 1)
    agent.await_tasks(mine="0-7")


@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="needs Open MPI")
def test_ranks_of_a_launch_are_tasks_of_the_job(tmp_path: Path, scheduler: FakeScheduler, agent: Agent) -> None:
    """They share its cores, at each launch anew; between launches nobody else has them."""
    mpirun = "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none"
    rank = f"{native.run_path()} --await"
    script = f"{mpirun} -n 2 {rank} sleep inf; touch between; until test -e go; do sleep 0.01; done; "
    script += f"{mpirun} -n 1 {rank} sleep inf"
    scheduler.say("n1", start(1, "sh", "-c", script, mode="launch", cores=4, most=8, tasks=2, cwd=str(tmp_path)))
    scheduler.hear(Started, job=1)
    agent.await_tasks(**{"drom-1.0": "4-5", "drom-1.1": "6-7"})
    scheduler.say("n1", Resize(1, 1, 6, 60.0))
    scheduler.hear(Resized, job=1, cores=6)
    rows = agent.tasks()
    assert {job: parse_cpulist(row["held"]).bit_count() for job, row in rows.items()} == {"drom-1.0": 3, "drom-1.1": 3}

    for row in rows.values():
        os.kill(row["pid"], signal.SIGTERM)
    wait_until((tmp_path / "between").exists, agent.tasks)
    assert agent.tasks() == {}
    scheduler.say("n1", start(2, "sleep", "inf", cores=3, most=3))
    scheduler.hear(Refused, job=2, fault="busy")
    (tmp_path / "go").touch()

    wait_until(lambda: [parse_cpulist(row["held"]).bit_count() for row in agent.tasks().values()] == [6], agent.tasks)
    end(scheduler, agent, 1)


def test_a_job_is_held_for_tasks_from_elsewhere(scheduler: FakeScheduler, agent: Agent, others: Programs) -> None:
    """In mode hold nothing is started; who comes by the job's name is of it, and gone when it has ended."""
    scheduler.say("n1", start(5, mode="hold", cores=4, most=4))
    scheduler.hear(Started, job=5)
    task = others.start(*agent.run("--job", "drom-5", "--", "sleep", "inf"))
    agent.await_tasks(**{"drom-5": "4-7"})

    scheduler.say("n1", Signal(5, 1, signal.SIGTERM, 60.0))

    assert scheduler.hear(Ended, job=5).status == -signal.SIGTERM
    assert task.wait() == -signal.SIGTERM
    forget(scheduler, agent, 5)


@pytest.mark.parametrize("word", [b"7" * 5000, "\N{ARABIC-INDIC DIGIT SEVEN}".encode(), b"7" * 18, b""])
def test_what_is_no_request_for_a_step_does_no_harm(agent: Agent, word: bytes) -> None:
    """Everybody may write to the socket for launchers; what names no job is answered or sent away."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.settimeout(SECONDS)
        caller.connect(str(agent.dir / "steps"))
        caller.send(b"\0".join([word, b"1", b"0" * 32, b"n1", b"/", b"true", b""]))

        answer = caller.recv(1000)

    assert answer == (b"1 no job " + word + b" of yours runs on n1." if len(word) == 18 else b"")
    assert agent.tasks() == {}


def test_an_order_that_is_not_applied_in_time_is_taken_back(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """The job is held at what it has, and says so; a later order counts."""
    program = build_program(tmp_path)
    os.mkfifo(tmp_path / "in")
    talk = os.open(tmp_path / "in", os.O_RDWR)
    with start_agent(tmp_path, "--scheduler", scheduler.address, "--node", "n1", *EIGHT, "--grace", "3600") as agent:
        scheduler.hear(Hello)
        streams: dict[str, Any] = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
        scheduler.say("n1", start(1, str(program), "--silent", cores=4, most=8, **streams))
        scheduler.hear(Started)
        wait_until(lambda: agent.tasks().get("drom-1", {}).get("mode") == "cooperative", agent.tasks)

        scheduler.say("n1", Resize(1, 1, 1, 0.1))
        late = scheduler.hear(NotResized, job=1)
        assert (late.cores, late.reason) == (4, "it was not applied in time: 1 core was ordered.")
        assert agent.tasks()["drom-1"]["target"] == "4-7"
        scheduler.say("n1", Resize(1, 1, 2, 3600.0))
        os.write(talk, b"p")
        assert scheduler.hear(Resized, job=1).cores == 2

        end(scheduler, agent, 1)
    os.close(talk)


def test_jobs_go_on_without_a_scheduler(tmp_path: Path, agent: Agent, scheduler: FakeScheduler) -> None:
    """One that comes back hears of all there is, what has ended meanwhile too; junk is dropped and told."""
    scheduler.say("n1", b"\xff junk")
    scheduler.say("n1", b'{"kind": "resize", "job": 1}')
    scheduler.say("n1", start(1, "sh", "-c", "until test -e go; do sleep 0.01; done; exit 5", cwd=str(tmp_path)))
    scheduler.say("n1", start(2, "sleep", "inf", cores=2, most=2))
    for job in (1, 2):
        scheduler.hear(Started, job=job)
    agent.await_log(r'event=message_dropped message="a message is one JSON object\."')
    agent.await_log(r'event=message_dropped message="resize lacks attempt, cores, within')
    scheduler.close()
    (tmp_path / "go").touch()
    agent.await_log(r"event=job_ended job=drom-1 .*status=5")

    with start_scheduler(tmp_path) as back:
        hello = back.hear(Hello)
        assert [(known.job, known.state, known.cores) for known in hello.jobs] == [(1, "ended", 1), (2, "running", 2)]
        assert back.hear(Ended, job=1).status == 5
        back.say("n1", start(2, "sleep", "inf", cores=2, most=2))
        assert back.hear(Started, job=2).pid == agent.tasks()["drom-2"]["pid"]
        back.say("n1", Forget(1, 1))
        end(back, agent, 2)


def test_a_stopped_agent_leaves_jobs_where_they_are(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """The next one takes them up on their cores, and nobody has moved."""
    options = ("--scheduler", scheduler.address, "--node", "n1", *EIGHT)
    with start_agent(tmp_path, *options, stop=False) as agent:
        scheduler.hear(Hello)
        scheduler.say("n1", start(1, "sleep", "inf", cores=2, most=4))
        scheduler.hear(Started, job=1)
        before = agent.await_tasks(**{"drom-1": "6-7"})
        agent.process.terminate()
        assert agent.process.wait() == 0
        agent.await_log(r"event=handed_over tasks=1 jobs=1")
    with start_agent(tmp_path, *options) as agent:
        assert [known.job for known in scheduler.hear(Hello).jobs] == [1]
        assert agent.await_tasks(**{"drom-1": "6-7"})["drom-1"]["pid"] == before["drom-1"]["pid"]
        scheduler.say("n1", Resize(1, 1, 4, 60.0))
        scheduler.hear(Resized, job=1, cores=4)
        end(scheduler, agent, 1)


def test_an_agent_that_dies_during_a_shrink_leaves_nobody_in_doubt(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """The next one says what the job still holds, not what it was ordered to have: guests wait for that."""
    options = ("--scheduler", scheduler.address, "--node", "n1", *EIGHT, "--grace", "3600")
    os.mkfifo(tmp_path / "in")
    talk = os.open(tmp_path / "in", os.O_RDWR)
    with start_agent(tmp_path, *options, stop=False) as agent:
        scheduler.hear(Hello)
        program = build_program(tmp_path)
        scheduler.say("n1", start(1, str(program), "--silent", cores=4, most=8, input=str(tmp_path / "in")))
        scheduler.hear(Started)
        wait_until(lambda: agent.tasks().get("drom-1", {}).get("mode") == "cooperative", agent.tasks)
        scheduler.say("n1", Resize(1, 1, 2, 3600.0))
        wait_until(lambda: parse_cpulist(agent.tasks()["drom-1"]["target"]).bit_count() == 2, agent.tasks)
        agent.kill()
    with start_agent(tmp_path, *options) as agent:
        assert [known.cores for known in scheduler.hear(Hello).jobs] == [4]
        scheduler.say("n1", Resize(1, 1, 2, 3600.0))
        os.write(talk, b"p")
        assert scheduler.hear(Resized, job=1).cores == 2
        end(scheduler, agent, 1)
    os.close(talk)


@pytest.mark.parametrize("text", ["", "{", '{"start": {}}'])
def test_what_is_not_known_to_run_is_ended(tmp_path: Path, scheduler: FakeScheduler, text: str) -> None:
    """Where a disk has lost what a job was, its scheduler is told that the job is not here, and so it must be."""
    options = ("--scheduler", scheduler.address, "--node", "n1", *EIGHT)
    with start_agent(tmp_path, *options, stop=False) as agent:
        scheduler.hear(Hello)
        script = "setsid sleep inf & echo $! > pid; wait"
        scheduler.say("n1", start(1, "sh", "-c", script, cwd=str(tmp_path), cores=2))
        program = scheduler.hear(Started, job=1).pid
        child = await_pid(tmp_path / "pid")
        agent.kill()
    (agent.dir / "steward" / "1.1" / "start.json").write_text(text, encoding="ascii")

    with start_agent(tmp_path, *options) as agent:
        assert scheduler.hear(Hello).jobs == ()
        assert (lives(program), lives(child)) == (False, False)
        agent.await_log(r"event=spool_unreadable reason=\".*/1\.1 cannot be read: the processes of job 1 are ended\.\"")
        assert list((agent.dir / "steward").iterdir()) == []


def test_an_end_that_cannot_be_written_down_is_told(tmp_path: Path, scheduler: FakeScheduler, agent: Agent) -> None:
    """A disk may be read-only by then: the agent hears it from the keeper itself."""
    program = ("sh", "-c", "until test -e go; do sleep 0.01; done; exit 5")
    scheduler.say("n1", start(1, *program, cwd=str(tmp_path)))
    scheduler.hear(Started, job=1)
    kept = agent.dir / "steward" / "1.1" / "status.new"
    kept.unlink()
    kept.mkdir()
    (tmp_path / "go").touch()

    ended = scheduler.hear(Ended, job=1)

    assert (ended.status, ended.note, ended.cpu_seconds > 0) == (5, "", True)
    forget(scheduler, agent, 1)


def test_jobs_get_nothing_that_was_open_where_the_agent_was_started(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """Files of an admin's shell are no user's, and its pipes are not to wait for jobs."""
    (tmp_path / "secret").touch()
    shell = ("sh", "-c", f'exec 7< {tmp_path}/secret; exec "$@"', "sh")
    with start_agent(tmp_path, "--scheduler", scheduler.address, "--node", "n1", *EIGHT, within=shell) as agent:
        scheduler.hear(Hello)
        assert Path(f"/proc/{agent.process.pid}/fd/7").readlink() == tmp_path / "secret"
        scheduler.say("n1", start(1, "ls", "-l", "/proc/self/fd", output="out", cwd=str(tmp_path)))
        assert scheduler.hear(Ended, job=1).status == 0
        forget(scheduler, agent, 1)

    shown = (tmp_path / "out").read_text(encoding="utf-8")
    assert "/out" in shown
    assert "secret" not in shown


KEYRING = """
import ctypes, platform, sys
call = {"x86_64": 250, "aarch64": 219}[platform.machine()]  # keyctl
print(ctypes.CDLL(None).syscall(call, 0, -3, 0))  # KEYCTL_GET_KEYRING_ID of KEY_SPEC_SESSION_KEYRING
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_jobs_have_no_keys_of_the_agent(tmp_path: Path, scheduler: FakeScheduler, agent: Agent) -> None:
    """The kernel keeps keys for a session, and root's are not a user's."""
    mine = subprocess.run([sys.executable, "-c", KEYRING], check=True, capture_output=True, text=True).stdout
    if mine == "-1\n":
        pytest.skip("this kernel, or who confines us, has no keyrings")

    scheduler.say("n1", start(1, sys.executable, "-c", KEYRING, output="out", cwd=str(tmp_path)))

    assert scheduler.hear(Ended, job=1).status == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") not in ("-1\n", mine)
    forget(scheduler, agent, 1)


def test_commands_of_a_job_end_with_it_though_their_keeper_was_killed(
    tmp_path: Path, scheduler: FakeScheduler, agent: Agent
) -> None:
    """Those that its launcher on another node has had started here; of them little is kept."""
    both: dict[str, Any] = {"nodes": ["n2", "n1"], "total_tasks": 2, "cwd": str(tmp_path)}
    scheduler.say("n1", start(1, mode="hold", **both))
    scheduler.hear(Started, job=1)
    number = f"{1:032x}"
    body = {"step": number, "command": "setsid sleep inf & echo $! > pid; wait", "folder": str(tmp_path)}
    scheduler.say("n1", Post(1, 1, "n2", "n1", body))
    child = await_pid(tmp_path / "pid")
    folder = agent.dir / "steward" / "1.1" / f"step.{number}"
    assert json.loads((folder / "start.json").read_bytes())["start"]["env"] == {}
    os.kill(int((folder / "pid").read_text(encoding="ascii").split()[0]), signal.SIGKILL)

    end(scheduler, agent, 1)

    assert not lives(child)


def _nobody_can_run(path: Path) -> bool:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(path), "--version"]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _nobody_can_run(native.run_path()), reason="needs root, and drom where all may run it")
def test_jobs_run_as_their_users(scheduler: FakeScheduler) -> None:
    """Groups, files and what may be read are the user's; who is not known, or in another group, is refused."""
    node = Path(tempfile.mkdtemp(prefix="drom-node"))
    node.chmod(0o755)
    folder = node / "user"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    theirs: dict[str, Any] = {"uid": 65534, "gid": 65534, "user": "nobody", "cwd": str(folder)}
    with start_agent(node, "--scheduler", scheduler.address, "--node", "n1", *EIGHT) as agent:
        scheduler.hear(Hello)
        scheduler.say("n1", start(1, "sh", "-c", "id -u; id -g; id -G; umask", **theirs, output="out", umask=0o077))
        assert scheduler.hear(Ended, job=1).status == 0
        assert (folder / "out").read_text(encoding="utf-8") == "65534\n65534\n65534\n0077\n"
        about = (folder / "out").stat()
        assert (about.st_uid, about.st_gid, about.st_mode & 0o777) == (65534, 65534, 0o600)
        folder.chmod(0o700)
        os.chown(folder, 0, 0)
        for job, change, reason in (
            (2, {}, f"cannot change to {folder}: Permission denied: submit from one that nobody may enter on n1."),
            (3, {"uid": 64999}, "no user has number 64999 on n1: use a user that all nodes know."),
            (4, {"gid": 0}, "user nobody is not in group 0 on n1."),
        ):
            scheduler.say("n1", start(job, "true", **(theirs | change)))
            refused = scheduler.hear(Refused, job=job)
            assert (refused.fault, refused.reason) == ("job", reason)
        forget(scheduler, agent, 1, 2, 3, 4)
    shutil.rmtree(node)
