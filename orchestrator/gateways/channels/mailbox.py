"""One look into a folder of an IMAP server, from connecting to the end."""

from __future__ import annotations

import contextlib
import imaplib
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from chordage.orchestrator.core.errors import Unavailable

TIMEOUT = 20.0
WIDEST = 100  # uids of one command: its length is bounded
HEADERS = 65_536  # bytes of the headers of a mail that is not fetched whole
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in every locale
_SIZE = re.compile(rb"UID (\d+).*?RFC822\.SIZE (\d+)|RFC822\.SIZE (\d+).*?UID (\d+)", re.DOTALL)


class Tls(StrEnum):
    IMPLICIT = "implicit"
    STARTTLS = "starttls"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    host: str
    port: int
    tls: Tls
    user: str
    password: str = field(repr=False)
    folder: str
    ca_file: str | None = None  # of a server whose certificate no public authority has signed


class Mailbox:
    """Raises Unavailable for all that goes wrong. `writes`: the folder is opened to be changed."""

    def __init__(self, place: Place, *, writes: bool = False) -> None:
        self._place = place
        self._writes = writes
        self._server: imaplib.IMAP4
        self.validity = 0
        self.next_uid = 1

    def __enter__(self) -> Self:
        with self._told():
            self._server = _connected(self._place)
            try:
                self._server.login(self._place.user, self._place.password)
                self._open()
            except BaseException:
                self._leave()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._leave()

    def uids(self, first: int, since: datetime | None = None) -> list[int]:
        """From that one on, in order. `n:*` finds the last one also where it lies before n."""
        asked = ["UID", f"{first}:*"]
        if since is not None:
            asked += ["SINCE", f"{since.day}-{_MONTHS[since.month - 1]}-{since.year}"]
        found = self._uid("SEARCH", *asked)
        listed = b" ".join(line for line in found if isinstance(line, bytes))
        return sorted(uid for uid in map(int, listed.split()) if uid >= first)

    def sizes(self, uids: Sequence[int]) -> dict[int, int]:
        """Of those whose size the server says."""
        sizes: dict[int, int] = {}
        for start in range(0, len(uids), WIDEST):
            for line in self._uid("FETCH", _listed(uids[start : start + WIDEST]), "(UID RFC822.SIZE)"):
                if isinstance(line, bytes) and (met := _SIZE.search(line)):
                    sizes[int(met[1] or met[4])] = int(met[2] or met[3])
        return sizes

    def headers(self, uid: int) -> bytes:
        """As far as a mail needs them: there is no bound to what a stranger may put there."""
        return self._literal(self._uid("FETCH", str(uid), f"(BODY.PEEK[HEADER]<0.{HEADERS}>)")) or b""

    def whole(self, uid: int, most: int) -> bytes | None:
        """So many bytes of it at most. None: it is gone. To look at it marks nothing."""
        return self._literal(self._uid("FETCH", str(uid), f"(BODY.PEEK[]<0.{most}>)"))

    def tidy(self, before: int, *, mark_seen: bool, move_to: str | None) -> None:
        """What lies before that uid, and is still as it came."""
        if before <= 1:
            return
        wanted = "UNDELETED" if move_to is not None else "UNSEEN"
        found = self._uid("SEARCH", "UID", f"1:{before - 1}", wanted)
        uids = sorted(map(int, b" ".join(line for line in found if isinstance(line, bytes)).split()))
        for start in range(0, len(uids), WIDEST):
            some = _listed(uids[start : start + WIDEST])
            if mark_seen:
                self._uid("STORE", some, "+FLAGS.SILENT", r"(\Seen)")
            if move_to is not None:
                self._move(some, move_to)

    def _move(self, uids: str, to: str) -> None:
        can = self._capabilities()
        if "MOVE" in can:
            self._uid("MOVE", uids, _quoted(to))
            return
        self._uid("COPY", uids, _quoted(to))
        self._uid("STORE", uids, "+FLAGS.SILENT", r"(\Deleted)")
        if "UIDPLUS" in can:  # without it, an expunge would take what others have marked
            self._uid("EXPUNGE", uids)

    def _capabilities(self) -> set[str]:
        """Of whoever is logged in: before, a server may say less."""
        with self._told():
            said = self._server.capability()[1]
            return set(b" ".join(line for line in said if isinstance(line, bytes)).decode("ascii", "replace").split())

    def _open(self) -> None:
        kind, said = self._server.select(_quoted(self._place.folder), readonly=not self._writes)
        if kind != "OK":
            raise Unavailable(f"{self._place.host} has no folder {self._place.folder!r}: {_words(said)}")
        self.validity = self._number("UIDVALIDITY")
        self.next_uid = self._number("UIDNEXT")

    def _number(self, name: str) -> int:
        said = self._server.response(name)[1]
        if not said or said[-1] is None:
            raise Unavailable(f"{self._place.host} does not say the {name} of {self._place.folder!r}")
        return int(said[-1])

    def _uid(self, command: str, *arguments: str) -> list[Any]:
        with self._told():
            kind, said = self._server.uid(command, *arguments)
            if kind != "OK":
                raise Unavailable(f"{self._place.host} refused {command}: {_words(said)}")
            return [line for line in said if line is not None]

    @staticmethod
    def _literal(said: Sequence[Any]) -> bytes | None:
        return next((line[1] for line in said if isinstance(line, tuple)), None)

    def _leave(self) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            with contextlib.suppress(imaplib.IMAP4.error, OSError):
                server.logout()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (imaplib.IMAP4.error, OSError, ValueError) as error:
            raise Unavailable(f"{self._place.host}:{self._place.port}: {_said(error)}") from None


def _connected(place: Place) -> imaplib.IMAP4:
    if place.tls is Tls.IMPLICIT:
        trusted = ssl.create_default_context(cafile=place.ca_file)
        return imaplib.IMAP4_SSL(place.host, place.port, ssl_context=trusted, timeout=TIMEOUT)
    server = imaplib.IMAP4(place.host, place.port, timeout=TIMEOUT)
    if place.tls is Tls.STARTTLS:
        try:
            server.starttls(ssl.create_default_context(cafile=place.ca_file))
        except BaseException:
            server.shutdown()
            raise
    return server


def _listed(uids: Sequence[int]) -> str:
    return ",".join(map(str, uids))


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _words(said: Sequence[Any]) -> str:
    return " ".join(line.decode("utf-8", "replace") for line in said if isinstance(line, bytes)) or "no reason given"


def _said(error: Exception) -> str:
    told = error.args[0] if error.args else error
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else f"{type(error).__name__}: {error}"
