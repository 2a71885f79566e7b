# SPDX-License-Identifier: Apache-2.0
"""Where drom's files are: root's in folders of the system, those of other users by the XDG specification.

Packages such as platformdirs know neither root's folders nor the rule that libdrom has for the runtime directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN, KEYS, STATE = Path("/run/drom"), Path("/etc/drom/keys"), Path("/var/lib/drom")
"""Folders of the system: the agent's runtime directory, keys, and the scheduler's queue."""


def default_runtime_dir(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Return the default runtime directory of an agent, by the same rule as in libdrom.

    That is the first of ``$DROM_RUNTIME_DIR``, /run/drom (for root, or if a system agent has its registration socket
    there), ``$XDG_RUNTIME_DIR/drom`` and /tmp/drom-UID.
    """
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    if environ.get("DROM_RUNTIME_DIR"):
        return Path(environ["DROM_RUNTIME_DIR"])
    if uid == 0 or (RUN / "door").exists():
        return RUN
    if environ.get("XDG_RUNTIME_DIR"):
        return Path(environ["XDG_RUNTIME_DIR"]) / "drom"
    return fallback_dir(uid)


def may_write(path: Path) -> bool:
    """Return whether this user may create the directory `path`, or files in it; as in libdrom."""
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))  # noqa: PTH110
    return os.access(there, os.W_OK | os.X_OK)


def fallback_dir(uid: int) -> Path:
    """Return the directory of a user without another one: any user may have created it."""
    return Path(f"/tmp/drom-{uid}")  # noqa: S108 - see `runtime_dir.fault_of`


def default_spool(runtime_dir: Path) -> Path:
    """Return where an agent stores its data on the scheduler's jobs: the system's agent where a reboot keeps it."""
    return _kept(runtime_dir) / "steward"


def default_images(runtime_dir: Path) -> Path:
    """Return where an agent stores the images of fillers, which a reboot keeps as the spool."""
    return _kept(runtime_dir) / "images"


def _kept(runtime_dir: Path) -> Path:
    return STATE if runtime_dir == RUN else runtime_dir


def default_keys(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Return the folder of a user's keys: /etc/drom/keys for root, else below ``$XDG_CONFIG_HOME`` or ~/.config."""
    return _of_user("XDG_CONFIG_HOME", ".config", environ) / "keys" if _user(uid) else KEYS


def default_state(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Return where a scheduler keeps its queue: /var/lib/drom for root, else ``$XDG_STATE_HOME/drom``."""
    return _of_user("XDG_STATE_HOME", ".local/state", environ) if _user(uid) else STATE


def default_queue(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Return the default folder of the queue: /var/lib/drom if a system scheduler is there, else `default_state`."""
    return STATE if (STATE / "control").exists() else default_state(environ, uid)


def _user(uid: int | None) -> int:
    return os.geteuid() if uid is None else uid


def _of_user(variable: str, usual: str, environ: Mapping[str, str] | None) -> Path:
    environ = os.environ if environ is None else environ
    return Path(environ.get(variable) or Path(environ.get("HOME") or "/") / usual) / "drom"


def numba_caches() -> list[Path]:
    """Return the folders for numba's compiled code, the best first: the one named for it, or the service's and ours."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(given)]
    bases = [os.environ.get("CACHE_DIRECTORY", "").split(":")[0], os.environ.get("XDG_CACHE_HOME"), "~/.cache"]
    return [Path(base).expanduser() / "drom" / "numba" for base in bases if base]
