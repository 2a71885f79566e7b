# SPDX-License-Identifier: Apache-2.0
"""The distribution kernel: counts of cores to masks, compiled by numba."""
