# SPDX-License-Identifier: Apache-2.0
"""Running Slurm's commands: what they print, and a sentence for each way in which they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from drom.agent.errors import SlurmError
from drom.scheduler.slurm.reader import Reader, why

MUNGE = """squeue: error: If munged is up, restart with --num-threads=10
squeue: error: Munge encode failed: Failed to access "/run/munge/socket": No such file or directory
slurm_load_jobs error: Protocol authentication error
"""


def command(folder: Path, name: str, script: str) -> dict[str, str]:
    """Write a command that stands in for one of Slurm's, and return the environment that finds it."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_command_prints_in_utc_whatever_the_user_has_set(tmp_path: Path) -> None:
    """Variables that change what Slurm prints are not passed on; others are."""
    environ = command(tmp_path, "scontrol", 'echo "$TZ|$SQUEUE_FORMAT|$SLURM_TIME_FORMAT|$SLURM_CONF"')
    told = {"TZ": "Asia/Tokyo", "SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative", "SLURM_CONF": "/etc/a"}

    assert Reader(environ | told).configuration() == "UTC|||/etc/a\n"


def test_jobs_cannot_forge_fields(tmp_path: Path) -> None:
    """The separator of fields is another one in each call."""
    environ = command(tmp_path, "squeue", f'for a in "$@"; do :; done; echo "$a" >> {tmp_path}/formats')
    for _ in range(2):
        Reader(environ).jobs()
    first, second = (tmp_path / "formats").read_text(encoding="utf-8").splitlines()

    assert first != second
    assert first.startswith("JobID:0|")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            MUNGE,
            "munge does not answer here: start it with 'systemctl start munge'; its key must be that of all machines.",
        ),
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            "slurmctld does not answer: start it, as with 'systemctl start slurmctld'; 'scontrol ping' shows where.",
        ),
        (
            (
                "scontrol: error: fetch_config: DNS SRV lookup failed\n"
                "scontrol: fatal: Could not establish a configuration source"
            ),
            "Slurm's commands find no slurm.conf on this machine: install it, or set SLURM_CONF to its path.",
        ),
        (
            "slurm_load_ctl_conf error: Access/permission denied",
            "Slurm does not let this user look: run this as SlurmUser or root.",
        ),
        ("a\nb  c\n", "squeue failed (b c): run it by hand to see why."),
        ("", "squeue failed (it printed nothing): run it by hand to see why."),
    ],
)
def test_each_failure_has_a_sentence(said: str, sentence: str) -> None:
    """What Slurm 22.05, 24.11 and 26.05 print is recognised by its words."""
    assert why("squeue", said) == sentence


def test_a_failing_command_is_an_error(tmp_path: Path) -> None:
    """The sentence comes from what it printed to stderr."""
    environ = command(tmp_path, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")

    with pytest.raises(SlurmError, match="slurmctld does not answer"):
        Reader(environ).jobs()


def test_a_missing_command_is_an_error(tmp_path: Path) -> None:
    """The sentence says what to install."""
    with pytest.raises(SlurmError, match=r"there is no command squeue here: install Slurm's client commands"):
        Reader({"PATH": str(tmp_path)}).jobs()


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """Whether it holds its output open or not."""
    for script in ("exec sleep 1000", "exec sleep 1000 >&- 2>&-"):
        environ = command(tmp_path, "squeue", f"echo $$ > {tmp_path}/pid; {script}")
        with pytest.raises(SlurmError, match=r"squeue did not answer within 0\.2 s"):
            Reader(environ, patience_s=0.2).jobs()

        assert not Path("/proc", (tmp_path / "pid").read_text(encoding="utf-8").strip()).exists()


def test_endless_output_is_an_error(tmp_path: Path) -> None:
    """The command is killed at the bound."""
    with pytest.raises(SlurmError, match=r"squeue prints more than 1 MiB: ask for less\."):
        Reader(command(tmp_path, "squeue", "exec yes"), most_bytes=1 << 20).jobs()
