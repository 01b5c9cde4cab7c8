"""A pooler in transaction mode before PostgreSQL, as PgBouncer is by default: it refuses start-up options and named
statements, and each transaction of a client gets another session than the one before.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

from sqlalchemy import make_url

from support.raw_server import RawServer

KNOWN = {"user", "database", "client_encoding", "application_name", "datestyle", "timezone"}
SSL_OR_GSS = (80877103, 80877104)
SESSIONS = 3  # for each client


class TransactionPooler:
    def __init__(self, url: str) -> None:
        self._server = make_url(url)
        self.transactions: list[int] = []  # the session of each
        self.named: list[bytes] = []  # statements that were refused
        self._listener = RawServer(self._serve)
        self.url = self._server.set(host="127.0.0.1", port=self._listener.port).render_as_string(hide_password=False)

    def close(self) -> None:
        self._listener.close()

    def _serve(self, client: socket.socket, over: threading.Event) -> None:
        start_up = _start_up_of(client)
        words = start_up[8:].rstrip(b"\0").split(b"\0")
        if unknown := {name.decode() for name in words[::2]} - KNOWN:
            client.sendall(_fatal(f"unsupported startup parameter: {min(unknown)}"))
            return
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(self._session(start_up)) for _ in range(SESSIONS)]
            greetings = [_until_ready(session) for session in sessions]
            client.sendall(greetings[0])
            self._relay(client, sessions, over)

    @contextlib.contextmanager
    def _session(self, start_up: bytes) -> Iterator[socket.socket]:
        with socket.create_connection((self._server.host, self._server.port or 5432)) as session:
            session.sendall(start_up)
            yield session

    def _relay(self, client: socket.socket, sessions: list[socket.socket], over: threading.Event) -> None:
        number, asked, is_idle = 0, 0, True
        while not over.is_set():
            session = sessions[number]
            readable, _, _ = select.select([client, session], [], [], 0.1)
            if client in readable:
                kind, message = _message(client)
                if kind == b"P" and (name := message[5:].partition(b"\0")[0]):
                    self.named.append(name)
                    client.sendall(_fatal("a named statement in transaction mode"))
                    return
                if is_idle:
                    self.transactions.append(number)
                    is_idle = False
                asked += kind in {b"Q", b"S"}
                session.sendall(message)
                if kind == b"X":
                    return
            elif session in readable:
                kind, message = _message(session)
                client.sendall(message)
                if kind == b"Z":
                    asked -= 1
                    if asked == 0 and message[5:6] == b"I":
                        number, is_idle = (number + 1) % len(sessions), True


def _exactly(peer: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        if not (piece := peer.recv(length - len(received))):
            raise ConnectionError("the peer has closed the connection")
        received += piece
    return received


def _message(peer: socket.socket) -> tuple[bytes, bytes]:
    """Its kind, and all of it."""
    head = _exactly(peer, 5)
    return head[:1], head + _exactly(peer, struct.unpack("!i", head[1:])[0] - 4)


def _start_up_of(client: socket.socket) -> bytes:
    while True:
        head = _exactly(client, 8)
        length, code = struct.unpack("!ii", head)
        if code not in SSL_OR_GSS:
            return head + _exactly(client, length - 8)
        client.sendall(b"N")


def _until_ready(session: socket.socket) -> bytes:
    greeting = b""
    while True:
        kind, message = _message(session)
        greeting += message
        if kind in {b"Z", b"E"}:
            return greeting


def _fatal(text: str) -> bytes:
    fields = b"".join((b"SFATAL\0", b"VFATAL\0", b"C08P01\0", b"M", text.encode(), b"\0\0"))
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


@contextlib.contextmanager
def transaction_pooler(url: str) -> Iterator[TransactionPooler]:
    pooler = TransactionPooler(url)
    try:
        yield pooler
    finally:
        pooler.close()
