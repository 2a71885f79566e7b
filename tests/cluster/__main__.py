# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cluster`: hundreds of kills on a cluster of namespaces, and a table of what came of them."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from drom.agent.system.unix_signals import ended_by_sigterm
from drom.scheduler.testbed.cluster import why_no_mpi
from drom.scheduler.testbed.namespaces import why_not

from tests.cluster.storm import storm
from tests.support.storms import report, tell


@ended_by_sigterm()
def main() -> int:
    """Run a storm; return 1 when anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="how many kills in all (%(default)s)")
    parser.add_argument("--seed", type=int, help="what is to happen (drawn by chance, and told)")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    if reason := why_not() or why_no_mpi():
        sys.stderr.write(f"chaos: {reason}\n")
        return 2

    with tempfile.TemporaryDirectory(prefix="drom-chaos-", dir="/tmp") as folder:
        outcome = storm(Path(folder) / "c", seed, options.kills, tell)
    return report(seed, outcome)


if __name__ == "__main__":
    sys.exit(main())
