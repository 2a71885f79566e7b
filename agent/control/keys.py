# SPDX-License-Identifier: Apache-2.0
"""CURVE keys for orders between nodes: creation, reading with checks of modes, and use on ZeroMQ sockets.

A folder of keys has ::

    identity.secret    our pair of keys, mode 0600
    identity.key       our public key, to be given to the other side
    peers/NAME.key     public keys of others: users who may give orders here, and agents by the names of their nodes

A holder of our own secret is trusted: nodes that share one folder trust each other without `peers`. Files are ZeroMQ
certificates, as `zmq.auth` writes them; that checks no modes, and its authenticators run asyncio or a thread of their
own. Without a `Guard` in its context a server socket accepts no peer.
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
    from collections.abc import Iterator

SECRET, PUBLIC, PEERS = "identity.secret", "identity.key", "peers"
OWN_KEY = "ourselves"
"""The name of a peer with our own keys."""
_DOMAIN = "drom"
_LARGEST = 4096
"""Most bytes of a certificate; longer files are rejected."""
_SECRET_BITS, _PUBLIC_BITS = 0o077, 0o022
"""Mode bits that a secret file, and any other file, must not have."""
_KEY = re.compile(rb'^\s*(public|secret)-key\s*=\s*"([!-~]{40})"\s*$', re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


class KeysError(ControlError):
    """Raised when keys cannot be created, read or trusted; the message is a sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Our pair of keys in Z85 (40 characters each), and their folder."""

    folder: Path
    public: bytes
    secret: bytes = field(repr=False)

    def peers(self) -> dict[bytes, str]:
        """Return the names of the peers trusted now, by public key; files that are not secure are left out."""
        found = {}
        for path in _peer_files(self.folder):
            with suppress(KeysError):
                found[_read(path)[0]] = path.stem
        return found | {self.public: OWN_KEY}

    def key_of(self, name: str) -> bytes:
        """Return the public key of the peer `name`, ours if it has none of its own. Raises `KeysError`."""
        path = self.file_of(name)
        return _read(path)[0] if path else self.public

    def file_of(self, name: str) -> Path | None:
        """Return the file with the public key of the peer `name`, None if it has none of its own."""
        path = self.folder / PEERS / f"{name}.key"
        return path if _NAME.fullmatch(name) and path.exists() else None


def make(folder: Path) -> Keys:
    """Create a new pair of keys in `folder`, which is created too. Raises `KeysError`, also if there is a pair."""
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
    """Return the keys in `folder`. Raises `KeysError` if there are none, or if others may read or replace them."""
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
        raise KeysError(f"{folder / SECRET} does not contain a pair of keys: remove it and run `drom keys make` again.")
    for path in _peer_files(folder):
        _read(path)
    return Keys(folder, public, secret)


def one_time(secret: bytes = b"") -> Keys:
    """Return the pair of keys with this `secret`, or a new one. It is in no folder, and its only peer is itself."""
    secret = secret or zmq.curve_keypair()[1]
    return Keys(Path(os.devnull), zmq.curve_public(secret), secret)


def trust(keys: Keys, certificate: Path, name: str) -> Path:
    """Trust the owner of a public key as the peer `name`; return the new file. Raises `KeysError`."""
    if not _NAME.fullmatch(name) or name == OWN_KEY:
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


class CurveAuthenticator:
    """Admits only the peers of `keys` to the server sockets of a ZeroMQ context, until `stop`.

    The folder is read for each connection: an added peer is admitted, a removed one is rejected from then on.
    For a received frame, ``frame.get("User-Id")`` is the name of the peer that sent it.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        from zmq.auth.thread import ThreadAuthenticator  # imports asyncio, which an agent without remote orders avoids

        class Authenticator(ThreadAuthenticator):
            fault = ""

            def callback(self, _domain: str, key: bytes) -> bool:
                return key in self.known()

            def curve_user_id(self, client_public_key: bytes) -> str:
                return self.known().get(z85.encode(client_public_key), "")

            def known(self) -> dict[bytes, str]:
                """Return the trusted peers; none while the keys cannot be read: an error would end this thread."""
                try:
                    found, fault = keys.peers(), ""
                except Exception as error:  # noqa: BLE001 - whatever it is, later peers must still be checked
                    found, fault = {}, f"drom: all connections are rejected while {keys.folder} cannot be read: {error}"
                if fault and fault != self.fault:
                    sys.stderr.write(f"{fault}\n")
                self.fault = fault
                return found

        self._authenticator = Authenticator(context)
        self._authenticator.configure_curve_callback(_DOMAIN, self._authenticator)
        self._authenticator.start()

    def stop(self) -> None:
        """Admit no more peers. Must be called before the context ends."""
        self._authenticator.stop()


def guard_server(sock: zmq.Socket[bytes], keys: Keys) -> None:
    """Restrict a socket, before it is bound, to the peers that the `Guard` of its context admits."""
    sock.curve_server = True
    sock.curve_publickey, sock.curve_secretkey = keys.public, keys.secret
    sock.zap_domain = _DOMAIN.encode()
    sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a guard: no peer


def guard_client(sock: zmq.Socket[bytes], keys: Keys, peer: str) -> None:
    """Restrict a socket, before it connects, to the server `peer`. Raises `KeysError`."""
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
    """Return the public and the secret key (empty: there is none) of a certificate. Raises `KeysError`.

    `forbidden`: bits its mode must not have; None: neither mode nor owner of the file is checked.
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
        raise KeysError(f"{path} does not contain a key: make keys with `drom keys make`, or copy the file again.")
    return found[b"public"], found.get(b"secret", b"")


def _is_key(text: bytes) -> bool:
    try:
        return len(z85.decode(text)) == 32
    except (KeyError, ValueError, struct.error):
        return False


def _check(path: Path, about: os.stat_result, forbidden: int) -> None:
    """Raise `KeysError` if a file or folder belongs to another user, or its mode has one of the `forbidden` bits."""
    if about.st_uid not in (0, os.geteuid()):
        raise KeysError(f"{path} belongs to another user: chown it to yourself.")
    if about.st_mode & forbidden:
        what, letters = ("read", "rwx") if forbidden == _SECRET_BITS else ("change", "w")
        raise KeysError(f"others may {what} {path}: chmod go-{letters} it.")
