# SPDX-License-Identifier: Apache-2.0
"""The loop: reads the world, asks the node, has it done; start, reload, restart."""
