"""A server that does with a connection exactly what a test says, plain or TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Talk = Callable[[socket.socket, threading.Event], None]
# TLS without certificates: what is under test is waiting inside TLS, and a repository is no place for keys.
_ANONYMOUS = "AECDH-AES128-SHA:@SECLEVEL=0"


class RawServer:
    """Gives every connection to `talk`, with an event that is set when the test is over."""

    def __init__(self, talk: Talk, *, tls: bool = False) -> None:
        self.connections = 0
        self.over = threading.Event()
        self._talk = talk
        self._tls = anonymous_tls(ssl.PROTOCOL_TLS_SERVER) if tls else None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if self._tls is None:
                self._talk(connection, self.over)
                return
            with self._tls.wrap_socket(connection, server_side=True) as wrapped:
                self._talk(wrapped, self.over)


@contextmanager
def raw_server(talk: Talk, *, tls: bool = False) -> Iterator[RawServer]:
    server = RawServer(talk, tls=tls)
    try:
        yield server
    finally:
        server.close()


def anonymous_tls(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_ANONYMOUS)
    return context


def read_request(connection: socket.socket) -> bytes:
    """One whole request, head and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), 0)
    while len(body) < length:
        body += _more(connection)
    return head + b"\r\n\r\n" + body


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    if not data:
        raise ConnectionError("the client went away")
    return data


def stream_head() -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
