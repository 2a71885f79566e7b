# SPDX-License-Identifier: Apache-2.0
"""An MPI job over two nodes of one machine, each with a name of its own, started by the agents; there is no ssh."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.execution.protocol import Ended, Forget, Hello, Resize, Resized, Signal, Started

from tests.support.agents import Agent, start_agent, wait_until
from tests.support.fake_scheduler import FakeScheduler, start, start_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    int rank, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    const char *node = getenv("DROM_NODE"), *cpus = getenv("DROM_CPUS");
    printf("rank %d of sum %d on %s in %s\\n", rank, sum, node, cpus);
    fflush(stdout);
    while (access("go", F_OK) != 0)
        usleep(10000);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
"""
LOOPBACK = {"OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_btl": "self,tcp"}


def _has_names() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-u", "true"], check=False).returncode == 0


pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="needs Open MPI"),
    pytest.mark.skipif(shutil.which("unshare") is None or not _has_names(), reason="needs root and UTS namespaces"),
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a program whose ranks say where they are, and end when the file `go` is there."""
    (tmp_path / "mpi.c").write_text(PROGRAM, encoding="utf-8")
    subprocess.run(["mpicc.openmpi", "mpi.c", "-o", "ranks"], cwd=tmp_path, check=True)
    return tmp_path / "ranks"


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[FakeScheduler]:
    """Return a scheduler that hands on what nodes post."""
    with start_scheduler(tmp_path) as standing:
        yield standing


@pytest.fixture
def nodes(tmp_path: Path, scheduler: FakeScheduler) -> Iterator[list[Agent]]:
    """Return the agents of the nodes n1 and n2, of four emulated cores each."""

    def options(name: str) -> tuple[str, ...]:
        return ("--scheduler", scheduler.address, "--node", name, "--emulate", "pack:1 core:4")

    def within(name: str) -> tuple[str, ...]:
        return ("unshare", "-u", "sh", "-c", f'hostname {name}; exec "$@"', "sh")

    with (
        start_agent(tmp_path, *options("n1"), name="n1", stop=False, within=within("n1")) as first,
        start_agent(tmp_path, *options("n2"), name="n2", stop=False, within=within("n2")) as second,
    ):
        for name in ("n1", "n2"):
            scheduler.hear(Hello, node=name, host=name)
        running = [first, second]
        yield running
        for agent in running:
            agent.stop()


def launch(scheduler: FakeScheduler, program: Path) -> None:
    """Start a job of a rank on each node."""
    mpirun = "mpirun.openmpi --allow-run-as-root --bind-to none --host $DROM_HOSTS -n 2"
    command = f"exec {mpirun} drom-run --await {program}"
    folder = str(program.parent)
    both: dict[str, Any] = {"cores": 2, "most": 4, "nodes": ["n1", "n2"], "total_tasks": 2, "cwd": folder}
    both["env"] = start(1).env | LOOPBACK
    scheduler.say("n2", start(1, mode="hold", **both))
    scheduler.hear(Started, job=1)
    scheduler.say("n1", start(1, "sh", "-c", command, mode="launch", output="out", **both))
    scheduler.hear(Started, job=1)


def await_ranks(scheduler: FakeScheduler, program: Path) -> list[str]:
    """Wait until both ranks have said where they are."""
    out = program.parent / "out"

    def said() -> list[str]:
        scheduler.serve(0.01)
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        lines = sorted(line for line in text.splitlines() if line.startswith("rank "))  # mpirun may have warned
        return lines if len(lines) == 2 else []

    return wait_until(said, lambda: out.read_text(encoding="utf-8"))


def forget(scheduler: FakeScheduler, nodes: list[Agent]) -> None:
    """End the part of the job that is held, and let both nodes forget it."""
    scheduler.say("n2", Signal(1, 1, signal.SIGTERM, 0.0))
    scheduler.hear(Ended, job=1)
    for name in ("n1", "n2"):
        scheduler.say(name, Forget(1, 1))
    for agent in nodes:
        spool = agent.dir / "steward"
        wait_until(lambda spool=spool: not list(spool.iterdir()), lambda: "still there")  # type: ignore[misc]
        assert agent.tasks() == {}


def resize_and_end(scheduler: FakeScheduler, program: Path, nodes: list[Agent]) -> None:
    """Give the job, which is a task on each node, a core more on each, and let it end."""
    for agent, name in zip(nodes, ("n1", "n2"), strict=True):
        agent.await_tasks(**{"drom-1": "2-3"})
        scheduler.say(name, Resize(1, 1, 3, 60.0))
        scheduler.hear(Resized, job=1, cores=3)
    (program.parent / "go").touch()
    assert scheduler.hear(Ended, job=1).status == 0
    forget(scheduler, nodes)


def test_ranks_start_on_each_node(program: Path, scheduler: FakeScheduler, nodes: list[Agent]) -> None:
    """Each is a task of the job on its own node, in the CPUs of that, and resized there; they end together."""
    launch(scheduler, program)

    assert await_ranks(scheduler, program) == [
        "rank 0 of sum 1 on n1 in 2-3",
        "rank 1 of sum 1 on n2 in 2-3",
    ]
    resize_and_end(scheduler, program, nodes)


def test_launches_of_a_script_are_on_its_nodes_and_cores(
    program: Path, scheduler: FakeScheduler, nodes: list[Agent]
) -> None:
    """The script names no nodes or cores; its ranks on the other node are a task there, as the script is on its own."""
    mpirun = "mpirun.openmpi --allow-run-as-root"
    both: dict[str, Any] = {"cores": 2, "most": 4, "nodes": ["n1", "n2"], "total_tasks": 2, "cwd": str(program.parent)}
    both |= {"env": start(1).env | LOOPBACK, "script": f"#!/bin/sh\n{mpirun} true && exec {mpirun} {program}\n"}
    scheduler.say("n2", start(1, mode="hold", **both))
    scheduler.hear(Started, job=1)
    scheduler.say("n1", start(1, output="out", **both))
    scheduler.hear(Started, job=1)

    assert await_ranks(scheduler, program) == ["rank 0 of sum 1 on n1 in 2-3", "rank 1 of sum 1 on n2 in 2-3"]
    resize_and_end(scheduler, program, nodes)


def test_what_runs_elsewhere_ends_with_its_launcher(
    program: Path, scheduler: FakeScheduler, nodes: list[Agent]
) -> None:
    """Who kills the launcher's part of a job has no ranks left on the other node, before that part is ended."""
    launch(scheduler, program)
    await_ranks(scheduler, program)

    scheduler.say("n1", Signal(1, 1, signal.SIGKILL))

    assert scheduler.hear(Ended, job=1).status == -9

    def gone() -> bool:
        scheduler.serve(0.01)
        return nodes[1].tasks() == {}

    wait_until(gone, nodes[1].tasks)
    forget(scheduler, nodes)


def test_an_agent_that_dies_keeps_the_ranks_on_its_node(
    tmp_path: Path, program: Path, scheduler: FakeScheduler, nodes: list[Agent]
) -> None:
    """Launcher and remote daemon wait for the next agents, and the job ends as if nothing had happened."""
    launch(scheduler, program)
    await_ranks(scheduler, program)
    for agent in nodes:
        agent.kill()
    options = ("--scheduler", scheduler.address, "--emulate", "pack:1 core:4", "--node")
    with (
        start_agent(tmp_path, *options, "n1", name="n1") as first,
        start_agent(tmp_path, *options, "n2", name="n2") as second,
    ):
        for name in ("n1", "n2"):
            while not (known := scheduler.hear(Hello, node=name).jobs):
                pass  # the agent that died had said it again, because this scheduler was slow
            assert [one.state for one in known] == ["running"]
        (program.parent / "go").touch()
        assert scheduler.hear(Ended, job=1).status == 0
        forget(scheduler, [first, second])
    nodes.clear()
