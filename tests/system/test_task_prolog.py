# SPDX-License-Identifier: Apache-2.0
"""The script for Slurm's TaskProlog, without a Slurm."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "contrib" / "slurm" / "task_prolog.sh"
SENTENCE = "print drom: DROM_MALLEABLE=2:1: give two numbers of CPUs per task, from 1 on, such as 4:48.\n"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"SLURM_STEP_ID": "0"}, SENTENCE),
        ({"SLURM_STEP_ID": "17"}, SENTENCE),
        ({}, ""),  # a batch script
        ({"SLURM_STEP_ID": "-5"}, ""),  # a batch script of Slurm 26.05
        ({"SLURM_STEP_ID": "-6"}, ""),  # an interactive shell
    ],
)
def test_the_script_handles_steps_with_a_number_alone(step: dict[str, str], said: str) -> None:
    """Batch scripts are no tasks."""
    environment = {"PATH": "/usr/bin:/bin", "DROM_MALLEABLE": "2:1", **step}
    done = subprocess.run(["sh", SCRIPT], env=environment, capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == (said, "")
