"""Time how long saves and restores of fillers take, and print a Markdown table; as root, with CRIU 4.1 and runc.

python benchmarks/checkpoint.py FOLDER... [--criu PROGRAM] [--runs N]

Each FOLDER holds an image store while it is measured, so that disks can be compared. A save ends when the image is on
the disk and the processes are gone, a restore when they go on. Each figure is the median of N runs (5).
"""  # noqa: INP001 - a program, not a package

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from drom.agent.checkpoint import containers, store, tools
from drom.agent.checkpoint.bundle import Program
from drom.agent.checkpoint.containers import Containers
from drom.agent.checkpoint.images import CONTAINER, PROCESSES, CheckpointError, Image, Quota
from drom.agent.checkpoint.processes import Processes
from drom.agent.checkpoint.saver import Saver
from drom.agent.checkpoint.store import ImageStore
from drom.agent.system import proc

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


def measure(folder: Path, ready: Path, criu: str, way: str, size: int) -> tuple[float, float]:
    """Return the seconds of a save and of a restore."""
    kept = ImageStore(folder / "images", Quota(1 << 40, 1 << 40))
    try:
        made = tools.prepare(kept.path / store.TOOLS, criu)
        saver = Saver(kept, made, {PROCESSES: Processes(made), CONTAINER: Containers(made)})
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
        from_image = time.monotonic()
        pid = saver.restore(JOB, 1)
        restored = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        reap(pid)
        kept.remove(JOB, 1)
        Containers(made).remove(JOB)
    finally:
        kept.close()
    return saved - at, restored - from_image


def main() -> int:
    """Measure each way and size in each folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--criu", default="criu")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("| store | way | memory | save s | restore s |\n|---|---|---|---|---|")  # noqa: T201
    try:
        for folder in options.folders:
            for way in (PROCESSES, CONTAINER):
                for name, size in SIZES.items():
                    runs = []
                    for _ in range(options.runs):
                        # a container does not see its node's /dev/shm
                        with TemporaryDirectory(dir=folder, prefix="drom") as made, TemporaryDirectory() as seen:
                            runs.append(measure(Path(made), Path(seen) / "ready", options.criu, way, size))
                    save, restore = (statistics.median(times) for times in zip(*runs, strict=True))
                    print(f"| {folder} | {way} | {name} | {save:.2f} | {restore:.2f} |", flush=True)  # noqa: T201
    except CheckpointError as error:
        print(f"checkpoint.py: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
