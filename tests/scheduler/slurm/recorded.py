# SPDX-License-Identifier: Apache-2.0
"""What real Slurms printed: 22.05.8, 24.11.5 and 26.05.5 of Debian, all with the same jobs on four nodes.

Each had a reservation that holds all licences drom_gate, jobs of each kind (gated, malleable, an array, dependent,
exclusive, held, heterogeneous, with blanks and line ends in their names), and a drained node.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from drom.scheduler.slurm.text_records import JOB_COLUMNS

FOLDER = Path(__file__).parent / "data"
VERSIONS = ("22.05", "24.11", "26.05")
SEPARATOR = ";;"
"""What separated the fields of squeue in these recordings."""


def recorded(version: str, name: str) -> str:
    """Return a recording of a version of Slurm; JSON is compressed."""
    path = FOLDER / version / name
    if name.endswith(".json"):
        return gzip.decompress(path.with_suffix(".json.gz").read_bytes()).decode()
    return path.read_text(encoding="utf-8")


def of_helper(version: str, separator: str) -> str:
    """Return a recording of squeue as the helper prints it: no field is empty, a second separator ends each job."""
    cells = [cell.removeprefix("\n") or "(null)" for cell in recorded(version, "squeue.txt").split(SEPARATOR)[:-1]]
    width = len(JOB_COLUMNS)
    rows = [cells[at : at + width] for at in range(0, len(cells), width)]
    return "".join(separator.join(row) + 2 * separator for row in rows)
