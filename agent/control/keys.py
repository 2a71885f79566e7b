# SPDX-License-Identifier: Apache-2.0
"""CURVE keys for orders between nodes: made, read with their modes checked, and put on ZeroMQ sockets.

A folder of keys holds ::

    identity.secret    our pair of keys, mode 0600
    identity.key       our public key, to be given to the other side
    peers/NAME.key     public keys of others: who may give orders here, and agents under the names of their nodes

Whoever has our own secret is one of us: nodes that share one folder trust each other without `peers`. Files are ZeroMQ
certificates, as `zmq.auth` writes them. Without a `Guard` in its context a server socket lets nobody in.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from drom.agent.errors import ControlError
from zmq.utils import z85

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SYSTEM_FOLDER = Path("/etc/drom/keys")
SECRET, PUBLIC, PEERS = "identity.secret", "identity.key", "peers"
OURSELVES = "ourselves"
"""The name under which who has our own keys is known."""
_DOMAIN = "drom"
_LARGEST = 4096
"""Bytes of a certificate; longer files are none."""
_SECRET_BITS, _PUBLIC_BITS = 0o077, 0o022
"""What others may not do with a secret file, and with all others: bits of a mode."""
_KEY = re.compile(rb'^\s*(public|secret)-key\s*=\s*"([!-~]{40})"\s*$', re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


class KeysError(ControlError):
    """Raised when keys cannot be made, read or trusted; the message is a sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Our pair of keys in Z85 (40 characters each), and the folder they are from."""

    folder: Path
    public: bytes
    secret: bytes = field(repr=False)

    def peers(self) -> dict[bytes, str]:
        """Return who is trusted now, by public key; files that are not safe to believe are left out."""
        found = {}
        for path in _peer_files(self.folder):
            with suppress(KeysError):
                found[_read(path)[0]] = path.stem
        return found | {self.public: OURSELVES}

    def key_of(self, name: str) -> bytes:
        """Return the public key of the peer `name`, ours where it has none of its own. Raises `KeysError`."""
        path = self.file_of(name)
        return _read(path)[0] if path else self.public

    def file_of(self, name: str) -> Path | None:
        """Return the file with the public key of the peer `name`, None where it has none of its own."""
        path = self.folder / PEERS / f"{name}.key"
        return path if _NAME.fullmatch(name) and path.exists() else None


def default_folder(environ: Mapping[str, str], uid: int) -> Path:
    """Return where a user's keys are: /etc/drom/keys for root, else below ``$XDG_CONFIG_HOME`` or ~/.config."""
    if uid == 0:
        return SYSTEM_FOLDER
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "/") / ".config"
    return Path(home) / "drom/keys"


def make(folder: Path) -> Keys:
    """Make a new pair of keys in `folder`, which is made as well. Raises `KeysError`, also when there is one."""
    public, secret = zmq.curve_keypair()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / PEERS).mkdir(mode=0o700, exist_ok=True)
        _write(folder / SECRET, 0o600, public, secret)
        _write(folder / PUBLIC, 0o644, public)
    except FileExistsError as error:
        msg = f"there are keys in {folder} already: choose another folder, or remove {error.filename} for new ones."
        raise KeysError(msg) from error
    except OSError as error:
        msg = f"cannot make keys in {folder}: {os.strerror(error.errno or 0)}: choose a folder you may write."
        raise KeysError(msg) from error
    return load(folder)


def load(folder: Path) -> Keys:
    """Return the keys in `folder`. Raises `KeysError` when there are none, or others may read or replace them."""
    try:
        (folder / SECRET).stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"there are no keys in {folder}: make them with `drom keys make --dir {folder}`."
        raise KeysError(msg) from error
    for place in (folder, folder / PEERS):
        if place.exists():
            _check(place, place.stat(), _PUBLIC_BITS)
    public, secret = _read(folder / SECRET, _SECRET_BITS)
    if not secret or zmq.curve_public(secret) != public:
        raise KeysError(f"{folder / SECRET} holds no pair of keys: remove it and run `drom keys make` again.")
    for path in _peer_files(folder):
        _read(path)
    return Keys(folder, public, secret)


def trust(keys: Keys, certificate: Path, name: str) -> Path:
    """Let the owner of a public key in as `name`; return the new file. Raises `KeysError`."""
    if not _NAME.fullmatch(name) or name == OURSELVES:
        raise KeysError(f"{name[:64]!r} cannot name a peer: use letters, digits and . _ - @, as in a host's name.")
    public, _ = _read(certificate, None)
    path = keys.folder / PEERS / f"{name}.key"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _write(path, 0o644, public)
    except FileExistsError as error:
        raise KeysError(f"{path} is there already: remove it first if {name} has new keys.") from error
    except OSError as error:
        raise KeysError(f"cannot write {path}: {os.strerror(error.errno or 0)}.") from error
    return path


# --- sockets --------------------------------------------------------------------------------------------------------


class Guard:
    """Lets the peers of `keys` in at the server sockets of a ZeroMQ context, and nobody else, until `stop`.

    The folder is looked at for each connection: who is added is let in, who is removed stays out from then on.
    Of a frame that comes in, ``frame.get("User-Id")`` is the name of the peer who sent it.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        from zmq.auth.thread import ThreadAuthenticator  # brings asyncio, which an agent without remote orders spares

        class Authenticator(ThreadAuthenticator):
            fault = ""

            def callback(self, _domain: str, key: bytes) -> bool:
                return key in self.known()

            def curve_user_id(self, client_public_key: bytes) -> str:
                return self.known().get(z85.encode(client_public_key), "")

            def known(self) -> dict[bytes, str]:
                """Return who is trusted; nobody while that cannot be found out, which would end this thread."""
                try:
                    found, fault = keys.peers(), ""
                except Exception as error:  # noqa: BLE001 - whatever it is, those who come later are to be looked at
                    found, fault = {}, f"drom: nobody is let in while {keys.folder} cannot be read: {error}"
                if fault and fault != self.fault:
                    sys.stderr.write(f"{fault}\n")
                self.fault = fault
                return found

        self._authenticator = Authenticator(context)
        self._authenticator.configure_curve_callback(_DOMAIN, self._authenticator)
        self._authenticator.start()

    def stop(self) -> None:
        """Let nobody in any more; before the context ends."""
        self._authenticator.stop()


def guard_server(sock: zmq.Socket[bytes], keys: Keys) -> None:
    """Have a socket that is about to be bound talk only to those whom the `Guard` of its context lets in."""
    sock.curve_server = True
    sock.curve_publickey, sock.curve_secretkey = keys.public, keys.secret
    sock.zap_domain = _DOMAIN.encode()
    sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a guard: nobody


def guard_client(sock: zmq.Socket[bytes], keys: Keys, peer: str) -> None:
    """Have a socket that is about to connect talk only to the server `peer`. Raises `KeysError`."""
    sock.curve_serverkey = keys.key_of(peer)
    sock.curve_publickey, sock.curve_secretkey = keys.public, keys.secret


# --- files ----------------------------------------------------------------------------------------------------------


def _peer_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted((folder / PEERS).glob("*.key")) if _NAME.fullmatch(path.stem))


def _write(path: Path, mode: int, public: bytes, secret: bytes = b"") -> None:
    lines = ["metadata", "curve", f'    public-key = "{public.decode()}"']
    lines += [f'    secret-key = "{secret.decode()}"'] * bool(secret)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


def _read(path: Path, forbidden: int | None = _PUBLIC_BITS) -> tuple[bytes, bytes]:
    """Return the public and the secret key (empty: none there) of a certificate. Raises `KeysError`.

    `forbidden`: bits its mode must not have; None: whose file it is does not matter.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise KeysError(f"cannot read {path}: {os.strerror(error.errno or 0)}.") from error
    try:
        about = os.fstat(fd)
        if forbidden is not None:
            _check(path, about, forbidden)
        text = os.read(fd, _LARGEST) if stat.S_ISREG(about.st_mode) else b""
    finally:
        os.close(fd)
    found = {kind: value for kind, value in _KEY.findall(text) if _is_key(value)}
    if b"public" not in found:
        raise KeysError(f"{path} holds no key: make keys with `drom keys make`, or copy the file again.")
    return found[b"public"], found.get(b"secret", b"")


def _is_key(text: bytes) -> bool:
    try:
        return len(z85.decode(text)) == 32
    except (KeyError, ValueError, struct.error):
        return False


def _check(path: Path, about: os.stat_result, forbidden: int) -> None:
    """Raise `KeysError` if a file or folder is another user's, or has one of the `forbidden` bits in its mode."""
    if about.st_uid not in (0, os.geteuid()):
        raise KeysError(f"{path} belongs to another user: chown it to yourself.")
    if about.st_mode & forbidden:
        what, letters = ("read", "rwx") if forbidden == _SECRET_BITS else ("change", "w")
        raise KeysError(f"others may {what} {path}: chmod go-{letters} it.")
