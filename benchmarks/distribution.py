"""Print, as JSON, how long the placement kernel takes."""  # noqa: INP001 - a program, not a package

from __future__ import annotations

import json
import sys

from drom.agent.bench.distribution import measure

if __name__ == "__main__":
    json.dump(measure(), sys.stdout, indent=2)
    sys.stdout.write("\n")
