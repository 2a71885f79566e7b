# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from drom.app import command_line
from dromlib import native
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_group(command_line()).commands


def blocks(kind: str) -> list[str]:
    """Return the texts of the README's code blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def code() -> str:
    """Return all that the README shows as code, in blocks or in a line."""
    spans = re.findall(r"`[^`\n]+`", re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL))
    return "\n".join([*blocks("sh"), *blocks(""), *spans])


def environment() -> dict[str, str]:
    """Return the environment of a person whose virtual environment is active and who has no agent."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DROM_", "OMP_"))}
    return clean | {"PATH": f"{Path(sys.executable).parent}:{clean['PATH']}", "DROM_RUNTIME_DIR": "/nonexistent"}


def test_every_command_it_names_is_one() -> None:
    """What the README calls `drom X`, `make X` or --X is there."""
    commands = set(re.findall(r"(?:`|^|\$ )drom ([a-z]+)", code(), re.MULTILINE))
    targets = set(re.findall(r"(?:`|^|\$ )make ([a-z-]+)", README, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert commands <= COMMANDS.keys()
    assert {"agent", "run", "ps", "demo"} <= commands
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_every_command_is_in_it() -> None:
    """No command of drom is left out."""
    assert [name for name in COMMANDS if f"drom {name}" not in README] == []


def test_every_option_it_names_is_one() -> None:
    """The options in the README are those of the commands or of the launcher or of the examples."""
    known = {option for command in COMMANDS.values() for parameter in command.params for option in parameter.opts}
    usage = subprocess.run([native.run_path(), "--help"], capture_output=True, text=True, check=True).stdout
    examples = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.c"))
    known |= set(re.findall(r"--[a-z-]+", usage)) | set(re.findall(r'"(--[a-z]+)"', examples)) | {"--dist"}

    assert set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", README)) <= known


def test_links_lead_somewhere() -> None:
    """Files that the README links to exist."""
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]

    assert [link for link in links if not (ROOT / link).exists()] == []
    assert "docs/demo.png" in links


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_its_program_compiles_as_it_says_and_is_right(tmp_path: Path) -> None:
    """The snippet is a whole program; the lines below it build it without a warning and run it, agent or not."""
    (tmp_path / "mine.c").write_text(blocks("c")[0], encoding="utf-8")
    lines = next(block for block in blocks("sh") if "gcc" in block).replace("gcc ", "gcc -Wall -Wextra -Werror ")
    done = subprocess.run(
        ["bash", "-euc", lines],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "1.64\n"), done.stderr
    assert done.stderr.count("\n") == 1
    assert "running unmanaged" in done.stderr


def test_its_way_to_the_examples_is_right() -> None:
    """The folder that the walk-through changes to holds both programs."""
    line = next(block for block in blocks("sh") if "drom ps" in block).splitlines()[0]
    done = subprocess.run(
        ["bash", "-euc", f"{line}; ls"], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )

    assert {"jacobi", "primes"} <= set(done.stdout.split())
