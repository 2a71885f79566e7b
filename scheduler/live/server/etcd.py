# SPDX-License-Identifier: Apache-2.0
"""A client of etcd by its JSON gateway, which any HTTP library can use: gRPC would add 10 MB and a runtime of its own.

Each call is bounded in time. It goes on to the next member if one does not answer, so that it may arrive twice: callers
make their transactions safe to repeat.

A member that has not noticed yet that the leader of etcd has ended forwards a write to it, where it is lost, and
answers only after a limit of some seconds. Therefore the first tries are short. Later ones have half of the time that
has passed, so that an answer that takes long is awaited. An election of etcd delays a call by at most 1.5 times its own
length, or by an eighth of the call's time more.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drom.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import urllib3

SHORTEST = 0.3
"""The fewest seconds that a member has to answer before the next one is asked."""
PAUSE = 0.05
"""Seconds to wait after every member has failed."""
LARGEST = 256 << 20
"""Most bytes of an answer, and of a message of a watch."""
MOST_MEMBERS = 16
LONGEST_LOGIN = 1024
NO_ETCD = "what answers there is no etcd, or one that wants TLS: check the address and --store-ca"
_UNAVAILABLE = {1, 4, 14}
"""Codes of gRPC after which another member may answer: cancelled, deadline exceeded, unavailable."""
_NO_TOKEN = 16
"""The code of gRPC for a token that is missing or no longer valid."""
_REMEDIES = {
    "database space exceeded": "compact and defragment it, then run `etcdctl alarm disarm`",
    "user name is empty": "give a login with --store-login",
    "invalid user ID or password": "correct the login in the file of --store-login",
    "permission denied": "let its administrator grant this login the prefix, to read and write",
    "request is too large": "raise its --max-request-bytes",
}


class StoreError(Exception):
    """Raised when the store does not do what was asked; the message is a clause with the reason and the remedy."""


class SilentError(StoreError):
    """Raised if no member has answered in time: what was asked may have been done."""


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise StoreError for an answer that a block cannot read, since no etcd gives it."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(NO_ETCD) from error


def read_login(path: Path) -> str:
    """Return the login in a file, ``NAME:PASSWORD``, which others may not read. Raises SchedulerError."""
    try:
        with path.open(encoding="utf-8") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(LONGEST_LOGIN).strip()
    except (OSError, UnicodeError) as error:
        msg = f"the login in {path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}."
        raise SchedulerError(msg) from error
    if mode & 0o077:
        raise SchedulerError(f"others may read the login in {path}: run chmod 600 {path}.")
    if not re.fullmatch(r"[^:\n]+:[^\n]+", text):
        raise SchedulerError(f"the login in {path} is not NAME:PASSWORD in one line.")
    return text


class CompactedError(StoreError):
    """Raised for a watch from a revision that etcd has forgotten."""


class _ElsewhereError(StoreError):
    """Raised when a member cannot answer, and another one might."""


class _LateError(_ElsewhereError):
    """Raised when a member has not answered in the time it had, which may have been short."""


class _UntrustedError(_ElsewhereError):
    """Raised when a certificate is refused, by a member or by us: nothing is done without another one."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """An etcd: its `members` as HOST:PORT, the `prefix` of all keys, and what is needed to connect.

    With the certificate of an authority `ca` connections use TLS; `cert` and `key` are the client's own. `login` is
    ``NAME:PASSWORD``.
    """

    members: tuple[str, ...]
    prefix: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    login: str = ""

    def __str__(self) -> str:
        """Return it as users write it."""
        return f"etcd://{','.join(self.members)}/{self.prefix}"


def parse_store(text: str) -> StoreAddress:
    """Return the address in ``etcd://HOST:PORT,.../PREFIX``. Raises ValueError with a sentence."""
    members, _, prefix = text.removeprefix("etcd://").partition("/")
    found = tuple(members.split(","))
    good = all(re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):[0-9]{1,5}", one, re.ASCII) for one in found)
    prefix = prefix.strip("/") or "drom"
    if not (text.startswith("etcd://") and good and len(found) <= MOST_MEMBERS and _is_prefix(prefix)):
        msg = f"{text[:80]!r} is not a store: write etcd://HOST:PORT,HOST:PORT,... with /PREFIX after it if need be."
        raise ValueError(msg)
    return StoreAddress(found, prefix)


def _is_prefix(text: str) -> bool:
    return bool(re.fullmatch(r"[\w./-]{1,200}", text, re.ASCII))


def to_wire(text: str | bytes) -> str:
    """Return a key or a value as the gateway takes it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def from_wire(text: str) -> bytes:
    """Return the bytes of a key or a value that the gateway has given."""
    return base64.b64decode(text)


def after_all(prefix: str) -> str:
    """Return the end of the range of all keys that begin with a prefix, as the gateway takes it."""
    return to_wire(prefix[:-1] + chr(ord(prefix[-1]) + 1))


def absent(key: str) -> dict[str, Any]:
    """Return the comparison that holds if there is no such key."""
    return created(key, 0)


def created(key: str, revision: int) -> dict[str, Any]:
    """Return the comparison that holds if a key was created at a revision."""
    return {"key": to_wire(key), "target": "CREATE", "create_revision": str(revision)}


def written(key: str, revision: int) -> dict[str, Any]:
    """Return the comparison that holds if a key was last written at a revision; at 0, if there is no such key."""
    return {"key": to_wire(key), "target": "MOD", "mod_revision": str(revision)}


def unchanged(prefix: str, revision: int) -> dict[str, Any]:
    """Return the comparison that holds if no key that begins with a prefix was written after a revision."""
    keys = {"key": to_wire(prefix), "range_end": after_all(prefix)}
    return keys | {"target": "MOD", "result": "LESS", "mod_revision": str(revision + 1)}


def put(key: str, value: bytes | None, lease: str = "0") -> dict[str, Any]:
    """Return the operation that writes a key, or deletes it if the value is None."""
    if value is None:
        return {"request_delete_range": {"key": to_wire(key)}}
    return {"request_put": {"key": to_wire(key), "value": to_wire(value), "lease": lease}}


@dataclass(frozen=True, slots=True)
class Record:
    """A key with its value, the revisions at which it was created and last written, and its lease."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: str


def record_of(pair: dict[str, Any]) -> Record:
    """Return the record in a key-value pair of an answer."""
    created, modified = int(pair.get("create_revision", 0)), int(pair.get("mod_revision", 0))
    lease = str(pair.get("lease", "0"))
    return Record(from_wire(pair["key"]).decode(), from_wire(pair.get("value", "")), created, modified, lease)


def _in_order(why: dict[int, _ElsewhereError]) -> str:
    """Return the reasons of members, by their numbers, as one clause."""
    return "; ".join(str(why[number]) for number in sorted(why))


class Etcd:
    """The members of an etcd. All methods raise StoreError; they may be called by several threads at once."""

    def __init__(self, address: StoreAddress) -> None:
        try:
            import urllib3
        except ImportError as error:
            msg = "the store needs urllib3: run pip install 'drom[etcd]'."
            raise SchedulerError(msg) from error
        self.address = address
        self.messages = 0
        """The number of messages sent."""
        self._library: Any = urllib3
        self._errors = urllib3.exceptions
        self._pools = [self._pool(member) for member in address.members]
        self._turn = 0
        """The member that answered last."""
        self._took = 0.0
        """Seconds until its answer."""
        self._token = ""

    def _pool(self, member: str) -> urllib3.HTTPConnectionPool:
        host, _, port = member.rpartition(":")
        files = {"ca_certs": self.address.ca, "cert_file": self.address.cert, "key_file": self.address.key}
        words = {name: str(path) for name, path in files.items() if path}
        kind = self._library.HTTPSConnectionPool if words else self._library.HTTPConnectionPool
        pool: urllib3.HTTPConnectionPool = kind(host, int(port), maxsize=4, **words)
        return pool

    # --- calls ----------------------------------------------------------------------------------------------------

    def call(self, path: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer of the first member that gives one within so many seconds.

        If certificates are refused between us and every member, that is raised at once.
        """
        began, failures = time.monotonic(), 0
        why: dict[int, _ElsewhereError] = {}
        while (left := seconds - (passed := time.monotonic() - began)) > 0:
            number = self._turn % len(self._pools)
            usual = min(2 * self._took, seconds / 2)
            most = max(seconds / 8, passed / 2, usual) if len(self._pools) > 1 else seconds
            try:
                with self._ask(path, body, max(min(most, left), SHORTEST)) as answer:
                    value = self._value(answer)
            except _ElsewhereError as error:
                if not (number in why and isinstance(error, _LateError)):  # a reason that is no timeout says more
                    why[number] = error
                if sum(isinstance(one, _UntrustedError) for one in why.values()) == len(self._pools):
                    raise StoreError(_in_order(why)) from error
                failures += 1
                self._turn += 1
                if failures % len(self._pools) == 0:
                    time.sleep(min(PAUSE, left))
            else:
                self._took = time.monotonic() - began - passed
                return value
        raise SilentError(_in_order(why) or f"it has not answered for {seconds:g} s")

    def _ask(self, path: str, body: dict[str, Any], seconds: float) -> urllib3.BaseHTTPResponse:
        """Send a request to the next member in turn; return the response with its body unread."""
        number = self._turn % len(self._pools)
        if self.address.login and not self._token and not path.endswith("/authenticate"):
            name, _, password = self.address.login.partition(":")
            with self._ask("/v3/auth/authenticate", {"name": name, "password": password}, seconds) as answer:
                value = self._value(answer)
            with understood():
                self._token = str(value["token"])
        self.messages += 1
        try:
            return self._pools[number].request(
                "POST",
                path,
                body=json.dumps(body),
                headers={"Authorization": self._token} if self._token else {},
                timeout=self._library.Timeout(total=seconds),
                retries=False,
                preload_content=False,
            )
        except (self._errors.HTTPError, OSError) as error:
            raise self._failure(number, error) from error

    def _value(self, answer: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        """Return the JSON object in a response. Raises StoreError if it is an error, or is not of etcd."""
        try:
            data = answer.read(LARGEST + 1)
        except (self._errors.HTTPError, OSError) as error:
            raise self._failure(self._turn % len(self._pools), error) from error
        return self._checked(data, answer.status)

    def _checked(self, data: bytes, status: int) -> dict[str, Any]:
        value: Any = None
        if len(data) <= LARGEST:
            with understood():
                value = json.loads(data)
        if not isinstance(value, dict):
            raise StoreError(NO_ETCD)
        error = value.get("error")
        if not error and status == 200:
            return value
        about = error if isinstance(error, dict) else value
        code, text = about.get("code", about.get("grpc_code")), str(about.get("message") or error)[:300]
        if code == _NO_TOKEN or "invalid auth token" in text:
            self._token = ""
            raise _ElsewhereError(text)
        if code in _UNAVAILABLE:
            raise _ElsewhereError(text.removeprefix("etcdserver: "))
        remedy = next((f": {words}" for part, words in _REMEDIES.items() if part in text), "")
        raise StoreError(text.removeprefix("etcdserver: ") + remedy)

    def _failure(self, number: int, error: Exception) -> _ElsewhereError:
        """Return an error that says why a member does not answer."""
        member, errors = self.address.members[number], self._errors
        if isinstance(error, errors.SSLError):
            refused = re.search("certificate|unknown ca", str(error), re.IGNORECASE)
            kind = _UntrustedError if refused else _ElsewhereError
            return kind(f"no TLS with {member} ({error}): check --store-ca, --store-cert and --store-key")
        if isinstance(error, errors.NameResolutionError):
            return _ElsewhereError(f"the host of {member} is not known: check the address")
        if isinstance(error, errors.NewConnectionError):
            return _ElsewhereError(f"nothing listens at {member}")
        if isinstance(error, errors.TimeoutError):
            return _LateError(f"{member} does not answer")
        wish = "does not accept the certificate (--store-cert)" if self.address.ca else "wants TLS (--store-ca)"
        return _ElsewhereError(f"{member} closed the connection: it has ended, or {wish}")

    # --- keys -----------------------------------------------------------------------------------------------------

    def transact(
        self, compare: Sequence[dict[str, Any]], then: Sequence[dict[str, Any]], otherwise: str, seconds: float
    ) -> tuple[bool, int, Record | None]:
        """Run a transaction; return whether the comparison held, the revision, and otherwise the record of a key."""
        failure = [{"request_range": {"key": to_wire(otherwise)}}]
        body = {"compare": list(compare), "success": list(then), "failure": failure}
        answer = self.call("/v3/kv/txn", body, seconds)
        with understood():
            held = bool(answer.get("succeeded"))
            found = [] if held else answer["responses"][0]["response_range"].get("kvs", [])
            return held, int(answer["header"]["revision"]), record_of(found[0]) if found else None

    def first(self, prefix: str, seconds: float, revision: int = 0) -> Record | None:
        """Return the first record with a key that begins with `prefix`; None if there is none."""
        _, found = next(self.pages(prefix, 1, seconds, revision))
        return found[0] if found else None

    def pages(self, prefix: str, size: int, seconds: float, revision: int = 0) -> Iterator[tuple[int, list[Record]]]:
        """Yield the records below a prefix, in pages of `size`, each with the revision at which all of them are read.

        `seconds` is for each page.
        """
        start, more = to_wire(prefix), True
        while more:
            body = {"key": start, "range_end": after_all(prefix), "limit": size, "revision": revision}
            answer = self.call("/v3/kv/range", body, seconds)
            with understood():
                revision = revision or int(answer["header"]["revision"])
                found = [record_of(pair) for pair in answer.get("kvs", [])]
            yield revision, found
            more = bool(answer.get("more")) and bool(found)
            start = to_wire(found[-1].key + "\0") if found else start

    def written_after(self, prefix: str, revision: int, seconds: float) -> list[Record]:
        """Return the records below a prefix that were written after a revision, in the order of their keys."""
        body = {"key": to_wire(prefix), "range_end": after_all(prefix), "min_mod_revision": str(revision + 1)}
        answer = self.call("/v3/kv/range", body, seconds)
        with understood():
            return [record_of(pair) for pair in answer.get("kvs", [])]

    def watch(
        self, prefix: str, revision: int, silence: float, opened: Callable[[urllib3.BaseHTTPResponse], object]
    ) -> Iterator[list[tuple[Record, bool]]]:
        """Yield changes from a revision on: records, each with whether it was deleted.

        `opened` is called with the response, which another thread may shut down. Raises StoreError if nothing has come
        for `silence` seconds, as from a member that is cut off from the others.
        """
        request = {"key": to_wire(prefix), "range_end": after_all(prefix), "start_revision": revision}
        try:
            with self._ask("/v3/watch", {"create_request": request}, silence) as answer:
                opened(answer)
                for line in self._lines(answer):
                    value = self._checked(line, answer.status)
                    with understood():
                        result = value["result"]
                        if result.get("canceled"):
                            raise CompactedError(str(result.get("cancel_reason", "etcd has ended the watch")))
                        events = result.get("events", [])
                        changes = [(record_of(one["kv"]), one.get("type") == "DELETE") for one in events]
                    yield changes
        except _ElsewhereError:
            self._turn += 1
            raise

    def _lines(self, answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        buffer = bytearray()
        try:
            while len(buffer) <= LARGEST and (piece := answer.read1(1 << 20)):
                buffer += piece
                while (end := buffer.find(b"\n")) >= 0:
                    yield bytes(buffer[:end])
                    del buffer[: end + 1]
        except (self._errors.HTTPError, OSError) as error:
            raise self._failure(self._turn % len(self._pools), error) from error
        raise _ElsewhereError("a member closed the watch")

    def close(self) -> None:
        """Close all connections that are not in use."""
        for pool in self._pools:
            pool.close()
