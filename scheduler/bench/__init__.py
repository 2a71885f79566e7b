# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the simulator and of a live scheduler: `drom bench simulate` and `cluster`."""
