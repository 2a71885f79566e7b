"""What tests of real agents share: the compiled program under test and a place for programs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Programs, build_program, programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program under test, see program.c."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    return build_program(tmp_path_factory.mktemp("program"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Programs]:
    """Whatever is started through this is gone after the test."""
    with programs(tmp_path / "programs") as started:
        yield started
