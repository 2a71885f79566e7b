# SPDX-License-Identifier: Apache-2.0
"""A self-contained HTML page: its style, and the pictures in it."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING

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
img { max-width: 100%; display: block; margin: 1rem 0; } .note { color: #b34400; }
"""


def check_place(path: Path, option: str) -> None:
    """Raise SchedulerError, which names the command-line option, if a page could not be written."""
    try:
        check_writable(path)
    except OSError as error:
        raise _unwritable(path, option, error) from error


def _unwritable(path: Path, option: str, error: OSError) -> SchedulerError:
    return SchedulerError(f"The report {path} cannot be written: {error.strerror}: name another place with {option}.")


def write_page(path: Path, title: str, pieces: Iterable[str], option: str) -> None:
    """Write a page of these pieces, completely or not at all.

    Raises SchedulerError, which names the command-line option, if it cannot be written.
    """
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    text = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(pieces) + "\n</body></html>\n"
    try:
        with replacing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise _unwritable(path, option, error) from error


def image(figure: Figure, alt: str) -> str:
    """Return a picture as a piece of a page."""
    stream = io.BytesIO()
    save(figure, stream, "png")
    data = base64.b64encode(stream.getvalue()).decode()
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">'
