"""Print, as JSON, what the node agent costs on this machine; the same as `drom bench node --json`."""  # noqa: INP001 - a program, not a package

from __future__ import annotations

import json
import sys

from drom.agent.bench.node import node

if __name__ == "__main__":
    json.dump(node(int(sys.argv[1]) if len(sys.argv) > 1 else 5), sys.stdout, indent=2)
    sys.stdout.write("\n")
