"""Where the commands of a cluster look for the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.options import OPTIONS
from scheduler.live import cli

if TYPE_CHECKING:
    from pathlib import Path

ALICE = 1000


@pytest.mark.parametrize(
    ("uid", "system", "found"), [(0, False, "system"), (ALICE, False, "own"), (ALICE, True, "system")]
)
def test_the_queue_of_the_system_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, system: bool, found: str
) -> None:
    """A user's commands reach a scheduler of the system where there is one, else his own; root's are the system's."""
    places = {"system": tmp_path / "system", "own": tmp_path / "state/drom"}
    monkeypatch.setattr(cli, "SYSTEM_STATE", places["system"])
    if system:
        places["system"].mkdir()
        (places["system"] / "control").touch()

    assert cli.default_queue({"XDG_STATE_HOME": str(tmp_path / "state")}, uid) == places[found]
    assert cli.default_state({"XDG_STATE_HOME": str(tmp_path / "state")}, uid) == places["own" if uid else "system"]


def test_a_variable_of_users_is_none_of_the_agents() -> None:
    """Whoever names the queue to the commands does not send the agent to another scheduler."""
    assert "DROM_QUEUE" not in [option.variable for option in OPTIONS]
