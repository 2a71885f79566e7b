# SPDX-License-Identifier: Apache-2.0
"""Who may use a partition."""

from __future__ import annotations

import grp
import os
import pwd
import re
from typing import TYPE_CHECKING, NoReturn

import pytest
from drom.agent.errors import ControlError
from drom.agent.system.users import DIRECTORY, SilentDirectoryError
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.jobs import User
from drom.scheduler.live.cluster.partitions import Partition
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.server.authorization import check_partition

from tests.support.other_users import NOBODY
from tests.support.scheduler_requests import OTHER, ROOT, scheduler, submit

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

HIM = User(NOBODY, pwd.getpwuid(NOBODY).pw_gid, "nobody")
OPEN = Partition("open")
MINE = Partition("mine", users=frozenset({NOBODY, 1}))
CLOSED = Partition("closed", users=frozenset({1}))
GROUP = Partition("group", groups=frozenset({HIM.gid}))
OTHERS = Partition("others", users=frozenset({1}), groups=frozenset({max(one.gr_gid for one in grp.getgrall()) + 1}))
ALL = (OPEN, MINE, CLOSED, GROUP, OTHERS)


def test_a_partition_is_for_its_users_and_groups() -> None:
    """All may use one without either; operators may use any."""
    for name in ("open", "mine", "group"):
        check_partition(HIM, name, ALL)
    for name in ("closed", "others"):
        with pytest.raises(ControlError) as refused:
            check_partition(HIM, name, ALL)
        assert str(refused.value) == f"user nobody may not use partition {name}: choose another with --partition."
        check_partition(User(0, 0, "root"), name, ALL)
        check_partition(User(os.geteuid(), 1, "me"), name, ALL)
    check_partition(HIM, "", ())


def test_a_directory_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is let in meanwhile who has to be looked up."""

    def ask(*_: object) -> NoReturn:
        raise SilentDirectoryError

    monkeypatch.setattr(DIRECTORY, "ask", ask)
    check_partition(HIM, "mine", ALL)
    with pytest.raises(ControlError, match=re.escape(str(SilentDirectoryError()))):
        check_partition(HIM, "group", ALL)


def test_a_job_from_before_is_checked_when_a_change_brings_it_into_a_partition(tmp_path: Path) -> None:
    """Its partition is the default one then, which may be closed to its user."""
    policy = load_policy("sd", ("reservations=nodes",))
    closed = Partition("closed", users=frozenset({1}), default=True)
    with scheduler(tmp_path, policy=policy) as server:
        (number,) = submit(server, caller=OTHER)
    order = {"order": "update", "job": number, "changes": {"name": "x"}}
    with scheduler(tmp_path, Settings(partitions=(closed,)), policy) as server:
        with pytest.raises(ControlError, match=r"^user nobody may not use partition closed: "):
            server._answer(order, OTHER)
        server._answer(order, ROOT)
        assert server.cluster.jobs[number].spec.partition == "closed"


def test_the_default_partition_is_checked_as_well() -> None:
    """A job that names none is refused like one that names it, before anything is stored."""
    closed = Partition("closed", users=frozenset({1}), default=True)
    with scheduler(settings=Settings(partitions=(closed,))) as server:
        with pytest.raises(ControlError, match=r"^user nobody may not use partition closed: "):
            submit(server, caller=OTHER)
        assert server.cluster.jobs == {}
