# SPDX-License-Identifier: Apache-2.0
"""The commands `drom simulate` and `drom compare`."""
