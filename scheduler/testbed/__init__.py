# SPDX-License-Identifier: Apache-2.0
"""Private clusters on this machine: local processes, or machines made of namespaces."""
