# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.agents import SERVES_METRICS, drom, start_agent

if TYPE_CHECKING:
    from pathlib import Path

CHECKS = {
    "configuration", "topology", "other agents", "agent", "capabilities", "descriptors", "cgroups", "kernel cache",
    "library", "preload", "launcher", "interpreter", "directory", "storage", "actors", "pidfd", "sockets", "futex",
    "inotify", "clock", "load", "service",
}  # fmt: skip


def test_every_check_has_a_line(tmp_path: Path) -> None:
    """One value in JSON, the same lines for people, exit 0 while nothing fails."""
    done = drom("doctor", "--json", "--runtime-dir", tmp_path / "run")
    rows = json.loads(done.stdout)["checks"]

    assert {row["check"] for row in rows} == CHECKS
    assert {row["state"] for row in rows} <= {"ok", "warn", "fail"}
    assert all(row["text"].endswith(".") for row in rows)
    assert done.returncode == int(any(row["state"] == "fail" for row in rows))

    lines = drom("doctor", "--runtime-dir", tmp_path / "run").stdout.splitlines()
    assert lines[0].split() == ["CHECK", "FOUND"]
    assert len(lines) == len(rows) + 1


def test_the_kernel_is_looked_for_where_it_is_needed(tmp_path: Path) -> None:
    """A machine with one memory domain needs none, unless hardware threads are handed out."""

    def text(*options: str) -> str:
        done = drom("doctor", "--json", "--runtime-dir", tmp_path / "run", "--emulate", *options)
        rows = json.loads(done.stdout)["checks"]
        return str(next(row["text"] for row in rows if row["check"] == "kernel cache"))

    assert text("pack:1 core:4 pu:2") == "No distribution kernel is needed: all cores lie in one memory domain."
    assert text("pack:2 core:4").startswith("The distribution kernel is ")
    assert text("pack:1 core:4 pu:2", "--unit", "thread").startswith("The distribution kernel is ")


def test_what_fails_makes_the_exit_code(tmp_path: Path) -> None:
    """A broken configuration and a directory that cannot be used are lines like any other."""
    file = tmp_path / "drom.toml"
    file.write_text("grce = 1\n", encoding="utf-8")
    broken = drom("doctor", "--config", file, DROM_RUNTIME_DIR=str(tmp_path / "run"))

    assert broken.returncode == 1
    assert f"{file}:1: there is no option grce: did you mean grace?" in broken.stdout
    unusable = drom("doctor", "--runtime-dir", "/dev/null")
    assert (unusable.returncode, "fail  directory" in unusable.stdout) == (1, True)


def test_what_options_name_is_looked_at(tmp_path: Path) -> None:
    """Agents that could not start: each file, folder, group and address that keeps one from it is a line."""
    options = ["--users-masters", "nosuchgroup", "--events-file", "/nosuch/dir/x", "--metrics", "nosuch.invalid:1"]
    options += ["--remote-listen", "nosuch.invalid:1", "--remote-keys", "/nosuch", "--spool", "/dev/null/s"]
    options += ["--scheduler", "tcp://h:1", "--observe"]
    done = drom("doctor", "--json", "--runtime-dir", tmp_path / "run", *options)
    failed = [(row["check"], row["text"]) for row in json.loads(done.stdout)["checks"] if row["state"] == "fail"]

    assert done.returncode == 1
    assert [name for name, _ in failed][:7] == [
        *("configuration", "configuration", "keys", "events", "spool", "metrics", "remote-listen"),
    ]
    assert failed[0][1] == "flag --observe: an agent that only observes starts no jobs: omit observe or scheduler."
    assert failed[1][1] == "flag --users-masters: there is no group nosuchgroup here: check users.masters."
    assert failed[2][1].startswith(
        "Communication with other nodes is not possible: there are no keys in /nosuch: make them with "
    )


def test_the_addresses_of_the_agent_that_runs_are_its_own(tmp_path: Path) -> None:
    """An agent may have them already."""
    with start_agent(tmp_path, *SERVES_METRICS) as agent:
        port = agent.await_log(r"event=metrics .*port=(\d+)")[1]
        found = agent.cli("doctor", "--metrics", f"127.0.0.1:{port}").stdout
        assert f"The agent can listen at 127.0.0.1:{port}." in found


def test_reserved_cpus_that_are_not_there_are_told(tmp_path: Path) -> None:
    """A typing error would reserve nothing; what the topology lacks is told by itself."""
    done = drom("doctor", "--runtime-dir", tmp_path / "run", "--emulate", "pack:1 core:4", "--reserved", "1,9")
    assert "warn  topology       CPU 9 is reserved and not on this machine." in done.stdout

    lacking = drom("doctor", "--runtime-dir", tmp_path / "run", "--topology", "pack:4096")
    assert "fail  topology       the topology 'pack:4096' needs 4096 CPUs and " in lacking.stdout


def test_a_single_cpu_is_one_cpu(tmp_path: Path) -> None:
    """What is counted agrees in number."""
    done = drom("doctor", "--runtime-dir", tmp_path / "run", "--emulate", "pack:1 core:1")

    assert "ok    topology       1 CPU may be managed." in done.stdout


def test_the_agent_is_told(tmp_path: Path) -> None:
    """Observing, and frozen."""
    with start_agent(tmp_path, "--observe") as agent:
        assert "only observes" in agent.cli("doctor").stdout
        (agent.dir / "freeze").touch()
        agent.await_log("event=frozen")
        assert "is frozen since" in agent.cli("doctor").stdout
        (agent.dir / "freeze").unlink()
        agent.await_log("event=thawed")
