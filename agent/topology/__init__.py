# SPDX-License-Identifier: Apache-2.0
"""Which machine this is, now: packages, NUMA nodes, cores, CPUs, and which of them may be used."""
