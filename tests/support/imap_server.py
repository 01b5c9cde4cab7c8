"""A real IMAP server in a process of its own, with one empty mailbox, and what a mail server would put into it."""

from __future__ import annotations

import imaplib
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from chordage.workers.fleet.member import free_port
from support import processes
from support.waiting import until

USER, PASSWORD = "agent@example.org", "open-sesame-7"
PROGRAM = "from pymap.main import main; main()"


def a_mail(number: int, text: str | None = None, **headers: str) -> bytes:
    """A header that is given as "" is left out. Three people write."""
    usual = {
        "From": f"Friend {number % 3} <friend{number % 3}@example.org>", "To": USER, "Subject": f"Subject {number}",
        "Message-ID": f"<mail{number}@example.org>", "Date": "Thu, 01 Jan 2026 12:00:00 +0000",
    }  # fmt: skip
    mail = EmailMessage()
    for name, value in {**usual, **{name.replace("_", "-"): value for name, value in headers.items()}}.items():
        if value:
            mail[name] = value
    mail.set_content(text if text is not None else f"mail {number}")
    return mail.as_bytes()


@dataclass
class ImapServer:
    port: int

    def config(self, **more: Any) -> dict[str, Any]:
        """Of a binding."""
        usual = {"host": "127.0.0.1", "port": self.port, "tls": "none", "user": USER, "password": PASSWORD}
        return {**usual, "allowed_senders": ["@example.org"], **more}

    @contextmanager
    def connected(self) -> Iterator[imaplib.IMAP4]:
        server = imaplib.IMAP4("127.0.0.1", self.port, timeout=60)
        try:
            server.login(USER, PASSWORD)
            yield server
        finally:
            server.logout()

    def drop(self, mails: Sequence[bytes], folder: str = "INBOX") -> None:
        with self.connected() as server:
            for mail in mails:
                kind, said = server.append(folder, None, None, mail)
                assert kind == "OK", said

    def flags(self) -> list[bytes]:
        """Of each mail, in order."""
        with self.connected() as server:
            server.select("INBOX", readonly=True)
            return [line for line in server.fetch("1:*", "(FLAGS)")[1] if isinstance(line, bytes)]

    def count(self, folder: str = "INBOX") -> int:
        with self.connected() as server:
            return int(server.select(folder, readonly=True)[1][0] or 0)

    def make(self, folder: str) -> None:
        with self.connected() as server:
            assert server.create(folder)[0] == "OK"

    def number_anew(self, folder: str) -> None:
        """The folder with its mail is another one now, with another UIDVALIDITY."""
        with self.connected() as server:
            server.select(folder, readonly=True)
            raw = [line[1] for line in server.fetch("1:*", "(BODY.PEEK[])")[1] if isinstance(line, tuple)]
        with self.connected() as server:
            assert server.delete(folder)[0] == "OK"
            assert server.create(folder)[0] == "OK"
        self.drop(raw, folder)


@contextmanager
def imap_server(folder: Path) -> Iterator[ImapServer]:
    port = free_port()
    options = ("--no-tls", "--host", "127.0.0.1", "--port", str(port))
    who = ("dict", "--demo-user", USER, "--demo-password", PASSWORD)
    log = folder / "imap.log"
    process = processes.spawn([sys.executable, "-W", "ignore", "-c", PROGRAM, *options, *who], log)
    try:
        until(lambda: _listens(port) or process.poll() is not None, "the IMAP server listens")
        assert process.poll() is None, log.read_text()
        yield ImapServer(port)
    finally:
        processes.kill_tree(process)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
    except OSError:
        return False
    return True
