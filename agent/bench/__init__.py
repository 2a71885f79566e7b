# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of a node: `drom bench node`, `openmp`, `resize-cost`, `faults`, `hostile` and `day`."""
