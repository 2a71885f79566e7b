# SPDX-License-Identifier: Apache-2.0
"""The demonstration of a node: `drom demo`."""
