"""Agents that are replaced, reloaded and watched, with programs that run on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from dromlib import layout
from dromlib.layout import HEADER
from tests.support.agents import (
    SECONDS,
    Programs,
    affinity,
    build_program,
    launch_agent,
    programs,
    start_agent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.agents import Agent

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program under test."""
    return build_program(tmp_path_factory.mktemp("program"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Programs]:
    """Whatever is started through this is gone after the test."""
    with programs(tmp_path / "programs") as started:
        yield started


def hand_over(agent: Agent) -> None:
    """Have an agent leave everything to the next one."""
    agent.process.send_signal(signal.SIGUSR1)  # type: ignore[attr-defined] # subprocess.Popen
    assert agent.process.wait(SECONDS) == 0
    assert re.search("event=handed_over", agent.log)


def registry_of(agent: Agent) -> Path:
    """Return the file in which the agent keeps its tasks."""
    return agent.dir / "registry"


class TestHandingOver:
    """SIGUSR1: the next agent goes on where this one stopped."""

    def test_programs_are_not_disturbed(self, tmp_path: Path, start: Programs, program: Path) -> None:
        """They keep masks and grants over a restart, and then answer the next agent."""
        with start_agent(tmp_path, *TWO, stop=False) as agent:
            a = start.start(*agent.run("--job", "a", "--", program))
            agent.await_tasks(a="0-1")
            b = start.start(*agent.run("--job", "b", "--", program))
            agent.await_tasks(a="0", b="1")
            a.await_out("applied .* cpus 0$")
            b.await_out("applied .* cpus 1$")
            before = agent.tasks()
            applied = (a.applied(), b.applied())
            hand_over(agent)
            assert (affinity(a.pid), affinity(b.pid)) == ("0", "1")

        with start_agent(tmp_path, *TWO) as agent:
            agent.await_log("event=adopted tasks=2 dead=0")
            rows = agent.await_tasks(a="0", b="1")
            same = ("pid", "granted", "held", "owned", "lent", "mode")
            assert {job: [row[key] for key in same] for job, row in rows.items()} == {
                job: [row[key] for key in same] for job, row in before.items()
            }
            assert (a.applied(), b.applied()) == applied
            assert b.quit() == 0
            agent.await_tasks(a="0-1")
            agent.assert_clean()

    def test_a_launch_in_between_waits_for_the_next_agent(self, tmp_path: Path, start: Programs) -> None:
        """The launch reports that it waits and is then managed; 31 s after an agent's end it runs unmanaged at once."""
        with start_agent(tmp_path, *TWO, stop=False) as agent:
            hand_over(agent)
        late = start.start(*agent.run("--job", "late", "--", "sleep", "1000"))
        late.await_err(rf"drom: waiting: the agent in {re.escape(str(agent.dir))} is being restarted\.")
        with start_agent(tmp_path, *TWO, stop=False) as agent:
            agent.await_tasks(late="0-1")
            late.kill()
            agent.await_tasks()
            hand_over(agent)
        registry = bytearray(registry_of(agent).read_bytes())
        HEADER.write(registry, heartbeat_ns=HEADER.read(bytes(registry), "heartbeat_ns") - 31 * 10**9)
        registry_of(agent).write_bytes(registry)
        alone = start.start(*agent.run("--", "sleep", "1000"))
        alone.await_err("no agent answers in .*: running unmanaged")
        assert "waiting" not in alone.err

    def test_another_layout_is_refused_and_programs_run_on(self, tmp_path: Path, start: Programs) -> None:
        """The sentence says what to do, nothing is touched, and the version that made it can go on."""
        with start_agent(tmp_path, *TWO, stop=False) as agent:
            a = start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
            agent.await_tasks(a="0-1")
            hand_over(agent)
        ours = registry_of(agent).read_bytes()
        theirs = bytearray(ours)
        HEADER.write(theirs, layout_version=layout.LAYOUT_VERSION + 1)
        registry_of(agent).write_bytes(theirs)

        refused = launch_agent(agent.dir, *TWO, ready=False)
        assert refused.process.wait(SECONDS) == 1
        assert refused.log == (
            f"drom: {agent.dir}/registry cannot be adopted, its layout is version {layout.LAYOUT_VERSION + 1}, "
            f"this agent writes version {layout.LAYOUT_VERSION} (run the drom that made it and stop that, so that its "
            "programs continue unmanaged): remove it once its programs have ended.\n"
        )
        assert registry_of(agent).read_bytes() == theirs
        assert affinity(a.pid) == "0,1"

        registry_of(agent).write_bytes(ours)
        with start_agent(tmp_path, *TWO) as agent:
            agent.await_tasks(a="0-1")

    @pytest.mark.parametrize("fields", [{"boot_id": bytes(16)}, {"retired": 1}], ids=str)
    def test_another_layout_that_nobody_follows_is_replaced(self, tmp_path: Path, fields: dict[str, Any]) -> None:
        """What an earlier boot left, or an agent gave up, stands in nobody's way."""
        with start_agent(tmp_path, *TWO, stop=False) as agent:
            hand_over(agent)
        theirs = bytearray(registry_of(agent).read_bytes())
        HEADER.write(theirs, layout_version=layout.LAYOUT_VERSION + 1, **fields)
        registry_of(agent).write_bytes(theirs)

        with start_agent(tmp_path, *TWO) as agent:
            assert agent.tasks() == {}


class TestReloading:
    """SIGHUP and `drom config reload`."""

    def test_what_can_change_does_and_what_cannot_is_named(self, tmp_path: Path, start: Programs) -> None:
        """A cap is in force for programs that run; a file with a fault changes nothing and tells its line."""
        file = tmp_path / "drom.toml"
        file.write_text("grace = 2\n")
        with start_agent(tmp_path, *TWO, "--config", file, "--margin", "0.1") as agent:
            a = start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
            agent.await_tasks(a="0-1")

            file.write_text("grace = 3\nmargin = 0.2\nmax_cpus_per_user = 1\ncapacity = 7\n")
            done = agent.cli("config", "reload")
            assert done.stdout.splitlines() == [
                f"grace = 3.0 ({file}:1)",
                f"max_cpus_per_user = 1 ({file}:3)",
                "capacity stays 1024: 7 takes a new agent, as by a restart.",
            ]
            agent.await_tasks(a="0")
            assert affinity(a.pid) == "0"
            assert "when the rules of this node were changed" in agent.cli("explain", "a").stdout

            file.write_text("grace = 4\n\nmax_cpus_per_user = many\n")
            done = agent.cli("config", "reload")
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(f"drom: {file}:3: ")
            assert done.stderr.endswith("\ndrom: The agent goes on with what it had.\n")

            file.write_text("grace = 4\nreserved = '1'\ncapacity = 1024\n")
            agent.process.send_signal(signal.SIGHUP)  # type: ignore[attr-defined] # subprocess.Popen
            agent.await_log(r"event=reloaded changed=grace,max_cpus_per_user,reserved kept=\"\"")
            agent.await_tasks(a="0")
            file.unlink()
            file.write_text("")
            done = agent.cli("config", "reload", "--json")
            changed = {row["key"]: row["value"] for row in json.loads(done.stdout)["changed"]}
            assert changed == {"grace": 1.0, "reserved": ""}
            agent.await_tasks(a="0-1")
            assert agent.cli("config", "reload").stdout == "nothing has changed\n"

    def test_reserving_all_that_the_agent_manages_is_refused(self, tmp_path: Path) -> None:
        """As at the start: those that were reserved then are not counted."""
        file = tmp_path / "drom.toml"
        file.write_text("reserved = '0'\n")
        with start_agent(tmp_path, *TWO, "--config", file) as agent:
            file.write_text("grace = 2\nreserved = '1'\n")
            done = agent.cli("config", "reload")

            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(f"drom: {file}:2: reserved = 1 leaves no core to manage here: ")

    def test_cpus_reserved_from_the_start_stay_so(self, tmp_path: Path) -> None:
        """The agent has never counted them, and says what it takes."""
        file = tmp_path / "drom.toml"
        file.write_text("reserved = '1'\n")
        with start_agent(tmp_path, *TWO, "--config", file) as agent:
            file.write_text("exclude.programs = ['sleep']\n")
            assert agent.cli("config", "reload").stdout.splitlines()[-1] == (
                "CPUs 1 stay reserved: to manage them takes a new agent, as by a restart."
            )

    def test_excluded_programs_are_those_of_the_new_file(self, tmp_path: Path, start: Programs) -> None:
        """The next launch meets them."""
        file = tmp_path / "drom.toml"
        file.write_text("")
        with start_agent(tmp_path, *TWO, "--config", file) as agent:
            file.write_text("exclude.programs = ['sleep']\n")
            assert agent.cli("config", "reload").returncode == 0
            start.start(*agent.run("--", "sleep", "1000")).await_err("running unmanaged: the agent leaves sleep alone")


class Manager:
    """A service manager's end of the notify socket, at a path or at an abstract name (@...)."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._name = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._name)
        self._heard: SimpleQueue[list[str]] = SimpleQueue()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        self.told: list[str] = []

    def _listen(self) -> None:
        """Read at once what comes: of ten messages that nobody has read the kernel takes no more."""
        while data := self._socket.recv(4096):
            self._heard.put(data.decode().splitlines())

    def await_line(self, line: str) -> None:
        """Read until the agent says this."""
        while line not in self.told:
            self.told += self._heard.get(timeout=SECONDS)
        del self.told[: self.told.index(line) + 1]

    def close(self) -> None:
        """Close the socket."""
        self._socket.sendto(b"", self._name)
        self._listener.join()
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """Return a service manager that listens."""
    name = f"@drom-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    listening = Manager(name)
    yield listening
    listening.close()


def test_a_service_manager_is_told(tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready, what it does, reloading, stopping; the watchdog is petted while the loop turns, and only then."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with start_agent(tmp_path, *TWO) as agent:
        monkeypatch.undo()
        manager.await_line("READY=1")
        manager.await_line("WATCHDOG=1")
        manager.await_line("STATUS=managing 2 CPUs, 0 jobs")
        agent.cli("config", "reload")
        manager.await_line("RELOADING=1")
        assert manager.told[0].startswith("MONOTONIC_USEC=")
        manager.await_line("READY=1")
        manager.await_line("WATCHDOG=1")
    manager.await_line("STOPPING=1")


def test_a_manager_that_has_gone_is_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent goes on without it."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with start_agent(tmp_path, *TWO) as agent:
        monkeypatch.undo()
        assert agent.tasks() == {}
