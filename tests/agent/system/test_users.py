# SPDX-License-Identifier: Apache-2.0
"""A directory of users that is slow, or does not answer."""

from __future__ import annotations

import os
import pwd
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from drom.agent.system import users
from drom.agent.system.users import Directory, SilentDirectoryError

from tests.support.agents import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = pwd.getpwnam("nobody")


class Service:
    """A directory service that answers while it is `open`; `asked` has what it was asked."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[int] = []

    def __call__(self, key: int) -> str:
        """Return an answer that tells how often it was asked."""
        self.asked.append(key)
        self.open.wait()
        if key < 0:
            raise ValueError(key)
        return f"{key} {len(self.asked)}"


@pytest.fixture
def service() -> Iterator[Service]:
    """Return a service; nothing waits for it in the end."""
    made = Service()
    yield made
    made.open.set()


class TestDirectory:
    """What a loop gets to know, and when."""

    def test_an_answer_is_remembered(self, service: Service) -> None:
        """An answer is requested once, also where it is an error that is not remembered."""
        service.open.set()
        directory = Directory(patience=60)

        assert [directory.ask(service, 7), directory.ask(service, 7)] == ["7 1", "7 1"]
        for _ in range(2):
            with pytest.raises(ValueError, match="-1"):
                directory.ask(service, -1)
        assert service.asked == [7, -1, -1]

    def test_a_silent_service_is_not_waited_for(self, service: Service) -> None:
        """Few questions are asked of it, and its answers count once they come."""
        directory = Directory(patience=0)
        for key in range(20):
            with pytest.raises(SilentDirectoryError, match="has not answered: try again in a moment"):
                directory.ask(service, key)
        wait_until(lambda: len(service.asked) == Directory.THREADS, lambda: service.asked)

        service.open.set()

        def answers() -> bool:
            try:
                return directory.ask(service, 0).startswith("0 ")
            except SilentDirectoryError:
                return False

        wait_until(answers, lambda: service.asked)

    def test_an_old_answer_counts_until_there_is_a_new_one(self, service: Service) -> None:
        """A service that falls silent takes nobody's name away."""
        service.open.set()
        directory = Directory(patience=60, lifetime=0)
        assert directory.ask(service, 7) == "7 1"

        service.open.clear()
        directory._patience = 0
        assert directory.ask(service, 7) == "7 1"
        service.open.set()
        wait_until(lambda: directory.ask(service, 7) != "7 1", lambda: service.asked)

    def test_so_many_answers_are_kept(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        """The oldest goes."""
        monkeypatch.setattr(Directory, "MOST", 2)
        service.open.set()
        directory = Directory(patience=60)
        for key in (1, 2, 3, 2, 1):
            directory.ask(service, key)
        assert service.asked == [1, 2, 3, 1]

    def test_names(self) -> None:
        """Of users with one, and of a number that nobody has."""
        directory = Directory(patience=60)
        assert [directory.user_name(uid) for uid in (0, NOBODY.pw_uid, 4_000_000_000)] == [
            "root",
            "nobody",
            "4000000000",
        ]

    def test_many_names_of_a_slow_service_are_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A list of users waits for its names as long as for one; the others are numbers until they are known."""
        now = [0.0]

        def slow_name(uid: int) -> str:
            now[0] += 40
            return f"user {uid}"

        monkeypatch.setattr(users, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(Directory, "NAMES_EVERY", 1000)
        monkeypatch.setattr(users, "user_name", slow_name)
        directory = Directory(patience=60, lifetime=10_000)

        assert [directory.user_name(uid) for uid in (1, 2, 3)] == ["user 1", "user 2", "3"]
        wait_until(lambda: len(directory._known) == 3, lambda: directory._known)
        assert directory.user_name(3) == "user 3"


def test_groups_are_those_of_the_system() -> None:
    """As `os.getgrouplist` has them."""
    for user in pwd.getpwall():
        assert users.groups_of(user.pw_uid) == set(os.getgrouplist(user.pw_name, user.pw_gid))
    assert users.groups_of(4_000_000_000) == set()
