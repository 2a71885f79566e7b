# SPDX-License-Identifier: Apache-2.0
"""The demonstration of several active schedulers: in a short form, where it cannot be, and how it judges."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.demo import controllers

from tests.support.prometheus import tool

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.system
def test_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every job runs once, and the picture is there."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    tool("etcd", "etcd-server")
    monkeypatch.setattr(controllers, "MOST_SECONDS", 60.0)  # other tests run beside it
    assert controllers.run(tmp_path / "out", as_json=True, pace=0.1) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["problems"] == []
    assert value["seconds"] > 0
    assert sum(value["summary"]["jobs"].values()) == 14
    assert (tmp_path / "out.png").exists()


def test_without_etcd_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started, and no folder is made."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert controllers.run(tmp_path / "out", as_json=False) == 1
    assert capsys.readouterr().err == (
        "drom: etcd is not installed: install Debian's package etcd-server, or put etcd on the PATH.\n"
    )
    assert not list(tmp_path.iterdir())


def test_what_goes_wrong_is_told() -> None:
    """Jobs that failed, ran twice or not at all, and a change of the leader that took too long."""
    homes = {f"n{number}": f"p{1 + number // 2}" for number in range(6)}
    jobs = [
        {"name": "job1", "state": "completed", "shares": {"n0": 4, "n2": 4}},
        {"name": "job2", "state": "failed", "shares": {"n0": 4, "n1": 4}},
    ]
    assert controllers.judge(jobs[:1], ["job1"], 1, 3.0, homes) == []
    assert controllers.judge(jobs[1:], ["job1", "job1"], 2, 9.0, homes | {"n2": "p1"}) == [
        "job2 is failed.",
        "p1 has 3 nodes, and not 2.",
        "p2 has 1 node, and not 2.",
        "no job was on nodes of several home partitions.",
        "job1 ran 2 times.",
        "1 job did not run.",
        "it took 9.0 s until another scheduler led p2, more than 5 s: try again when this machine has less to do.",
    ]
