#!python
# SPDX-License-Identifier: Apache-2.0
"""The Python part of the native command `drom`: it runs, in isolated mode (-I), every command except `drom run`."""

import os
import sys

try:
    from drom.__main__ import main
except ModuleNotFoundError as missing:
    if missing.name != "drom":
        raise
    # `pip install --user` installs for one user, in a folder that an isolated Python does not search.
    import site

    prefix = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    site.addsitedir("{}/lib/python{}.{}/site-packages".format(prefix, *sys.version_info))
    try:
        from drom.__main__ import main
    except ModuleNotFoundError:
        sys.exit(f"drom: drom is not installed for {sys.executable}: install it again.")

try:
    main()
except ModuleNotFoundError as missing:
    sys.exit(f"drom: {missing.name}, which drom needs, is not installed for {sys.executable}: install drom again.")
