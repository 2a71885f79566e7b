# SPDX-License-Identifier: Apache-2.0
"""Plain values: jobs, tasks, grants, cores and layouts. Pure."""
