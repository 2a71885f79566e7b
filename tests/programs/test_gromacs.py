"""GROMACS from Debian: it runs until it is told to stop, and then alone for as many steps."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs.storm import Row, check, deviation, storm
from tests.support.agents import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.agents import Agent, Programs

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

WATER = Path("/usr/share/gromacs/top/spc216.gro")
TOPOLOGY = """
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spce.itp"
[ system ]
water
[ molecules ]
SOL 216
"""
PARAMETERS = """
integrator = md
dt = 0.001
nstcalcenergy = 10
nstenergy = 10
nstlog = 10
coulombtype = PME
rcoulomb = 0.9
rvdw = 0.9
constraints = h-bonds
gen_vel = yes
gen_temp = 300
gen_seed = 1
"""
TOLERANCE = 2e-4
"""Of a total energy that is conserved, after steps in which trajectories part: single precision is not associative."""
STOPPED = 1
"""Its exit code when it has stopped well after a signal."""
STEP = re.compile(r"^ +Step +Time\n +(\d+) ", re.MULTILINE)
ENERGY = re.compile(r"^ +Total Energy .*\n +(\S+) ", re.MULTILINE)


def prepare(folder: Path) -> list[str]:
    """Make the input of a box of water; return the command line of a simulation without its end and its name."""
    (folder / "water.top").write_text(TOPOLOGY, encoding="utf-8")
    (folder / "water.mdp").write_text(PARAMETERS, encoding="utf-8")
    command = ["gmx", "grompp", "-f", "water.mdp", "-p", "water.top", "-c", str(WATER), "-o", "water.tpr"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return ["gmx", "mdrun", "-s", str(folder / "water.tpr"), "-ntmpi", "1", "-pin", "off", "-reprod"]


def test_gromacs(agent: Agent, start: Programs, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """Molecular dynamics of water, with two threads that divide the work by hand."""
    if not shutil.which("gmx") or not WATER.exists():
        pytest.skip("needs gromacs (Debian): make test-programs fetches it")
    simulate = prepare(tmp_path)

    def run(name: str, threads: int, steps: str, *launch: str) -> list[str]:
        return [*launch, *simulate, "-ntomp", str(threads), "-nsteps", steps, "-deffnm", str(tmp_path / name)]

    program = start.start(*run("storm", 2, "-1", *agent.run("--job", "p", "--")))
    log = tmp_path / "storm.log"
    wait_until(lambda: log.exists() and STEP.search(log.read_text(encoding="utf-8")), program.show)
    applied, bound = storm(agent, program)
    program.process.send_signal(signal.SIGTERM)
    assert program.wait() == STOPPED, program.show()
    said = log.read_text(encoding="utf-8")
    steps = STEP.findall(said)[-1]
    energies = [float(ENERGY.findall(said)[-1])]
    for name, threads in (("alone", 2), ("control", 1)):
        assert start.start(*run(name, threads, steps), OMP_NUM_THREADS=str(threads)).wait() == 0
        energies.append(float(ENERGY.findall((tmp_path / f"{name}.log").read_text(encoding="utf-8"))[-1]))
    version = re.search(r"GROMACS version: +([\d.]+)", said)
    assert version, said
    quantity = f"total energy after {steps} steps"
    stormy, alone, control = energies
    deviations = deviation([control], alone), deviation([stormy], alone)
    row = Row("GROMACS (Debian)", version[1], quantity, TOLERANCE, *deviations, applied, bound)
    tell(row)
    check(row)
    agent.await_tasks()
