from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from drom.agent.system import paths

from dromlib import native

ALICE = 1000


class TestRuntimeDirectory:
    """Where the runtime directory is."""

    @pytest.mark.parametrize(
        ("environ", "uid", "path"),
        [
            ({"DROM_RUNTIME_DIR": "/x", "XDG_RUNTIME_DIR": "/y"}, 0, "/x"),
            ({"XDG_RUNTIME_DIR": "/y"}, 0, "/run/drom"),
            ({"XDG_RUNTIME_DIR": "/y"}, 1000, "/y/drom"),
            ({"DROM_RUNTIME_DIR": ""}, 0, "/run/drom"),
        ],
    )
    def test_environment_then_user(self, environ: dict[str, str], uid: int, path: str) -> None:
        """DROM_RUNTIME_DIR counts for all; root has /run/drom and others their own place."""
        assert paths.default_runtime_dir(environ, uid) == Path(path)

    def test_a_system_agent_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A user finds the system's agent where its door is; else the session's place, else one in /tmp."""
        monkeypatch.setattr(paths, "RUN", tmp_path)
        assert paths.default_runtime_dir({}, 1000) == Path("/tmp/drom-1000")
        (tmp_path / "door").touch()
        assert paths.default_runtime_dir({"XDG_RUNTIME_DIR": "/y"}, 1000) == tmp_path

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
    @pytest.mark.parametrize("session", [None, "/y"])
    def test_the_library_looks_in_the_same_place(self, session: str | None) -> None:
        """What drom-run of another user says agrees with what the command line would use."""
        environ = {} if session is None else {"XDG_RUNTIME_DIR": session}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            launcher = shutil.copy(native.run_path(), folder)
            command = ["setpriv", "--reuid=65534", "--clear-groups", launcher, "--require", "true"]
            env = {"PATH": os.environ["PATH"], **environ}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

        assert f"no agent answers in {paths.default_runtime_dir(environ, 65534)}:" in done.stderr


def test_keys_have_a_folder_for_each_user() -> None:
    """Root has the system's folder; users have one in their configuration."""
    assert paths.default_keys({}, 0) == Path("/etc/drom/keys")
    assert paths.default_keys({"HOME": "/home/a"}, 7) == Path("/home/a/.config/drom/keys")
    assert paths.default_keys({"HOME": "/home/a", "XDG_CONFIG_HOME": "/c"}, 7) == Path("/c/drom/keys")


@pytest.mark.parametrize(
    ("uid", "system", "found"), [(0, False, "system"), (ALICE, False, "own"), (ALICE, True, "system")]
)
def test_the_queue_of_the_system_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, system: bool, found: str
) -> None:
    """A user's commands reach a scheduler of the system where there is one, else his own; root's are the system's."""
    places = {"system": tmp_path / "system", "own": tmp_path / "state/drom"}
    monkeypatch.setattr(paths, "STATE", places["system"])
    if system:
        places["system"].mkdir()
        (places["system"] / "control").touch()

    own = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert paths.default_queue(own, uid) == places[found]
    assert paths.default_state(own, uid) == places["own" if uid else "system"]
