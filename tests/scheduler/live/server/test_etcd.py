# SPDX-License-Identifier: Apache-2.0
"""Connections to etcd: its address, its certificates and its users; each fault is told in a sentence."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.server import etcd as etcd_client
from drom.scheduler.live.server.etcd import Etcd, SilentError, StoreAddress, StoreError, parse_store, read_login
from drom.scheduler.live.server.lease import Lease
from drom.scheduler.live.server.store import UnreadableError

from tests.scheduler.live.server.test_store import job
from tests.support.agents import wait_until
from tests.support.etcd import Member, address_of, free_ports, lead, running, shared_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECONDS = 5.0


@pytest.mark.parametrize(
    ("text", "members", "prefix"),
    [
        ("etcd://h1:2379", 1, "drom"),
        ("etcd://h1:2379,[::1]:2379,10.0.0.1:1/a/b/", 3, "a/b"),
    ],
)
def test_an_address_names_members_and_a_prefix(text: str, members: int, prefix: str) -> None:
    """The prefix is drom unless another one is given."""
    found = parse_store(text)
    assert (len(found.members), found.prefix) == (members, prefix)


@pytest.mark.parametrize(
    "text",
    ["etcd://", "etcd://h1", "http://h1:2379", "etcd://h1:2379,", "etcd://h1:2379/ü", "etcd://" + "h:1," * 16 + "h:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The sentence says what to write."""
    with pytest.raises(ValueError, match=r"is not a store: write etcd://HOST:PORT,HOST:PORT,... with /PREFIX after it"):
        parse_store(text)


def test_a_login_is_a_secret(tmp_path: Path) -> None:
    """A file that others may read is refused, as is one without a name and a password."""
    path = tmp_path / "login"
    with pytest.raises(SchedulerError, match=r"^the login in .* cannot be read: No such file or directory\.$"):
        read_login(path)
    path.write_text("ann:pass:word\n", encoding="utf-8")
    path.chmod(0o644)
    with pytest.raises(SchedulerError, match=r"^others may read the login in .*: run chmod 600 "):
        read_login(path)
    path.chmod(0o600)
    assert read_login(path) == "ann:pass:word"
    for text in ("ann", ":x", "a:", "a:b\nc:d"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SchedulerError, match=r"is not NAME:PASSWORD in one line\.$"):
            read_login(path)
    path.write_bytes(b"\xff:x")
    with pytest.raises(SchedulerError, match=r"cannot be read: it is not text\.$"):
        read_login(path)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Return a folder with a certificate of an authority, `ca.pem`, one that it has signed, and a stranger's."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    own = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    for name, more in (("ca", ()), ("other", ()), ("node", (*own, "-CA", "ca.pem", "-CAkey", "ca.key"))):
        words = [*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", *more]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def test_certificates_are_checked_on_both_sides(authority: Path) -> None:
    """A queue opens only for one that trusts etcd, and that etcd trusts."""
    (port,) = free_ports(1)
    peer = f"http://127.0.0.1:{free_ports(1)[0]}"
    files = {name: str(authority / name) for name in ("ca.pem", "node.pem", "node.key")}
    options = ["--cert-file", files["node.pem"], "--key-file", files["node.key"], "--trusted-ca-file", files["ca.pem"]]
    options += ["--client-cert-auth", "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    member = Member(authority, "m0", port, [*options, "--initial-cluster", f"m0={peer}"], "https")
    whole = {"ca": authority / "ca.pem", "cert": authority / "node.pem", "key": authority / "node.key"}
    address = address_of([member], "drom", **whole)
    with ExitStack() as stack:
        stack.callback(member.end)
        member.start()

        def answers() -> bool:
            try:
                Etcd(address).first("x", SECONDS)
            except StoreError:
                return False
            return True

        wait_until(answers, lambda: member.log)
        store = stack.enter_context(closing(shared_store(authority / "a", address)))
        lead(store).write([job(1)], [], [])
        for wrong, why in (
            (
                {"ca": authority / "other.pem"},
                r"no TLS with .* \(.*certificate.*\): check --store-ca, --store-cert and",
            ),
            ({"cert": None, "key": None}, r"(no TLS with .*: check|it has ended, or does not accept the)"),
            (
                {"ca": None, "cert": None, "key": None},
                r"it has ended, or wants TLS \(--store-ca\)",
            ),
        ):
            with pytest.raises(UnreadableError, match=rf"^the queue etcd://.* cannot be opened: .*{why}"):
                shared_store(authority / "b", replace(address, **wrong))
        with pytest.raises(StoreError, match="certificate") as refused:
            Etcd(replace(address, ca=authority / "other.pem")).first("x", 3600.0)  # longer than any test may take
        assert not isinstance(refused.value, SilentError)
        both = Etcd(replace(address, members=(f"localhost:{port}", *address.members)))  # the certificate has the number
        assert both.first("x", SECONDS) is None


def test_a_timeout_does_not_hide_why_a_member_closed_the_connection() -> None:
    """The last try of a call may have no time left: its timeout says nothing of the member."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_one() -> None:
            listener.accept()[0].close()  # later connections stay silent

        thread = threading.Thread(target=close_one)
        thread.start()
        etcd = Etcd(StoreAddress((f"127.0.0.1:{listener.getsockname()[1]}",), "drom"))
        with pytest.raises(StoreError, match=r"closed the connection: it has ended, or wants TLS \(--store-ca\)$"):
            etcd.first("x", 1.0)
        thread.join()


def test_tries_are_short_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is lost in an election of etcd is sent again soon; later tries leave time for a slow answer."""
    now = [0.0]
    tries: list[tuple[int, float]] = []

    def silent(etcd: Etcd, path: str, body: dict[str, object], seconds: float) -> None:
        tries.append((etcd._turn % 3, round(seconds, 2)))
        now[0] += seconds
        raise etcd_client._LateError(f"{path} {body}")

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None)
    monkeypatch.setattr(etcd_client, "time", clock)
    monkeypatch.setattr(Etcd, "_ask", silent)
    etcd = Etcd(StoreAddress(("h1:1", "h2:1", "h3:1"), "drom"))
    with pytest.raises(StoreError):
        etcd.call("/v3/kv/txn", {}, 4.0)
    assert tries == [(0, 0.5), (1, 0.5), (2, 0.5), (0, 0.75), (1, 1.12), (2, 0.62)]
    tries.clear()
    with pytest.raises(StoreError):
        etcd.call("/v3/kv/txn", {}, 0.5)
    assert tries == [(0, 0.3), (1, 0.3)]


def test_tries_are_as_long_as_a_slow_etcd_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer that took long, short tries would all fail; one member alone never gets all the time."""
    now, takes = [0.0], [0.75]
    tries: list[float] = []

    @contextlib.contextmanager
    def slow(_: Etcd, __: str, ___: dict[str, object], seconds: float) -> Iterator[None]:
        tries.append(round(seconds, 2))
        now[0] += min(seconds, takes[0])
        if seconds < takes[0]:
            raise etcd_client._LateError("it does not answer")
        yield

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None)
    monkeypatch.setattr(etcd_client, "time", clock)
    monkeypatch.setattr(Etcd, "_ask", slow)
    monkeypatch.setattr(Etcd, "_value", lambda *_: {})
    etcd = Etcd(StoreAddress(("h1:1", "h2:1", "h3:1"), "drom"))
    etcd.call("/v3/kv/txn", {}, 4.0)
    assert tries == [0.5, 0.5, 0.5, 0.75]
    tries.clear()
    etcd.call("/v3/lease/keepalive", {}, 2.0)
    assert tries == [1.0]
    takes[0] = 9.0
    with pytest.raises(StoreError):
        etcd.call("/v3/lease/keepalive", {}, 2.0)
    assert tries == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "text",
    [
        "null",
        '{"ok": 1}',
        '{"header": null}',
        '{"header": {"revision": "x"}}',
        '{"header": {"revision": "1"}, "kvs": [{"key": 3}]}',
        "[" * 100_000,
        '{"ID": []}',
        '{"ID": "1", "TTL": "soon"}',
    ],
)
def test_an_answer_that_no_etcd_gives_is_a_fault_of_the_address(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Something else that answers requests with JSON is not taken for an etcd by any call."""
    etcd = Etcd(StoreAddress(("h1:1",), "drom"))
    answer = SimpleNamespace(status=200, read=lambda _: text.encode())
    monkeypatch.setattr(Etcd, "_ask", lambda *_: contextlib.nullcontext(answer))
    calls: tuple[Callable[[], object], ...] = (
        lambda: etcd.first("x", SECONDS),
        lambda: etcd.transact([], [], "x", SECONDS),
        lambda: Lease(etcd, 2),
    )
    for call in calls:
        with pytest.raises(StoreError, match=r"^what answers there is no etcd, or one that wants TLS: check the "):
            call()


def test_a_watch_of_something_that_is_no_etcd_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises what the thread that reads it expects."""
    etcd = Etcd(StoreAddress(("h1:1",), "drom"))
    answer = SimpleNamespace(status=200, read1=lambda _: b'{"result": {"events": [{}]}}\n')
    monkeypatch.setattr(Etcd, "_ask", lambda *_: contextlib.nullcontext(answer))
    with pytest.raises(StoreError, match=r"^what answers there is no etcd"):
        list(etcd.watch("x", 1, SECONDS, lambda _: None))


def test_a_lease_says_why_it_was_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason of the last try is kept for the sentence that users get."""

    def call(_etcd: Etcd, path: str, *_: object) -> dict[str, object]:
        if path == "/v3/lease/keepalive":
            raise StoreError("nothing listens at h1:1")
        return {"ID": "1", "TTL": "1"}

    monkeypatch.setattr(Etcd, "call", call)
    with closing(Lease(Etcd(StoreAddress(("h1:1",), "drom")), 1)) as lease:
        assert wait_until(lambda: lease.why, lambda: "no reason") == "nothing listens at h1:1"


def test_each_member_that_does_not_answer_is_named() -> None:
    """Without a quorum an administrator has to know which members to start."""
    members = [f"127.0.0.1:{port}" for port in free_ports(2)]
    etcd = Etcd(StoreAddress((*members, "nowhere.invalid:1"), "drom"))
    reasons = "; ".join(f"nothing listens at {member}" for member in members)
    with pytest.raises(
        StoreError, match=rf"^{reasons}; the host of nowhere\.invalid:1 is not known: check the address$"
    ):
        etcd.first("x", 1.0)


def ask_all(member: Member, *requests: tuple[str, dict[str, object]]) -> None:
    """Send requests to a member, one after the other."""
    for path, fields in requests:
        member.ask(f"/v3/auth/{path}", **fields)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[StoreAddress]:
    """Return where a queue is that only the user ann, with the password secret, may read and write."""
    with running(tmp_path) as (member,):
        span = {"key": "ZHJvbS8=", "range_end": "ZHJvbTA=", "permType": "READWRITE"}  # drom/ to drom0
        for name in ("root", "ann"):
            ask_all(member, ("user/add", {"name": name, "password": "secret"}), ("role/add", {"name": name}))
            ask_all(member, ("user/grant", {"user": name, "role": name}))
        ask_all(member, ("role/grant", {"name": "ann", "perm": span}), ("enable", {}))
        yield address_of([member], "drom", login="ann:secret")


def test_a_login_opens_the_queue(guarded: StoreAddress, tmp_path: Path) -> None:
    """Another one, none, or one without rights on the prefix is told so."""
    with closing(shared_store(tmp_path / "a", guarded)) as store:
        lead(store).write([job(1)], [], [])
        store._medium.etcd._token = "gone"  # type: ignore[attr-defined] # as after a restart of the member
        store.write([job(2)], [], [])
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"login": ""}, "user name is empty: give a login with --store-login"),
        ({"login": "ann:x"}, "invalid user ID or password: correct the login in the file of --store-login"),
        (
            {"prefix": "other"},
            "permission denied: let its administrator grant this login the prefix, to read and write",
        ),
    )
    for wrong, why in cases:
        with pytest.raises(UnreadableError, match=rf"cannot be opened: .*{why}\.$"):
            shared_store(tmp_path / "b", replace(guarded, **wrong))
