# SPDX-License-Identifier: Apache-2.0
"""What docs/write-a-policy.md shows: the policy, the commands, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from drom.scheduler import interface
from drom.scheduler.interface import Event, Jobs, State

from tests.support.paths import ROOT

GUIDE = (ROOT / "docs" / "write-a-policy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
POLICIES, COMMANDS, (OUTPUT,) = ([text for kind, text in BLOCKS if kind == one] for one in ("python", "sh", ""))


def test_the_policies_run_as_they_stand(tmp_path: Path) -> None:
    """The page shows a policy of thirty lines with its output, and an order of ten lines."""
    policy, order = POLICIES
    (tmp_path / "saf.py").write_text(policy, encoding="utf-8")
    (tmp_path / "aged.py").write_text(order, encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = [
        subprocess.run(
            ["bash", "-euc", commands],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        for commands in COMMANDS
    ]

    assert [one.returncode for one in done] == [0, 0], done
    assert done[0].stdout.endswith(OUTPUT)
    assert re.search(r"^FIGURE +OF THE FIRST +easy +saf +aged$", done[1].stdout, re.MULTILINE)
    assert len(policy.splitlines()) <= 30
    assert len(order.splitlines()) <= 10


def test_its_names_are_there() -> None:
    """Fields, actions and kinds of events."""
    fields = re.findall(r"`state\.(\w+)`", GUIDE)
    columns = re.search(r"a column per property: (.*?), \.\.\.", GUIDE)
    actions = re.findall(r"^\| `(\w+)\(", GUIDE, re.MULTILINE)
    links = re.findall(r"\]\(\.\./([^)]+)\)", GUIDE)

    assert columns is not None
    assert set(fields) <= set(State._fields)
    assert set(re.findall(r"`(\w+)`", columns[1])) <= set(Jobs._fields)
    assert "`event.kinds`" in GUIDE
    assert "kinds" in Event._fields
    assert actions == ["start", "place", "resize", "set_limit", "plan", "allot"]
    assert all(hasattr(interface, name) for name in (*actions, "SUBMITTED", "JOB_ENDED", "TICK"))
    assert [link for link in links if not (ROOT / link).is_file()] == []
