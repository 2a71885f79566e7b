# SPDX-License-Identifier: Apache-2.0
"""Modules import no module above theirs, none in a circle, and pure packages nothing that reads the world."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import pytest

from tests.conftest import SLOWEST
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYERS = (
    "dromlib",
    "drom.workloads",
    "drom.agent.errors",
    "drom.agent.text",
    "drom.agent.model",
    "drom.agent.policy",
    "drom.agent.system",
    "drom.agent.topology",
    "drom.agent.placement",
    "drom.agent.node",
    "drom.agent.ipc",
    "drom.agent.control",
    "drom.agent.config",
    "drom.agent.enforcement",
    "drom.agent.observe",
    "drom.agent.checkpoint",
    "drom.agent.execution",
    "drom.agent.daemon",
    "drom.agent.cli",
    "drom.agent.testbed",
    "drom.agent.bench",
    "drom.agent.demo",
    "drom.scheduler.errors",
    "drom.scheduler.interface",
    "drom.scheduler.allocation",
    "drom.scheduler.policies",
    "drom.scheduler.predictors",
    "drom.scheduler.engine",
    "drom.scheduler.cp",
    "drom.scheduler.simulator",
    "drom.scheduler.analysis",
    "drom.scheduler.gap_filling",
    "drom.scheduler.live.cluster",
    "drom.scheduler.live.accounting",
    "drom.scheduler.live.server",
    "drom.scheduler.slurm",
    "drom.scheduler.cli",
    "drom.scheduler.live.cli",
    "drom.scheduler.testbed",
    "drom.scheduler.comparison",
    "drom.scheduler.experiments",
    "drom.scheduler.demo",
    "drom.scheduler.bench",
    "drom.scheduler.reproduction",
    "drom.help",
    "drom.bench",
    "drom.simulation",
    "drom.experiments",
    "drom.app",
    "drom.__main__",
)
"""From the ground up. A module imports from its own package and from those before it."""
PURE = (
    "drom.agent.model",
    "drom.agent.policy",
    "drom.agent.placement",
    "drom.agent.node",
    "drom.scheduler.interface",
    "drom.scheduler.allocation",
    "drom.scheduler.policies",
    "drom.scheduler.predictors",
    "drom.scheduler.engine",
    "drom.scheduler.experiments.effects",
    "drom.workloads.formats",
    *(f"drom.agent.checkpoint.{name}" for name in ("bundle", "faults", "images")),
    *(
        f"drom.scheduler.slurm.{name}"
        for name in ("checks", "configuration", "fields", "json_records", "records", "text_records", "usage")
    ),
)
WORLD = ("os", "time", "socket", "select", "selectors", "random", "secrets", "subprocess", "threading", "psutil")
COMPILE = {"drom.agent.placement.kernel.background", "drom.agent.placement.kernel.distributor"}
"""Modules of pure packages that compile: they use files of numba's cache, and a process of their own."""
BUILT_IN = {"Exception", "OSError", "FileNotFoundError", "ValueError", "RuntimeError", "TypeError", "KeyError"}
INTERNAL = {
    "BadRequest",
    "CorruptRecordError",
    "ForeignListenerError",
    "Left",
    "MalformedError",
    "NewerVersionError",
    "StoreError",
    "WordError",
}
"""Errors that are caught where they are raised, as their messages are answers to programs or parts of sentences."""
FLAT = {"agent": {"errors", "text"}, "scheduler": {"errors", "interface"}}


def name_of(path: Path) -> str:
    """Return the dotted name of a module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0].startswith("drom") else ("drom", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of all modules by name."""
    tops = ("dromlib", "workloads", "agent", "scheduler", "drom")
    paths = [path for top in tops for path in (ROOT / top).rglob("*.py") if "native" not in path.parts]
    return {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names of all modules that a module imports, also for types alone and within functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            known = [name for name in whole if name in modules()]
            yield from known
            if len(known) < len(whole):
                yield node.module


def layer_of(name: str) -> int:
    """Return the place of a module in `LAYERS`; `drom` is above all, another package without a place below."""
    if name == "drom":
        return len(LAYERS)
    found = [i for i, layer in enumerate(LAYERS) if name == layer or name.startswith(f"{layer}.")]
    return found[0] if found else 0


def test_every_module_has_a_layer() -> None:
    """All packages of agent and scheduler are in `LAYERS`; those above have no code but the face of `drom`."""
    without = [name for name in modules() if not any(name == one or name.startswith(f"{one}.") for one in LAYERS)]

    assert sorted(without) == ["drom", "drom.agent", "drom.scheduler", "drom.scheduler.live"]
    imports = {name: set(imported(modules()[name])) for name in without}
    assert {name: found for name, found in imports.items() if found} == {
        "drom": {"__future__", "dromlib", "drom.experiments", "drom.simulation"}
    }


def test_imports_run_downwards() -> None:
    """No module imports one of a package above its own."""
    arrows = [(name, other) for name, tree in modules().items() for other in imported(tree) if other in modules()]

    assert [(name, other) for name, other in arrows if layer_of(other) > layer_of(name)] == []


def test_there_is_no_circle() -> None:
    """No module imports itself through others."""
    graph = {name: {other for other in imported(tree) if other in modules()} for name, tree in modules().items()}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")

    assert len(order) == len(graph)


def test_pure_packages_read_nothing_of_the_world() -> None:
    """They import no clock, file, socket, process or randomness, and open nothing."""
    pure = {name: tree for name, tree in modules().items() if name.startswith(PURE) and name not in COMPILE}
    imports = [(name, other) for name, tree in pure.items() for other in imported(tree) if other.split(".")[0] in WORLD]
    calls = [
        (name, ast.unparse(node.func))
        for name, tree in pure.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] in {"open", "read_text", "getenv"}
    ]

    assert len(pure) > 50
    assert (imports, calls) == ([], [])


def test_errors_for_users_have_one_base() -> None:
    """Every class of errors is a `DromError`, apart from those that never reach a user."""
    classes = [node for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own = {one.name for one in classes if (bases := {ast.unparse(base) for base in one.bases}) and bases <= BUILT_IN}

    assert own == {"DromError", *INTERNAL}


@pytest.mark.parametrize("top", FLAT)
def test_modules_lie_in_packages(top: str) -> None:
    """Beside its packages a top folder has only the modules that all of them need."""
    assert {path.stem for path in (ROOT / top).glob("*.py")} == {"__init__", *FLAT[top]}


def test_the_scheduler_decides_nothing_by_code_of_the_agent() -> None:
    """The scheduler uses messages, logging and system modules of the agent, never those that decide about cores."""
    apart = (
        "drom.agent.policy",
        "drom.agent.placement",
        "drom.agent.node",
        "drom.agent.enforcement",
        "drom.agent.daemon",
        "drom.agent.demo",
    )
    arrows = [(name, other) for name, tree in modules().items() for other in imported(tree)]

    assert [arrow for arrow in arrows if arrow[0].startswith("drom.scheduler.") and arrow[1].startswith(apart)] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_modules_that_a_page_names_are_there(page: str) -> None:
    """A path in backquotes is that of a file or a folder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:agent|dromlib|scheduler|workloads|drom|tests)/[\w/.]*)`", text))

    assert len(paths) > 5
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_modules_that_start_first_are_there() -> None:
    """The list of the slowest test modules names modules."""
    assert [name for name in SLOWEST if not (ROOT / "tests" / name).is_file()] == []
