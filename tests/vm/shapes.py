# SPDX-License-Identifier: Apache-2.0
"""Runs inside a virtual machine: as many OpenMP programs as there are NUMA nodes arrive one by one, and some leave.

Prints one JSON object per look at the node, as `scenario` does.
"""

from __future__ import annotations

import json
import subprocess

from tests.vm.scenario import DROM, agent, cooperative, end, look, start


def main() -> None:
    """Play the scenario."""
    machine = json.loads(subprocess.run([*DROM, "topology", "--json"], check=True, capture_output=True).stdout)
    print(json.dumps({"look": "machine", "topology": machine}), flush=True)
    names = [chr(ord("a") + number) for number in range(len(machine["numa"]))]
    with agent():
        programs = []
        for number, name in enumerate(names, 1):
            programs.append(start(name))
            look(f"{number} there", cooperative(*names[:number]))
        end(*programs[2:])
        look("2 left", cooperative(*names[:2]))
        end(*programs[:2])
        look("empty", lambda tasks: not tasks)


if __name__ == "__main__":
    main()
