from __future__ import annotations

from pathlib import Path

import pytest

from dromlib import signals


def test_topics_have_one_width() -> None:
    """No topic is the beginning of another, as ZeroMQ matches prefixes."""
    topics = [signals.topic(slot) for slot in (0, 1, 12, 65535, 2**32 - 1)]

    assert len(set(map(len, topics))) == 1
    assert len(set(topics)) == 5


def test_endpoints_are_absolute() -> None:
    """A relative runtime directory is taken from where the program is now."""
    assert signals.endpoint("run") == f"ipc://{Path.cwd()}/run/signals"


def test_a_path_that_is_too_long_is_one_sentence() -> None:
    """ZeroMQ cuts long paths without a word; here the limit is named."""
    with pytest.raises(ValueError, match="longer than the 107 bytes"):
        signals.endpoint("/" + "x" * 100)
