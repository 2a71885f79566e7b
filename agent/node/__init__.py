# SPDX-License-Identifier: Apache-2.0
"""The state machine of a node: events in, actions out. Pure.

A `Node` has a `plan`, which says what each task is to have; `grants`, which publish it; and `reservations`, the jobs of
schedulers. An event changes the plan through a `Transaction`, by `admission`, `sharing` and `resizing`, and `mapping`
turns numbers of cores into masks.
"""
