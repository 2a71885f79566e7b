# SPDX-License-Identifier: Apache-2.0
"""The script that CRIU calls when it has saved all processes of a job."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint import tools

if TYPE_CHECKING:
    from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYNC = """\
#!/bin/sh
for file; do echo "$(basename "$(pwd -P)") $file" >>{log}; done
case " $* " in *"{broken}"*) exit 1 ;; esac
"""


def program(path: Path, text: str) -> None:
    """Write a program."""
    path.write_text(text)
    path.chmod(0o755)


def commit(folder: Path, files: list[str], broken: str = "nothing") -> tuple[int, list[str]]:
    """Run the script on an image with such files, where `broken` cannot be written through to the disk.

    Return its exit status, and what is written through: the name of the folder that the program is in, and the file.
    """
    programs, image, log = folder / "programs", folder / "images" / "1.1.new", folder / "log"
    programs.mkdir()
    image.mkdir(parents=True)
    for name in files:
        (image / name).touch()
    program(programs / "criu", "#!/bin/sh\necho Version: 4.1\n")
    program(programs / "sync", SYNC.format(log=log, broken=broken))
    made = tools.prepare(folder / "tools", str(programs / "criu"))
    environment = {
        "PATH": f"{programs}:{PATH}",
        "CRTOOLS_SCRIPT_ACTION": "post-dump",
        "CRTOOLS_IMAGE_DIR": str(image),
        "DROM_IMAGE_BLOCKS": str(1 << 20),
    }
    with subprocess.Popen(["sleep", "infinity"]) as job:
        environment["CRTOOLS_INIT_PID"] = str(job.pid)
        status = subprocess.run([made.commit], env=environment, check=False).returncode
        job.kill()
    return status, log.read_text().splitlines()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 100])
def test_each_file_of_an_image_is_on_the_disk_before_it_is_whole(tmp_path: Path, count: int) -> None:
    """The files and the folder of an image are written through once each, and the store's folder after the rename."""
    files = [f"pages {number}.img" for number in range(count)]

    status, synced = commit(tmp_path, files)

    assert status == 0
    assert sorted(synced[:-1]) == sorted(
        f"1.1.new {name}" for name in (*(f"./{file}" for file in (*files, "opened", "sizes")), ".")
    )
    assert synced[-1] == f"1.1 {tmp_path}/images"
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["1.1"]


@pytest.mark.parametrize("broken", ["core-0.img", "core-19.img", " . "])
def test_an_image_that_the_disk_does_not_take_is_not_whole(tmp_path: Path, broken: str) -> None:
    """A script whose image has a file that cannot be written through fails, so that CRIU lets the job go on."""
    status, _ = commit(tmp_path, [f"core-{number}.img" for number in range(20)], broken)

    assert status != 0
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["1.1.new"]
