# SPDX-License-Identifier: Apache-2.0
"""Orders and signals over ZeroMQ: server, client, remote endpoint, keys, and the right to give orders."""
