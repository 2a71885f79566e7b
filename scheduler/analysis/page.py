# SPDX-License-Identifier: Apache-2.0
"""A self-contained HTML page: its style, and the pictures in it."""

from __future__ import annotations

import base64
import io
import shlex
import sys
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING

from drom.scheduler.analysis.metrics import versions
from drom.scheduler.errors import SchedulerError
from drom.workloads.figures import save
from drom.workloads.files import check_writable, replacing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; } td.text { text-align: left; }
.better { color: #00694d; } .worse { color: #b34400; } .ratio { font-size: .85em; }
figure { margin: 1rem 0; } img { max-width: 100%; display: block; } figcaption { font-style: italic; }
footer { margin-top: 3rem; border-top: 1px solid #ddd; } .note { color: #b34400; }
"""


def check_place(path: Path, option: str) -> None:
    """Raise SchedulerError, which names the command-line option, if a page could not be written."""
    try:
        check_writable(path)
    except OSError as error:
        raise _unwritable(path, option, error) from error


def _unwritable(path: Path, option: str, error: OSError) -> SchedulerError:
    return SchedulerError(f"The report {path} cannot be written: {error.strerror}: name another place with {option}.")


def write_page(path: Path, title: str, pieces: Iterable[str], option: str, command: str = "") -> None:
    """Write a page of these pieces, completely or not at all; it ends with the date, versions and the command line.

    `command` replaces the command line. Raises SchedulerError, which names the command-line option, if the page cannot
    be written.
    """
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    text = (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join((*pieces, _origin(command)))
        + "\n</body></html>\n"
    )
    try:
        with replacing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise _unwritable(path, option, error) from error


def _origin(command: str) -> str:
    date = datetime.now(timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M %z")
    words = ", ".join(f"{name} {version}" for name, version in versions().items())
    said = command or shlex.join(["drom", *sys.argv[1:]])
    return f"<footer><p>Made on {escape(date)} with {escape(words)} by</p><pre>{escape(said)}</pre></footer>"


def image(figure: Figure, caption: str) -> str:
    """Return a picture with its caption as a piece of a page."""
    stream = io.BytesIO()
    save(figure, stream, "png")
    data = base64.b64encode(stream.getvalue()).decode()
    words = escape(caption[:1].upper() + caption[1:])
    return f'<figure><img alt="{words}" src="data:image/png;base64,{data}"><figcaption>{words}</figcaption></figure>'
