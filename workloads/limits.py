# SPDX-License-Identifier: Apache-2.0
"""The bounds of synthetic workloads, separate from modules that need numpy, so that a command line can import them."""

from __future__ import annotations

MOST_JOBS = 10_000_000
MOST_NODES = 1_000_000
MOST_CORES = 1000
"""The most cores of a node."""
