# SPDX-License-Identifier: Apache-2.0
"""The helper of `drom slurm` on libslurm: its answers, and Slurm's commands in its place when it does not work.

The helper and the commands are scripts here, real processes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from drom.agent.errors import SlurmError
from drom.scheduler.slurm import helper
from drom.scheduler.slurm.helper import HelperReader

from tests.scheduler.slurm.recorded import of_helper, recorded

HELLO = "echo 'drom-slurm-helper 1 22.05'"
ANSWERS = """\
while read -r word rest; do
    echo "$word $rest" >> "$here/asked"
    case $word in
    jobs) [ -e "$here/same" ] && echo "same 0" || { cp "$here/jobs" "$here/now"
          sed -i "s/SEPARATOR/$rest/g" "$here/now"; echo "ok $(wc -c < "$here/now")"; cat "$here/now"; } ;;
    nodes) echo "ok $(wc -c < "$here/nodes")"; cat "$here/nodes" ;;
    *) cat "$here/answer" ;;
    esac
done
"""


class Site:
    """A Slurm whose commands print nothing, and a helper; the sentences that its reader told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.reader = HelperReader(
            {"PATH": f"{folder}:{os.environ['PATH']}"}, folder / "helper", self.told.append, patience_s=5.0
        )
        self.set(jobs=of_helper("22.05", "SEPARATOR"), answer="ok 0\n")
        self.set(nodes=recorded("22.05", "node.txt"))
        for name in ("squeue", "scontrol"):
            self.script(name, f'echo {name} "$1" "$2" >> "$here/commands"')
        self.script("helper", f"{HELLO}\n{ANSWERS}")

    def script(self, name: str, text: str) -> None:
        """Write a program."""
        path = self.folder / name
        path.write_text(f'#!/bin/sh\nhere="{self.folder}"\n{text}\n', encoding="utf-8")
        path.chmod(0o755)

    def set(self, **files: str) -> None:
        """Write files that the programs read."""
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def commands(self) -> list[str]:
        """Return the commands of Slurm that were run."""
        path = self.folder / "commands"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def asked(self) -> list[str]:
        """Return what the helper was asked, without separators."""
        lines = (self.folder / "asked").read_text(encoding="utf-8").splitlines()
        return ["jobs" if line.startswith("jobs ") else line.strip() for line in lines]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site."""
    return Site(tmp_path)


def test_the_helper_reads_and_changes_instead_of_slurms_commands(site: Site) -> None:
    """One process does everything; what has not changed is not parsed again."""
    jobs, nodes = site.reader.jobs(), site.reader.nodes()
    site.set(same="")
    again = site.reader.jobs()
    site.reader.update("jobid=7_3", "licenses=", "nice=-5")
    site.reader.close()

    assert (len(jobs.records) > 10, jobs.faults, len(nodes.records)) == (True, (), 4)
    assert again is jobs
    assert site.asked() == ["jobs", "nodes", "jobs", "update jobid=7_3 licenses= nice=-5"]
    assert (site.commands(), site.told) == ([], [])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "it ended with status 3"),
        ("echo 'libslurm.so.38: cannot open shared object file'; exit 127", "it printed 'libslurm.so.38: cannot open"),
        ("echo 'drom-slurm-helper 2 26.05'; exec sleep 1000", "it has version 2 of the protocol, this drom has 1"),
        (f"{HELLO}; read -r line; exit 9", "it ended with status 9"),
        (f"{HELLO}; read -r line; echo nonsense; exec sleep 1000", "it printed 'nonsense'"),
        (f"{HELLO}; read -r line; echo ok 99999999999; exec sleep 1000", "it printed 'ok 99999999999'"),
        (f"{HELLO}; read -r line; echo ok 999999999; exec sleep 1000", "it prints more than 256 MiB"),
        (f"{HELLO}; read -r line; echo bad 4; echo jobs; exec sleep 1000", "it does not know jobs with 'jobs"),
        (f"{HELLO}; exec cat /dev/zero", "it printed no answer"),
    ],
)
def test_a_helper_that_does_not_work_is_replaced_by_slurms_commands(site: Site, script: str, reason: str) -> None:
    """One sentence tells why; the next question starts no helper again."""
    site.script("helper", script)
    site.reader.jobs()
    site.reader.update("jobid=7", "nice=3")

    assert site.commands() == ["squeue --noheader --noconvert", "scontrol update jobid=7"]
    (told,) = site.told
    assert told.startswith(f"the helper {site.folder}/helper does not work ({reason}")
    assert told.endswith("): Slurm's commands are used for 10 min; build it for this drom and this Slurm.")


def test_a_missing_helper_is_replaced_by_slurms_commands(site: Site) -> None:
    """The sentence has the reason of the system."""
    (site.folder / "helper").unlink()
    site.reader.jobs()

    assert site.commands() == ["squeue --noheader --noconvert"]
    assert "does not work (No such file or directory)" in site.told[0]


def test_a_helper_that_does_not_answer_is_killed(site: Site, tmp_path: Path) -> None:
    """The time for an answer is bounded."""
    site.script("helper", f'echo $$ > "$here/pid"; {HELLO}; read -r line; exec sleep 1000')
    reader = HelperReader(
        {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, tmp_path / "helper", site.told.append, patience_s=0.5
    )
    reader.jobs()

    assert "does not work (it did not answer within 0.5 s)" in site.told[0]
    assert not Path("/proc", (tmp_path / "pid").read_text(encoding="utf-8").strip()).exists()


def test_a_helper_that_fails_where_the_commands_do_not_is_given_up(site: Site) -> None:
    """A Slurm of another version refuses it, for example."""
    site.set(answer="failed 21\nIncompatible versions")
    site.reader.update("jobid=7", "nice=3")

    assert site.commands() == ["scontrol update jobid=7"]
    assert "does not work (Slurm's answer to it is: Incompatible versions)" in site.told[0]


def test_a_helper_stays_where_the_commands_fail_as_well(site: Site) -> None:
    """The error is that of the command."""
    site.set(answer="failed 6\nNo job")
    site.script("scontrol", "echo 'Invalid job id specified' >&2; exit 1")
    with pytest.raises(SlurmError, match=r"scontrol failed \(Invalid job id specified\)"):
        site.reader.update("jobid=7", "nice=3")
    site.set(answer="ok 0\n")
    site.reader.update("jobid=8", "nice=3")
    site.reader.close()

    assert site.told == []
    assert site.asked() == ["update jobid=7 nice=3", "update jobid=8 nice=3"]


def test_words_with_blanks_go_to_the_command(site: Site) -> None:
    """The helper would take the parts for words."""
    site.reader.update("jobid=7", "reqnodelist=n1 priority=9")

    assert site.commands() == ["scontrol update jobid=7"]
    assert not (site.folder / "asked").exists()


def test_a_helper_is_tried_again_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one, after a while."""
    monkeypatch.setattr(helper, "RETRY", 0.0)
    site.script("helper", "exit 3")
    site.reader.jobs()
    site.script("helper", f"{HELLO}\n{ANSWERS}")

    assert len(site.reader.jobs().records) > 10
    site.reader.close()
