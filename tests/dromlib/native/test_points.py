"""The one session of a program that knows nothing of drom: many threads, forks, a program that attaches by itself."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from dromlib import layout
from dromlib.testing import Registry
from tests.dromlib.native.test_libdrom import ANSWER_SECONDS, RESPONDER, Client
from tests.support import native_build
from tests.support.agents import wait_until
from tests.support.registration import RegistrationServer, serve_registrations

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module", params=list(native_build.SANITIZERS))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile points.c with the session, plain and under each sanitizer."""
    return native_build.build(tmp_path_factory.mktemp("points"), "points", request.param, "preload/session.c")


def await_applied(registry: Registry, epoch: int) -> None:
    """Wait until the program has acknowledged a grant."""
    wait_until(lambda: registry.mail(0, "applied") == epoch, lambda: registry.mail(0, "applied"))


def await_cpus(client: Client, count: int) -> None:
    """Wait until the program's threads see a grant of so many CPUs."""
    wait_until(lambda: client.ask("ncpus") == f"ncpus {count}", lambda: client.ask("ncpus"))


def test_threads_share_the_session(program: Path, tmp_path: Path) -> None:
    """Of threads that pass points together one takes each grant; a child begins anew; who attaches by himself wins."""
    registry = Registry(tmp_path, flags=layout.HEADER_EMULATED)
    with serve_registrations(tmp_path, lambda request: request.attach(registry)) as server:
        client = Client(program, tmp_path)
        try:
            for mask in (0b1111, 0b11, 0b111):
                epoch = registry.publish(0, mask)
                await_applied(registry, epoch)
                await_cpus(client, mask.bit_count())
            assert client.ask("points") == "points"
            assert registry.mail(0, "points") == 1 << layout.ENUMS["POINTS"].index("mpi")
            assert client.ask("fork") == "fork 0"
            assert client.ask("ncpus") == "ncpus 3"
            assert len(server.requests) == 1
            assert client.ask("attach") == f"attach {RESPONDER} 0"
            registry.publish(0, 0b1)
            assert client.ask("ncpus") == "ncpus 0"
            assert registry.mail(0, "applied") == epoch
            assert registry.mail(0, "polls") > 0
            client.end()
        finally:
            client.process.kill()
            client.process.wait()


def test_a_retired_registry_may_still_be_polled(program: Path, tmp_path: Path) -> None:
    """Threads that poll while the agent gives its registry up find nothing any more, and nothing bad happens."""
    registry = Registry(tmp_path, flags=layout.HEADER_EMULATED)
    server = RegistrationServer(tmp_path, lambda request: request.attach(registry))
    epoch = registry.publish(0, 0b11)
    client = Client(program, tmp_path)
    try:
        await_applied(registry, epoch)
        server.close()
        registry.retire(0)
        await_cpus(client, 0)
        client.end()
    finally:
        client.process.kill()
        client.process.wait()


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
def test_a_thread_does_not_stay_on_cpus_of_a_superseded_grant(tmp_path: Path) -> None:
    """A thread that binds itself while the next grant is put in force ends up on the CPUs of that one."""
    program = native_build.build(tmp_path, "pins", "plain", "preload/pinning.c")

    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "whole 1\npart 1\npart 1\n"


def test_a_race_is_found(tmp_path: Path) -> None:
    """The sanitizer is told to let one function pass, no more: threads that count without a lock end the program."""
    client = Client(native_build.build(tmp_path, "points", "thread", "preload/session.c", flags=["-DRACE"]), tmp_path)
    try:
        complaints = client.hear()

        assert "WARNING: ThreadSanitizer: data race" in complaints
        assert "pass_points" in complaints
        assert client.process.wait(ANSWER_SECONDS) == 66
    finally:
        client.process.kill()
        client.process.communicate()
