# SPDX-License-Identifier: Apache-2.0
"""Compile examples and print the folder that they are in: `python -m dromlib.examples jacobi primes`."""

from __future__ import annotations

import sys

from dromlib import native


def main() -> None:
    """Compile the examples that the arguments name; exit with a sentence if one cannot be compiled."""
    try:
        folders = {native.example_path(name).parent: True for name in sys.argv[1:]}
    except FileNotFoundError as error:
        sys.exit(f"drom: {error}")
    sys.stdout.write("".join(f"{folder}\n" for folder in folders))


if __name__ == "__main__":
    main()
