# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.chaos`: thousands of faults on this machine, and a table of what came of them."""

from __future__ import annotations

import argparse
import math
import os
import secrets
import sys
import tempfile
from pathlib import Path

from drom.agent.system.unix_signals import ended_by_sigterm

from tests.chaos.run import chaos
from tests.support.openmp_registrations import no_registrations
from tests.support.storms import report, tell


@ended_by_sigterm()
def main() -> int:
    """Run the storms; return 1 when anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=5000, help="how many faults in all (%(default)s)")
    parser.add_argument("--seed", type=int, help="what is to happen (drawn by chance, and told)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="how long at most (as long as it takes)")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    if len(os.sched_getaffinity(0) & {0, 1}) < 2:
        sys.stderr.write("chaos: needs CPUs 0 and 1: run it where both may be used.\n")
        return 2

    with no_registrations(), tempfile.TemporaryDirectory(prefix="drom-chaos-", dir="/tmp") as folder:
        outcome = chaos(Path(folder), seed, options.faults, tell, options.minutes * 60)
    return report(seed, outcome)


if __name__ == "__main__":
    sys.exit(main())
