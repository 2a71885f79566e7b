# SPDX-License-Identifier: Apache-2.0
"""The only package that sets affinity and cpusets, and that repairs wrong masks."""
