# SPDX-License-Identifier: Apache-2.0
"""The native part under libFuzzer with address and undefined-behaviour sanitizers: `make fuzz` goes on for longer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dromlib import layout, testing
from tests.support.native_build import NATIVE, SOURCES, WARNINGS

RUNS = 20_000
"""Inputs tried in a short run."""
PROGRAM, ANSWER, ATTACH = (bytes([kind]) for kind in range(3))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the fuzzer, compiled with everything that reads what others wrote."""
    if not shutil.which("clang"):
        pytest.skip("needs clang")
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "drom_layout.h").write_text(layout.c_header(), encoding="utf-8")
    includes = [f"-I{path}" for path in (folder, NATIVE / "include", NATIVE / "src", NATIVE / "task")]
    sanitizers = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    sources = [SOURCES / "fuzz.c", NATIVE / "task" / "program.c", *sorted((NATIVE / "src").glob("*.c"))]
    command = ["clang", *WARNINGS, *sanitizers, *includes, *map(str, sources), "-pthread", "-o", str(folder / "fuzz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "libclang_rt" in done.stderr:
        pytest.skip("needs the sanitizers of clang (Debian: libclang-rt-dev)")
    assert done.returncode == 0, done.stderr
    return folder / "fuzz"


def seeds(folder: Path) -> Path:
    """Return a folder with an input of each kind that is right."""
    for name in ("agent", "corpus"):
        (folder / name).mkdir()
    registry = testing.Registry(folder / "agent", 2)
    registry.assign(1, 7, 9)
    registry.publish(1, 0b1011)
    reply = layout.pack_reply("granted", slot=1, mask=0b1011, mask_bits=128, text="granted", task=(7, 9))
    mailbox = registry.mailbox(1).read_bytes()
    inputs = {
        "program": PROGRAM + Path(sys.executable).resolve().read_bytes()[:20_000],
        "answer": ANSWER + reply,
        "attach": ATTACH + reply[: layout.REPLY.size] + mailbox + bytes(registry.view),
    }
    for name, data in inputs.items():
        (folder / "corpus" / name).write_bytes(data)
    return folder / "corpus"


def test_nothing_that_others_write_breaks_the_native_part(target: Path, tmp_path: Path) -> None:
    """Program files, answers at the door, registries and mailboxes of any content are read within bounds."""
    corpus = Path(os.environ.get("DROM_FUZZ_CORPUS") or seeds(tmp_path))
    seconds = os.environ.get("DROM_FUZZ_SECONDS")
    limit = [f"-max_total_time={seconds}", "-seed=0"] if seconds else [f"-runs={RUNS}", "-seed=1"]
    command = [str(target), *limit, "-max_len=32768", "-rss_limit_mb=2048", "-print_final_stats=1", str(corpus)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DROM_")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-6000:]
