# SPDX-License-Identifier: Apache-2.0
"""Constraint programming for heterogeneous machines (Bridi et al., "A CP Scheduler for High-Performance Computers")."""
