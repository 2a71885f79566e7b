# SPDX-License-Identifier: Apache-2.0
"""Allocation below the node: jobs as sets of units that ask for cores, memory and counted resources. Pure, compiled."""
