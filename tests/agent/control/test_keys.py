# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import TYPE_CHECKING

import pytest
from drom.agent.control import keys
from drom.agent.control.keys import KeysError, load, make, trust
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import drom

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with new keys."""
    make(tmp_path / "keys")
    return tmp_path / "keys"


class TestMake:
    """New keys."""

    def test_only_the_owner_can_read_the_secret(self, tmp_path: Path) -> None:
        """Whatever the umask is: the secret is never open to others, not even for a moment."""
        before = os.umask(0)
        try:
            made = make(tmp_path / "a/keys")
        finally:
            os.umask(before)

        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a/keys").iterdir()}
        assert modes == {"identity.secret": 0o600, "identity.key": 0o644, "peers": 0o700}
        assert stat.S_IMODE((tmp_path / "a/keys").stat().st_mode) == 0o700
        assert made.secret not in (tmp_path / "a/keys/identity.key").read_bytes()
        assert made.secret.decode() not in repr(made)

    def test_old_keys_are_never_replaced(self, folder: Path) -> None:
        """A sentence says what to do for new ones, and the old ones stay."""
        before = load(folder)
        with pytest.raises(KeysError, match=rf"^there are keys in {folder} already: choose another folder, or remove "):
            make(folder)

        assert load(folder) == before

    def test_a_folder_that_cannot_be_made_is_told(self, tmp_path: Path) -> None:
        """Where a file is in the way."""
        (tmp_path / "file").touch()
        with pytest.raises(KeysError, match=r"^cannot make keys in .*/file/keys: Not a directory: choose a folder"):
            make(tmp_path / "file/keys")


class TestModes:
    """What others could read or replace is not used."""

    @pytest.mark.parametrize(
        ("name", "mode", "sentence"),
        [
            ("identity.secret", 0o640, "others may read {path}: chmod go-rwx it."),
            ("identity.secret", 0o604, "others may read {path}: chmod go-rwx it."),
            ("identity.secret", 0o620, "others may read {path}: chmod go-rwx it."),
            ("", 0o770, "others may change {path}: chmod go-w it."),
            ("peers", 0o777, "others may change {path}: chmod go-w it."),
            ("peers/b.key", 0o646, "others may change {path}: chmod go-w it."),
        ],
    )
    def test_a_mode_too_open_is_refused(
        self, folder: Path, tmp_path: Path, name: str, mode: int, sentence: str
    ) -> None:
        """The secret must not be read, and nothing must be written, by others."""
        trust(load(folder), make(tmp_path / "b").folder / "identity.key", "b")
        (folder / name).chmod(mode)
        with pytest.raises(KeysError) as caught:
            load(folder)

        path = str(folder / name)
        assert str(caught.value) == sentence.format(path=path)

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of other users")
    @pytest.mark.parametrize("name", ["identity.secret", "", "peers"])
    def test_what_belongs_to_another_user_is_refused(self, folder: Path, name: str) -> None:
        """He could replace it."""
        os.chown(folder / name, 4711, -1)
        with pytest.raises(KeysError, match=r" belongs to another user: chown it to yourself\.$"):
            load(folder)

    @pytest.mark.parametrize("text", [b"", b"\xff\xfe", b'public-key = "short"', b'secret-key = "%s"' % (b"0" * 40)])
    def test_what_is_no_key_is_told(self, folder: Path, text: bytes) -> None:
        """In our own file and in those of peers."""
        path = folder / "peers/b.key"
        path.write_bytes(text)
        with pytest.raises(
            KeysError, match=rf"^{path} does not contain a key: make keys with `drom keys make`, or copy"
        ):
            load(folder)
        path.unlink()
        (folder / "identity.secret").write_bytes(text)
        with pytest.raises(KeysError, match=r"/identity.secret does not contain a key: "):
            load(folder)

    def test_a_pair_that_does_not_match_is_told(self, folder: Path, tmp_path: Path) -> None:
        """Such as two secrets mixed up by hand."""
        ours, other = load(folder), make(tmp_path / "b")
        text = (folder / "identity.secret").read_bytes().replace(ours.public, other.public)
        (folder / "identity.secret").write_bytes(text)
        with pytest.raises(KeysError, match=r"/identity.secret does not contain a pair of keys: remove it"):
            load(folder)

    def test_what_is_no_file_does_not_stop_us(self, folder: Path) -> None:
        """A FIFO or folder among the peers is a sentence, and nobody waits for it."""
        os.mkfifo(folder / "peers/fifo.key", 0o644)
        with pytest.raises(KeysError, match=r"fifo.key does not contain a key: "):
            load(folder)
        (folder / "peers/fifo.key").unlink()
        ours = load(folder)
        (folder / "peers/folder.key").mkdir(mode=0o755)
        with pytest.raises(KeysError, match=r"folder.key does not contain a key: "):
            load(folder)
        assert ours.peers() == {ours.public: keys.OWN_KEY}

    @given(text=st.binary(max_size=300))
    def test_any_bytes_are_a_key_or_a_sentence(self, tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
        """Nothing else comes of what a file holds."""
        keys_ = make(tmp_path_factory.mktemp("keys") / "own")
        (keys_.folder / "peers/x.key").write_bytes(text)
        assert set(keys_.peers().values()) <= {"x", keys.OWN_KEY}
        with contextlib.suppress(KeysError):
            load(keys_.folder)


class TestPeers:
    """Whom we trust."""

    def test_who_is_trusted_is_known_by_name(self, folder: Path, tmp_path: Path) -> None:
        """By the file's name, from then on and until the file is gone; we ourselves always."""
        ours, other = load(folder), make(tmp_path / "b")
        path = trust(ours, other.folder / "identity.key", "node-1.x")
        assert ours.peers() == {ours.public: "ourselves", other.public: "node-1.x"}
        assert ours.key_of("node-1.x") == other.public
        path.unlink()
        assert ours.peers() == {ours.public: "ourselves"}
        assert ours.key_of("node-1.x") == ours.public

    @pytest.mark.parametrize("name", ["", "../x", "a b", "ourselves", "x" * 65, "a/b", "ä"])
    def test_a_name_that_could_be_a_path_is_refused(self, folder: Path, tmp_path: Path, name: str) -> None:
        """Names become files and lines of a log."""
        with pytest.raises(KeysError, match=r"cannot name a peer: use letters, digits and \. _ - @, as in a host's "):
            trust(load(folder), make(tmp_path / "b").folder / "identity.key", name)

    def test_a_peer_whose_file_others_may_change_is_not_believed(self, folder: Path, tmp_path: Path) -> None:
        """A running agent leaves such a file out; one that starts refuses it."""
        path = trust(load(folder), make(tmp_path / "b").folder / "identity.key", "b")
        ours = load(folder)
        path.chmod(0o666)
        assert set(ours.peers().values()) == {"ourselves"}

    def test_nobody_is_trusted_twice_under_a_name(self, folder: Path, tmp_path: Path) -> None:
        """New keys of a known name are a step of their own."""
        certificate = make(tmp_path / "b").folder / "identity.key"
        trust(load(folder), certificate, "b")
        with pytest.raises(KeysError, match=r"/peers/b.key is there already: remove it first if b has new keys\.$"):
            trust(load(folder), certificate, "b")


def test_the_command_line(tmp_path: Path) -> None:
    """Make, trust and show; a folder without keys is one sentence."""
    one, other = tmp_path / "one", tmp_path / "other"
    public = drom("keys", "make", "--dir", one)[0].split()[-1]
    drom("keys", "make", "--dir", other)
    drom("keys", "trust", one / "identity.key", "node1", "--dir", other)

    assert f"{public}  node1" in drom("keys", "show", "--dir", other)[0].splitlines()
    assert {"name": "node1", "key": public} in json.loads(drom("keys", "show", "--json", "--dir", other)[0])["keys"]
    assert drom("keys", "show", "--dir", tmp_path / "none", code=1)[1] == (
        f"drom: there are no keys in {tmp_path}/none: make them with `drom keys make --dir {tmp_path}/none`.\n"
    )
