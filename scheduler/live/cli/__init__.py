# SPDX-License-Identifier: Apache-2.0
"""The commands of a cluster: `drom scheduler`, `submit`, `queue` and others."""
