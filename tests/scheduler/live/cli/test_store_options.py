# SPDX-License-Identifier: Apache-2.0
"""The options of a scheduler whose queue is in etcd: each fault is told in a sentence before anything begins."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from drom.scheduler.live.cli.scheduler import _name_of

from tests.support.commands import drom

STORE = ("--policy", "fcfs", "--store", "etcd://127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--store", "sqlite"), 2, "'sqlite' is not a store: write etcd://HOST:PORT,"),
        ((*STORE, "--lease", "1"), 2, "Invalid value for '--lease'"),
        ((*STORE, "--store-cert", "/dev/null"), 1, "belong together: give both --store-cert and --store-key."),
        ((*STORE, "--store-ca", "/none"), 1, "/none cannot be read: give a certificate or a key in PEM format."),
        (("--home-rule", "n1"), 2, "'n1' is no rule: write for example 'n[1-40]=p1' or 'gpu*=p1,p2'"),
        ((*STORE, "--home-rule", "n1=p1"), 1, "--home-rule is for home partitions: give --home-partition as well"),
        (
            (*STORE, "--home-partition", "a", *["--home-rule", "*=a"] * 1001),
            1,
            "1001 rules (--home-rule) are too many: write at most 1000.",
        ),
        (STORE, 1, "the queue etcd://127.0.0.1:1/drom cannot be opened: nothing listens at 127.0.0.1:1."),
    ],
)
def test_a_store_that_cannot_be_used_is_told(tmp_path: Path, words: tuple[str, ...], code: int, sentence: str) -> None:
    """The scheduler ends with the sentence."""
    _, said = drom("scheduler", "--state", tmp_path / "state", *words, code=code, compiled=False)
    assert sentence in " ".join(said.split())


def test_a_queue_in_a_file_is_not_passed_over(tmp_path: Path) -> None:
    """Its jobs would wait for ever."""
    tmp_path.chmod(0o700)
    (tmp_path / "queue.sqlite").touch()
    _, said = drom("scheduler", "--state", tmp_path, *STORE, code=1, compiled=False)
    assert f"the jobs in {tmp_path}/queue.sqlite would be left out: move it away, or give another folder" in said


def test_a_scheduler_is_named_by_its_host_and_its_folder_unless_that_is_the_systems() -> None:
    """Several schedulers can run on one host, each with a folder of its own."""
    host = socket.gethostname()
    assert _name_of(Path("/var/lib/drom")) == host
    assert _name_of(Path("/srv/p3")) == f"{host}:/srv/p3"
