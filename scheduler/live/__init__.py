# SPDX-License-Identifier: Apache-2.0
"""The live scheduler: one queue, many nodes, the policies of the simulator on real programs."""
