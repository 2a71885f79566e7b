# SPDX-License-Identifier: Apache-2.0
"""The scheduler as a process: loop, SQLite queue, sockets of agents and users, metrics."""
