"""A reply by mail: in the conversation of the mail that asked, with an id that is the same each time it is sent."""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from email.utils import formatdate
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any

from pydantic import Field

from chordage.orchestrator.core.channels import Outgoing
from chordage.orchestrator.core.errors import Unavailable, Undeliverable
from chordage.orchestrator.gateways.channels.replies import text_of
from chordage.orchestrator.gateways.room.tables import OneOf, PositiveCount, Text, TomlTable

TIMEOUT = 20.0  # seconds: to connect, and then for the rest; less than the lease of a delivery


class Tls(StrEnum):
    IMPLICIT = "implicit"
    STARTTLS = "starttls"
    NONE = "none"


_PORTS = {Tls.IMPLICIT: 465, Tls.STARTTLS: 587, Tls.NONE: 25}


class SmtpTable(TomlTable):
    host: Text = Field(examples=["smtp.example.org"], description="The mail server")
    port: PositiveCount | None = Field(None, description="Default 587; 465 with implicit TLS, 25 without TLS")
    tls: Annotated[Tls, OneOf()] = Field(Tls.STARTTLS, description="How the connection is encrypted")
    user: Text | None = Field(None, description="Together with password, where the server wants them")
    password: Text | None = Field(None, repr=False, description="Better as password_env")
    sender: Text | None = Field(None, alias="from", description="The sender; default the user of the mailbox")

    @property
    def real_port(self) -> int:
        return self.port or _PORTS[self.tls]


def send(table: SmtpTable, user: str, address: Mapping[str, Any], reply: Outgoing) -> None:
    """`user`: of the mailbox."""
    mail = reply_mail(table.sender or user, address, reply)
    try:
        with _connected(table) as server, _cut_after(TIMEOUT, server):
            if table.user is not None and table.password is not None:
                server.login(table.user, table.password)
            server.send_message(mail)
    except smtplib.SMTPAuthenticationError as error:
        raise Unavailable(f"{table.host} refuses user and password ({error.smtp_code})") from None
    except smtplib.SMTPRecipientsRefused as error:
        raise _refusal(
            table, max((code for code, _ in error.recipients.values()), default=550), "the recipient"
        ) from None
    except smtplib.SMTPResponseException as error:
        raise _refusal(table, error.smtp_code, "the mail") from None
    except (smtplib.SMTPException, OSError) as error:
        raise Unavailable(
            f"{table.host}:{table.real_port} does not take mail ({type(error).__name__}: {error})"
        ) from None


@contextmanager
def _cut_after(seconds: float, server: smtplib.SMTP) -> Iterator[None]:
    """The timeout of a socket is that of a single read, and an answer may come byte by byte."""

    def cut() -> None:
        sock = server.sock  # another one since STARTTLS
        with suppress(OSError):  # it has just been closed
            if sock is not None:
                sock.shutdown(socket.SHUT_RDWR)

    watch = threading.Timer(seconds, cut)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def reply_mail(sender: str, address: Mapping[str, Any], reply: Outgoing) -> EmailMessage:
    mail = EmailMessage()
    try:
        mail["From"], mail["To"] = sender, str(address["to"])
        mail["Subject"] = _subject(str(address.get("subject") or ""))
        mail["Message-ID"] = message_id(reply.key, sender)
        mail["Auto-Submitted"] = "auto-replied"
        if in_reply_to := address.get("in_reply_to"):
            mail["In-Reply-To"] = str(in_reply_to)
        if references := address.get("references"):
            mail["References"] = " ".join(map(str, references))
    except (KeyError, ValueError) as error:
        raise Undeliverable(f"no mail can be addressed so ({type(error).__name__}: {error})") from None
    mail["Date"] = formatdate()
    mail.set_content(text_of(reply))
    return mail


def message_id(key: str, sender: str) -> str:
    """The same for the same reply: a mailbox may drop the second copy."""
    domain = sender.rpartition("@")[2].strip("> ") or "localhost"
    return f"<{sha256(key.encode()).hexdigest()[:40]}@{domain}>"


def _subject(subject: str) -> str:
    return subject if subject.lower().startswith("re:") else f"Re: {subject}".strip()


def _connected(table: SmtpTable) -> smtplib.SMTP:
    if table.tls is Tls.IMPLICIT:
        return smtplib.SMTP_SSL(table.host, table.real_port, timeout=TIMEOUT, context=ssl.create_default_context())
    server = smtplib.SMTP(table.host, table.real_port, timeout=TIMEOUT)
    if table.tls is Tls.STARTTLS:
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def _refusal(table: SmtpTable, code: int, what: str) -> Unavailable | Undeliverable:
    why = f"{table.host} refuses {what} ({code})"
    return Undeliverable(why) if code >= 500 else Unavailable(why)
