# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001, ANN202 - Python finds this by its name in a directory of its own; Python 2 has no annotations
"""The module that Python loads first under `drom run`: it makes the program malleable, then loads the hidden one.

`drom-run` puts this file's directory in front of PYTHONPATH. If that is another Python than the one that drom is
installed for, dromlib is loaded from beside this directory, and nothing else of that installation. Jobs run any Python,
so this file is written for all versions from 2.7 on; one that is too old for dromlib only loads its own sitecustomize.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import


def _places():
    # type: () -> list[str]
    """Return the folder beside this directory, and before it that of the sources if they are not installed."""
    places = [os.path.dirname(_HERE)]  # noqa: PTH120
    try:
        with open(os.path.join(_HERE, "sources"), "rb") as file:  # noqa: PTH118
            places.insert(0, os.fsdecode(file.read()))
    except OSError:
        pass
    return places


def _find_dromlib():
    # type: () -> bool
    """Return whether dromlib can be imported; if it is not installed, load it from beside this directory."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    if find_spec("dromlib"):
        return True
    places = _places()
    source = os.path.join(places[0], "__init__.py")  # noqa: PTH118
    spec = spec_from_file_location("dromlib", source, submodule_search_locations=places)
    if not (spec and spec.loader and os.path.exists(source)):  # noqa: PTH110
        return False
    module = sys.modules["dromlib"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return True


def _hand_over():
    # type: () -> None
    """Load the sitecustomize that this one hides, if there is one."""
    sys.path[:] = [place for place in sys.path if place != _HERE]
    this = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        sys.modules.setdefault("sitecustomize", this)
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise  # Python reports what the user's module cannot import


def _takes_handle():
    # type: () -> bool
    """Return whether this Python can load a library of CPython's limited API; one without its lock cannot."""
    return sys.version_info >= (3, 10) and sys.implementation.name == "cpython" and "t" not in sys.abiflags


if _takes_handle() and _find_dromlib():
    import dromlib.auto  # noqa: F401
_hand_over()
