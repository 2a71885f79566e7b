# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on machines of namespaces, with agents on its nodes: `make test-slurm`."""
