"""Compile the C test programs against the sources, plain or under a sanitizer."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from dromlib import layout
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NATIVE = ROOT / "dromlib" / "native"
SOURCES = ROOT / "tests" / "native"
WARNINGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-O1"]
SANITIZERS = {
    "plain": [],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}


TSAN_OPTIONS = f"halt_on_error=1 exitcode=66 suppressions={SOURCES / 'thread-sanitizer.supp'} print_suppressions=0"
"""How programs run under ThreadSanitizer: a race ends them."""


def compile_c(target: Path, sources: list[Path], flags: list[str]) -> None:
    """Compile and link `sources` into `target`, with the public and the generated header at hand."""
    header = target.parent / "drom_layout.h"
    header.write_text(layout.c_header(), encoding="utf-8")
    includes = [f"-I{target.parent}", f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}", f"-I{NATIVE / 'preload'}"]
    command = ["gcc", *WARNINGS, *flags, *includes, *map(str, sources), "-pthread", "-rdynamic", "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def has_sanitizer(folder: Path, name: str) -> bool:
    """Tell whether programs built with the sanitizer link and start here."""
    source, target = folder / "nothing.c", folder / "nothing"
    source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
    linked = subprocess.run(["gcc", *SANITIZERS[name], source, "-o", target], capture_output=True, check=False)
    return linked.returncode == 0 and subprocess.run([target], capture_output=True, check=False).returncode == 0


def build(folder: Path, program: str, sanitizer: str, *parts: str, flags: Sequence[str] = ()) -> Path:
    """Return the test program `program`, with libdrom and `parts` of the native code compiled in, under a sanitizer.

    `flags` go to the compiler as well. Skip where the sanitizer is missing.
    """
    if sanitizer != "plain" and not has_sanitizer(folder, sanitizer):
        pytest.skip(f"the {sanitizer} sanitizer's runtime is missing")
    target = folder / program
    sources = [SOURCES / f"{program}.c", *(NATIVE / part for part in parts), *sorted((NATIVE / "src").glob("*.c"))]
    compile_c(target, sources, [*SANITIZERS[sanitizer], *flags])
    return target
