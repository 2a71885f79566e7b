# SPDX-License-Identifier: Apache-2.0
"""The bounds of a simulated machine, separate from modules that need numpy, so that a command line can import them."""

from __future__ import annotations

MOST_NODES = 10_000_000
MOST_CORES = 1_000_000
"""The most cores of a node."""
