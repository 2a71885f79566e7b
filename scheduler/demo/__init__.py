# SPDX-License-Identifier: Apache-2.0
"""The demonstrations of a cluster, `drom demo-cluster`, `drom demo-mixed` and `drom demo-slurm`."""
