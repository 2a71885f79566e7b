# SPDX-License-Identifier: Apache-2.0
"""A cluster on one machine: nodes of namespaces with agents, a scheduler, and the demonstration that runs there."""
