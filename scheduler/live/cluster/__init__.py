# SPDX-License-Identifier: Apache-2.0
"""The state machine of a live cluster: jobs, nodes, the driver of the policy, dispatch. No I/O."""
