# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.config.options import OPTIONS, Option, Options, layout_of, memory_of
from drom.agent.model.layouts import ANY
from drom.scheduler.live.cluster.spec import parse_amounts, parse_features

if TYPE_CHECKING:
    from collections.abc import Callable

BY_NAME = {option.name: option for option in OPTIONS}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_is_whole(option: Option) -> None:
    """Defaults and examples are values the option accepts; its help is a sentence."""
    about = option.about
    shown = about.example if option.default is None else option.default
    if about.in_file:
        assert about.kind.from_value(list(shown) if isinstance(shown, tuple) else shown) == shown
    assert about.help.endswith(".")


@pytest.mark.parametrize(
    ("spool", "runtime_dir", "path"),
    [
        (None, "/run/drom", "/var/lib/drom/steward"),
        (None, "/run/drom-n1", "/run/drom-n1/steward"),
        ("/srv/spool", "/run/drom", "/srv/spool"),
    ],
)
def test_the_jobs_of_the_system_are_known_after_a_loss_of_power(spool: str | None, runtime_dir: str, path: str) -> None:
    """What is in /run is not; another agent's, of which a machine may have several, are where that is."""
    assert Options(spool=spool, runtime_dir=runtime_dir).spool_path == Path(path)


def test_one_option_has_three_names() -> None:
    """Flag, variable and key are made from one name."""
    option = BY_NAME["sharing_factor"]

    assert (option.flag, option.variable, option.path) == ("--sharing-factor", "DROM_SHARING_FACTOR", "sharing_factor")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sharing_factor", 0.0),
        ("sharing_factor", 1.5),
        ("sharing_factor", float("nan")),
        ("grace", -1),
        ("grace", float("inf")),
        ("grace", "1"),
        ("grace", True),
        ("capacity", 0),
        ("capacity", 65537),
        ("capacity", 1.0),
        ("capacity", True),
        ("observe", 1),
        ("observe", "yes"),
        ("metrics", "localhost"),
        ("metrics", "localhost:"),
        ("metrics", "localhost:65536"),
        ("metrics", "localhost:²"),
        ("metrics", 9464),
        ("topology", ""),
        ("exclude_users", "root"),
        ("exclude_users", [""]),
        ("exclude_users", [True]),
        ("exclude_users", [["root"]]),
        ("reserved", "0-"),
        ("memory", "64 GB"),
        ("memory", "0"),
        ("max_min", -1),
        ("reserved", 0),
        ("resources", ["gpu"]),
        ("resources", ["1gpu=2"]),
        ("resources", ["g\u00e4=2"]),
        ("node", "n,3:4"),
        ("node", "-n"),
        ("node", "n" * 65),
        ("features", ["big mem"]),
        ("features", ["a" * 33]),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_not_taken(name: str, value: Any) -> None:
    """Types are those of TOML; each option has a range."""
    with pytest.raises(ValueError, match=r"^$"):
        BY_NAME[name].about.kind.from_value(value)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("grace", 0, 0.0),
        ("grace", 3600.0, 3600.0),
        ("sharing_factor", 1, 1.0),
        ("sharing_factor", 0.01, 0.01),
        ("capacity", 1, 1),
        ("capacity", 65536, 65536),
        ("metrics", "[::1]:9464", "[::1]:9464"),
        ("metrics", ":9464", ":9464"),
        ("exclude_users", ["root", 1000], ("root", "1000")),
        ("reserved", "0-1,8", "0-1,8"),
        ("memory", "64G", "64G"),
        ("max_cpus_per_user", 0, 0),
    ],
)
def test_the_ends_of_the_ranges_are_inside(name: str, value: Any, taken: Any) -> None:
    """Limits themselves are allowed, and whole numbers stand for numbers."""
    found = BY_NAME[name].about.kind.from_value(value)

    assert (found, type(found)) == (taken, type(taken))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("exclude_users", "root, 1000,", ("root", "1000")),
        ("grace", "2.5", 2.5),
        ("capacity", "8", 8),
        ("observe", "1", True),
        ("observe", "False", False),
    ],
)
def test_the_environment_is_text(name: str, text: str, value: Any) -> None:
    """Text is read as the type of the option."""
    assert BY_NAME[name].about.kind.from_text(text) == value


@pytest.mark.parametrize(
    ("text", "size"), [("auto", 7), ("off", 0), ("5", 5), ("1K", 1024), ("64G", 64 << 30), ("2T", 2 << 40)]
)
def test_memory_is_counted_in_bytes(text: str, size: int) -> None:
    """The machine's, none, or what was said in powers of 1024."""
    assert memory_of(text, 7) == size


def test_a_distribution_may_be_none() -> None:
    """What a file may say beside a layout is that there is none, strictly neither."""
    assert layout_of("default") == ANY
    assert str(layout_of("per-socket=2!")) == "per-socket=2!"
    with pytest.raises(ValueError, match="is not a distribution"):
        layout_of("default!")


@pytest.mark.parametrize("name", ["gpu", "a.b-c_1", "1st", "-a", "a b", "a:b", "a&b", "\u00e4", 32 * "a", 33 * "a"])
def test_agents_offer_what_jobs_can_ask_for(name: str) -> None:
    """Names of resources and features are the same on both sides."""

    def takes(read: Callable[[Any], object], text: Any) -> bool:
        try:
            return bool(read(text))
        except ValueError:
            return False

    features, resources = (BY_NAME[option].about.kind.from_value for option in ("features", "resources"))
    assert takes(features, [name]) == takes(lambda text: parse_features(text) == (text,), name)
    assert takes(resources, [f"{name}=2"]) == takes(lambda text: name in parse_amounts(text), f"{name}=2")
