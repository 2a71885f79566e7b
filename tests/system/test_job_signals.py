# SPDX-License-Identifier: Apache-2.0
"""Signals that do not end a job, with a real scheduler, real agents on emulated cores, and real programs."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import wait_until
from tests.support.clusters import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.clusters import Cluster

pytestmark = pytest.mark.system

PROGRAM = """
import os, pathlib, signal

rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
awaited = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
pathlib.Path("ready" + rank).touch()
number = 0
while number != signal.SIGUSR2:
    number = signal.sigwait(awaited)
    with open("said", "a") as file:
        file.write(f"{rank}:{signal.Signals(number).name}\\n")
"""
SCRIPT = f"""#!/bin/sh
trap 'echo shell >> said' USR1 USR2
{sys.executable} program.py &
until wait; do :; done
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes with four cores each."""
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def here(running: Cluster) -> Iterator[Cluster]:
    """Return it without a job; each test has files of its own, and leaves nothing running."""
    running.begin()
    (running.folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    (running.folder / "job.sh").write_text(SCRIPT, encoding="utf-8")
    yield running
    running.clear()


def await_file(here: Cluster, name: str) -> None:
    """Wait until there is a file in the folder of the jobs."""
    wait_until((here.folder / name).exists, lambda: here.log)


def said(here: Cluster, count: int) -> list[str]:
    """Return what programs have said, in order, once these are so many lines."""
    file = here.folder / "said"
    lines = wait_until(
        lambda: found if file.exists() and len(found := file.read_text().splitlines()) >= count else None,
        lambda: f"{file.exists() and file.read_text()}\n{here.log}",
    )
    return sorted(lines)


def test_the_tasks_of_a_script_get_a_signal_and_its_shell_does_not(here: Cluster) -> None:
    """With B: the shell gets it alone."""
    job = here.submit("job.sh")
    await_file(here, "ready0")
    for count, number in enumerate(("USR1", "B:USR1", "USR2"), 1):
        assert here.cli("cancel", "--signal", number, str(job)).stdout == f"Signalled job {job}\n"
        said(here, count)
    here.await_state(job, "completed")

    assert said(here, 3) == ["0:SIGUSR1", "0:SIGUSR2", "shell"]


def test_a_job_gets_its_signal_once_whatever_is_restarted(here: Cluster) -> None:
    """Its agent does not run when the signal is due, and both are killed again after the job has got it."""
    job = here.submit("--time", "62s", "--signal", "USR1@60", "job.sh")
    await_file(here, "ready0")
    (node,) = here.await_state(job, "running")["shares"]
    here.agents[node].kill()
    wait_until(lambda: "signalled" in [entry["what"] for entry in here.job(job)["history"]], lambda: here.log)
    here.join(node)
    assert said(here, 1) == ["0:SIGUSR1"]
    here.kill()
    here.start()
    here.agents[node].kill()
    here.join(node).await_log("event=cluster_joined")
    here.cli("cancel", "--signal", "USR2", str(job))
    here.await_state(job, "completed")

    assert said(here, 2) == ["0:SIGUSR1", "0:SIGUSR2"]


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI")
def test_each_rank_of_each_job_in_an_array_gets_its_signal(here: Cluster) -> None:
    """Each job has a limit of its own; mpirun, which would pass the signal on once more, does not get it."""
    words = ("--nodes", "1", "--tasks-per-node", "2", "--time", "62s", "--signal", "USR1@60")
    array = here.cli("submit", "--parsable", "--array", "0-1", *words, "--", sys.executable, "program.py").stdout
    assert said(here, 4) == ["0:SIGUSR1"] * 2 + ["1:SIGUSR1"] * 2
    here.cli("cancel", "--signal", "USR2", array.split()[0])

    assert said(here, 8) == [f"{rank}:{name}" for rank in "01" for name in ["SIGUSR1"] * 2 + ["SIGUSR2"] * 2]
