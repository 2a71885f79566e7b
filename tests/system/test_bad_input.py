"""What people, programs and disks get wrong: each refusal is one sentence, and nobody else is harmed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from drom.agent.control.messages import endpoint
from drom.agent.errors import ControlError

from dromlib import layout, native
from dromlib.layout import HEADER, MAILBOX, REPLY, REQUEST
from tests.support.agents import (
    SECONDS,
    SERVES_METRICS,
    Agent,
    Programs,
    assert_clean,
    drom,
    environment,
    launch_agent,
    start_agent,
    wait_until,
)
from tests.support.checker import Watcher
from tests.support.file_systems import tiny_tmpfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1")


def assert_refused(done: subprocess.CompletedProcess[str], pattern: str, status: int = 1) -> None:
    """Check that a command gave one sentence on stderr and the right exit code."""
    assert done.returncode == status, done
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(pattern, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def refused_agent(runtime_dir: Path, pattern: str, *options: str) -> None:
    """Check that an agent does not start, and says why in one sentence."""
    done = drom("agent", "--runtime-dir", runtime_dir, *(options or TWO))
    lines = [line for line in done.stderr.splitlines() if not line.startswith("time=")]
    assert (done.returncode, len(lines)) == (1, 1), done
    assert re.search(pattern, lines[0]), done
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Agent]]:
    """One agent of two cores for all that must not disturb it; one that a test has ended is replaced by the next."""
    folder = tmp_path_factory.mktemp("bad")
    running: list[Agent] = []
    try:
        yield running
        if running:
            running[-1].stop()
    finally:
        for agent in running:
            agent.discard()
        shutil.rmtree(folder)


@pytest.fixture
def shared_agent(agents: list[Agent], tmp_path_factory: pytest.TempPathFactory) -> Agent:
    """The agent that runs."""
    if not agents or agents[-1].process.poll() is not None:
        agents.append(launch_agent(tmp_path_factory.mktemp("bad") / "run", *TWO, "--grace", "0.3"))
    return agents[-1]


@pytest.fixture
def agent(shared_agent: Agent, start: Programs, program: Path) -> Iterator[Agent]:
    """The shared agent with a job `bystander` on one core that must not notice anything."""
    bystander = start.start(*shared_agent.run("--job", "bystander", "--class", "rigid", "--cpus", "1", "--", program))
    bystander.await_out("applied")
    before = shared_agent.tasks()["bystander"]["granted"]
    with Watcher(shared_agent.dir):
        yield shared_agent
        assert shared_agent.process.poll() is None, shared_agent.log
        assert "Traceback" not in shared_agent.log, shared_agent.log
        shared_agent.assert_clean()
        assert shared_agent.tasks()["bystander"]["granted"] == before
        assert len(bystander.applied()) == 1
        assert bystander.quit() == 0
        start.kill()
        shared_agent.await_tasks()


# --- at the start of an agent


def test_a_second_agent_is_refused(agent: Agent) -> None:
    """Two agents on one directory: the second names the first."""
    refused_agent(agent.dir, f"another agent \\(pid {agent.pid}\\) runs in ")


def test_a_directory_a_dead_agent_left_is_taken_over(tmp_path: Path) -> None:
    """Lock, sockets and registry of a killed agent without tasks do not stop the next one."""
    agent = launch_agent(tmp_path / "run", *TWO)
    agent.kill()
    assert (tmp_path / "run" / "door").exists()
    with start_agent(tmp_path, *TWO) as agent:
        assert agent.tasks() == {}


def _instead(file: Path, make: Callable[[Path], object]) -> None:
    """Put something else in a file's place."""
    file.unlink()
    make(file)


def _edit(file: Path, **fields: Any) -> None:
    data = bytearray(file.read_bytes())
    HEADER.write(data, **fields)
    with file.open("r+b") as registry:
        registry.write(data)


def test_a_registry_of_an_earlier_boot_is_replaced(tmp_path: Path, start: Programs) -> None:
    """Tasks of another boot do not exist any more, whatever runs under their pids."""
    agent = launch_agent(tmp_path / "run", *TWO)
    # Not a cooperative program: one that lived on would rightly register anew with the next agent.
    start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
    agent.await_tasks(a="0-1")
    agent.kill()
    _edit(agent.dir / "registry", boot_id=bytes(range(16)))
    with start_agent(tmp_path, *TWO) as agent:
        assert agent.tasks() == {}
        start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
        agent.await_tasks(b="0-1")


@pytest.mark.parametrize(
    ("spoil", "pattern"),
    [
        (lambda f: f.write_bytes(os.urandom(50000)), "it is not a registry of drom"),
        (lambda f: f.write_bytes(b""), "it is too short"),
        (lambda f: os.truncate(f, 5000), "its header contradicts its size"),
        (lambda f: os.truncate(f, 100), "it is too short"),
        (lambda f: _edit(f, layout_version=77), "its layout is version 77"),
        (lambda f: _edit(f, mask_bits=1 << 31), "its header contradicts its size"),
        (lambda f: _edit(f, capacity=3), "its header contradicts its size"),
        (lambda f: _instead(f, lambda g: g.symlink_to("/etc/passwd")), "cannot open"),
        (lambda f: _instead(f, Path.mkdir), "cannot open"),
        (lambda f: _instead(f, os.mkfifo), "it is too short"),
    ],
    ids=["garbage", "empty", "cut", "cut-header", "version", "width", "capacity", "link", "folder", "pipe"],
)
def test_a_foreign_registry_is_not_touched(
    tmp_path: Path, start: Programs, spoil: Callable[[Path], object], pattern: str
) -> None:
    """A file that is no registry of this layout is left alone; the agent says what is wrong with it."""
    agent = launch_agent(tmp_path / "run", *TWO)
    start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
    agent.await_tasks(a="0-1")
    agent.kill()
    spoil(agent.dir / "registry")
    refused_agent(agent.dir, pattern)


def test_other_options_than_the_programs_were_started_under_are_refused(tmp_path: Path, start: Programs) -> None:
    """Programs on real CPUs are not taken over by an emulation; nothing changes, and a fitting agent goes on."""
    agent = launch_agent(tmp_path / "run", *TWO)
    start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
    agent.await_tasks(a="0-1")
    agent.kill()
    refused_agent(agent.dir, "differs from this agent in emulate or observe", "--emulate", "pack:2 core:1")
    assert_clean(agent.dir)
    with start_agent(tmp_path, *TWO) as agent:
        agent.await_tasks(a="0-1")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A path below a file or on a read-only file system is refused by name."""
    (tmp_path / "file").touch()
    refused_agent(tmp_path / "file" / "run", "cannot use .*/file/run: Not a directory")
    refused_agent(Path("/proc/drom"), "cannot use /proc/drom")
    refused_agent(tmp_path / "file", "cannot use ")


def test_a_home_directory_is_refused(tmp_path: Path) -> None:
    """An agent or a scheduler that was told a wrong directory touches nothing in it, and makes no cache there."""
    for name in ("mail/1", "mail/inbox", "door", "control", "signals"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    before = {path.name: path.stat() for path in tmp_path.rglob("*")}
    about = environment(HOME=str(tmp_path), XDG_CACHE_HOME="", NUMBA_CACHE_DIR="", NUMBA_DISABLE_JIT="0")
    for whose, words in (("an agent", ("agent", "--runtime-dir")), ("a scheduler", ("scheduler", "--state"))):
        command = [sys.executable, "-m", "drom", *words, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=about)
        assert done.returncode == 1
        assert re.search(f"(holds files that are|signals is) not {whose}'s: ", done.stderr)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == {
        name: about.st_mtime_ns for name, about in before.items()
    }


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    """A runtime directory whose sockets would not fit into 107 bytes is refused by agent and clients alike."""
    path = tmp_path / ("x" * (108 - len(str(tmp_path)) - 1))
    refused_agent(path, "longer than")
    assert not path.exists()
    assert_refused(drom("ps", "--runtime-dir", path), "longer than the 107 bytes")
    done = drom("run", "--require", "--runtime-dir", path, "--", "true")
    assert_refused(done, "longer than the 99 bytes")


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (["--grace", "-1"], "--grace -1 is not a "),
        (["--grace", "nan"], "--grace nan is not a "),
        (["--sharing-factor", "0"], "--sharing-factor 0 is not above 0"),
        (["--sharing-factor", "nan"], "--sharing-factor nan is not above 0"),
        (["--capacity", "0"], "--capacity 0 is not a "),
        (["--metrics", "nonsense"], "--metrics nonsense is not ADDRESS:PORT"),
        (["--metrics", "127.0.0.1:99999"], "is not ADDRESS:PORT"),
        (["--metrics", "300.1.1.1:1"], "cannot serve metrics on 300.1.1.1:1: Name or service not known: choose"),
        (["--topology", "pack:two"], "pack"),
        (["--topology", "pack:2 core:1", "--emulate", "pack:1 core:1"], "give one of them"),
        (["--topology", "pack:64 core:64"], "CPU"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: list[str], pattern: str) -> None:
    """A value that makes no sense is named in one sentence, and nothing is left behind."""
    refused_agent(tmp_path / "run", pattern, *options)
    left = {path.name for path in (tmp_path / "run").iterdir()} if (tmp_path / "run").exists() else set()
    assert not left & {"door", "control", "signals"}


def test_a_metrics_port_in_use_is_refused_and_leaves_programs_alone(tmp_path: Path, start: Programs) -> None:
    """The agent does not start, removes its sockets, and the next one adopts what there was."""
    agent = launch_agent(tmp_path / "run", *TWO)
    start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
    agent.await_tasks(a="0-1")
    agent.kill()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused_agent(
            agent.dir, f"cannot serve metrics on {address}: Address already in use", *TWO, "--metrics", address
        )
    assert_clean(agent.dir)
    with start_agent(tmp_path, *TWO, *SERVES_METRICS) as agent:
        agent.await_tasks(a="0-1")


@pytest.mark.parametrize("options", ["size=8k", "size=1m,nr_inodes=1", "size=1m,nr_inodes=2", "size=1m,nr_inodes=4",
                                     "size=1m,nr_inodes=5", "size=1m,nr_inodes=6"])  # fmt: skip
def test_a_full_file_system_is_told_at_the_start(tmp_path: Path, options: str) -> None:
    """Without room for registry, mailboxes or sockets the agent says so, at whichever of them there is none left."""
    with tiny_tmpfs(tmp_path / "tiny", options) as tiny:
        refused_agent(tiny, "No space left on device")


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_file_system_that_fills_up_refuses_newcomers_only(
    tmp_path: Path, start: Programs, program: Path, what: str
) -> None:
    """Without room for a mailbox a launch is refused; running programs shrink and grow on; later launches work."""
    with tiny_tmpfs(tmp_path / "tiny", "size=1m,nr_inodes=64") as tiny, start_agent(tiny, *TWO) as agent:
        a = start.start(*agent.run("--job", "a", "--", program))
        a.await_out("cpus 0,1")
        with contextlib.suppress(OSError):
            for number in range(100):
                filler = tiny / f"filler{number}"
                filler.write_bytes(bytes(1 << 20) if what == "bytes" else b"")
        refused = start.start(*agent.run("--job", "b", "--", program))
        assert refused.wait() == 1
        assert re.fullmatch(r"drom: refused: cannot make a mailbox in .*: No space left on device: .*\n", refused.err)
        agent.order("resize", job="a", cpus=1)
        agent.await_tasks(a="0")
        for filler in tiny.glob("filler*"):
            filler.unlink()
        b = start.start(*agent.run("--job", "b", "--", program))
        b.await_out("applied")
        agent.await_tasks(a="0", b="1")
        agent.assert_clean()


# --- orders and launches


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["set", "guest", "7-9"], "not managed here"),
        (["set", "guest", "0-1"], "bystander may not be moved"),
        (["set", "nobody", "0"], "there is no job or pid nobody"),
        (["resize", "nobody", "1"], "there is no job nobody"),
        (["resize", "guest", "5"], "can have 1 to 2 CPUs, not 5"),
        (["resize", "bystander", "2"], "bystander is rigid"),
    ],
)
def test_orders_that_cannot_be_done_change_nothing(
    agent: Agent, start: Programs, program: Path, words: list[str], pattern: str
) -> None:
    """A typo, CPUs that do not exist, or a job that may not move: one sentence, and every task is as it was."""
    guest = start.start(*agent.run("--job", "guest", "--", program))
    guest.await_out("applied")
    before = agent.tasks()
    assert_refused(agent.cli(*words), pattern)
    after = agent.tasks()
    for row in (*before.values(), *after.values()):
        row.pop("polls")
    assert after == before


@pytest.mark.parametrize(
    "words", ["resize 0", "resize -1", "resize many", "resize 1.5", "set 0-", "set zero", "set 3-1"]
)
def test_a_typo_is_wrong_usage(agent: Agent, words: str) -> None:
    """`drom resize JOB` takes a positive number or auto, `drom set JOB` a CPU list; all else exits 2 and is named."""
    command, text = words.split()
    done = agent.cli(command, "bystander", text)
    assert done.returncode == 2, done
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "pattern", "status"),
    [
        (["--min", "3", "--cpus", "2"], "--min 3 is more than --cpus 2", 2),
        (["--cpus", "two"], "--cpus takes a number", 2),
        (["--class", "soft"], "--class takes", 2),
        (["--nonsense"], "--nonsense is no option", 2),
        (["--min", "3"], r"refused: .* needs at least 3 CPUs, this node has 2", 1),
        (["--class", "rigid", "--cpus", "9"], r"refused: .* needs at least 9 CPUs, this node has 2", 1),
    ],
)
def test_launches_that_can_never_run_are_refused(agent: Agent, options: list[str], pattern: str, status: int) -> None:
    """Wrong usage exits 2, what this node can never do exits 1."""
    assert_refused(drom("run", "--runtime-dir", agent.dir, *options, "--", "true"), pattern, status)


def test_more_tasks_than_cores_are_refused(agent: Agent, start: Programs) -> None:
    """A launch of three ranks on two cores is refused, each rank with the same sentence."""
    for rank in range(3):
        one = start.start(
            *agent.run("--session", "s", "--", "true"),
            OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
            OMPI_COMM_WORLD_LOCAL_SIZE="3",
        )
        assert one.wait() == 1
        assert one.err == "drom: refused: 3 tasks of at least 1 CPU need 3, this node has 2: ask for fewer.\n"


def test_an_agent_with_another_capacity_adopts_the_registry_as_it_is(tmp_path: Path, start: Programs) -> None:
    """The number of slots is the registry's, not the option's, as long as programs follow it."""
    agent = launch_agent(tmp_path / "run", *TWO, "--capacity", "1")
    start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
    agent.await_tasks(a="0-1")
    agent.kill()
    with start_agent(tmp_path, *TWO, "--capacity", "9") as agent:
        agent.await_tasks(a="0-1")
        refused = start.start(*agent.run("--job", "b", "--", "true"))
        assert refused.wait() == 1
        assert "the registry is full (1 tasks)" in refused.err


def test_a_full_registry_refuses_and_takes_the_next_when_a_slot_is_free(tmp_path: Path, start: Programs) -> None:
    """With --capacity 1 the second task is refused with advice, and accepted after the first has ended."""
    with start_agent(tmp_path, *TWO, "--capacity", "1") as agent:
        a = start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
        agent.await_tasks(a="0-1")
        b = start.start(*agent.run("--job", "b", "--", "true"))
        assert b.wait() == 1
        assert b.err == "drom: refused: the registry is full (1 tasks): start the agent with a larger --capacity.\n"
        a.kill()
        agent.await_tasks()
        assert start.start(*agent.run("--job", "c", "--", "true")).wait() == 0


def test_without_an_agent_a_program_runs_with_its_own_exit_code(tmp_path: Path) -> None:
    """No agent: one line and the command's exit code; --require refuses; orders are refused."""
    done = drom("run", "--runtime-dir", tmp_path, "--", "sh", "-c", "exit 7")
    assert_refused(done, "no agent answers in .*: running unmanaged", 7)
    assert_refused(drom("run", "--require", "--runtime-dir", tmp_path, "--", "true"), "no agent answers in")
    for words in (["ps"], ["resize", "a", "1"], ["set", "a", "0"]):
        assert_refused(drom(*words, "--runtime-dir", tmp_path), "no agent answers in .* start one with: drom agent")


def test_a_dead_agent_is_no_agent(tmp_path: Path) -> None:
    """A launch waits as long as a restart may take, and says so; then the program runs all the same."""
    agent = launch_agent(tmp_path / "run", *TWO)
    agent.kill()
    done = drom("run", "--runtime-dir", agent.dir, "--", "sh", "-c", "exit 7")
    waiting, unmanaged = done.stderr.splitlines()
    assert done.returncode == 7
    assert waiting == f"drom: waiting: the agent in {agent.dir} is being restarted."
    assert unmanaged.startswith(f"drom: no agent answers in {agent.dir}: running unmanaged")


# --- at the door


def _knock(agent: Agent) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.connect(str(agent.dir / "door"))
    door.settimeout(SECONDS)
    return door


def _request(**fields: Any) -> bytes:
    data = bytearray(REQUEST.size)
    good: dict[str, Any] = {"magic": layout.DOOR_MAGIC, "protocol": layout.PROTOCOL_VERSION, "kind": 1}
    REQUEST.write(data, **{**good, **fields})
    return bytes(data)


@pytest.mark.parametrize(
    "message",
    [
        b"x",
        b"GET / HTTP/1.0\r\n\r\n",
        random.Random(1).randbytes(REQUEST.size),
        _request()[:-1],
        _request() + b"x",
        bytes(100000),
        _request(magic=1),
        _request(protocol=99),
        _request(kind=0),
        _request(kind=99),
        _request(job_class=7),
        _request(max_cpus=0xFFFFFFFF),
        _request(min_cpus=0xFFFFFFFF),
        _request(local_size=0xFFFFFFFF, local_rank=0xFFFFFFFE),
        _request(local_size=2, local_rank=2),
        _request(local_size=1 << 20),
        _request(min_cpus=3, max_cpus=2),
    ],
    ids=lambda message: f"{len(message)}-{zlib.crc32(message):x}",
)
def test_messages_that_are_no_requests_are_refused(agent: Agent, message: bytes) -> None:
    """Each gets a reply that says refused and why; nothing is registered."""
    with _knock(agent) as door:
        door.send(message)
        reply = door.recv(1 << 16)
        assert REPLY.read(reply, "status") == layout.ENUMS["STATUS"].index("refused")
        assert REPLY.read_text(reply, "text").endswith(".")
        assert door.recv(10) == b""
    assert agent.tasks().keys() == {"bystander"}


def _asker(agent: Agent, request: bytes, then: str) -> list[str | Path]:
    """Return a command that sends `request` to the door through socket `s`, says so, goes on as told, and waits."""
    code = (
        "import socket,sys\n"
        "s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.connect(sys.argv[1])\n"
        "s.send(bytes.fromhex(sys.argv[2])); print('asked',flush=True)\n"
        f"{then}; sys.stdin.read()\n"
    )
    return [sys.executable, "-c", code, agent.dir / "door", request.hex()]


@pytest.mark.parametrize("name", [b"\xff\xfe\x80" * 20, b"a\nb=c \x1b[31m", b"x" * 64, "ä".encode() * 32, b'"}{' * 10])
def test_names_cannot_break_lines_or_labels(agent: Agent, start: Programs, name: bytes) -> None:
    """A job's name of any bytes is shown in one line of the log and in `drom ps`."""
    request = _request(job=name.ljust(64, b"\0"), session=name[::-1].ljust(64, b"\0"), local_size=1)
    guest = start.start(*_asker(agent, request, "print(len(s.recv(9999)),flush=True)"))
    guest.await_out("[0-9]+")
    names = agent.tasks().keys() - {"bystander"}
    assert len(names) == 1
    assert all(text.isprintable() for text in names)
    assert agent.cli("ps").returncode == 0
    for line in agent.log.split("\n")[:-1]:
        assert line.startswith("time="), line
        assert " event=" in line


def test_silent_and_vanishing_guests_do_no_harm(agent: Agent, start: Programs, program: Path) -> None:
    """Connections that say nothing are closed after a while, and those that go at once are forgotten at once."""
    quiet = [_knock(agent) for _ in range(50)]
    for _ in range(50):
        _knock(agent).close()
    empty = _knock(agent)
    empty.send(b"")
    guest = start.start(*agent.run("--job", "guest", "--", program))
    guest.await_out("applied")
    for door in (*quiet, empty):
        with contextlib.suppress(ConnectionResetError):
            assert door.recv(10) == b""
        door.close()


def test_more_guests_than_descriptors_do_not_end_the_agent(tmp_path: Path, start: Programs) -> None:
    """With few descriptors silent connections keep newcomers waiting, but not the agent from living."""
    with start_agent(tmp_path, *TWO, limit=90) as agent:
        quiet = [_knock(agent) for _ in range(200)]
        refused = start.start(*agent.run("--job", "guest", "--", "sleep", "1000"))
        assert refused.wait() == 1
        assert refused.err == "drom: refused: too many programs are registering: try again in a moment.\n"
        for door in quiet:
            door.close()
        start.start(*agent.run("--job", "guest", "--", "sleep", "1000"))
        agent.await_tasks(guest="0-1")
        start.kill()


def test_an_impatient_launcher_that_does_not_read_is_left_alone(agent: Agent, start: Programs) -> None:
    """A waiting connection that closes its reading side is dropped like any that goes away."""
    guest = start.start(*agent.run("--job", "guest", "--class", "rigid", "--cpus", "1", "--", "sleep", "1000"))
    agent.await_log(f"event=task_started job=guest task=0 pid={guest.pid}")
    rude = start.start(*_asker(agent, _request(job=b"rude".ljust(64, b"\0")), "s.shutdown(socket.SHUT_RD)"))
    rude.await_out("asked")
    agent.await_log("event=arrived job=rude")
    guest.kill()
    rude.kill()
    wait_until(lambda: agent.tasks().keys() == {"bystander"}, agent.tasks)


# --- at the control socket


NESTED = b"[" * 20000


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"not JSON"],
        [b"\xff\xfe"],
        [b"[1, 2]"],
        [b"null"],
        [NESTED],
        [b'{"a":' * 10000],
        [b"{}"],
        [b'{"protocol": 1}'],
        [b'{"protocol": 2, "order": "ps"}'],
        [b'{"protocol": 1, "order": 5}'],
        [b'{"protocol": 1, "order": "dance"}'],
        [b'{"protocol": 1, "order": "resize"}'],
        [b'{"protocol": 1, "order": "resize", "job": ["x"], "cpus": 1}'],
        [b'{"protocol": 1, "order": "resize", "job": "bystander", "cpus": "1"}'],
        [b'{"protocol": 1, "order": "resize", "job": "bystander", "cpus": true}'],
        [b'{"protocol": 1, "order": "resize", "job": "bystander", "cpus": 1.5}'],
        [b'{"protocol": 1, "order": "resize", "job": "bystander", "cpus": -1}'],
        [b'{"protocol": 1, "order": "resize", "job": "bystander", "cpus": ' + b"9" * 4000 + b"}"],
        [b'{"protocol": 1, "order": "resize", "job": "bystander", "cpus": ' + b"9" * 5000 + b"}"],
        [b'{"protocol": 1, "order": "resize", "job": "\\ud800", "cpus": 1}'],
        [b'{"protocol": 1, "order": "set", "job": "bystander", "cpus": 5}'],
        [b'{"protocol": 1, "order": "set", "job": "bystander", "cpus": "0-99999999999999999999"}'],
        [b'{"protocol": 1, "order": "set", "job": "bystander", "cpus": "0-4000000000"}'],
        [b'{"protocol": 1, "order": "set", "job": "bystander", "cpus": "' + b"0," * 20000 + b'0"}'],
        [b'{"protocol": 1, "order": "ps"}', b"more"],
        [b"", b'{"protocol": 1, "order": "ps"}'],
    ],
    ids=lambda frames: frames[-1][-60:].decode(errors="replace"),
)
def test_orders_that_are_none_are_refused(agent: Agent, frames: list[bytes]) -> None:
    """Whatever comes in at the control socket is answered with a sentence."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(endpoint(agent.dir, "control"))
        sock.send_multipart(frames)
        assert sock.poll(1000 * SECONDS), "no answer"
        answer = json.loads(sock.recv())
    assert answer["ok"] is False
    assert answer["error"].endswith((".", "drom ps`", "`drom ps`.", "min and max."))
    assert answer["error"].count("\n") == 0


def test_a_huge_order_is_dropped(agent: Agent) -> None:
    """A message above the limit ends that connection; others are served."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(endpoint(agent.dir, "control"))
        sock.send(bytes(3 << 20))
        assert agent.tasks().keys() == {"bystander"}
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(agent.dir / "control"))
        raw.send(b"GET / HTTP/1.0\r\n\r\n" * 10)
        assert agent.tasks().keys() == {"bystander"}


def test_an_asker_that_does_not_read_blocks_nobody(agent: Agent) -> None:
    """Ten thousand orders of somebody who takes no answer leave the agent answering others."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.RCVHWM, 1)
        sock.connect(endpoint(agent.dir, "control"))
        for _ in range(10000):
            with contextlib.suppress(zmq.Again):
                sock.send(b'{"protocol": 1, "order": "ps"}', zmq.NOBLOCK)
        assert agent.tasks().keys() == {"bystander"}


def test_orders_of_other_users_are_refused(agent: Agent) -> None:
    """Anybody may look, only root and the agent's user may change masks."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    code = (
        "import os,sys; sys.path[:0]=sys.argv[2:]; from pathlib import Path\n"
        "from drom.agent.control import client as control\n"
        "os.setresuid(65534,65534,65534)\n"
        "print(len(control.order(Path(sys.argv[1]), 'ps')['tasks']))\n"
        "try: control.order(Path(sys.argv[1]), 'resize', job='bystander', cpus=1)\n"
        "except control.ControlError as error: print(error)\n"
    )
    with contextlib.ExitStack() as stack:
        for folder in agent.dir.parents:
            mode = folder.stat().st_mode
            if not mode & 0o1:
                folder.chmod(mode | 0o111)
                stack.callback(folder.chmod, mode)
        done = subprocess.run(
            [sys.executable, "-c", code, agent.dir],
            capture_output=True, text=True, check=False, env=environment(),
        )  # fmt: skip
    assert done.stdout.splitlines() == [
        "1",
        "job bystander belongs to another user: only root and the agent's own user may change it.",
    ], done


# --- programs that die or lie


def test_a_program_that_dies_between_granted_and_applied(agent: Agent, start: Programs, program: Path) -> None:
    """Its cores are free at once, and the one that waited for them starts."""
    agent_grace = start.start(*agent.run("--job", "slow", "--", program, "--silent"))
    agent_grace.await_out("responder")
    mine = agent.tasks()["slow"]["granted"]
    os.kill(agent.pid, signal.SIGSTOP)
    agent_grace.kill()
    other = start.start(*agent.run("--job", "other", "--", program))
    os.kill(agent.pid, signal.SIGCONT)
    other.await_out("applied")
    wait_until(lambda: agent.tasks().keys() == {"bystander", "other"}, agent.tasks)
    assert agent.tasks()["other"]["granted"] == mine


def test_a_program_that_dies_while_it_shrinks(tmp_path: Path, start: Programs, program: Path) -> None:
    """A program that ends between the grant and its application leaves all it held to the others."""
    with start_agent(tmp_path, *TWO, "--grace", "60") as agent, Watcher(agent.dir):
        a = start.start(*agent.run("--job", "a", "--", program, "--silent"))
        a.await_out("responder")
        b = start.start(*agent.run("--job", "b", "--", program))
        wait_until(lambda: agent.tasks().get("a", {}).get("state") == "shrinking", agent.tasks)
        a.kill()
        b.await_out("cpus 0,1")
        agent.await_tasks(b="0-1")


def _mailbox(agent: Agent, pid: int) -> Path:
    """Return the mailbox that a process has open."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if link.readlink().parent.name == "mail":
            return agent.dir / "mail" / link.readlink().name
    raise AssertionError("no mailbox")


def _forge_applied(box: Path, epoch: int) -> None:
    data = bytearray(MAILBOX.size)
    MAILBOX.write(data, applied=epoch)
    at = MAILBOX.fields["applied"].offset
    with box.open("r+b") as file:
        file.seek(at)
        file.write(data[at : at + 8])


FORGERIES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda box: box.write_bytes(os.urandom(4096)),
    "future": lambda box: _forge_applied(box, 1 << 40),
    "old": lambda box: _forge_applied(box, 1),
    "truncated": lambda box: os.truncate(box, 0),
    "sparse": lambda box: os.truncate(box, 1 << 40),
    "gone": lambda box: box.unlink(),
    "folder": lambda box: _instead(box, lambda b: (b / "in").mkdir(parents=True)),
    "pipe": lambda box: _instead(box, os.mkfifo),
    "link": lambda box: _instead(box, lambda b: b.symlink_to("/etc/passwd")),
    "dangling": lambda box: _instead(box, lambda b: b.symlink_to("/nowhere/at/all")),
    "socket": lambda box: _instead(box, _bind),
    "other": lambda box: _instead(box, lambda b: b.write_bytes(bytes(9))),
}


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_mailbox_gives_no_core_away(agent: Agent, start: Programs, program: Path, forgery: str) -> None:
    """Whatever stands in a mailbox, cores change hands only when threads have left, and the agent lives on."""
    liar = start.start(*agent.run("--job", "liar", "--", program, "--silent", "--threads", "3"))
    liar.await_out("responder")
    box = _mailbox(agent, liar.pid)
    FORGERIES[forgery](box)
    granted = agent.tasks()["liar"]["granted"]
    start.started[0].quit()
    agent.await_tasks(liar="0-1")
    start.started[0] = start.start(*agent.run("--job", "bystander", "--class", "rigid", "--cpus", "1", "--", program))
    start.started[0].await_out("applied")
    agent.await_tasks(liar=granted, bystander="1" if granted == "0" else "0")
    agent.assert_clean()
    # Somebody else sits down at the same mailbox.
    liar.tell("d")
    liar.tell("a")
    liar.await_out("(?s)attached.*attached")
    liar.kill()
    wait_until(lambda: agent.tasks().keys() == {"bystander"}, agent.tasks)
    start.started[0].quit()
    shutil.rmtree(box, ignore_errors=True)
    _replace_bystander(agent, start, program)


def _replace_bystander(agent: Agent, start: Programs, program: Path) -> None:
    agent.await_tasks()
    again = start.start(*agent.run("--job", "bystander", "--class", "rigid", "--cpus", "1", "--", program))
    again.await_out("applied")


def test_lying_about_a_shrink_is_found_out(tmp_path: Path, start: Programs, program: Path) -> None:
    """A program that says it left a core while its threads stay is moved before the core changes hands."""
    with start_agent(tmp_path, *TWO, "--grace", "60") as agent, Watcher(agent.dir):
        liar = start.start(*agent.run("--job", "liar", "--", program, "--silent", "--threads", "3"))
        liar.await_out("responder")
        b = start.start(*agent.run("--job", "b", "--", program))
        wait_until(lambda: agent.tasks().get("liar", {}).get("state") == "shrinking", agent.tasks)
        _forge_applied(_mailbox(agent, liar.pid), 2)
        b.await_out("applied")
        agent.await_tasks(liar="0", b="1")
        agent.await_log("event=confined job=liar")
        agent.assert_clean()


def test_a_closed_log_does_not_end_the_agent(tmp_path: Path, start: Programs) -> None:
    """`drom agent 2>&1 | head -1`: when nobody reads the log any more the agent goes on without it."""
    runtime_dir = tmp_path / "run"
    command = [sys.executable, "-m", "drom", "agent", "--runtime-dir", str(runtime_dir), *TWO]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(NUMBA_DISABLE_JIT="1"))
    try:
        assert process.stderr
        while b"event=ready" not in process.stderr.readline():
            pass
        process.stderr.close()
        run: list[str | Path] = [native.run_path(), "--runtime-dir", runtime_dir, "--job", "a", "--"]
        for _ in range(3):
            assert start.start(*run, "true").wait() == 0
        assert drom("ps", "--runtime-dir", runtime_dir).returncode == 0
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def test_a_stop_with_strange_files_in_the_directory(tmp_path: Path) -> None:
    """What others have put into the runtime directory does not keep the agent from stopping cleanly."""
    with start_agent(tmp_path, *TWO, stop=False) as agent:
        (agent.dir / "mail" / "stray").mkdir()
        (agent.dir / "mail" / "note").write_text("hello", encoding="utf-8")
        agent.process.terminate()
        assert agent.process.wait(SECONDS) == 0
        assert "Traceback" not in agent.log
    with start_agent(tmp_path, *TWO, stop=False) as agent:
        with pytest.raises(ControlError):
            agent.order("dance")
        agent.process.terminate()
        assert agent.process.wait(SECONDS) == 0
