from __future__ import annotations

from pathlib import Path

import pytest

from dromlib import layout
from dromlib.grant import Grant, numa_nodes


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Write the NUMA nodes of a machine: 0 and 8, and one without CPUs."""
    for node, cpus in {0: "0-3,16", 8: "4-7", 9: ""}.items():
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n", encoding="utf-8")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("cpus", "expected"), [((0, 1), (0,)), ((16,), (0,)), ((3, 4), (0, 8)), ((7, 99), (8,)), ((), ())]
)
def test_nodes_are_those_of_the_cpus(root: str, cpus: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Every node that has one of the CPUs, by its OS number, ascending."""
    assert numa_nodes(cpus, root) == expected


def test_a_machine_that_tells_no_nodes_is_node_0(tmp_path: Path) -> None:
    """Kernels without NUMA have one memory."""
    assert numa_nodes((0, 1), str(tmp_path)) == (0,)


@pytest.mark.parametrize("change", ["nonsense", "folder"])
def test_a_node_that_cannot_be_read_is_passed_over(root: str, change: str) -> None:
    """Container runtimes mask files of /sys, and nodes come and go."""
    path = Path(root) / "devices/system/node/node8/cpulist"
    path.unlink()
    if change == "folder":
        path.mkdir()
    else:
        path.write_text("x", encoding="utf-8")

    assert numa_nodes((0, 4), root) == (0,)


def test_where_no_node_can_be_read_there_is_node_0(tmp_path: Path) -> None:
    """As on machines that tell none."""
    (tmp_path / "devices/system/node/node3/cpulist").mkdir(parents=True)

    assert numa_nodes((0, 1), str(tmp_path)) == (0,)


def test_nodes_of_this_machine_are_read_when_asked() -> None:
    """A grant of CPU 0 is on some node; synthetic CPUs are on none."""
    assert len(Grant(1, (0,), "share").numa_nodes) == 1
    assert Grant(1, (0,), "share", emulated=True).numa_nodes == ()


def test_a_grant_is_true_even_when_it_is_empty() -> None:
    """`if grant:` asks whether there is one."""
    grant = Grant(7, (), "avoid")

    assert bool(grant) is True
    assert grant.ncpus == 0
    assert repr(grant) == "Grant(epoch=7, cpus=(), reason='avoid')"


@pytest.mark.parametrize(("number", "expected"), [(2, "share"), (99, "none")])
def test_reasons_have_names(number: int, expected: str) -> None:
    """The number in the slot is a name here; one of a later version is none."""
    assert Grant.from_raw(1, (0,), number, False).reason == expected
    assert expected in layout.ENUMS["REASON"]
