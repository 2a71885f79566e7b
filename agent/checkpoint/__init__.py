# SPDX-License-Identifier: Apache-2.0
"""Saves the processes of a filler in an image, keeps images below a quota, moves them to other nodes and restores them.

A save ends with the processes gone and the image whole, or with the processes running and no image. An image is
restored once. No crash of the caller changes that: CRIU carries on without it, and the store's next owner reads from
the names of folders how far it came (`images`).
"""
