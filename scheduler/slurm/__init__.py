# SPDX-License-Identifier: Apache-2.0
"""Reads an unpatched Slurm: its jobs, nodes and configuration, and whether drom can work with them."""
