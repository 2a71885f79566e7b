# SPDX-License-Identifier: Apache-2.0
"""What jobs of the tests run: a program with OpenMP that knows nothing of drom, and a drom that every user may read."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from dromlib import native

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.rig import Slurm

PROGRAM = r"""
#include <omp.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words)
{
    int threads = 0, before = 0;
    char name[4096];
    snprintf(name, sizeof name, "%s.new", words[1]);
    while (access(words[2], F_OK) != 0) {
#pragma omp parallel
#pragma omp master
        threads = omp_get_num_threads();
        if (threads != before) {
            FILE *file = fopen(name, "w");
            fprintf(file, "%d", before = threads);
            fclose(file);
            rename(name, words[1]);
        }
        usleep(1000);
    }
    return count + 4;
}
"""
"""A program that writes its number of threads into its first argument until the second is a file. It exits with 7."""


def copy_package(folder: Path) -> None:
    """Copy what an installation has of drom-run, with its library, to `folder`/package."""
    for part, source in (("bin", native.run_path()), ("lib", native.preload_path())):
        (folder / "package" / part).mkdir(parents=True)
        shutil.copy(source, folder / "package" / part)


def build_program(folder: Path) -> None:
    """Compile the program as `folder`/program."""
    subprocess.run(["gcc", "-fopenmp", "-xc", "-", "-o", folder / "program"], input=PROGRAM, text=True, check=True)


class Program:
    """The program, to be run once below `site`."""

    def __init__(self, site: Slurm, name: str) -> None:
        self._site = site
        self._threads, self._end = (site.folder / "work" / f"{name}.{what}" for what in ("threads", "end"))
        self.words = tuple(map(str, (site.folder / "program", self._threads, self._end)))

    def await_threads(self, count: int) -> None:
        """Wait until it runs with so many threads."""
        file = self._threads
        self._site.await_true(lambda: file.exists() and file.read_text() == str(count), f"{count} threads")

    def end(self) -> None:
        """Let it end."""
        self._end.touch()


def variables(output: str) -> dict[str, str]:
    """Return the variables of an environment that is printed a line for each."""
    return dict(line.partition("=")[::2] for line in output.splitlines())


def is_touched(found: dict[str, str]) -> bool:
    """Return whether drom has changed an environment."""
    ours = ("DROM_TASK", "DROM_RUNTIME_DIR", "DROM_MALLEABILITY", "LD_PRELOAD", "PYTHONPATH")
    return any(name in found for name in ours)
