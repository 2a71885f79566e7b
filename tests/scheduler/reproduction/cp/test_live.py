# SPDX-License-Identifier: Apache-2.0
"""`drom reproduce cp --live`: real schedulers with emulated nodes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest
from drom.agent.control import keys
from drom.agent.errors import ControlError
from drom.scheduler.cp.platform import load_platform
from drom.scheduler.reproduction.cp.live import POLICIES, spec_of
from drom.scheduler.reproduction.cp.tasks import CP, Task, setting
from drom.scheduler.testbed.emulated_nodes import EmulatedNodes, NodeSize
from drom.scheduler.testbed.local import Client, scheduler

from tests.support.agents import environment, wait_until
from tests.support.commands import drom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.agent.control.keys import Keys

pytest.importorskip("ortools", reason="OR-tools is not installed")
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SMALL = ("reproduce", "cp", "--live", "--test", "1", "--seeds", "1", "--compression", "1000", "--jobs", "3")


def test_a_small_comparison(tmp_path: Path) -> None:
    """Every engine starts all jobs; the same command prints the runs that are kept."""
    told = json.loads(drom(*SMALL, "--first", "8", "--json", "--out", tmp_path)[0])
    (test,) = told["tests"]

    assert json.loads((tmp_path / "live.json").read_text(encoding="utf-8")) == told
    assert (test["name"], test["jobs"], told["compression"]) == ("test 1", 8, 1000)
    assert list(test["runs"]) == list(POLICIES)
    for engine, runs in test["runs"].items():
        assert runs["1"]["wqt"] > 0
        assert runs["1"]["cores"] > 0
        assert runs["1"]["loop"] >= runs["1"]["loop_cpu"] > 0
        assert (runs["1"]["solver"] + runs["1"]["rule"] + runs["1"]["fallback"] > 0) == (engine == CP)
    lines = drom(*SMALL, "--first", "8", "--out", tmp_path)[0].splitlines()
    assert lines[0] == "test 1: 8 jobs on 65 emulated nodes, 1000 times as fast"
    assert lines[-1].startswith("CP's median WQT is ")
    assert len((tmp_path / "live.jsonl").read_text(encoding="utf-8").strip().splitlines()) == 1 + len(POLICIES)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--compression", "10"), "--compression applies to live runs: add --live"),
        (("--live", "--platform", "other"), "live runs are of Eurora: omit --platform or --live"),
        (("--seeds", "1"), "--seeds 1 leaves nothing to estimate from: choose 2 or more, or add --live"),
        (("--live", "--compression", "0"), "is out of range: write a number from 1 to 1000"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], sentence: str) -> None:
    """One sentence, before anything is started."""
    assert sentence in " ".join(drom("reproduce", "cp", *words, code=2)[1].split())


def test_an_interrupted_comparison_leaves_nothing(tmp_path: Path) -> None:
    """Its schedulers end, and their folders are removed."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [sys.executable, "-m", "drom", *SMALL, "--first", "200"]
    about = environment(TMPDIR=str(scratch))
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=about, text=True) as process:
        logs = scratch.glob
        wait_until(lambda: len(list(logs("*/queue/scheduler.log"))) == 3, lambda: list(scratch.iterdir()))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said.endswith("drom: interrupted: nothing is kept.\n")
    assert list(scratch.iterdir()) == []


def test_units_with_accelerators_are_parts_on_different_nodes() -> None:
    """Others are tasks on any nodes."""
    _, jobs = setting(Task(0, 1, CP))
    platform = load_platform("eurora")
    specs = [spec_of(job, platform, jobs, 100) for job in range(len(jobs.submit))]
    for job, spec in enumerate(specs):
        asked = dict(zip(platform.resources, jobs.request[job].tolist(), strict=True))
        counted = {name: asked[name] for name in ("gpu", "mic") if asked[name]}
        assert (spec.ranks, spec.threads, spec.resources) == (jobs.units[job], asked["cores"], counted)
        assert spec.nodes == (spec.ranks if counted else 0)
        assert spec.time * 100 > jobs.walltime[job]
    assert {spec.partition for spec in specs} == {"debug", "parallel", "longpar"}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, Keys, Client]]:
    """Return where a scheduler listens for agents, its keys, and a client."""
    own = keys.make(tmp_path / "keys")
    words = ("--policy", "resources", "--agents", "127.0.0.1:0", "--keys", str(own.folder), "--kill-wait", "0")
    with scheduler(tmp_path / "queue", *words) as client:
        port = (tmp_path / "queue" / "scheduler.log").read_text(encoding="utf-8").rpartition("agents=")[2].split()[0]
        yield f"tcp://127.0.0.1:{port}", own, client


def served(nodes: EmulatedNodes, predicate: Callable[[], bool]) -> None:
    """Serve nodes until a condition holds."""
    deadline = time.monotonic() + 60
    while not predicate():
        assert time.monotonic() < deadline
        nodes.serve(time.monotonic() + 0.01)


def test_emulated_nodes_run_and_end_jobs(address: tuple[str, Keys, Client], tmp_path: Path) -> None:
    """A job ends after its time, or when it is cancelled, on all of its nodes."""
    where, own, client = address
    sizes = [NodeSize("n0", 4, {}), NodeSize("n1", 4, {"gpu": 1})]

    def is_in(job: int, state: str) -> Callable[[], bool]:
        return lambda: client.ask("job", job=job)["state"] == state

    with closing(EmulatedNodes(where, sizes, own)) as nodes:
        served(nodes, lambda: nodes.are_welcome)
        short, long = (client.submit(tmp_path, "sleep", seconds, nodes=2) for seconds in ("0.01", "1000"))
        served(nodes, is_in(short, "completed"))
        served(nodes, is_in(long, "running"))
        client.ask("cancel", job=long)
        served(nodes, is_in(long, "cancelled"))
        assert nodes.launched == {short, long}
        with closing(EmulatedNodes(where, sizes[:1], own)) as others:
            refused = "another agent for node n0 is connected"
            with pytest.raises(ControlError, match=refused):
                served(others, lambda: others.are_welcome)


def test_emulated_nodes_join_again(address: tuple[str, Keys, Client], tmp_path: Path) -> None:
    """A node that was welcome, and is not known by its connection any more, waits until it is."""
    where, own, client = address
    sizes = [NodeSize("n0", 4, {})]
    log = tmp_path / "queue" / "scheduler.log"
    with closing(EmulatedNodes(where, sizes, own)) as nodes:
        served(nodes, lambda: nodes.are_welcome)
        with closing(joined_instead(where, sizes, own)) as others:
            refused = log.read_text(encoding="utf-8").count("event=node_refused")

            def is_refused() -> bool:
                others.serve(time.monotonic() + 0.01)
                return log.read_text(encoding="utf-8").count("event=node_refused") > refused

            served(nodes, is_refused)
        job = client.submit(tmp_path, "sleep", "0")
        served(nodes, lambda: client.ask("job", job=job)["state"] == "completed")


def joined_instead(where: str, sizes: list[NodeSize], own: Keys) -> EmulatedNodes:
    """Return nodes that have joined in place of others, once these have been silent for long enough."""
    deadline = time.monotonic() + 60
    while True:
        nodes = EmulatedNodes(where, sizes, own)
        try:
            served(nodes, partial(getattr, nodes, "are_welcome"))
        except ControlError:
            assert time.monotonic() < deadline
            nodes.close()
        else:
            return nodes
