"""A mailbox as a binding describes it, and one session with a folder of its IMAP server."""

from __future__ import annotations

import contextlib
import imaplib
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import Field

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.gateways.channels.ids import Ids
from chordage.orchestrator.gateways.channels.smtp import SmtpTable, Tls
from chordage.orchestrator.gateways.room.tables import Flag, OneOf, PositiveCount, Text, TomlTable

MANY_BYTES = 10 * 1024 * 1024
TIMEOUT = 20.0
WIDEST = 100  # uids of one command: its length is bounded
HEADERS = 65_536  # bytes of the headers of a mail that is not fetched whole
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in every locale
_SIZE = re.compile(rb"UID (\d+).*?RFC822\.SIZE (\d+)|RFC822\.SIZE (\d+).*?UID (\d+)", re.DOTALL)


class ImapTable(TomlTable):
    host: Text = Field(examples=["imap.example.org"], description="The mail server")
    port: PositiveCount | None = Field(None, description="Default 993, or 143 without implicit TLS")
    tls: Annotated[Tls, OneOf()] = Field(Tls.IMPLICIT, description="How the connection is encrypted")
    user: Text = Field(examples=["ada@example.org"], description="The name of the mailbox's user")
    password: Text = Field(repr=False, examples=["secret"], description="The user's password; better as password_env")
    folder: Text = Field("INBOX", description="The folder to read")
    ca_file: Text | None = Field(None, description="A file with the certificates of authorities to trust")
    read_old: Flag = Field(False, description="Read mail that was there before the first poll")
    max_bytes: PositiveCount = Field(MANY_BYTES, description="Bytes of one mail")
    mark_seen: Flag = Field(False, description="Mark stored mail as seen")
    move_to: Text | None = Field(None, description="The folder to move stored mail to")
    owner_addresses: Ids = Field(frozenset(), description="Who speaks as owner: addresses, or domains as @example.org")
    peer_addresses: Ids = Field(frozenset(), description="Who speaks as a peer")
    allowed_senders: Ids = Field(frozenset(), description="Who speaks as a guest")
    thread_by_references: Flag = Field(False, description="A reply belongs to the thread of the mail it answers")
    accept_automatic: Flag = Field(False, description="Read mail that programs have sent")
    smtp: SmtpTable | None = Field(None, description="Where answers are sent")

    @property
    def real_port(self) -> int:
        return self.port or (993 if self.tls is Tls.IMPLICIT else 143)


class Mailbox:
    """Raises Unavailable whatever goes wrong. `writes`: whether to open the folder for changes."""

    def __init__(self, config: ImapTable, *, writes: bool = False) -> None:
        self._config = config
        self._writes = writes
        self._server: imaplib.IMAP4
        self.validity = 0
        self.next_uid = 1

    def __enter__(self) -> Self:
        with self._as_unavailable():
            self._server = _connected(self._config)
            try:
                self._server.login(self._config.user, self._config.password)
                self._open()
            except BaseException:
                self._leave()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._leave()

    def uids(self, first: int, since: datetime | None = None) -> list[int]:
        """From this one on, in order. `n:*` finds the last mail also if its uid is below n."""
        query = ["UID", f"{first}:*"]
        if since is not None:
            query += ["SINCE", f"{since.day}-{_MONTHS[since.month - 1]}-{since.year}"]
        return [uid for uid in self._search(*query) if uid >= first]

    def sizes(self, uids: Sequence[int]) -> dict[int, int]:
        """Of the mails whose size the server says."""
        sizes: dict[int, int] = {}
        for start in range(0, len(uids), WIDEST):
            for line in self._uid("FETCH", _listed(uids[start : start + WIDEST]), "(UID RFC822.SIZE)"):
                if isinstance(line, bytes) and (match := _SIZE.search(line)):
                    sizes[int(match[1] or match[4])] = int(match[2] or match[3])
        return sizes

    def headers(self, uid: int) -> bytes:
        """The first bytes of them: a stranger may send headers without end."""
        return self._literal(self._uid("FETCH", str(uid), f"(BODY.PEEK[HEADER]<0.{HEADERS}>)")) or b""

    def whole(self, uid: int, most: int) -> bytes | None:
        """At most so many bytes of it. None: it is gone. The mail is not marked as seen."""
        return self._literal(self._uid("FETCH", str(uid), f"(BODY.PEEK[]<0.{most}>)"))

    def tidy(self, before: int, *, mark_seen: bool, move_to: str | None) -> None:
        """Mark or move the mails before this uid that are not marked or moved yet."""
        if before <= 1:
            return
        wanted = "UNDELETED" if move_to is not None else "UNSEEN"
        uids = self._search("UID", f"1:{before - 1}", wanted)
        for start in range(0, len(uids), WIDEST):
            some = _listed(uids[start : start + WIDEST])
            if mark_seen:
                self._uid("STORE", some, "+FLAGS.SILENT", r"(\Seen)")
            if move_to is not None:
                self._move(some, move_to)

    def _search(self, *query: str) -> list[int]:
        lines = self._uid("SEARCH", *query)
        return sorted(map(int, b" ".join(line for line in lines if isinstance(line, bytes)).split()))

    def _move(self, uids: str, to: str) -> None:
        capabilities = self._capabilities()
        if "MOVE" in capabilities:
            self._uid("MOVE", uids, _quoted(to))
            return
        self._uid("COPY", uids, _quoted(to))
        self._uid("STORE", uids, "+FLAGS.SILENT", r"(\Deleted)")
        if "UIDPLUS" in capabilities:  # without it, an expunge would remove what others have marked
            self._uid("EXPUNGE", uids)

    def _capabilities(self) -> set[str]:
        """After the login: before it, a server may say less."""
        with self._as_unavailable():
            lines = self._server.capability()[1]
            return set(b" ".join(line for line in lines if isinstance(line, bytes)).decode("ascii", "replace").split())

    def _open(self) -> None:
        status, lines = self._server.select(_quoted(self._config.folder), readonly=not self._writes)
        if status != "OK":
            raise Unavailable(f"{self._config.host} has no folder {self._config.folder!r}: {_text(lines)}")
        self.validity = self._number("UIDVALIDITY")
        self.next_uid = self._number("UIDNEXT")

    def _number(self, name: str) -> int:
        lines = self._server.response(name)[1]
        if not lines or lines[-1] is None:
            raise Unavailable(f"{self._config.host} does not say the {name} of {self._config.folder!r}")
        return int(lines[-1])

    def _uid(self, command: str, *arguments: str) -> list[Any]:
        with self._as_unavailable():
            status, lines = self._server.uid(command, *arguments)
            if status != "OK":
                raise Unavailable(f"{self._config.host} refused {command}: {_text(lines)}")
            return [line for line in lines if line is not None]

    @staticmethod
    def _literal(lines: Sequence[Any]) -> bytes | None:
        return next((line[1] for line in lines if isinstance(line, tuple)), None)

    def _leave(self) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            with contextlib.suppress(imaplib.IMAP4.error, OSError):
                server.logout()

    @contextmanager
    def _as_unavailable(self) -> Iterator[None]:
        try:
            yield
        except (imaplib.IMAP4.error, OSError, ValueError) as error:
            raise Unavailable(f"{self._config.host}:{self._config.real_port}: {_reason(error)}") from None


def _connected(config: ImapTable) -> imaplib.IMAP4:
    if config.tls is Tls.IMPLICIT:
        trusted = ssl.create_default_context(cafile=config.ca_file)
        return imaplib.IMAP4_SSL(config.host, config.real_port, ssl_context=trusted, timeout=TIMEOUT)
    server = imaplib.IMAP4(config.host, config.real_port, timeout=TIMEOUT)
    if config.tls is Tls.STARTTLS:
        try:
            server.starttls(ssl.create_default_context(cafile=config.ca_file))
        except BaseException:
            server.shutdown()
            raise
    return server


def _listed(uids: Sequence[int]) -> str:
    return ",".join(map(str, uids))


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(lines: Sequence[Any]) -> str:
    return " ".join(line.decode("utf-8", "replace") for line in lines if isinstance(line, bytes)) or "no reason given"


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else f"{type(error).__name__}: {error}"
