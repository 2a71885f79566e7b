# SPDX-License-Identifier: Apache-2.0
"""What docs/admin.md promises."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.config import sources

from dromlib.cpulist import parse_cpulist
from tests.support.agents import (
    SERVES_METRICS,
    Programs,
    affinity,
    drom,
    environment,
    programs,
    start_agent,
    wait_until,
)
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agents import Agent

DOCS = ROOT / "docs"
TEXT = (DOCS / "admin.md").read_text(encoding="utf-8")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Programs]:
    """Whatever is started through this is gone after the test."""
    with programs(tmp_path / "programs") as started:
        yield started


def test_its_configuration_is_right() -> None:
    """The example holds, key by key."""
    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)

    assert sources.parse_file(Path("/f"), text).faults == []


def test_the_commands_of_operations_are_there() -> None:
    """Each drom command that docs/operations.md shows has help, and what it names of this repository is here."""
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    shells = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)) + "\n".join(re.findall(r"`(drom [^`]*)`", text))
    shown = set(re.findall(r"(?:^|or: )drom ((?:[a-z]+)(?: (?:check|show|reload))?)", shells, re.MULTILINE))

    of_config = {"config check", "config reload"}
    assert shown == of_config | {"attach", "doctor", "drain", "events", "explain", "nodes", "ps", "queue", "scheduler"}
    for command in shown:
        assert drom(*command.split(), "--help").returncode == 0
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (DOCS / link).exists(), link


def test_what_is_to_be_copied_is_installed() -> None:
    """Units, the sample of a configuration, and what Prometheus and Grafana take."""
    shared = {path.name for path in (Path(sys.prefix) / "share/drom").rglob("*") if path.is_file()}
    contrib = [path for path in (DOCS.parent / "contrib").rglob("*") if path.is_file()]

    assert {path.name for path in contrib if path.parent.name != "completions"} | {
        "drom.toml",
        "operations.md",
    } <= shared


def test_its_commands_are_there() -> None:
    """Each drom command it shows has help."""
    shells = "".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL))
    shown = set(re.findall(r"^drom ((?:[a-z]+)(?: (?:check|show|reload))?)", shells, re.MULTILINE))

    assert shown == {"doctor", "topology", "agent", "config check", "config show", "config reload"}
    for command in shown:
        assert drom(*command.split(), "--help").returncode == 0


def test_the_unit_file_is_whole() -> None:
    """The unit starts the agent, keeps its directory over a crash and leaves programs alone."""
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DOCS.parent / "contrib" / "drom-agent.service", encoding="utf-8")

    assert unit["Service"]["ExecStart"].endswith("/drom agent")
    assert (unit["Service"]["KillMode"], unit["Service"]["RuntimeDirectoryPreserve"]) == ("process", "yes")


@pytest.mark.system
@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
def test_observing_shows_what_would_be_done(tmp_path: Path, start: Programs) -> None:
    """Rows and metrics as under a real agent, and no mask is touched."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1", "--observe", *SERVES_METRICS) as agent:
        a = start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
        agent.await_tasks(a="0-1")
        b = start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
        agent.await_tasks(a="0", b="1")
        metrics = agent.metrics()

        c = start.start(*agent.run("--job", "c", "--class", "rigid", "--cpus", "2", "--", "sleep", "1000"))
        c.await_err(r"running unmanaged: this agent only observes\. It would wait: needs at least 2 CPUs")
        assert agent.tasks()["c"]["state"] == "waiting"

        assert affinity(c.pid) == affinity(a.pid) == affinity(b.pid) == affinity(os.getpid())
        assert 'drom_job_cpus{job_name="b",socket="1"} 1.0' in metrics
        assert agent.cli("ps").stdout.splitlines()[-1] == "This agent only observes: no mask is changed."
        told = agent.cli("explain", "a").stdout
        assert told.endswith("This agent only observes: it changes no mask.\n")
        assert "the agent binds" not in told


@pytest.mark.system
def test_what_an_idle_program_holds(tmp_path: Path, start: Programs) -> None:
    """Sleeping programs keep their CPUs as busy ones would, down to a minimum, and the settings bound that."""
    with start_agent(tmp_path, "--emulate", "core:8", "--max-min", "3", "--max-rigid", "2") as agent:
        start.start(*agent.run("--job", "a", "--min", "3", "--", "sleep", "1000"))
        agent.await_tasks(a="0-7")
        start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
        wait_until(lambda: counts(agent) == {"a": 4, "b": 4}, agent.tasks)
        start.start(*agent.run("--job", "c", "--class", "rigid", "--cpus", "2", "--", "sleep", "1000"))
        start.start(*agent.run("--job", "d", "--", "sleep", "1000"))
        wait_until(lambda: counts(agent).keys() == set("abcd"), agent.tasks)
        assert agent.cli("resize", "a", "auto").returncode == 0
        held = counts(agent)
        assert (held["c"], sum(held.values())) == (2, 8)
        assert held["a"] >= 3

        for options, sentence in (
            (["--min", "4"], "a job may insist on at most 3"),
            (["--class", "rigid", "--cpus", "3"], "a rigid job gets at most 2"),
        ):
            done = subprocess.run(
                agent.run(*options, "--", "true"), env=environment(), capture_output=True, text=True, check=False
            )
            assert sentence in done.stderr
            assert done.returncode != 0

    with start_agent(tmp_path, "--emulate", "core:8", "--max-cpus-per-user", "6", name="other") as agent:
        start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
        wait_until(lambda: counts(agent) == {"a": 6}, agent.tasks)


@pytest.mark.system
@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
def test_programs_that_are_not_started_with_drom_run_are_unmanaged(tmp_path: Path, start: Programs) -> None:
    """They are neither bound nor listed, and may run where a job does, until somebody attaches them."""
    with start_agent(tmp_path, "--topology", "core:2") as agent:
        start.start(*agent.run("--job", "a", "--", "sleep", "1000"))
        agent.await_tasks(a="0-1")
        stranger = start.start("sleep", "1000")
        os.sched_setaffinity(stranger.pid, {0})
        assert agent.tasks().keys() == {"a"}
        assert agent.cli("resize", "a", "1").returncode == 0
        wait_until(lambda: counts(agent) == {"a": 1}, agent.tasks)
        assert affinity(stranger.pid) == "0"

        assert agent.cli("attach", str(stranger.pid), "--job", "s").returncode == 0
        wait_until(lambda: counts(agent) == {"a": 1, "s": 1}, agent.tasks)
        assert agent.cli("release", "s").returncode == 0
        wait_until(lambda: agent.tasks().keys() == {"a"}, agent.tasks)


def counts(agent: Agent) -> dict[str, int]:
    """Return how many CPUs each job has."""
    return {job: parse_cpulist(row["applied"]).bit_count() for job, row in agent.tasks().items() if row["applied"]}
