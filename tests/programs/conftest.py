"""Fixtures of the real programs: an agent of two cores, and a table of what came of them, shown at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Agent, Programs, programs, start_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LINES = pytest.StashKey[list[str]]()
HEAD = (
    "| program | version | quantity | tolerance | control | storm | applied + bound |",
    "|---|---|---|---|---|---|---|",
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Programs]:
    """Whatever is started through this is gone after the test."""
    with programs(tmp_path / "programs") as started:
        yield started


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """An agent of two cores that binds after half a second who has not followed."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1", "--grace", "0.5") as started:
        yield started


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Add a line to what is shown at the end."""
    lines = request.config.stash.setdefault(LINES, [])
    return lambda line: lines.append(str(line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the table, and what was measured beside it."""
    lines = config.stash.get(LINES, [])
    rows = [line for line in lines if line.startswith("|")]
    for line in (*(HEAD if rows else ()), *rows, *(line for line in lines if not line.startswith("|"))):
        terminalreporter.write_line(line)
