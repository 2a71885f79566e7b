# SPDX-License-Identifier: Apache-2.0
"""Interfaces to the operating system: /proc, control groups, users, files, Unix signals and sockets, systemd."""
