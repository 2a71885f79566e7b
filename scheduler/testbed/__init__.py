# SPDX-License-Identifier: Apache-2.0
"""Clusters of one's own on this machine: local processes, or machines of namespaces."""
