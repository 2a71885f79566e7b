# SPDX-License-Identifier: Apache-2.0
"""The policies that come with drom, a module each; `drom.scheduler.interface` says what a policy is."""
