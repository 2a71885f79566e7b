# SPDX-License-Identifier: Apache-2.0
"""What the operating system is asked: /proc, control groups, users, files, Unix signals and sockets, systemd."""
