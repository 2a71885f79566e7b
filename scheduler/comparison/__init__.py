# SPDX-License-Identifier: Apache-2.0
"""All policies on one log: `drom compare-policies`."""
