# SPDX-License-Identifier: Apache-2.0
"""The state machine of a node: events in, actions out. Pure."""
