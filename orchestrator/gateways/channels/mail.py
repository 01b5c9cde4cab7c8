"""A mail, made a message of: who writes, what it says, to which thread it belongs, and whether a program wrote it."""

from __future__ import annotations

import email
from dataclasses import dataclass
from email.message import EmailMessage
from email.parser import BytesHeaderParser
from email.policy import EmailPolicy
from email.utils import parseaddr
from hashlib import sha256
from typing import Any

from chordage.orchestrator.core import text
from chordage.orchestrator.core.channels import Incoming, Unreadable
from chordage.orchestrator.core.message import Sender
from chordage.orchestrator.gateways.channels.ids import matches
from chordage.orchestrator.gateways.channels.mail_text import text_of

LONGEST = 500  # characters of a header that is kept
REFERENCES = 20
_READ, _READ_OF_REFERENCES = 2000, 20_000  # characters of a header that are taken apart: it may cost their square
_BULK = frozenset({"bulk", "list", "junk", "auto_reply"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """By the address in From, which anybody can write there: it is worth what the mail server's checks are worth."""

    owners: frozenset[str]
    peers: frozenset[str]
    allowed: frozenset[str]

    def sender(self, address: str) -> Sender | None:
        for listed, sender in ((self.owners, Sender.OWNER), (self.peers, Sender.PEER), (self.allowed, Sender.GUEST)):
            if matches(address, listed):
                return sender
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    access: Access
    own: str  # our own address: what we have sent is not answered
    by_references: bool
    automatic: bool  # whether mail of programs is read

    def lets_in(self, mail: EmailMessage) -> bool:
        writer = writer_of(mail)
        heard = self.access.sender(writer) is not None and writer != self.own
        return heard and (self.automatic or not is_automatic(mail))


class _Bounded(EmailPolicy):
    """Anybody can write to us: no header is read further than a mail needs, and one that cannot be read is empty."""

    def header_fetch_parse(self, name: str, value: str) -> str:
        longest = _READ_OF_REFERENCES if name.lower() in {"references", "in-reply-to"} else _READ
        try:
            read: str = super().header_fetch_parse(name, value[:longest])
        except Exception:  # of the parser: RecursionError and errors of its own among them
            read = super().header_fetch_parse(name, "")
        return read


_POLICY: Any = _Bounded()  # typeshed knows no policy of EmailMessage but its own


def headers_of(raw: bytes) -> EmailMessage:
    """Its headers alone: nothing that a stranger has put together is taken apart further."""
    headers: EmailMessage = BytesHeaderParser(policy=_POLICY).parsebytes(raw)
    return headers


def read(raw: bytes, rules: Rules, key: str, cursor: str | None) -> Incoming | Unreadable | None:
    """None: it is none for us. A mail that cannot be taken apart is put on record: it never holds up those behind it,
    whatever the parser says of it.
    """
    if not rules.lets_in(headers_of(raw)):
        return None
    try:
        return _message(email.message_from_bytes(raw, policy=_POLICY), rules, key, cursor)
    except Exception as error:
        why = f"the mail cannot be read ({type(error).__name__}: {error})"
        return Unreadable(key=key, why=why, excerpt=raw[:200].decode("utf-8", "replace"), cursor=cursor)


def _message(mail: EmailMessage, rules: Rules, key: str, cursor: str | None) -> Incoming:
    writer, told = writer_of(mail), _header(mail, "Message-ID")
    references = _ids(mail, "References") or _ids(mail, "In-Reply-To")
    root = references[0] if references else told
    return Incoming(
        key=key_of(mail, key),
        text=text.clean_text(text_of(mail)),
        sender=rules.access.sender(writer) or Sender.GUEST,
        address={
            "to": writer,
            "subject": subject_of(mail),
            "in_reply_to": told,
            "references": [*references, *([told] if told and told not in references else [])][-REFERENCES:],
        },
        thread=f"{writer}:{_short(root)}" if rules.by_references and root else writer,
        meta=_meta(mail, told),
        cursor=cursor,
    )


def _meta(mail: EmailMessage, told: str) -> dict[str, Any]:
    files = [text.clean_text(part.get_filename() or part.get_content_type())[:200] for part in mail.iter_attachments()]
    meta: dict[str, Any] = {"subject": subject_of(mail), "message_id": told, "date": _header(mail, "Date")}
    return {**meta, "attachments": files[:50]} if files else meta


def key_of(mail: EmailMessage, otherwise: str) -> str:
    """By what the mail says of itself: it stays when the server numbers its mail anew, or has it twice."""
    told = _header(mail, "Message-ID")
    if not told:
        return otherwise
    return "mail:" + sha256("\n".join((told, writer_of(mail), _header(mail, "Date"))).encode()).hexdigest()[:40]


def writer_of(mail: EmailMessage) -> str:
    return text.clean_text(parseaddr(_header(mail, "From"))[1].strip().lower())


def subject_of(mail: EmailMessage) -> str:
    return _header(mail, "Subject")


def is_automatic(mail: EmailMessage) -> bool:
    """To answer one program may set two of them talking for ever."""
    said = _header(mail, "Auto-Submitted").partition(";")[0].strip().lower()
    return (
        said not in {"", "no"}
        or _header(mail, "Precedence").strip().lower() in _BULK
        or "X-Autoreply" in mail
        or _header(mail, "Return-Path").strip() == "<>"
    )


def _ids(mail: EmailMessage, name: str) -> list[str]:
    return [one for one in _header(mail, name, 20_000).split() if one.startswith("<") and len(one) <= LONGEST]


def _header(mail: EmailMessage, name: str, longest: int = LONGEST) -> str:
    found = mail[name]
    return "" if found is None else " ".join(text.clean_text(str(found)).split())[:longest]


def _short(root: str) -> str:
    return sha256(root.encode()).hexdigest()[:16]
