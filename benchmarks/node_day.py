"""Print, as JSON, simulated days of a node; the same as `drom bench day --json`."""  # noqa: INP001 - a program, not a package

from __future__ import annotations

import json
import sys

from drom.agent.bench.day import simulate

if __name__ == "__main__":
    json.dump(simulate(int(sys.argv[1]) if len(sys.argv) > 1 else 5), sys.stdout, indent=2)
    sys.stdout.write("\n")
