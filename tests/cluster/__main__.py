# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cluster`: hundreds of kills on a cluster of namespaces, and a table of what came of them."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from scheduler.demo.machines import why_not
from tests.cluster.storm import storm


def main() -> int:
    """Run a storm; return 1 when anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="how many kills in all (%(default)s)")
    parser.add_argument("--seed", type=int, help="what is to happen (drawn by chance, and told)")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    if reason := why_not():
        sys.stderr.write(f"chaos: {reason}\n")
        return 2

    def tell(words: str) -> None:
        sys.stderr.write(f"\r\x1b[K{words}" if sys.stderr.isatty() else f"{words}\n")

    with tempfile.TemporaryDirectory(prefix="drom-chaos-", dir="/tmp") as folder:
        outcome = storm(Path(folder) / "c", seed, options.kills, tell)
    tell("")
    print(f"seed {seed}\n\n{outcome.table()}\n\n{outcome.summary()}")
    print("\n".join(outcome.violations))
    return bool(outcome.violations)


if __name__ == "__main__":
    sys.exit(main())
