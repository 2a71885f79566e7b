# SPDX-License-Identifier: Apache-2.0
"""drom.h: every function is documented, and Python, C and Fortran say the same."""

from __future__ import annotations

import ctypes
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import drom
import dromlib
from dromlib import layout, native

HEADER = (native.include_dir() / "drom.h").read_text(encoding="utf-8")
CITATION = (Path(__file__).resolve().parents[3] / "CITATION.cff").read_text(encoding="utf-8")
FORTRAN = (native.include_dir() / "drom.f90").read_text(encoding="utf-8")
DOCUMENTED = re.findall(
    r"/\*((?:(?!\*/).)*?)\*/\n(?:static inline )?(\w[\w ]*?)[ *]+(drom_\w+)\(([^)]*)\)", HEADER, re.DOTALL
)
"""Of each function: the comment right before it, what it returns, its name and its parameters."""
FUNCTIONS = set(re.findall(r"^\w[\w ]*?[ *]+(drom_\w+)\(", HEADER, re.MULTILINE))
OBVIOUS = {"d", "void"}
"""Parameters that every function's rules at the top of the header are about."""


def test_every_function_has_a_comment() -> None:
    """The comment stands right before the declaration."""
    assert {name for _, _, name, _ in DOCUMENTED} == FUNCTIONS


@pytest.mark.parametrize(("text", "returns", "name", "parameters"), DOCUMENTED, ids=[row[2] for row in DOCUMENTED])
def test_a_function_is_documented_whole(text: str, returns: str, name: str, parameters: str) -> None:
    """The comment names each parameter, what is returned, and whether signal handlers may call the function."""
    if name == "drom_poll_fn":
        assert "The same as drom_poll()" in text
        return
    names = {re.findall(r"\w+", one)[-1] for one in parameters.split(",")} - OBVIOUS

    assert [one for one in names if not re.search(rf"\b{one}\b", text)] == []
    assert returns == "void" or re.search(r"\bReturns? ", text)
    assert re.search(r"\b(Async|Not async)-signal-safe\.", text)


def test_every_layer_has_one_version() -> None:
    """The package's metadata, Python's attributes, the macros of drom.h, libdrom and the citation agree."""
    major, minor, patch = (
        int(re.findall(rf"^#define DROM_VERSION_{part} (\d+)$", HEADER, re.MULTILINE)[0])
        for part in ("MAJOR", "MINOR", "PATCH")
    )
    version = f"{major}.{minor}.{patch}"
    launcher = subprocess.run([native.run_path(), "--version"], capture_output=True, text=True, check=True)

    assert ctypes.CDLL(str(native.library_path())).drom_version() == major * 10000 + minor * 100 + patch
    assert launcher.stdout == f"drom-run {version}\n"
    assert f"\nversion: {version}\n" in CITATION
    assert (metadata.version("drom"), dromlib.__version__, drom.__version__) == (version, version, version)


def test_an_attribute_that_is_not_there_is_no_version() -> None:
    """Other names are errors as in any module."""
    for module in (dromlib, drom):
        with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
            module.nosuch  # noqa: B018 - the attribute is looked up


def test_every_layer_has_the_same_reasons() -> None:
    """The reasons of a grant have the same names and numbers in the shared layout, Python, C and Fortran."""
    names = layout.ENUMS["REASON"]
    in_c = re.findall(r"\bDROM_REASON_(\w+) = (\d+)", HEADER)
    in_fortran = re.findall(r"\bdrom_reason_(\w+) = (\d+)", FORTRAN)

    assert tuple(dromlib.Reason) == names
    assert [(name.lower(), int(number)) for name, number in in_c] == [(name, i) for i, name in enumerate(names)]
    assert [(name, int(number)) for name, number in in_fortran] == [(name, i) for i, name in enumerate(names)]


def test_a_reason_is_its_word() -> None:
    """A reason equals, prints, formats and is looked up as the word that the agent's log and JSON have."""
    reason = dromlib.Grant.from_raw(3, (1,), layout.ENUMS["REASON"].index("return"), False).reason

    assert reason is dromlib.Reason.RETURN
    assert (reason, str(reason), f"{reason:>7}", repr(reason)) == ("return", "return", " return", "'return'")
    assert {"return": 1}[reason] == 1
