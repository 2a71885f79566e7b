"""Time how long saves, moves and restores of fillers take, and print a Markdown table; as root, with CRIU 4.1 and runc.

python benchmarks/checkpoint.py FOLDER... [--criu PROGRAM] [--runs N]

Each FOLDER holds two image stores while it is measured, so that disks can be compared. A save ends when the image is on
the disk and the processes are gone, a move over the loopback when the image is whole in the other store, and a restore
when the processes go on. Each figure is the median of N runs (5), with the least and the most.
"""  # noqa: INP001 - a program, not a package

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from drom.agent.checkpoint import containers, network, store, tools
from drom.agent.checkpoint.bundle import Program
from drom.agent.checkpoint.containers import Containers
from drom.agent.checkpoint.images import CONTAINER, PROCESSES, CheckpointError, Image, Quota
from drom.agent.checkpoint.processes import Processes
from drom.agent.checkpoint.saver import Saver
from drom.agent.checkpoint.store import ImageStore
from drom.agent.system import proc

if TYPE_CHECKING:
    from collections.abc import Sequence

MB = 1_000_000
SIZES = {"100 MB": 100 * MB, "1 GB": 1000 * MB}
CODE = "import os, sys, time; kept = os.urandom(int(sys.argv[1])); open(sys.argv[2], 'w').close(); time.sleep(1e6)"
JOB = 1


def start(way: str, made: tools.Tools, size: int, ready: Path) -> int:
    """Start a program with `size` bytes of memory; return its process number once it has them."""
    command = (sys.executable, "-c", CODE, str(size), str(ready))
    if way == CONTAINER:
        pid = Containers(made).start(JOB, Program(0, 0, containers.node_folders(), command))
    else:
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=null, setsid=True)
    while not ready.exists():
        time.sleep(0.01)
    return pid


def reap(pid: int) -> None:
    """Wait for the end of a process, which may be another's child."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.01)


def move(source: ImageStore, target: ImageStore) -> None:
    """Copy the image of the job to another store, from another process."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        server = network.Server("127.0.0.1")
        os.write(writes, json.dumps(asdict(server.place)).encode())
        os.close(writes)
        server.serve(source, JOB, 1)
        os._exit(0)
    os.close(writes)
    with open(reads, encoding="ascii") as told:
        place = network.Place(**json.load(told))
    network.fetch(target, (JOB, 1, 0), place, tools.within(600))
    os.waitpid(child, 0)


def measure(folder: Path, ready: Path, criu: str, way: str, size: int) -> tuple[float, float, float]:
    """Return the seconds of a save, a move and a restore from where the image was moved to."""
    quota = Quota(1 << 40, 1 << 40)
    kept, other = ImageStore(folder / "images", quota), ImageStore(folder / "other", quota)
    try:
        made = tools.prepare(kept.path / store.TOOLS, criu)
        ways = {PROCESSES: Processes(made), CONTAINER: Containers(made)}
        saver = Saver(kept, made, ways)
        pid = start(way, made, size, ready)
        binds = containers.node_folders() if way == CONTAINER else ()
        begun = proc.start_time(pid) or 0
        image = Image(JOB, 1, way, 0, 0, pid, begun, proc.boot_id().hex(), binds=binds)
        at = time.monotonic()
        try:
            saver.save(image)
        except CheckpointError:
            os.kill(pid, signal.SIGKILL)
            raise
        saved = time.monotonic()
        reap(pid)
        begun_move = time.monotonic()
        move(kept, other)
        moved = time.monotonic()
        pid = Saver(other, made, ways).restore(JOB, 1)
        restored = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        reap(pid)
        for one in (kept, other):
            one.remove(JOB, 1)
        Containers(made).remove(JOB)
    finally:
        kept.close()
        other.close()
    return saved - at, moved - begun_move, restored - moved


def text(times: Sequence[float]) -> str:
    """Return the median of times, with the least and the most."""
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def main() -> int:
    """Measure each way and size in each folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--criu", default="criu")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("| store | way | memory | save, s | move, s | restore, s | all, s |\n|---|---|---|---|---|---|---|")  # noqa: T201
    try:
        for folder in options.folders:
            for way in (PROCESSES, CONTAINER):
                for name, size in SIZES.items():
                    runs = []
                    for _ in range(options.runs):
                        # a container does not see its node's /dev/shm
                        with TemporaryDirectory(dir=folder, prefix="drom") as made, TemporaryDirectory() as seen:
                            runs.append(measure(Path(made), Path(seen) / "ready", options.criu, way, size))
                    parts = [*zip(*runs, strict=True), [sum(run) for run in runs]]
                    print("|", " | ".join([str(folder), way, name, *map(text, parts)]), "|", flush=True)  # noqa: T201
    except CheckpointError as error:
        print(f"checkpoint.py: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
