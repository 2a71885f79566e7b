# SPDX-License-Identifier: Apache-2.0
"""What a loop does with its memory. Each test is a process of its own: it changes how Python collects garbage."""

from __future__ import annotations

import subprocess
import sys

BEGIN = """
import gc, re, time, weakref
from drom.agent.system import heap

class Node:
    def __init__(self):
        self.itself = self

def cycle():
    return weakref.ref(Node())

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

"""


def run(code: str) -> None:
    """Run a program that asserts what it finds."""
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_garbage_is_collected_between_turns() -> None:
    """New garbage once there is much, older garbage when nothing is to be done, and never in between."""
    run("""
heap.YOUNG, heap.OLD_SECONDS = 1000, 0.0
with heap.Garbage() as garbage:
    one, kept = cycle(), []
    garbage.look(idle=False)
    kept += [[] for _ in range(1000)]
    assert one() is not None
    garbage.look(idle=False)
    assert one() is None
    old = Node()
    gc.collect(1)
    ref = weakref.ref(old)
    del old
    kept += [[] for _ in range(1000)]
    garbage.look(idle=False)
    assert ref() is not None
    garbage.look(idle=True)
    assert ref() is None
    assert gc.get_freeze_count() > 1000
assert gc.isenabled() and not gc.get_freeze_count()
""")


def test_what_was_frozen_is_looked_through_at_times() -> None:
    """Garbage among what has lived long is found, too."""
    run("""
heap.OLD_SECONDS = 0.0
with heap.Garbage() as garbage:
    old = Node()
    garbage.look(idle=True)
    ref = weakref.ref(old)
    del old
    garbage.look(idle=True)
    assert ref() is not None
    heap.ALL_SECONDS = 0.0
    garbage.look(idle=True)
    assert ref() is None
""")


def test_large_blocks_are_given_back() -> None:
    """Also where small blocks lie between them, and although larger ones were freed before."""
    run("""
heap.return_large_blocks()
del (large := [bytearray(4 << 20)])[:]
before = anonymous()
blocks, small = [], []
for size in range(200):
    blocks.append(b"x" * (70_000 + 500 * size))
    small.append(b"x" * 10_000)
grown = anonymous() - before
blocks.clear()
assert grown > 20_000_000, grown
assert (left := anonymous() - before) < grown / 3, (left, grown)
""")
