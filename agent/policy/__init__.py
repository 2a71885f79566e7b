# SPDX-License-Identifier: Apache-2.0
"""How many cores each job gets. Pure."""
