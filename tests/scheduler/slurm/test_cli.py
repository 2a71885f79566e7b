# SPDX-License-Identifier: Apache-2.0
"""`drom slurm check` as scripts see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """\
ClusterName=c
SelectType=select/cons_tres
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
"""


def check(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run `drom slurm check`."""
    return drom_slurm("check", *words, path=path)


def drom_slurm(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    environ = os.environ | ({"PATH": path} if path is not None else {})
    command = [sys.executable, "-m", "drom", "slurm", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environ)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """Return a slurm.conf that is right for level 0."""
    (tmp_path / "cgroup.conf").write_text("ConstrainCores=yes\n", encoding="utf-8")
    path = tmp_path / "slurm.conf"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_nothing_to_change_is_exit_0(conf: Path) -> None:
    """What may matter is noted."""
    done = check("--level", "0", "--config", str(conf))

    assert (done.returncode, done.stderr) == (0, "")
    assert "ok      TaskPlugin: task/affinity,task/cgroup\n" in done.stdout
    assert done.stdout.endswith("\n\nReady for level 0; 1 note.\n")


def test_something_to_change_is_exit_1(conf: Path) -> None:
    """Each change has the line to write and the reason."""
    conf.write_text(GOOD.replace("proctrack/cgroup", "proctrack/linuxproc"), encoding="utf-8")
    done = check("--level", "0", "--config", str(conf))

    assert (done.returncode, done.stderr) == (1, "")
    assert (
        "change  ProctrackType: proctrack/linuxproc\n"
        "        write  ProctrackType=proctrack/cgroup\n"
        "        why    Agents learn from control groups"
    ) in done.stdout
    assert done.stdout.endswith("\n\n1 setting must change for level 0; 1 note.\n")


def test_json_has_every_finding(conf: Path) -> None:
    """Findings that are ok as well."""
    value = json.loads(check("--config", str(conf), "--json").stdout)

    assert (value["schema_version"], value["level"]) == (1, 1)
    assert value["changes"] == sum(row["state"] == "change" for row in value["findings"]) > 0
    assert {"state": "ok", "what": "SelectType", "now": "select/cons_tres", "wanted": "", "why": ""} in value[
        "findings"
    ]


def test_what_cannot_be_read_is_exit_2(tmp_path: Path) -> None:
    """One sentence says what to do: without Slurm, and for another file."""
    without = check(path=str(tmp_path))
    other = check("--config", "/dev/null")

    assert [(done.returncode, done.stdout) for done in (without, other)] == [(2, ""), (2, "")]
    assert without.stderr == (
        "drom: there is no command scontrol here: install Slurm's client commands (Debian: slurm-client).\n"
    )
    assert other.stderr == (
        "drom: this is neither a slurm.conf nor what 'scontrol show config' prints: give one of them.\n"
    )


def test_control_characters_of_a_file_do_not_reach_the_terminal(conf: Path) -> None:
    """They are printed as escapes."""
    conf.write_text(GOOD.replace("select/cons_tres", "select/\x1b[2J"), encoding="utf-8")

    assert "SelectType: select/\\x1b[2J\n" in check("--config", str(conf)).stdout


def test_a_report_without_slurm_is_exit_2(tmp_path: Path) -> None:
    """One sentence says what to do."""
    done = drom_slurm("report", path=str(tmp_path))

    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "drom: there is no command squeue here: install Slurm's client commands (Debian: slurm-client).\n"
    )
