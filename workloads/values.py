# SPDX-License-Identifier: Apache-2.0
"""Results as JSON that every reader accepts."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any, indent: int | None = None) -> str:  # noqa: ANN401 - values of JSON
    """Return a value as JSON text; infinities and nan become null, as JSON cannot represent them."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:  # noqa: ANN401 - values of JSON
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
