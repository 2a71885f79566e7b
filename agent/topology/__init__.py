# SPDX-License-Identifier: Apache-2.0
"""The machine as it is now: packages, NUMA nodes, cores, CPUs, and which of them may be used."""
