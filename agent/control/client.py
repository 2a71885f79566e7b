# SPDX-License-Identifier: Apache-2.0
"""Send orders to an agent or a scheduler, on this node or another, and receive an agent's signals."""

from __future__ import annotations

import os
import shlex
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq
from drom.agent.control import local_client
from drom.agent.control.messages import AGENT, Service, _object, endpoint, request
from drom.agent.errors import ControlError, ElsewhereError, NotYetError, RefusedError, UnreachableError
from drom.agent.ipc.runtime_dir import fault_of
from drom.agent.system.paths import may_write
from drom.agent.text import escaped

from dromlib import signals as events

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from drom.agent.control.remote import RemoteAddress


TIMEOUT_MS = 30_000
"""Milliseconds to wait for the answer of a listening agent, which takes milliseconds, or seconds under overload."""


def order(
    where: Path | RemoteAddress,
    name: str,
    *,
    server: Service = AGENT,
    patience_ms: int | None = None,
    **fields: Any,  # noqa: ANN401 - JSON values
) -> Any:  # noqa: ANN401 - a JSON value
    """Send one order to the agent of a runtime directory, or to a remote one, and return the value it answers.

    `server` is the kind of service, the agent unless another one is given. With `patience_ms` a server that does not
    answer the connection within so many milliseconds is sent nothing.

    Raises `ControlError` if the server refuses, if there is no answer within `TIMEOUT_MS`, and if the order is longer
    than the server accepts, and `UnreachableError` if none listens, or answers the connection.
    """
    if isinstance(where, Path):
        with closing(Connection(where, server, patience_ms=patience_ms)) as connection:
            return connection.order(name, **fields)
    if patience_ms is not None:
        where = replace(where, patience_ms=patience_ms)
    who = f"the {server.name} at {where}"
    data = _ask_far(where, request(name, server.longest, **fields), server)
    if data is None:
        raise ControlError(_silence(who, TIMEOUT_MS / 1000))
    return _value(data, server, who)


class Connection:
    """A connection to a server on this node for any number of orders, made at the first one and after a failure.

    `seconds`: how long to wait for an answer, `TIMEOUT_MS` by default. `patience_ms`: as for `order`.
    """

    def __init__(
        self,
        directory: Path,
        server: Service = AGENT,
        seconds: float | None = None,
        *,
        patience_ms: int | None = None,
    ) -> None:
        self._directory, self._server = directory, server
        self._seconds = TIMEOUT_MS / 1000 if seconds is None else seconds
        self._patience = None if patience_ms is None else patience_ms / 1000
        self._socket: socket.socket | None = None

    def order(self, name: str, **fields: Any) -> Any:  # noqa: ANN401 - JSON values
        """Send an order and return the value that the server answers. Raises `ControlError` as `order` does."""
        message = request(name, self._server.longest, **fields)
        who = f"the {self._server.name} in {self._directory}"
        greeted, answer = self._socket is not None, None
        self._socket = self._socket or _connected(self._directory, self._server, self._seconds, self._patience)
        try:
            answer = local_client.ask(self._socket, message, greeted=greeted)
        except TimeoutError as error:
            raise ControlError(_silence(who, self._seconds)) from error
        except OSError as error:
            raise ControlError(
                f"{who} closed the connection: it has ended, or has too many connections: try again."
            ) from error
        finally:
            if answer is None:  # a late answer would be taken for that of the next order
                self.close()
        return _value(answer, self._server, who)

    def close(self) -> None:
        """Close the connection."""
        if self._socket:
            self._socket.close()
            self._socket = None


def _value(data: bytes, server: Service, who: str) -> Any:  # noqa: ANN401 - a JSON value
    """Return the value in an answer. Raises `ControlError` if it is a refusal."""
    answer = _object(data)
    if "value" not in answer:  # the registration socket answers with a reason
        said = str(answer.get("error") or answer.get("reason") or f"{who} is of another version: restart it.")
        fields = {"elsewhere": ElsewhereError, "again": NotYetError}
        kind = next((kind for field, kind in fields.items() if answer.get(field) is True), RefusedError)
        raise kind("\n".join(map(escaped, said.split("\n"))))
    return answer["value"] if server is not AGENT or _is_plain(data) else _plain(answer["value"])


def _silence(who: str, seconds: float) -> str:
    return f"{who} has not answered for {seconds:g} s: it is stopped, or this machine overloaded."


def _ask_far(where: RemoteAddress, message: bytes, server: Service) -> bytes | None:
    """Return the answer of a server on another node, None if there is none in time. Raises `ControlError`."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        return where.ask(sock, message, server, TIMEOUT_MS)


def _connected(runtime_dir: Path, server: Service, seconds: float, patience: float | None = None) -> socket.socket:
    """Return a connection to the control socket in a runtime directory, with a timeout of `seconds` for orders.

    The server has accepted it, unless `patience` is None, the time in seconds for that. Raises `ControlError`.
    """
    path = Path(endpoint(runtime_dir, "control").removeprefix("ipc://"))
    greeted = patience is not None
    limit = seconds if patience is None else patience
    _check_owner(runtime_dir)
    try:
        connection = local_client.connect(path, limit, trusted=server is not AGENT, greeted=greeted)
    except local_client.ForeignListenerError as error:
        msg = f"the {server.name} in {runtime_dir} is user {error.uid}'s, not root's or yours: {_ELSEWHERE}"
        raise ControlError(msg) from error
    except TimeoutError as error:
        raise UnreachableError(_silence(f"the {server.name} in {runtime_dir}", limit)) from error
    except PermissionError as error:
        msg = f"you may not enter {runtime_dir}: name the directory of one that you may use with {server.place}."
        raise ControlError(msg) from error
    except OSError as error:
        start = f"start one with: {server.command} {shlex.quote(str(runtime_dir))}"
        if not may_write(runtime_dir):
            start = (
                "you cannot start one there: ask an administrator to, "
                f"or name the directory of your own {server.name} with {server.place}"
            )
        raise UnreachableError(f"no {server.name} answers in {runtime_dir}: {start}") from error
    connection.settimeout(seconds)
    return connection


_ELSEWHERE = "name the directory of your agent with DROM_RUNTIME_DIR."


def _is_plain(data: bytes) -> bool:
    """Return whether no text of a JSON value needs escaping; JSON itself escapes control characters."""
    return data.isascii() and b"\\" not in data and b"\x7f" not in data


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON values
    """Return an agent's answer with texts escaped for display, as they may be another user's."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return escaped(value) if isinstance(value, str) else value


def _check_owner(runtime_dir: Path) -> None:
    if fault := fault_of(runtime_dir, os.geteuid()):
        raise ControlError(f"{runtime_dir} {fault}: {_ELSEWHERE}")


def signals(runtime_dir: Path, slot: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the agent's events, of one slot or of all, until the caller stops. The registry is authoritative."""
    _connected(runtime_dir, AGENT, TIMEOUT_MS / 1000).close()
    with zmq.Context() as context, events.subscribe(context, runtime_dir, slot) as sock:
        while True:
            yield events.event(sock.recv())
