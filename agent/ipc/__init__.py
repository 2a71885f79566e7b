# SPDX-License-Identifier: Apache-2.0
"""The data shared by programs and the agent: registry, mailboxes, registration messages, the runtime directory."""
