# SPDX-License-Identifier: Apache-2.0
"""The command `drom`: mounts the commands of the other packages, none of which imports this package."""
