"""Python programs under a real agent: resized while they run, with the right answers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Agent, Programs, affinity, start_agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

LOOP = """
import sys, dromlib
{setup}
session = dromlib.attach()
print("attached", session.mode, flush=True)
steps = 0
while True:
    assert compute(), "wrong answer"
    steps += 1
    session.progress(steps)
    if grant := session.poll():
        session.apply(grant)
        print("applied", ",".join(map(str, grant.cpus)), "threads", threads(), grant.reason, flush=True)
"""
NUMBA = LOOP.format(
    setup="""
import numba, numpy

@numba.njit(parallel=True)
def total(values):
    result = 0
    for i in numba.prange(values.size):
        result += values[i]
    return result

values = numpy.arange(100_000)
total(values)
compute = lambda: total(values) == 4999950000
threads = numba.get_num_threads
"""
)
NUMPY = LOOP.format(
    setup="""
import numpy
from threadpoolctl import threadpool_info
values = numpy.arange(64 * 64.0).reshape(64, 64)
expected = int(sum(values[1, k] * values[k, 2] for k in range(64)))
compute = lambda: int((values @ values)[1, 2]) == expected
threads = lambda: max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
"""
)
SERVICE = """
import asyncio, os, dromlib

async def resize(session):
    async for grant in session:
        session.apply(grant)
        print("applied", ",".join(map(str, grant.cpus)), "threads", len(grant.cpus), grant.reason, flush=True)

async def main():
    with dromlib.attach() as session:
        task = asyncio.create_task(resize(session))
        print("attached", session.mode, flush=True)
        await task
        print("alone", session.mode, flush=True)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent of two cores, patient with programs that start numba."""
    with start_agent(tmp_path_factory.mktemp("node"), "--topology", "pack:2 core:1", "--grace", "20") as agent:
        yield agent


@pytest.fixture
def agent(shared_agent: Agent, start: Programs) -> Iterator[Agent]:
    """The shared agent; the node is empty again after the test."""
    yield shared_agent
    shared_agent.assert_clean()
    start.kill()
    shared_agent.await_tasks()


@pytest.mark.parametrize("code", [NUMBA, NUMPY], ids=["numba", "numpy"])
def test_a_computing_program_is_resized_twice(agent: Agent, start: Programs, code: str) -> None:
    """The program resizes at its own malleability points, uses as many threads as CPUs, and every answer is right."""
    program = start.start(*agent.run("--job", "a", sys.executable, "-c", code))
    program.await_out("^attached responder$")
    agent.await_tasks(a="0-1")
    agent.order("resize", job="a", cpus=1)
    rows = agent.await_tasks(a="0")
    program.await_out(r"^applied 0 threads 1 order$")
    assert affinity(program.pid) == "0"
    agent.order("resize", job="a", cpus=2)
    agent.await_tasks(a="0-1")
    program.await_out(r"^applied 0,1 threads 2 order$")
    assert affinity(program.pid) == "0,1"
    assert rows["a"]["mode"] == "cooperative"
    assert agent.tasks()["a"]["progress"] > 0
    assert program.err == ""


def test_a_service_hears_of_grants_in_its_event_loop(tmp_path: Path, start: Programs) -> None:
    """An asyncio program applies what it is granted while it waits, and is told when the agent stops."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1", "--grace", "20") as agent:
        program = start.start(*agent.run("--job", "a", sys.executable, "-c", SERVICE))
        program.await_out("^attached responder$")
        agent.order("resize", job="a", cpus=1)
        agent.await_tasks(a="0")
        program.await_out("^applied 0 threads 1 order$")
        agent.order("resize", job="a", cpus=2)
        agent.await_tasks(a="0-1")
        program.await_out("^applied 0,1 threads 2 order$")
    program.await_out("^alone unmanaged$")
    assert program.wait() == 0
    assert program.err == ""


def test_numba_can_grow_beyond_the_cpus_it_starts_with(agent: Agent, start: Programs) -> None:
    """A program launched on one CPU of two has threads for two on OpenMP: the launcher exports the maximum."""
    first = start.start(*agent.run("--job", "first", sys.executable, "-c", NUMPY))
    first.await_out("^attached responder$")
    second = start.start(*agent.run("--job", "second", sys.executable, "-c", NUMBA), NUMBA_THREADING_LAYER="omp")
    second.await_out("^attached responder$")
    first.kill()
    second.await_out(r"^applied 0,1 threads 2 (death|return)$")
    assert second.err in {"", "drom: waiting: CPU 1 is being given up by first.\n"}  # which a loaded machine has it say


def test_a_second_session_leaves_what_the_first_has_said(agent: Agent, start: Programs) -> None:
    """The agent forgets an acknowledgement when another process sits down, not when the same one attaches again."""
    code = """
import os, pathlib, dromlib
from dromlib._handle import Handle
from dromlib.layout import MAILBOX

def applied():
    files = [os.readlink(link) for link in pathlib.Path("/proc/self/fd").iterdir() if os.path.exists(link)]
    return MAILBOX.read(pathlib.Path(next(file for file in files if "/mail/" in file)).read_bytes(), "applied")

outer = dromlib.attach([])
inner = Handle()
print(inner.mode, applied() == outer.grant.epoch)
outer.close(), inner.close()
print(dromlib.attach([]).mode)
"""
    program = start.start(*agent.run(sys.executable, "-c", code))

    assert program.wait() == 0
    assert (program.out, program.err) == ("responder True\nresponder\n", "")
