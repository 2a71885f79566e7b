# SPDX-License-Identifier: Apache-2.0
"""The command `drom`: mounts the commands of the other packages. Nothing imports it."""
