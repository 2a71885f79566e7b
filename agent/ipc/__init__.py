# SPDX-License-Identifier: Apache-2.0
"""The bytes that programs and the agent share: registry, mailboxes, registration messages, the runtime directory."""
