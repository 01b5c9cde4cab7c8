"""A network between a client and a server on this machine that can be cut, delayed or made silent."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

CHUNK = 64 * 1024
TICK = 0.05  # seconds between two looks at what the network does now


class TcpProxy:
    """Listens on a free port of 127.0.0.1 and passes everything on to `port`, both ways."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._delay = 0.0
        self._silent = threading.Event()
        self._closed = False
        self._is_cut = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Every connection is reset, and new ones are too."""
        self._is_cut = True
        self._reset_all()
        try:
            yield
        finally:
            self._is_cut = False

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Connections stay, and nothing gets through. What was sent meanwhile arrives afterwards."""
        self._silent.set()
        try:
            yield
        finally:
            self._silent.clear()

    @contextlib.contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Whatever is sent arrives later by so much."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._reset_all()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        if self._is_cut:
            _reset(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=60)
        except OSError:  # the server is away: the client learns it as it would without us
            _reset(client)
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._pairs.add((client, server))
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, sink, (client, server)), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if self._delay:
                    time.sleep(self._delay)
                while self._silent.is_set():
                    time.sleep(TICK)
                sink.sendall(data)
        self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _reset_all(self) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
